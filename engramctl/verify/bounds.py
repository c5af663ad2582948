"""Projection and gate in float64, and how far F32 may be from it (spec: ../arithmetic.md). Independent of `reference`.

T tokens, K inputs, N outputs, S streams, D hidden width. BF16 is its bits in uint16; results are float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from formats.floats import from_bf16
from formats.row264 import BLOCK

if TYPE_CHECKING:
    from engramctl.projection import Projection

Float64 = NDArray[np.float64]

F32_ULP = 2.0**-23  # of 1
F32_HALF = 2.0**-24  # what rounding may cost a number of size 1
SUMS, JOINS = 64, 16  # a stream is added up in so many sums, and these in fewer than so many steps
GATE_SLACK = 1e-6  # of a gate, beyond what the sums may cost
BF16_DIGITS, BF16_LEAST = 7, 2.0**-133  # bits after the point; the step of the smallest numbers
_BAND = 8  # blocks of outputs whose weights are float64 at the same time


def kv_f64(values: NDArray[np.uint16], weight: Projection) -> tuple[Float64, Float64]:
    """values [T, K], weight [N, K] -> their products' sums [T, N], and the sums of the products' magnitudes."""
    e = from_bf16(values).astype(np.float64)
    kv, magnitude = np.empty((len(e), weight.shape[0])), np.empty((len(e), weight.shape[0]))
    for start, band in weight.bands(_BAND):
        w, some = from_bf16(band).astype(np.float64).T, slice(start, start + len(band))
        kv[:, some] = e @ w
        magnitude[:, some] = np.abs(e) @ np.abs(w)
    return kv, magnitude


def kv_bound(want: Float64, got: Float64, magnitude: Float64, inputs: int) -> Float64:
    """How far a BF16 kv may be from `want`: one BF16 step, and what summing `inputs` products in F32 may cost."""
    return bf16_step(np.maximum(np.abs(want), np.abs(got))) + (inputs / BLOCK + BLOCK) * F32_ULP * magnitude


def bf16_step(size: Float64) -> Float64:
    """The distance between neighbouring BF16 numbers at a magnitude."""
    exponent = np.frexp(size)[1] - 1
    step: Float64 = np.maximum(np.ldexp(1.0, np.where(size == 0, -200, exponent) - BF16_DIGITS), BF16_LEAST)
    return step


@dataclass(frozen=True)
class GateRange:
    """Per token and stream: the dot product and gate in float64, and the least and greatest gate that F32 may give."""

    dot: Float64
    gate: Float64
    low: Float64
    high: Float64

    def off(self, gates: NDArray[np.float32]) -> Float64:
        """How far each of [T, S] gates is outside its range; 0 inside, infinite if it is no number."""
        outside = np.maximum(np.maximum(self.low - gates, gates - self.high), 0.0)
        return np.where(np.isnan(outside), np.inf, outside)

    def bound(self) -> Float64:
        """The most that a gate inside its range is away from `gate`."""
        return np.maximum(self.high - self.gate, self.gate - self.low)


def gate_range(
    hidden: NDArray[Any],
    key: NDArray[Any],
    q_weight: NDArray[Any],
    k_weight: NDArray[Any],
    mask: NDArray[np.bool_] | None = None,
    eps: float = 1e-20,
    clamp: float = 1e-6,
) -> GateRange:
    """hidden, key [T, S, D], weights [S, D] (BF16 bits or F32, each), mask [T] -> ranges [T, S]; masked gates are 0."""
    h, k = _f64(hidden), _f64(key)
    w = _f64(q_weight) * _f64(k_weight)
    D = h.shape[-1]
    with np.errstate(invalid="ignore"):  # a masked token may hold anything
        scale = D**-0.5 / np.sqrt(((h * h).mean(-1) + eps) * ((k * k).mean(-1) + eps))
        dot = (h * w * k).sum(-1) * scale
        delta = (D / SUMS + JOINS) * F32_HALF * np.abs(h * w * k).sum(-1) * scale
        parts = [_sigmoid(dot + side, clamp) for side in (0.0, -delta, delta)]
    text = np.ones((len(h), 1), np.bool_) if mask is None else mask[:, None]
    gate, low, high = (np.where(text, part, 0.0) for part in parts)
    return GateRange(dot, gate, np.where(text, low - GATE_SLACK, 0.0), np.where(text, high + GATE_SLACK, 0.0))


def _f64(numbers: NDArray[Any]) -> Float64:
    return (from_bf16(numbers) if numbers.dtype == np.uint16 else numbers).astype(np.float64)


def _sigmoid(dot: Float64, clamp: float) -> Float64:
    """The gate of a dot product: its signed square root, kept away from 0, through the sigmoid."""
    g = np.copysign(np.sqrt(np.maximum(np.abs(dot), clamp)), dot)
    small = np.exp(-np.abs(g))
    return np.where(g >= 0, 1.0, small) / (1.0 + small)


def out_f64(hidden: NDArray[np.uint16], value: NDArray[np.uint16], gate: Float64) -> Float64:
    """hidden [T, S, D] + gate [T, S] * value [T, D]; where the gate is 0 the value does not matter."""
    open_ = np.where(gate[:, :, None] != 0, from_bf16(value)[:, None, :].astype(np.float64), 0.0)
    return from_bf16(hidden).astype(np.float64) + gate[:, :, None] * open_


def out_bound(
    hidden: NDArray[np.uint16], value: NDArray[np.uint16], gate: Float64, out: NDArray[np.uint16], gate_bound: Float64
) -> Float64:
    """How far a BF16 output [T, S, D] may be: one BF16 step of the largest part, and value times the gate's bound."""
    v = np.where(gate[:, :, None] != 0, np.abs(from_bf16(value)).astype(np.float64)[:, None, :], 0.0)
    h, o = (np.abs(from_bf16(bits)).astype(np.float64) for bits in (hidden, out))
    return bf16_step(np.maximum(np.maximum(h, gate[:, :, None] * v), o)) + v * gate_bound[:, :, None]
