"""lookup in Numba: rows of codes and scales to BF16 bits, usual ones by vectors, others by a table of all values."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from engramctl import operands
from engramctl.fast import cpu
from engramctl.fast.cache import Kernel, helper, in_parts, named_kernel, reads, writes
from engramctl.fast.rows import bases, decode_row
from formats.floats import E4M3_NAN
from formats.row264 import BLOCK, ROW_BYTES, SCALES, SURE_BELOW, WIDTH, decode_bf16, pack

LEAST_ROWS = 2048  # a thread for fewer costs more than it saves
WAYS = {"avx512": (64, True), "avx2": (32, True), "portable": (16, False)}  # bytes of a vector, is there a byte look-up


def _every_value() -> NDArray[np.uint16]:
    """[scale byte, code] -> BF16 bits."""
    codes = np.broadcast_to(np.arange(WIDTH, dtype=np.uint8), (WIDTH, WIDTH))
    scales = np.broadcast_to(np.arange(WIDTH, dtype=np.uint8)[:, None], (WIDTH, SCALES))
    return decode_bf16(pack(codes, scales))


BITS = _every_value()
BASES = bases()


def lookup(rows: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """As `reference.lookup`: [..., ROW_BYTES] rows -> BF16 bits [..., WIDTH]."""
    operands.expect("rows", rows, (np.uint8,), (*rows.shape[:-1], ROW_BYTES))
    values = np.empty((*rows.shape[:-1], WIDTH), np.uint16)
    flat = np.ascontiguousarray(rows).reshape(-1)
    in_parts(lookups[cpu.vectors()], len(flat) // ROW_BYTES, LEAST_ROWS, flat, BASES, BITS, values.reshape(-1))
    return values


@helper
def by_table(
    codes: NDArray[np.uint8], at: int, scales: NDArray[np.uint8], under: int, bits: NDArray[np.uint16],
    out: NDArray[np.uint16], to: int,
) -> bool:  # fmt: skip
    """A row of any bytes. Does some code have no value?"""
    doubt = False
    for block in range(SCALES):
        scale = scales[under + block]
        doubt |= scale >= SURE_BELOW
        for j in range(block * BLOCK, (block + 1) * BLOCK):
            out[to + j] = bits[scale, codes[at + j]]
            doubt |= codes[at + j] & E4M3_NAN == E4M3_NAN
    return doubt


def _lookup(path: str) -> Kernel:
    lanes, shuffled = WAYS[path]

    def run(
        first: int, last: int, rows: NDArray[np.uint8], bases: NDArray[np.uint32], bits: NDArray[np.uint16],
        values: NDArray[np.uint16],
    ) -> None:  # fmt: skip
        for row in range(first, last):
            at = row * ROW_BYTES
            if not decode_row(rows, at, rows, at + WIDTH, bases, values, row * WIDTH, lanes, shuffled):
                by_table(rows, at, rows, at + WIDTH, bits, values, row * WIDTH)

    tables = reads(types.uint32, 1), reads(types.uint16, 2)
    return named_kernel(f"_lookup_{path}", run, reads(types.uint8, 1), *tables, writes(types.uint16, 1))


lookups = {path: _lookup(path) for path in WAYS}
