"""project in Numba, over packed weights: a band of outputs by a few blocks of inputs is widened to F32, then summed.

Every path gives the sums of `arithmetic.md`. Products are exact in F32 unless they underflow, so a fused multiply-add
rounds as a multiplication and an addition do, and a block's power of two may be applied to its whole sum, as long as
nothing under- or overflows on the way: `_fused` says when. Otherwise weights are scaled first and nothing is fused.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from engramctl import operands
from engramctl.fast import amx, cpu
from engramctl.fast.bits import narrow
from engramctl.fast.cache import Kernel, helper, in_parts, named_kernel, reads, writes
from engramctl.fast.vectors import HALF_BIAS, PAIRS, TILE, add_blocks, widen_bf16, widen_e4m3
from engramctl.fast.weights import LINE, Packed, Range, hold, range_of
from engramctl.projection import Projection
from formats.floats import from_bf16
from formats.row264 import BLOCK

CHUNK = 4 * BLOCK  # inputs widened together: 16 KiB of weights, which stay in the first cache
GROUP = 4  # bands that share their inputs while these are in the second cache
FEW_TOKENS = 32  # whose inputs stay near anyway: bands are then taken one by one, in the order of the memory
MOST_TOKENS = 512  # at a time
LEAST_PRODUCTS = 1 << 20  # a thread for fewer costs more than it saves
FLOATS = LINE // 4


def project(values: NDArray[np.uint16], weight: Packed | Projection | NDArray[np.uint16]) -> NDArray[np.uint16]:
    """As `reference.project`: values [T, K] and weight [N, K] -> [T, N]. Pack a weight that is used more than once."""
    if isinstance(weight, np.ndarray):
        operands.expect_projection(values, weight)
    packed = weight if isinstance(weight, Packed) else hold(weight)
    N, K = packed.shape
    operands.expect_input(values, K)
    kv = np.empty((len(values), N), np.uint16)
    for start in range(0, len(values), MOST_TOKENS):
        _project(values[start : start + MOST_TOKENS], packed, kv[start : start + MOST_TOKENS])
    operands.expect_finite_projection(kv)
    return kv


def _project(values: NDArray[np.uint16], packed: Packed, kv: NDArray[np.uint16]) -> None:
    (T, K), (N, _) = values.shape, packed.shape
    path, within, together = packed.path, range_of(values), 1 if T <= FEW_TOKENS else GROUP
    least = LEAST_PRODUCTS // max(1, T * K * together * BLOCK)
    if path in amx.PATHS:
        if K and amx.exact(within, packed.range):
            amx.project(values, packed, kv, together, least)
            return
        path = cpu.vectors()
    run = _portable if path == "portable" else _kernels[path, _fused(within, packed)]
    chunks = -(-K // CHUNK)
    inputs = np.zeros((T, chunks * CHUNK), np.float32)
    inputs[:, :K] = from_bf16(values)
    inputs = np.ascontiguousarray(inputs.reshape(T, chunks, CHUNK).transpose(1, 0, 2))
    arguments = inputs, packed.data, np.int64(packed.e4m3), packed.factors, kv
    in_parts(run, -(-N // (together * BLOCK)), least, np.int64(together), *arguments)


def _fused(e: Range, packed: Packed) -> bool:
    """Is every product and every block's sum a number that F32 holds, scaled and not? A little stricter than needed.

    A sum of multiples of 2**low is one, so where that is a number, no bit is lost among the subnormals; a block's sum
    is below 32 times the largest product.
    """
    ranges = [packed.range]
    if packed.e4m3:
        ranges.append(Range(-9 - HALF_BIAS, 9 - HALF_BIAS))  # what the codes are without their scales
    return all(e.low + w.low >= -149 and e.high + w.high + 5 < 128 for w in ranges)


ARGUMENTS = (
    types.int64, reads(types.float32, 3), reads(types.uint8, 1), types.int64, reads(types.float32, 2),
    writes(types.uint16, 2),
)  # fmt: skip


@helper
def _aligned(array: NDArray[np.float32]) -> int:
    """The first element that begins a line of the cache."""
    return -(array.ctypes.data // 4) % FLOATS


@helper
def _narrow(first: int, last: int, totals: NDArray[np.float32], at: int, kv: NDArray[np.uint16]) -> None:
    """Totals [band][token][output] of bands first..last, from `at` on, to BF16."""
    T, N = kv.shape
    for band in range(first, last):
        start = band * BLOCK
        outputs = min(BLOCK, N - start)
        for t in range(T):
            for n in range(outputs):
                kv[t, start + n] = narrow(totals[at + n])
            at += BLOCK


def _vector_kernel(path: str, lanes: int, sizes: tuple[int, ...], fused: bool) -> Kernel:
    """The kernel for vectors of `lanes`; `sizes` are how many tokens may share what was loaded, 1 the last."""
    A, B, C = sizes
    scaled = not fused

    def run(
        first: int, last: int, together: int, inputs: NDArray[np.float32], data: NDArray[np.uint8], e4m3: int,
        factors: NDArray[np.float32], kv: NDArray[np.uint16],
    ) -> None:  # fmt: skip
        (bands, blocks), (chunks, T, _) = factors.shape, inputs.shape
        wide, totals = np.empty(CHUNK * BLOCK + FLOATS, np.float32), np.empty(together * T * BLOCK + FLOATS, np.float32)
        w, total, flat, scales = _aligned(wide), _aligned(totals), inputs.reshape(-1), factors.reshape(-1)
        step = 1 if T <= A else CHUNK // BLOCK  # blocks widened before they are summed
        for group in range(first, last):
            low, high = group * together, min(bands, (group + 1) * together)
            totals[:] = 0
            for chunk in range(chunks):
                for band in range(low, high):
                    for start in range(chunk * (CHUNK // BLOCK), min((chunk + 1) * (CHUNK // BLOCK), blocks), step):
                        count, block = min(step, blocks - start), band * blocks + start
                        for i in range(count):
                            at, to = (block + i) * BLOCK * BLOCK, w + i * BLOCK * BLOCK
                            if e4m3:
                                widen_e4m3(data, at, scales[block + i], wide, to, scaled)
                            else:
                                widen_bf16(data, 2 * at, wide, to)
                        e, to, t = chunk * T * CHUNK + start * BLOCK % CHUNK, total + (band - low) * T * BLOCK, 0
                        while t + A <= T:
                            at, out = e + t * CHUNK, to + t * BLOCK
                            add_blocks(flat, at, CHUNK, wide, w, scales, block, totals, out, count, A, lanes, fused)
                            t += A
                        while t + B <= T:
                            at, out = e + t * CHUNK, to + t * BLOCK
                            add_blocks(flat, at, CHUNK, wide, w, scales, block, totals, out, count, B, lanes, fused)
                            t += B
                        while t + C <= T:
                            at, out = e + t * CHUNK, to + t * BLOCK
                            add_blocks(flat, at, CHUNK, wide, w, scales, block, totals, out, count, C, lanes, fused)
                            t += C
            _narrow(low, high, totals, total, kv)

    return named_kernel(f"_{path}_{'fused' if fused else 'apart'}", run, *ARGUMENTS)


LANES = {"avx512": (16, (6, 2, 1)), "avx2": (8, (3, 2, 1))}
_kernels = {(path, fused): _vector_kernel(path, *how, fused) for path, how in LANES.items() for fused in (True, False)}


@helper
def _widen(data: NDArray[np.uint8], at: int, e4m3: int, factor: np.float32, wide: NDArray[np.float32]) -> None:
    """Block number `at` to scaled F32 [BLOCK inputs][BLOCK outputs], by integers: no processor slows down for these."""
    for tile in range(BLOCK // TILE):
        for j in range(PAIRS):
            pairs = at * BLOCK * BLOCK + (tile * PAIRS + j) * 2 * TILE
            for parity in range(2):
                to = (2 * j + parity) * BLOCK + tile * TILE
                if e4m3:
                    for n in range(TILE):
                        code = int(data[pairs + 2 * n + parity])
                        exponent = (code >> 3) & 15
                        eighths = (code & 7) + (8 if exponent else 0)
                        power = np.uint32(np.uint32(max(exponent, 1) + 117 - HALF_BIAS) << np.uint32(23))
                        size = np.float32(-eighths if code & 0x80 else eighths) * power.view(np.float32)
                        wide[to + n] = size * factor
                else:
                    for n in range(TILE):
                        low, high = data[2 * (pairs + 2 * n + parity)], data[2 * (pairs + 2 * n + parity) + 1]
                        bits = np.uint32(low) << np.uint32(16) | np.uint32(high) << np.uint32(24)
                        wide[to + n] = np.uint32(bits).view(np.float32)


def _run_portable(
    first: int, last: int, together: int, inputs: NDArray[np.float32], data: NDArray[np.uint8], e4m3: int,
    factors: NDArray[np.float32], kv: NDArray[np.uint16],
) -> None:  # fmt: skip
    (bands, blocks), (_, T, _) = factors.shape, inputs.shape
    wide, totals = np.empty(BLOCK * BLOCK, np.float32), np.empty(T * BLOCK, np.float32)
    even, odd = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    for band in range(first * together, min(bands, last * together)):
        totals[:] = 0
        for block in range(blocks):
            _widen(data, band * blocks + block, e4m3, factors[band, block], wide)
            chunk, start = block * BLOCK // CHUNK, block * BLOCK % CHUNK
            for t in range(T):
                even[:] = 0
                odd[:] = 0
                for j in range(0, BLOCK, 2):
                    e, o = inputs[chunk, t, start + j], inputs[chunk, t, start + j + 1]
                    for n in range(BLOCK):
                        even[n] += e * wide[j * BLOCK + n]
                        odd[n] += o * wide[(j + 1) * BLOCK + n]
                for n in range(BLOCK):
                    totals[t * BLOCK + n] += even[n] + odd[n]
        _narrow(band, band + 1, totals, 0, kv)


_portable = named_kernel("_portable", _run_portable, *ARGUMENTS)
