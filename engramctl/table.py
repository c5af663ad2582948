"""Table: the rows of one layer by number, whatever file and layout they lie in.

A row is the concatenation of its parts' bytes: (codes, scales) in a checkpoint, one part in a container's tail.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError
from formats import row264
from formats.disk import ReadFile
from formats.errors import FormatError
from formats.floats import to_bf16
from formats.row_layouts import ROW264, RowLayout


@dataclass(frozen=True)
class Part:
    """Where one part of every row lies: `stride` bytes a row, from `start` on; or `page_rows` rows to a page."""

    file: ReadFile
    start: int
    stride: int
    page_rows: int = 0
    page_bytes: int = 0

    def at(self, row: int) -> int:
        """The row's first byte."""
        if not self.page_rows:
            return self.start + row * self.stride
        page, place = divmod(row, self.page_rows)
        return self.start + page * self.page_bytes + place * self.stride


@dataclass(frozen=True)
class Table:
    """All rows of one layer. Opened by `engramctl.source` or `engramctl.tables`; closing that ends it."""

    layer: int
    rows: int
    parts: tuple[Part, ...]
    layout: RowLayout = ROW264
    first: int = 0  # rows before this one are in another file
    total: int | None = None  # rows of the whole layer, where this file holds a part of them
    covered: tuple[tuple[int, int], ...] = ()  # ranges that hold rows, where not all do

    @property
    def whole(self) -> int:
        """Rows of the layer, here or elsewhere."""
        return self.rows if self.total is None else self.total

    @property
    def plain(self) -> bool:
        """Do the parts' bytes, side by side, make the rows that reading gives, one after the other?"""
        return (
            self.layout.name in ("row264", "split264") and not self.first and not any(p.page_rows for p in self.parts)
        )

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """[...] row numbers -> [..., row bytes]: codes then scales, or as stored where the layout is lossy.

        Rows outside the table are refused. Each distinct row is read once, in file order.
        """
        wanted, place = np.unique(rows.astype(np.int64), return_inverse=True)
        if wanted.size and not (wanted[0] >= self.first and wanted[-1] < self.rows):
            outside = wanted[0] if wanted[0] < self.first else wanted[-1]
            what = f"rows in {self.first}..{self.rows - 1} of layer {self.layer}"
            raise EngramctlError("row numbers", what, f"{outside}")
        raw = np.empty((wanted.size, sum(part.stride for part in self.parts)), np.uint8)
        column = 0
        for part in self.parts:
            for i, row in enumerate(wanted.tolist()):
                part.file.read_into(
                    raw[i, column : column + part.stride].data,
                    part.at(row - self.first),
                    f"layer {self.layer} row {row}",
                )
            column += part.stride
        return self.layout.arranged(raw)[place.reshape(rows.shape)]

    def check(self, rows: NDArray[np.int64], raw: NDArray[np.uint8]) -> None:
        """Refuse the first invalid row of `read`'s answer, naming layer, row and byte."""
        flat = raw.reshape(-1, raw.shape[-1])
        where, numbers = self.parts[0].file.path, rows.reshape(-1)
        if not self.layout.lossless:
            finite = np.isfinite(self.layout.decode(flat)).all(axis=1)
            if not finite.all():
                row = int(numbers[int(finite.argmin())])
                raise FormatError(where, f"layer {self.layer} row {row}", "finite values", "others")
            return
        bad = row264.first_invalid(*row264.split(flat))
        if bad is not None:
            row = int(numbers[bad.row])
            raise FormatError(where, f"layer {self.layer} row {row} byte {bad.byte}", bad.expected, bad.found)

    def read_valid(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """As `read`, and an invalid row raises `FormatError`."""
        raw = self.read(rows)
        self.check(rows, raw)
        return raw

    def bf16(self, rows: NDArray[np.int64]) -> NDArray[np.uint16]:
        """[...] row numbers -> [..., width] BF16 bits, each value rounded once."""
        raw = self.read_valid(rows)
        return row264.decode_bf16(raw) if self.layout.lossless else to_bf16(self.layout.decode(raw))

    def values(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """[...] row numbers -> [..., width] values as the layout decodes them."""
        return self.layout.decode(self.read_valid(rows))
