"""Rows of a table in memory: gathered as they are, or decoded on the way, the next rows' lines on their way in.

A row's bytes are wherever its number says, so each is a miss in every cache: the processor is told of rows AHEAD of the
one that is being copied.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from engramctl.fast.cache import in_parts, kernel, reads, writes
from engramctl.fast.decode import BITS
from engramctl.fast.emit import copy, decode_block, prefetch
from formats.floats import E4M3_NAN
from formats.row264 import BLOCK, ROW_BYTES, SCALES, WIDTH

AHEAD = 16  # rows; enough to hide a miss behind the rows before it
LINE = 64  # bytes that come together
LEAST_ROWS = 1024  # a thread for fewer costs more than it saves
LEAST_SCALE, MOST_SCALE = 10, 246  # what `decode_block` can do; others are looked up


def raw(part: NDArray[np.uint8], stride: int, rows: NDArray[np.int64], out: NDArray[np.uint8], column: int) -> None:
    """part, flat: `stride` bytes a row; those of [n] `rows`, all within it, go to out[:, column:column + stride]."""
    flat, numbers = out.reshape(-1), np.ascontiguousarray(rows)
    sizes = np.array([stride, out.shape[1], column], np.int64)
    in_parts(_raw, len(numbers), LEAST_ROWS, part, sizes, numbers, flat)


@kernel(reads(types.uint8, 1), reads(types.int64, 1), reads(types.int64, 1), writes(types.uint8, 1))
def _raw(
    first: int, last: int, part: NDArray[np.uint8], sizes: NDArray[np.int64], rows: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> None:  # fmt: skip
    stride, width, column = sizes[0], sizes[1], sizes[2]
    for i in range(first, last):
        if i + AHEAD < last:
            at = rows[i + AHEAD] * stride
            for byte in range(0, stride, LINE):
                prefetch(part, at + byte)
            prefetch(part, at + stride - 1)
        if stride == ROW_BYTES:
            copy(out, i * width + column, part, rows[i] * stride, ROW_BYTES)
        else:
            copy(out, i * width + column, part, rows[i] * stride, stride)


def values(
    codes: NDArray[np.uint8],
    code_stride: int,
    scales: NDArray[np.uint8],
    scale_stride: int,
    rows: NDArray[np.int64],
    out: NDArray[np.uint16],
) -> NDArray[np.bool_]:
    """BF16 bits of [n] `rows`, whose codes and scales lie `stride` bytes apart in flat arrays, to out [n, WIDTH].

    Returns [n] where to look closer: a row with a NaN, or with a scale under which some number has no value.
    """
    flat, numbers, doubtful = out.reshape(-1), np.ascontiguousarray(rows), np.empty(len(rows), np.bool_)
    strides = np.array([code_stride, scale_stride], np.int64)
    in_parts(_values, len(numbers), LEAST_ROWS, codes, scales, strides, numbers, BITS, flat, doubtful)
    return doubtful


@kernel(
    reads(types.uint8, 1), reads(types.uint8, 1), reads(types.int64, 1), reads(types.int64, 1),
    reads(types.uint16, 2), writes(types.uint16, 1), writes(types.boolean, 1),
)  # fmt: skip
def _values(
    first: int, last: int, codes: NDArray[np.uint8], scales: NDArray[np.uint8], strides: NDArray[np.int64],
    rows: NDArray[np.int64], bits: NDArray[np.uint16], out: NDArray[np.uint16], doubtful: NDArray[np.bool_],
) -> None:  # fmt: skip
    code_stride, scale_stride = strides[0], strides[1]
    for i in range(first, last):
        if i + AHEAD < last:
            at = rows[i + AHEAD] * code_stride
            for byte in range(0, WIDTH, LINE):
                prefetch(codes, at + byte)
            prefetch(scales, rows[i + AHEAD] * scale_stride + SCALES - 1)
        doubt = False
        for block in range(SCALES):
            scale = scales[rows[i] * scale_stride + block]
            at, to = rows[i] * code_stride + block * BLOCK, i * WIDTH + block * BLOCK
            if LEAST_SCALE <= scale <= MOST_SCALE:
                doubt |= decode_block(codes, at, scale, out, to)
                continue
            doubt |= scale > MOST_SCALE
            for j in range(BLOCK):
                out[to + j] = bits[scale, codes[at + j]]
                doubt |= codes[at + j] & E4M3_NAN == E4M3_NAN
        doubtful[i] = doubt
