"""gate in Numba: a token at a time; the partial sums of a stream side by side, so that one instruction serves many."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from engramctl import operands
from engramctl.fast.bits import narrow, widen
from engramctl.fast.cache import helper, in_parts, kernel, reads, writes
from engramctl.reference import FAR, INVERSE_FACTORIALS, LN2_HIGH, LN2_LOW, LOG2_E, PARTIALS, as_f32, root

LEAST_VALUES = 1 << 17  # a thread for fewer costs more than it saves


def gate(
    hidden: NDArray[np.uint16],
    key: NDArray[np.uint16],
    value: NDArray[np.uint16],
    q_weight: NDArray[Any],
    k_weight: NDArray[Any],
    mask: NDArray[np.bool_] | None = None,
    eps: float = 1e-20,
    clamp: float = 1e-6,
) -> tuple[NDArray[np.float32], NDArray[np.uint16]]:
    """As `reference.gate`: hidden, key [T, S, D], value [T, D], weights [S, D] -> gates [T, S] and the new hidden."""
    operands.expect_gate(hidden, key, value, q_weight, k_weight, mask)
    T, S, D = hidden.shape
    text = np.ones(T, np.bool_) if mask is None else mask
    with np.errstate(over="ignore", invalid="ignore"):
        weight = as_f32(q_weight) * as_f32(k_weight)
    gates, out = np.empty((T, S), np.float32), np.empty((T, S, D), np.uint16)
    arrays = [np.require(array, requirements=("C", "A")) for array in (hidden, key, value, weight, text)]
    in_parts(_gate, T, LEAST_VALUES // max(1, S * D), *arrays, np.float32(eps), np.float32(clamp), root(D), gates, out)
    operands.expect_finite_gate(gates, out, text)
    return gates, out


@kernel(
    *(reads(types.uint16, ndim) for ndim in (3, 3, 2)), reads(types.float32, 2), reads(types.boolean, 1),
    *(types.float32,) * 3, writes(types.float32, 2), writes(types.uint16, 3),
)  # fmt: skip
def _gate(
    first: int, last: int, hidden: NDArray[np.uint16], key: NDArray[np.uint16], value: NDArray[np.uint16],
    weight: NDArray[np.float32], text: NDArray[np.bool_], eps: np.float32, clamp: np.float32, root: np.float32,
    gates: NDArray[np.float32], out: NDArray[np.uint16],
) -> None:  # fmt: skip
    S, D = weight.shape
    h, k, hw = np.empty(D, np.float32), np.empty(D, np.float32), np.empty(D, np.float32)
    partials = np.empty(PARTIALS, np.float32)
    one, width = np.float32(1), np.float32(D)
    for t in range(first, last):
        for s in range(S):
            if not text[t]:
                gates[t, s] = 0
                out[t, s] = hidden[t, s]
                continue
            for d in range(D):  # short loops over few arrays: the compiler makes vectors of these
                h[d] = widen(hidden[t, s, d])
            for d in range(D):
                k[d] = widen(key[t, s, d])
            for d in range(D):
                hw[d] = h[d] * weight[s, d]
            hh, kk, dt = _tree_sum(h, h, partials), _tree_sum(k, k, partials), _tree_sum(hw, k, partials)
            r = one / np.sqrt(hh / width + eps) * (one / np.sqrt(kk / width + eps))
            dot = dt * r * root
            size = abs(dot)
            if size < clamp:  # false for a NaN, which stays one
                size = clamp
            gated = np.float32(_sigmoid(np.float64(np.copysign(np.sqrt(size), dot))))
            gates[t, s] = gated
            for d in range(D):
                h[d] += gated * widen(value[t, d])
            for d in range(D):
                out[t, s, d] = narrow(h[d])


@helper
def _tree_sum(a: NDArray[np.float32], b: NDArray[np.float32], partials: NDArray[np.float32]) -> np.float32:
    """`reference.tree_sum` of a * b."""
    partials[:] = 0
    whole = a.size - a.size % PARTIALS
    for start in range(0, whole, PARTIALS):
        for p in range(PARTIALS):
            partials[p] += a[start + p] * b[start + p]
    for p in range(a.size - whole):
        partials[p] += a[whole + p] * b[whole + p]
    return _join(partials)


@helper
def _join(partials: NDArray[np.float32]) -> np.float32:
    """The end of `reference.tree_sum`, in place."""
    lanes = PARTIALS // 4
    for p in range(lanes):
        partials[p] = (partials[p] + partials[p + lanes]) + (partials[p + 2 * lanes] + partials[p + 3 * lanes])
    while lanes > 1:
        lanes //= 2
        for p in range(lanes):
            partials[p] += partials[p + lanes]
    total: np.float32 = partials[0]
    return total


@helper
def _sigmoid(g: float) -> float:
    """As `reference.sigmoid`, operation by operation."""
    if math.isnan(g):
        return g
    x = -min(abs(g), FAR)
    n = math.floor(x * LOG2_E + 0.5)
    rest = (x - n * LN2_HIGH) - n * LN2_LOW
    power = 0.0
    for coefficient in INVERSE_FACTORIALS:
        power = power * rest + coefficient
    power = math.ldexp(power, n)
    return (1.0 if g >= 0 else power) / (1.0 + power)
