"""The truth, plain and slow: what a row holds, what it projects to, what the gate lets through (spec: arithmetic.md).

T tokens, K inputs, N outputs, S streams, D hidden width. BF16 is its bits in uint16; a mask is True where the text is.
Every F32 operation below is one rounding of `arithmetic.md`; `fast` has the same functions and gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import mixes, operands
from engramctl.errors import EngramctlError
from engramctl.hash_params import DEAD, HashParams, Mask, Tokens
from engramctl.rules import V41_RULE
from formats import row264
from formats.floats import (
    E4M3_NAN,
    E4M3_VALUES,
    E8M0_NAN,
    E8M0_VALUES,
    bf16_finite,
    exact_in_bf16,
    from_bf16,
    to_bf16,
    to_e4m3,
)
from formats.row264 import BLOCK

__all__ = ["gate", "hash_rows", "lookup", "project"]

PARTIALS = 64  # sums that a stream's values are dealt to, one after another
LEAST_AMAX = np.float32(1e-4)  # the official activation never scales a block as if it were smaller than this

# The sigmoid's exponential: ln 2 in two parts (the first has 21 trailing zero bits), 1/k! for k = 13 down to 0.
LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
INVERSE_FACTORIALS = tuple(1.0 / math.factorial(k) for k in range(13, -1, -1))
FAR = 128.0  # from here on the sigmoid is 0 or 1 in F32


def hash_rows(
    tokens: Tokens, params: HashParams, mask: Mask | None = None, history: Sequence[int] = ()
) -> NDArray[np.int64]:
    """[T] token ids -> [T, L, C] rows. `history` is up to size - 1 compressed ids before them, oldest first, DEAD
    where dead.

    Ids outside the vocabulary, a mask of another length and ids outside the compressed ones raise `EngramctlError`.
    """
    if params.rule != V41_RULE:
        return mixes.hash_rows(tokens, params, mask, history)
    past = params.past(history).tolist()
    ids = past + params.compress(tokens, mask).tolist()
    rows = np.empty((len(tokens), len(params.layers), params.columns), np.int64)
    for t in range(len(tokens)):
        window = look_back(ids, len(past) + t, params)
        for layer in range(len(params.layers)):
            mixed = window[0] * int(params.multipliers[layer, 0])
            for n in range(1, params.size):
                mixed ^= window[n] * int(params.multipliers[layer, n])
                for column in range((n - 1) * params.heads, n * params.heads):
                    bucket = mixed % int(params.moduli[layer, column])
                    rows[t, layer, column] = bucket + int(params.offsets[layer, column])
    return rows


def look_back(ids: list[int], at: int, params: HashParams) -> list[int]:
    """The compressed ids at `at` and before it, newest first; from the start or a dead position on, the pad."""
    window, blocked = [], False
    for position in range(at, at - params.size, -1):
        blocked = blocked or position < 0 or ids[position] == DEAD
        window.append(params.pad_id if blocked else ids[position])
    return window


def lookup(rows: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """[..., ROW_BYTES] valid rows -> BF16 bits of their values [..., WIDTH]."""
    operands.expect("rows", rows, (np.uint8,), (*rows.shape[:-1], row264.ROW_BYTES))
    return row264.decode_bf16(rows)


def dequantise(
    codes: NDArray[np.uint8], scales: NDArray[np.uint8], name: str = "projection weight"
) -> NDArray[np.uint16]:
    """[N, K] E4M3 codes under an E8M0 scale per BLOCK x BLOCK -> BF16 bits; what BF16 cannot hold is refused."""
    operands.expect(name, codes, (np.uint8,), ("N", "K"))
    N, K = codes.shape
    operands.expect(f"{name} scale", scales, (np.uint8,), (-(-N // BLOCK), -(-K // BLOCK)))
    if (scales == E8M0_NAN).any():
        row, column = (int(i) for i in np.argwhere(scales == E8M0_NAN)[0])
        raise EngramctlError(f"{name} scale, row {row}, column {column}", "an E8M0 scale below 255", "255 (NaN)")
    with np.errstate(over="ignore"):
        values = np.multiply.outer(E8M0_VALUES, E4M3_VALUES)  # [scale byte, code]: every value there is
    bits, exact = to_bf16(values), exact_in_bf16(values) | np.isnan(values)
    weight, inexact = np.empty((N, K), np.uint16), 0
    for start in range(0, N, BLOCK):
        band = codes[start : start + BLOCK]
        if (band & 0x7F).max(initial=0) == E4M3_NAN:
            row, column = (int(i) for i in np.argwhere(band & 0x7F == E4M3_NAN)[0])
            where = f"{name}, row {start + row}, column {column}"
            raise EngramctlError(where, "an E4M3 number", f"{band[row, column]:#04x} (NaN)")
        under = scales[start // BLOCK]
        value = np.repeat(under.astype(np.intp) * len(E4M3_VALUES), BLOCK)[:K] + band  # its number in the table
        weight[start : start + BLOCK] = bits.take(value)
        if not exact[under].all():
            inexact += int(np.count_nonzero(~exact.take(value)))
    _expect_exact(name, inexact, weight.size)
    return weight


def exact_bf16(weight: NDArray[np.float16] | NDArray[np.float32], name: str) -> NDArray[np.uint16]:
    """F16 or F32 weights -> BF16 bits, if every value is the same there; else refused with the count."""
    _expect_exact(name, int(np.count_nonzero(~exact_in_bf16(weight))), weight.size)
    return to_bf16(weight.astype(np.float32))


def _expect_exact(name: str, inexact: int, size: int) -> None:
    if inexact:
        raise EngramctlError(name, "values that BF16 holds exactly", f"{inexact} of {size} that it does not")


def official_activation(values: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """[T, K] -> [T, K]: to E4M3 under one power of two per BLOCK inputs, and back, as the released model does first."""
    codes, scales = quantise_activation(values)
    return to_bf16(E4M3_VALUES[codes] * np.repeat(E8M0_VALUES[scales], BLOCK, axis=1)[:, : values.shape[1]])


def quantise_activation(values: NDArray[np.uint16]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """[T, K] -> E4M3 codes [T, K], E8M0 scales [T, ceil(K / BLOCK)]: the least powers of two that keep within 448."""
    operands.expect("activation", values, operands.BF16, ("T", "K"))
    if not bf16_finite(values).all():
        raise EngramctlError("activation", "finite values", "an infinity or a NaN")
    x = from_bf16(values)
    scales = np.empty((len(x), -(-x.shape[1] // BLOCK)), np.uint8)
    for block in range(scales.shape[1]):
        amax = np.abs(x[:, block * BLOCK : (block + 1) * BLOCK]).max(axis=1, initial=LEAST_AMAX)
        bits = (amax * np.float32(1 / 448)).view(np.uint32)
        scales[:, block] = (bits >> np.uint32(23)) + (bits & np.uint32(0x7FFFFF) != 0)  # ceil of log2, biased
    return to_e4m3(x / np.repeat(E8M0_VALUES[scales], BLOCK, axis=1)[:, : x.shape[1]]), scales


def project(values: NDArray[np.uint16], weight: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """values [T, K] and weight [N, K] -> [T, N]: blocks of BLOCK inputs in order, even and odd ones summed apart."""
    operands.expect_projection(values, weight)
    (T, K), N = values.shape, len(weight)
    total = np.zeros((T, N), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, K, BLOCK):
            e = from_bf16(values[:, start : start + BLOCK])
            w = np.ascontiguousarray(from_bf16(weight[:, start : start + BLOCK]).T)
            sums = np.zeros((2, T, N), np.float32)
            for j in range(len(w)):
                sums[j % 2] += e[:, j, None] * w[j]
            total += sums[0] + sums[1]
        kv = to_bf16(total)
    operands.expect_finite_projection(kv)
    return kv


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
    """hidden, key [T, S, D], value [T, D], weights [S, D] (BF16, or F32 as is) -> gates [T, S], new hidden [T, S, D].

    A masked token keeps its bits, whatever its key and value are; its gates are 0.
    """
    operands.expect_gate(hidden, key, value, q_weight, k_weight, mask)
    T, S, D = hidden.shape
    text = np.ones(T, np.bool_) if mask is None else mask
    gates, out = np.zeros((T, S), np.float32), hidden.copy()
    h, k, v = from_bf16(hidden[text]), from_bf16(key[text]), from_bf16(value[text])
    one, width, small = np.float32(1), np.float32(D), np.float32(eps)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        w = as_f32(q_weight) * as_f32(k_weight)
        hh, kk, dt = tree_sum(h * h), tree_sum(k * k), tree_sum(h * w * k)
        r = one / np.sqrt(hh / width + small) * (one / np.sqrt(kk / width + small))
        dot = dt * r * root(D)
        g = np.copysign(np.sqrt(np.maximum(np.abs(dot), np.float32(clamp))), dot)
        gates[text] = np.array([sigmoid(float(x)) for x in g.flat], np.float64).astype(np.float32).reshape(g.shape)
        out[text] = to_bf16(h + gates[text][:, :, None] * v[:, None, :])
    operands.expect_finite_gate(gates, out, text)
    return gates, out


def as_f32(weight: NDArray[Any]) -> NDArray[np.float32]:
    """The gate's weights as F32: BF16 bits widened, F32 as it is."""
    return from_bf16(weight) if weight.dtype == np.uint16 else weight


def root(D: int) -> np.float32:
    """D ** -0.5 in F32, by the two operations that every machine rounds alike."""
    return np.float32(1 / math.sqrt(D))


def tree_sum(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """[..., D] -> [...]: element d goes to partial d % PARTIALS; these are joined four by four, then by halves."""
    partials = np.zeros((*x.shape[:-1], PARTIALS), np.float32)
    for start in range(0, x.shape[-1], PARTIALS):
        some = x[..., start : start + PARTIALS]
        partials[..., : some.shape[-1]] += some
    a, b, c, d = np.split(partials, 4, axis=-1)
    lanes = (a + b) + (c + d)
    while lanes.shape[-1] > 1:
        low, high = np.split(lanes, 2, axis=-1)
        lanes = low + high
    return np.asarray(lanes[..., 0])


def sigmoid(g: float) -> float:
    """1 / (1 + exp(-g)) in float64, out of operations that have one result: libraries' exp differ in the last bit."""
    if math.isnan(g):
        return g
    x = -min(abs(g), FAR)
    n = math.floor(x * LOG2_E + 0.5)
    rest = (x - n * LN2_HIGH) - n * LN2_LOW
    power = 0.0
    for coefficient in INVERSE_FACTORIALS:
        power = power * rest + coefficient
    power = math.ldexp(power, n)  # exp(-|g|)
    return (1.0 if g >= 0 else power) / (1.0 + power)
