"""gate in Numba: a token at a time; the partial sums of a stream side by side, so that one instruction serves many."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from engramctl import operands
from engramctl.fast import cpu
from engramctl.fast.bits import narrow, widen
from engramctl.fast.cache import Kernel, helper, in_parts, named_kernel, reads, writes
from engramctl.fast.gating import SIZE, add_gated, add_sums, spread
from engramctl.reference import FAR, INVERSE_FACTORIALS, LN2_HIGH, LN2_LOW, LOG2_E, PARTIALS, as_f32, root
from formats.floats import BF16_INFINITY

LEAST_VALUES = 1 << 18  # a thread for fewer costs more than it saves
LANES = {"avx512": 16, "avx2": 8, "portable": 4}


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
    (T, S, D), path = hidden.shape, cpu.vectors()
    text = np.ones(T, np.bool_) if mask is None else np.require(mask, requirements=("C", "A"))
    gates, out, bad = np.empty((T, S), np.float32), np.empty((T, S, D), np.uint16), np.empty(T, np.bool_)
    arrays = _rows(hidden), _rows(key), _rows(value), _spread(q_weight, k_weight, path), text
    numbers = np.float32(eps), np.float32(clamp), root(D)
    in_parts(_gates[path], T, LEAST_VALUES // max(1, S * D), *arrays, *numbers, gates, out, bad)
    if bad.any():
        operands.expect_finite_gate(gates, out, text)
    return gates, out


def _rows(array: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """Itself, if each row's elements lie side by side and its first is where a number may lie; else a copy."""
    usable = array.strides[-1] == array.itemsize and array.flags.aligned
    return array if usable else np.require(array, requirements=("C", "A"))


def _spread(q_weight: NDArray[Any], k_weight: NDArray[Any], path: str) -> NDArray[np.float32]:
    """q * k [S, D] as `gating` reads it: of 2 * lanes elements the even ones first, but for the last D % PARTIALS."""
    (S, D), width = q_weight.shape, 2 * LANES[path]
    whole, weight = D // PARTIALS * (PARTIALS // width), np.empty((S, D), np.float32)
    if q_weight.dtype == k_weight.dtype == np.uint16:
        q, k = (np.require(array, requirements=("C", "A")) for array in (q_weight, k_weight))
        _spreads[path](0, S, q, k, weight)
        return weight
    with np.errstate(over="ignore", invalid="ignore"):
        product = as_f32(q_weight) * as_f32(k_weight)
    pairs = product[:, : whole * width].reshape(S, whole, width // 2, 2)
    weight[:, : whole * width] = pairs.swapaxes(2, 3).reshape(S, -1)
    weight[:, whole * width :] = product[:, whole * width :]
    return weight


def _spreader(path: str) -> Kernel:
    lanes = LANES[path]

    def run(first: int, last: int, q: NDArray[np.uint16], k: NDArray[np.uint16], weight: NDArray[np.float32]) -> None:
        D = q.shape[1]
        whole = D // PARTIALS * (PARTIALS // (2 * lanes))
        for s in range(first, last):
            if whole:
                spread(q[s], k[s], weight[s], whole, lanes)
            for d in range(whole * 2 * lanes, D):
                weight[s, d] = widen(q[s, d]) * widen(k[s, d])

    return named_kernel(f"_spread_{path}", run, *(reads(types.uint16, 2),) * 2, writes(types.float32, 2))


_spreads = {path: _spreader(path) for path in LANES}


def _gate(path: str) -> Kernel:
    lanes = LANES[path]

    def run(
        first: int, last: int, hidden: NDArray[np.uint16], key: NDArray[np.uint16], value: NDArray[np.uint16],
        weight: NDArray[np.float32], text: NDArray[np.bool_], eps: np.float32, clamp: np.float32, root: np.float32,
        gates: NDArray[np.float32], out: NDArray[np.uint16], bad: NDArray[np.bool_],
    ) -> None:  # fmt: skip
        S, D = weight.shape
        w, o, partials = weight.reshape(-1), out.reshape(-1), np.empty(3 * PARTIALS, np.float32)
        one, width = np.float32(1), np.float32(D)
        whole, pairs = D // PARTIALS, D // (2 * lanes)
        for t in range(first, last):
            v, bad[t] = t * value.strides[0] // 2, False  # where rows begin, in elements
            for s in range(S):
                h, k = (
                    (t * hidden.strides[0] + s * hidden.strides[1]) // 2,
                    (t * key.strides[0] + s * key.strides[1]) // 2,
                )
                to = (t * S + s) * D
                if not text[t]:
                    gates[t, s] = 0
                    for d in range(D):
                        o[to + d] = hidden[t, s, d]
                    continue
                partials[:] = 0
                if whole:
                    add_sums(hidden, h, key, k, w, s * D, partials, whole, lanes)
                for d in range(whole * PARTIALS, D):
                    p, x, y = d % PARTIALS, widen(hidden[t, s, d]), widen(key[t, s, d])
                    partials[p] += x * x
                    partials[PARTIALS + p] += y * y
                    partials[2 * PARTIALS + p] += x * w[s * D + d] * y
                hh, kk, dt = _join(partials, 0), _join(partials, PARTIALS), _join(partials, 2 * PARTIALS)
                r = one / np.sqrt(hh / width + eps) * (one / np.sqrt(kk / width + eps))
                dot = dt * r * root
                size = abs(dot)
                if size < clamp:  # false for a NaN, which stays one
                    size = clamp
                gated = np.float32(_sigmoid(np.float64(np.copysign(np.sqrt(size), dot))))
                gates[t, s] = gated
                most = np.uint16(0)
                if pairs:
                    most = add_gated(hidden, h, value, v, gated, o, to, pairs, lanes)
                for d in range(pairs * 2 * lanes, D):
                    o[to + d] = narrow(widen(hidden[t, s, d]) + gated * widen(value[t, d]))
                    most = max(most, o[to + d] & np.uint16(SIZE))
                bad[t] |= most >= BF16_INFINITY or not np.isfinite(gated)

    rows = (types.Array(types.uint16, ndim, "A", readonly=True) for ndim in (3, 3, 2))
    given = *rows, reads(types.float32, 2), reads(types.boolean, 1), *(types.float32,) * 3
    return named_kernel(
        f"_gate_{path}", run, *given, writes(types.float32, 2), writes(types.uint16, 3), writes(types.boolean, 1)
    )


_gates = {path: _gate(path) for path in LANES}


@helper
def _join(partials: NDArray[np.float32], at: int) -> np.float32:
    """The end of `reference.tree_sum`, in place."""
    lanes = PARTIALS // 4
    for p in range(at, at + lanes):
        partials[p] = (partials[p] + partials[p + lanes]) + (partials[p + 2 * lanes] + partials[p + 3 * lanes])
    while lanes > 1:
        lanes //= 2
        for p in range(at, at + lanes):
            partials[p] += partials[p + lanes]
    total: np.float32 = partials[at]
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
