"""Rows from a checkpoint into their places: read, check, interleave, hash, write, a digest block at a time.

Each thread does all of it for one block with buffers of its own, which the second cache about holds.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from engramctl.extents import Range
from engramctl.packer import Pack
from engramctl.repack_plan import Target
from engramctl.row_blocks import Span
from engramctl.table import Table
from formats import row264, tree_digest
from formats.disk import WriteFile
from formats.errors import FormatError


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.codes = np.empty((tree_digest.LEAF_ROWS, row264.WIDTH), np.uint8)
        self.scales = np.empty((tree_digest.LEAF_ROWS, row264.SCALES), np.uint8)
        self.rows = np.empty((tree_digest.LEAF_ROWS, row264.ROW_BYTES), np.uint8)


class RowWriter:
    """Writes spans of tables; with `leaves` it also says each block's digest."""

    def __init__(self, file: WriteFile, pack: Pack, leaves: bool) -> None:
        self.file, self.pack, self.leaves = file, pack, leaves
        self.buffers = _Buffers()

    def span(self, table: Table, target: Target, span: Span) -> list[bytes]:
        """Write the span's rows that hold data; the digests of its blocks, if they are wanted."""
        leaves = []
        for first, last, data in span.blocks():
            rows = self.buffers.rows[: last - first]
            if self.leaves and data != [(first, last)]:
                if not data:
                    leaves.append(tree_digest.zero_leaf(last - first))
                    continue
                rows[...] = 0
            for start, end in data:
                self._rows(table, target, (start, end), rows[start - first : end - first])
            if self.leaves:
                leaves.append(tree_digest.leaf(rows.data))
        return leaves

    def _rows(self, table: Table, target: Target, rows: Range, out: NDArray[np.uint8]) -> None:
        first, last = rows
        both = self.buffers.codes[: last - first], self.buffers.scales[: last - first]
        for part, piece in zip(table.parts, both, strict=True):
            start = part.start + first * part.stride
            part.file.read_into(piece.data, start, f"rows {first} to {last} of layer {table.layer}")
            part.file.done_with(start, start + piece.nbytes)
        bad = self.pack(*both, out)
        if bad is not None:
            at = f"layer {table.layer} row {first + bad.row} byte {bad.byte}"
            raise FormatError(table.parts[0].file.path, at, bad.expected, bad.found)
        self.file.write(target.start + first * row264.ROW_BYTES, out.data)
