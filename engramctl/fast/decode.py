"""lookup in Numba: rows of codes and scales to BF16 bits, through a table of all codes under all scales."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from engramctl import operands
from engramctl.fast.cache import in_parts, kernel, reads, writes
from formats.row264 import BLOCK, ROW_BYTES, SCALES, WIDTH, decode_bf16, pack

LEAST_ROWS = 2048  # a thread for fewer costs more than it saves


def _every_value() -> NDArray[np.uint16]:
    """[scale byte, code] -> BF16 bits; real rows use two or three scales, so what is used stays in the first cache."""
    codes = np.broadcast_to(np.arange(WIDTH, dtype=np.uint8), (WIDTH, WIDTH))
    scales = np.broadcast_to(np.arange(WIDTH, dtype=np.uint8)[:, None], (WIDTH, SCALES))
    return decode_bf16(pack(codes, scales))


BITS = _every_value()


def lookup(rows: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """As `reference.lookup`: [..., ROW_BYTES] rows -> BF16 bits [..., WIDTH]."""
    operands.expect("rows", rows, (np.uint8,), (*rows.shape[:-1], ROW_BYTES))
    values = np.empty((*rows.shape[:-1], WIDTH), np.uint16)
    flat = np.ascontiguousarray(rows).reshape(-1, ROW_BYTES)
    in_parts(_lookup, len(flat), LEAST_ROWS, flat, BITS, values.reshape(-1, WIDTH))
    return values


@kernel(reads(types.uint8, 2), reads(types.uint16, 2), writes(types.uint16, 2))
def _lookup(
    first: int, last: int, rows: NDArray[np.uint8], bits: NDArray[np.uint16], values: NDArray[np.uint16]
) -> None:
    for row in range(first, last):
        for block in range(SCALES):
            under = bits[rows[row, WIDTH + block]]
            for j in range(block * BLOCK, (block + 1) * BLOCK):
                values[row, j] = under[rows[row, j]]
