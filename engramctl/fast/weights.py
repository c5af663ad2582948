"""Projection weights in memory as the kernels read them: as they are stored, in one order for every path.

    [bands of BLOCK outputs][blocks of BLOCK inputs][2 tiles][16 pairs of inputs][16 outputs][2]

A scale's BLOCK x BLOCK codes lie in one KiB, read from the first to the last; a pair of inputs of 16 outputs fills a
vector of 32 bytes (E4M3) or 64 (BF16), and a tile is what a tile instruction takes as it is. What the weight lacks in
outputs or inputs is 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from engramctl.fast import cpu
from engramctl.fast.cache import Kernel, in_parts, named_kernel, reads, writes
from engramctl.fast.vectors import HALF_BIAS, PAIRS, TILE
from engramctl.projection import Projection, held
from formats.floats import E4M3_NAN, E8M0_BIAS
from formats.row264 import BLOCK

SCALES = (3, 246)  # scale bytes under which every E4M3 number is exact in BF16, and the factor a normal F32
BANDS = 32  # packed at a time: what is read from the file and not yet packed
LEAST_BANDS = 4  # a thread for fewer costs more than it saves
LINE = 64


@dataclass(frozen=True)
class Range:
    """Powers of two around the non-zero values: all are multiples of 2**low, and below 2**high."""

    low: int
    high: int

    def __or__(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high))


NOTHING = Range(1 << 10, -(1 << 10))


def range_of(bits: NDArray[np.uint16]) -> Range:
    """Of BF16 bits; infinities and NaNs count as beyond every number."""
    size = bits & np.uint16(0x7FFF)
    most = int(size.max(initial=0))
    if not most:
        return NOTHING
    least = int((size - np.uint16(1)).min()) + 1  # 0 becomes the largest: it does not count
    return Range(max(least >> 7, 1) - E8M0_BIAS - 7, (most >> 7) + 1 - E8M0_BIAS)


@dataclass(frozen=True)
class Packed:
    """A weight of N outputs and K inputs, packed, and the path that its projections take.

    `factors` [bands, blocks] are what widened values are to be times.
    """

    shape: tuple[int, int]
    data: NDArray[np.uint8]  # flat
    e4m3: bool
    factors: NDArray[np.float32]
    range: Range
    path: str = "portable"


def hold(weight: Projection | NDArray[np.uint16], kernel: str = "auto") -> Packed:
    """Keep E4M3 codes under their scales, or BF16; what `reference.dequantise` refuses is refused in its words.

    `kernel` is the path to take, or auto; one that cannot run here is refused.
    """
    path = cpu.choose(kernel)
    return replace(_packed(weight), path=path)


def _packed(weight: Projection | NDArray[np.uint16]) -> Packed:
    if isinstance(weight, np.ndarray):
        weight = held(weight)
    if weight.scales is None:
        return _pack_bf16(weight)
    blocks, lowest, highest = tuple(-(-n // BLOCK) for n in weight.shape), *SCALES
    low, high = int(weight.scales.min(initial=highest)), int(weight.scales.max(initial=lowest))
    if weight.scales.shape == blocks and low >= lowest and high <= highest:
        made = _pack_e4m3(weight, weight.scales, Range(low - 136, high - E8M0_BIAS + 9))
        if made is not None:
            return made
    return _pack_bf16(held(weight.bits()))


def _pack_e4m3(weight: Projection, scales: NDArray[np.uint8], within: Range) -> Packed | None:
    """None where a code is no number."""
    data = _room(weight.shape, 1)
    for at, rows in _bands(weight):
        if ((rows & np.uint8(E4M3_NAN)) == E4M3_NAN).any():
            return None
        in_parts(_pack_codes, len(rows) // BLOCK, LEAST_BANDS, rows.view(np.uint16), data[at:].view(np.uint16))
    factors = np.ldexp(np.float32(1), scales.astype(np.int32) - (E8M0_BIAS - HALF_BIAS)).astype(np.float32)
    return Packed(weight.shape, data, True, factors, within)


def _pack_bf16(weight: Projection) -> Packed:
    data, within = _room(weight.shape, 2), NOTHING
    for at, rows in _bands(weight):
        within |= range_of(rows)
        in_parts(_pack_words, len(rows) // BLOCK, LEAST_BANDS, rows.view(np.uint32), data[2 * at :].view(np.uint32))
    N, K = weight.shape
    return Packed(weight.shape, data, False, np.ones((-(-N // BLOCK), -(-K // BLOCK)), np.float32), within)


def _room(shape: tuple[int, int], width: int) -> NDArray[np.uint8]:
    """Memory for the padded weight, on a line of the cache."""
    size = math.prod(-(-n // BLOCK) * BLOCK for n in shape) * width
    memory = np.empty(size + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + size]


def _bands(weight: Projection) -> Iterator[tuple[int, NDArray[Any]]]:
    """Rows, a multiple of BLOCK by a multiple of BLOCK with zeros where the weight has none, and where they begin."""
    (N, K), step = weight.shape, BANDS * BLOCK
    inputs = -(-K // BLOCK) * BLOCK
    for first in range(0, N, step):
        rows = weight.rows(first, min(first + step, N))
        count = -(-len(rows) // BLOCK) * BLOCK
        if rows.shape != (count, inputs) or not rows.flags.c_contiguous or not rows.flags.aligned:
            whole = np.zeros((count, inputs), rows.dtype)
            whole[: len(rows), :K] = rows
            rows = whole
        yield first * inputs, rows


def _packer(name: str, pair: types.Type) -> Kernel:
    def run(first: int, last: int, rows: NDArray[Any], out: NDArray[Any]) -> None:
        blocks = rows.shape[1] // PAIRS
        for band in range(first, last):
            for n in range(BLOCK):
                tile, row = n // TILE, band * BLOCK + n
                at = band * blocks * BLOCK * PAIRS + tile * TILE * PAIRS + n % TILE
                for block in range(blocks):
                    for j in range(PAIRS):
                        out[at + block * BLOCK * PAIRS + j * TILE] = rows[row, block * PAIRS + j]

    return named_kernel(name, run, reads(pair, 2), writes(pair, 1))


_pack_codes = _packer("_pack_codes", types.uint16)  # two codes
_pack_words = _packer("_pack_words", types.uint32)  # two BF16
