"""The rows of one layer by number where they lie in several tensors: numbered shards, or one tensor a column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError
from engramctl.placement.place import Io
from engramctl.table import Table
from formats.closing import Closing
from formats.errors import FormatError
from formats.row_plain import PlainRows

if TYPE_CHECKING:
    from engramctl.source import Source


@dataclass(frozen=True)
class PlainTable(Closing):
    """All rows of one layer, piece after piece; opened by a source, and closing that ends it.

    `here`, `source` as in `Table`; each piece has a placement of its own.
    """

    layer: int
    pieces: tuple[Table, ...]
    layout: PlainRows
    here: tuple[int, int] | None = None
    source: Source | None = None

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
        placed = self.here is not None or any(piece.place is not None for piece in self.pieces)
        if not placed and flat.size and flat[-1] - flat[0] + 1 == flat.size and (np.diff(flat) == 1).all():
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

    def sharded(self, shard: str | None, by: str, source: Source) -> PlainTable:
        """Part `shard` ("i/n") of this table, by "rows" or by "heads"; the whole where it is None."""
        if shard is None:
            return self
        from engramctl.placement import shard as shards

        first, last = shards.held(shard, by, self.layer, self.rows, source)
        pieces = []
        for piece, begin in zip(self.pieces, self.firsts().tolist(), strict=False):
            low, high = (max(0, min(row - begin, piece.rows)) for row in (first, last))
            pieces.append(piece if (low, high) == (0, piece.rows) else replace(piece, here=(low, high)))
        return replace(self, pieces=tuple(pieces), here=(first, last))

    def placed(
        self, io: Io = "auto", wanted: int | None = None, prewarm: bool = False, threads: int | None = None
    ) -> PlainTable:
        """The same table with its rows where `io` says: each piece, or what this shard holds of it."""
        if io == "ram":
            from engramctl.placement import memory

            first, last = self.here or (0, self.rows)
            memory.require((last - first) * self.row_bytes, f"layer {self.layer}")
        made: list[Table] = []
        try:
            for piece in self.pieces:
                empty = piece.here is not None and piece.here[0] == piece.here[1]
                made.append(piece if empty else piece.placed(io, wanted, prewarm, threads))
        except BaseException:
            for piece in made:
                piece.close()
            raise
        return replace(self, pieces=tuple(made))

    @property
    def io(self) -> str:
        """How rows are read, by name; of pieces that are read in several ways, each."""
        return ", ".join(sorted({piece.place.name for piece in self.pieces if piece.place is not None})) or "pread"

    @property
    def said(self) -> tuple[str, ...]:
        """What a person should know of where the rows are; of many pieces, what is alike is counted."""
        lines = [piece.said for piece in self.pieces if piece.place is not None]
        if len(lines) <= 1:
            return lines[0] if lines else ()
        names = Counter(piece.place.name for piece in self.pieces if piece.place is not None)
        spelled = ", ".join(f"{name} for {count}" for name, count in names.most_common())
        reasons = {line for each in lines for line in each if " auto chose " in line}
        if len(reasons) == 1:
            return tuple(reasons)
        warnings = [line for each in lines for line in each if line.startswith("warning")]
        more = f" (and {len(warnings) - 1} pieces like it)" if len(warnings) > 1 else ""
        return (f"layer {self.layer}: {len(self.pieces)} pieces: {spelled}", *(line + more for line in warnings[:1]))

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

    def close(self) -> None:
        """Let go of the placements, and of the source where the table opened it."""
        for piece in self.pieces:
            piece.close()
        if self.source is not None:
            self.source.close()
