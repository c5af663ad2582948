"""The gate with every choice in the open, in float64. A plan of defaults gives the gates of `verify.bounds`.

T tokens, S streams, D hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from formats.floats import from_bf16, to_bf16

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class GatePlan:
    """The choices; every default is the right one but eps and clamp, which are the profile's."""

    eps: float
    clamp: float
    joint: bool = False  # mean squares over all streams together
    norm: bool = True  # the stream and the key are divided by their root mean squares
    weights: Literal["both", "none", "folded in bf16"] = "both"
    root: bool = True  # the signed square root
    width: bool = True  # the dot product is divided by sqrt(D)
    sign: Literal["copysign", "sign"] = "copysign"
    clamp_after: bool = False  # the clamp bounds the root
    masked: bool = True  # dead positions have gate 0
    value_as_key: bool = False  # the outputs were split with the value first


@dataclass(frozen=True)
class GateInputs:
    """BF16 bits, and weights as BF16 bits or F32."""

    hidden: NDArray[np.uint16]  # [T, S, D]
    key: NDArray[np.uint16]  # [T, S, D]
    value: NDArray[np.uint16]  # [T, D]
    q_weight: NDArray[Any]  # [S, D]
    k_weight: NDArray[Any]  # [S, D]
    mask: NDArray[np.bool_] | None = None
    sums: dict[object, Float64] = field(default_factory=dict)  # kept between plans

    def some(self, at: NDArray[np.int64]) -> GateInputs:
        """The inputs of these tokens."""
        mask = None if self.mask is None else self.mask[at]
        return GateInputs(self.hidden[at], self.key[at], self.value[at], self.q_weight, self.k_weight, mask)


def gates(plan: GatePlan, inputs: GateInputs) -> Float64:
    """[T, S]."""
    D = inputs.hidden.shape[-1]
    with np.errstate(all="ignore"):
        dot = _sum(inputs, plan.value_as_key, plan.weights)
        if plan.norm:
            hh, kk = _sum(inputs, False, "hh"), _sum(inputs, plan.value_as_key, "kk")
            if plan.joint:
                hh, kk = (np.broadcast_to(each.mean(axis=1, keepdims=True), each.shape) for each in (hh, kk))
            dot = dot / np.sqrt((hh / D + plan.eps) * (kk / D + plan.eps))
        if plan.width:
            dot = dot * D**-0.5
        size = np.abs(dot)
        if not plan.clamp_after:
            size = np.maximum(size, plan.clamp)
        if plan.root:
            size = np.sqrt(size)
        if plan.clamp_after:
            size = np.maximum(size, plan.clamp)
        g = np.copysign(size, dot) if plan.sign == "copysign" else size * np.sign(dot)
        gate = np.where(g >= 0, 1.0, np.exp(-np.abs(g))) / (1.0 + np.exp(-np.abs(g)))
    if inputs.mask is not None and plan.masked:
        gate = np.where(inputs.mask[:, None], gate, 0.0)
    return np.asarray(gate)


def _sum(inputs: GateInputs, swapped: bool, what: str) -> Float64:
    """[T, S]: sum of h * h, of k * k, or of h * w * k under one idea of w."""
    name = (swapped, what)
    if name not in inputs.sums:
        h, k = _f64(inputs.hidden), _f64(inputs.key)
        if swapped:  # the dump's keys and value came out of an order that is not theirs
            v = _f64(inputs.value)
            k = np.concatenate([k[:, 1:], v[:, None]], axis=1)
        q, w = _f64(inputs.q_weight), _f64(inputs.k_weight)
        if what in ("hh", "kk"):
            product = h * h if what == "hh" else k * k
        else:
            folded = to_bf16((q * w).astype(np.float32)) if what == "folded in bf16" else None
            product = h * (_f64(folded) if folded is not None else 1.0 if what == "none" else q * w) * k
        inputs.sums[name] = np.asarray(product.sum(axis=-1))
    return inputs.sums[name]


def _f64(array: NDArray[Any]) -> Float64:
    return (from_bf16(array) if array.dtype == np.uint16 else array).astype(np.float64)


def outputs(plan: GatePlan, inputs: GateInputs) -> Float64:
    """[T, S, D]: the stream and what the gate lets through of the value."""
    value = _f64(inputs.key[:, 0] if plan.value_as_key else inputs.value)
    gate = gates(plan, inputs)
    with np.errstate(invalid="ignore"):
        added = np.where(gate[:, :, None] != 0, gate[:, :, None] * value[:, None], 0.0)
    return _f64(inputs.hidden) + added
