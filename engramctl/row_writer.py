"""Rows from a checkpoint into their places: read, check, interleave, hash, write.

Each thread does all of it, for a few rows at a time, with buffers of its own.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from engramctl import row_blocks
from engramctl.extents import Range
from engramctl.packer import Pack
from engramctl.repack_plan import Target
from engramctl.row_blocks import Span, pieces
from engramctl.table import Part, Table
from formats import row264, tree_digest
from formats.disk import WriteFile
from formats.errors import FormatError

Rows = NDArray[np.uint8]

RING_ROWS = 2048  # rows that are in work at once: read, checked, hashed and written while the cache holds them


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.scales = np.empty((row_blocks.SPAN_BLOCKS * tree_digest.LEAF_ROWS, row264.SCALES), np.uint8)
        self.codes = np.empty((RING_ROWS, row264.WIDTH), np.uint8)
        self.rows = np.empty((RING_ROWS, row264.ROW_BYTES), np.uint8)


class RowWriter:
    """Writes spans of tables; with `leaves` it also says each block's digest."""

    def __init__(self, file: WriteFile, pack: Pack, leaves: bool) -> None:
        self.file, self.pack, self.leaves = file, pack, leaves
        self.buffers = _Buffers()

    def span(self, table: Table, target: Target, span: Span) -> list[bytes]:
        """Write the span's rows that hold data; the digests of its blocks, if they are wanted."""
        codes, scales = table.parts
        leaves = []
        for start, end in span.data:  # scales are small: a span's are read at once
            _read(scales, start, self.buffers.scales[start - span.first : end - span.first], table.layer)
        for first, last, data in span.blocks():
            if self.leaves and not data:
                leaves.append(tree_digest.zero_leaf(last - first))
                continue
            hasher = tree_digest.hasher()
            for start, end, held in pieces(first, last, data, RING_ROWS):
                rows = self.buffers.rows[: end - start]
                if self.leaves and held != [(start, end)]:
                    rows[...] = 0
                for some in held:
                    under = self.buffers.scales[some[0] - span.first : some[1] - span.first]
                    self._rows(codes, under, target, some, rows[some[0] - start : some[1] - start])
                if self.leaves:
                    hasher.update(rows.data)
            if self.leaves:
                leaves.append(hasher.digest())
        return leaves

    def _rows(self, part: Part, scales: Rows, target: Target, rows: Range, out: Rows) -> None:
        first, last = rows
        codes = self.buffers.codes[: last - first]
        _read(part, first, codes, target.layer)
        bad = self.pack(codes, scales, out)
        if bad is not None:
            at = f"layer {target.layer} row {first + bad.row} byte {bad.byte}"
            raise FormatError(part.file.path, at, bad.expected, bad.found)
        self.file.write(target.start + first * row264.ROW_BYTES, out.data)


def _read(part: Part, first: int, into: Rows, layer: int) -> None:
    what = f"rows {first} to {first + len(into)} of layer {layer}"
    part.file.read_into(into.data, part.start + first * part.stride, what)
