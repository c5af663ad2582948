"""Rows of a table in memory: gathered as they are, or decoded on the way, the next rows' lines on their way in.

A row's bytes are wherever its number says, so each is a miss in every cache: the processor is told of rows AHEAD of the
one that is being copied.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from engramctl.fast import cpu
from engramctl.fast.cache import Kernel, in_parts, kernel, named_kernel, reads, writes
from engramctl.fast.decode import BASES, BITS, WAYS, by_table
from engramctl.fast.emit import copy, prefetch
from engramctl.fast.rows import decode_row
from formats.row264 import ROW_BYTES, SCALES, WIDTH

AHEAD = 16  # rows; enough to hide a miss behind the rows before it
LINE = 64  # bytes that come together
LEAST_ROWS = 1024  # a thread for fewer costs more than it saves


def raw(part: NDArray[np.uint8], stride: int, rows: NDArray[np.int64], out: NDArray[np.uint8], column: int) -> None:
    """part, flat: `stride` bytes a row; those of [n] `rows`, all within it, go to out[:, column:column + stride]."""
    flat, numbers = out.reshape(-1), np.ascontiguousarray(rows)
    in_parts(_raw, len(numbers), LEAST_ROWS, part, stride, out.shape[1], column, numbers, flat)


@kernel(reads(types.uint8, 1), *(types.int64,) * 3, reads(types.int64, 1), writes(types.uint8, 1))
def _raw(
    first: int, last: int, part: NDArray[np.uint8], stride: int, width: int, column: int, rows: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> None:  # fmt: skip
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
    arrays = codes, code_stride, scales, scale_stride, numbers, BASES, BITS, flat, doubtful
    in_parts(decoding[cpu.vectors()], len(numbers), LEAST_ROWS, *arrays)
    return doubtful


def _values(path: str) -> Kernel:
    lanes, shuffled = WAYS[path]

    def run(
        first: int, last: int, codes: NDArray[np.uint8], code_stride: int, scales: NDArray[np.uint8], scale_stride: int,
        rows: NDArray[np.int64], bases: NDArray[np.uint32], bits: NDArray[np.uint16], out: NDArray[np.uint16],
        doubtful: NDArray[np.bool_],
    ) -> None:  # fmt: skip
        for i in range(first, last):
            if i + AHEAD < last:
                at = rows[i + AHEAD] * code_stride
                for byte in range(0, WIDTH, LINE):
                    prefetch(codes, at + byte)
                prefetch(scales, rows[i + AHEAD] * scale_stride + SCALES - 1)
            at, under = rows[i] * code_stride, rows[i] * scale_stride
            doubt = False
            if not decode_row(codes, at, scales, under, bases, out, i * WIDTH, lanes, shuffled):
                doubt = by_table(codes, at, scales, under, bits, out, i * WIDTH)
            doubtful[i] = doubt

    table = reads(types.uint8, 1), types.int64
    constants = reads(types.uint32, 1), reads(types.uint16, 2)
    results = writes(types.uint16, 1), writes(types.boolean, 1)
    return named_kernel(f"_values_{path}", run, *table, *table, reads(types.int64, 1), *constants, *results)


decoding = {path: _values(path) for path in WAYS}
