"""The rows of one layer by number where they lie in several tensors: numbered shards, or one tensor a column."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError
from engramctl.table import Table
from formats.errors import FormatError
from formats.row_plain import PlainRows


@dataclass(frozen=True)
class PlainTable:
    """All rows of one layer, piece after piece; opened by a source, and closing that ends it."""

    layer: int
    pieces: tuple[Table, ...]
    layout: PlainRows

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)

    @property
    def row_bytes(self) -> int:
        return self.layout.row_bytes

    @property
    def is_bf16(self) -> bool:
        """Is BF16 what the model looks up?"""
        return self.layout.is_bf16()

    def firsts(self) -> NDArray[np.int64]:
        """[pieces + 1] first row of each piece, and the row after the last."""
        return np.cumsum([0, *(piece.rows for piece in self.pieces)])

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """[...] row numbers -> [..., row_bytes] raw bytes; rows outside the table are refused."""
        flat, firsts = np.ascontiguousarray(rows, np.int64).reshape(-1), self.firsts()
        outside = flat[(flat < 0) | (flat >= firsts[-1])]
        if outside.size:
            raise EngramctlError("row numbers", f"rows in 0..{self.rows - 1} of layer {self.layer}", f"{outside[0]}")
        if flat.size and flat[-1] - flat[0] + 1 == flat.size and (np.diff(flat) == 1).all():
            return self._range(int(flat[0]), int(flat[-1]) + 1).reshape(*rows.shape, self.layout.row_bytes)
        raw = np.empty((flat.size, self.layout.row_bytes), np.uint8)
        piece_of = np.searchsorted(firsts, flat, side="right") - 1
        for number in np.unique(piece_of):
            here = piece_of == number
            raw[here] = self.pieces[number].read(flat[here] - firsts[number])
        return raw.reshape(*rows.shape, self.layout.row_bytes)

    def _range(self, first: int, last: int) -> NDArray[np.uint8]:
        """[last - first, row_bytes] neighbouring rows, with one read for each piece that they lie in."""
        raw, begin = np.empty((last - first, self.layout.row_bytes), np.uint8), 0
        for piece in self.pieces:
            low, high, part = max(first, begin), min(last, begin + piece.rows), piece.parts[0]
            if low < high:
                at = part.start + (low - begin) * part.stride
                part.file.read_into(raw[low - first : high - first].data, at, f"layer {self.layer} rows {low} on")
            begin += piece.rows
        return raw

    def data_ranges(self) -> Iterator[tuple[int, int]]:
        """(first, last) rows whose bytes do not all lie in holes of their files, ascending."""
        for piece, first in zip(self.pieces, self.firsts().tolist(), strict=False):
            part, done = piece.parts[0], 0
            for start, end in part.file.data(part.start, part.start + piece.rows * part.stride):
                low = max(done, (start - part.start) // part.stride)
                done = -(-(end - part.start) // part.stride)
                if low < done:
                    yield first + low, first + done

    def check(self, rows: NDArray[np.int64], raw: NDArray[np.uint8]) -> None:
        """Refuse the first invalid row of `read`'s answer, naming layer, row and byte."""
        bad = self.layout.first_invalid(raw.reshape(-1, raw.shape[-1]))
        if bad is not None:
            row = int(rows.reshape(-1)[bad.row])
            piece = int(np.searchsorted(self.firsts(), row, side="right")) - 1
            where = f"layer {self.layer} row {row} byte {bad.byte}"
            raise FormatError(self.pieces[piece].parts[0].file.path, where, bad.expected, bad.found)

    def read_valid(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """As `read`, and an invalid row raises `FormatError`."""
        raw = self.read(rows)
        self.check(rows, raw)
        return raw

    def decode(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        """[..., row_bytes] valid rows -> their exact values."""
        return self.layout.decode(raw)

    def decode_bf16(self, raw: NDArray[np.uint8]) -> NDArray[np.uint16]:
        """[..., row_bytes] valid rows -> BF16 bits, if that is what the model looks up."""
        if not self.is_bf16:
            rows = f"{self.layout.dtype} rows, which are used as they are"
            raise EngramctlError("BF16 values", "a table of BF16 or E4M3", rows, "--to f32 gives the exact values")
        return self.layout.decode_bf16(raw)
