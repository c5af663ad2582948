"""Table: the rows of one layer by number, whatever file and layout they lie in, and wherever they are kept.

A row is the concatenation of its parts' bytes: (codes, scales) in a checkpoint, one part in a container's tail.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError
from engramctl.placement.place import Extent, Io, Part, Place
from formats import row264
from formats.closing import Closing
from formats.errors import FormatError
from formats.floats import to_bf16
from formats.row_layouts import ROW264, RowLayout

if TYPE_CHECKING:
    from engramctl.source import Source
    from engramctl.tables import Tables

__all__ = ["Part", "Table"]


@dataclass(frozen=True)
class Table(Closing):
    """All rows of one layer. Opened by `engramctl.source` or `engramctl.tables`; closing that ends it.

    `place` is where the rows come from, the files where there is none; `here` are the first row and the row after the
    last that this shard holds, all where it is None: the others are answered with zeros.
    """

    layer: int
    rows: int
    parts: tuple[Part, ...]
    place: Place | None = None
    here: tuple[int, int] | None = None
    source: Source | None = None  # where the table is to close it
    layout: RowLayout = ROW264
    pages: tuple[int, int] | None = None  # rows to a page, and its bytes; None: rows follow one another
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
        return self.layout.name in ("row264", "split264") and self.pages is None and not self.first

    @property
    def row_bytes(self) -> int:
        return sum(part.stride for part in self.parts)

    @classmethod
    def open(
        cls,
        path: Path | str,
        layer: int | None = None,
        io: Io = "auto",
        shard: str | None = None,
        by: str = "rows",
        prewarm: bool = False,
        threads: int | None = None,
    ) -> Table:
        """A table of its own, out of a checkpoint or container: `with Table.open(path, 1, io="mmap") as table`."""
        from engramctl.source import open_source, the_layer

        source = open_source(Path(path))
        try:
            table = source.table(the_layer(source, layer)).sharded(shard, by, source)
            return replace(table.placed(io, None, prewarm, threads), source=source)
        except BaseException:
            source.close()
            raise

    def sharded(self, shard: str | None, by: str, source: Source | Tables) -> Table:
        """Part `shard` ("i/n") of this table, by "rows" or by "heads"; the whole where it is None."""
        if shard is None:
            return self
        from engramctl.placement import shard as shards

        here = shards.held(shard, by, self.layer, self.rows, source)
        return replace(self, here=here)

    def placed(
        self, io: Io = "auto", wanted: int | None = None, prewarm: bool = False, threads: int | None = None
    ) -> Table:
        """The same table with its rows where `io` says; `wanted` is how many will be asked for, if that is known."""
        from engramctl.placement import choose

        if self.pages is not None or self.first:
            return self  # rows that are not where their number says come from the file
        first, last = self.here or (0, self.rows)
        return replace(self, place=choose.place(self._extent(first, last), io, wanted, prewarm, threads))

    @property
    def io(self) -> str:
        """How rows are read, by name."""
        return "pread" if self.place is None else self.place.name

    @property
    def said(self) -> tuple[str, ...]:
        """What a person should know of where the rows are."""
        return () if self.place is None else tuple(self.place.said)

    def _extent(self, first: int, last: int) -> Extent:
        return Extent(self.layer, self.parts, first, last)

    def _place(self) -> Place:
        if self.place is not None:
            return self.place
        from engramctl.placement.on_disk import OnDisk

        return OnDisk(self._extent(0, self.rows))

    def _check_numbers(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Flat int64 row numbers, all of them the table's; others are refused."""
        flat = np.ascontiguousarray(rows, np.int64).reshape(-1)
        if flat.size and not (flat.min() >= self.first and flat.max() < self.rows):
            outside, there = flat.min() if flat.min() < self.first else flat.max(), f"{self.first}..{self.rows - 1}"
            raise EngramctlError("row numbers", f"rows in {there} of layer {self.layer}", f"{outside}")
        return flat

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """[...] row numbers -> [..., row bytes]: codes then scales, or as stored where the layout is lossy.

        Rows outside the table are refused.
        """
        flat = self._check_numbers(rows)
        if self.pages is not None or self.first:
            raw = self._elsewhere(flat)
        elif self.here is None:
            raw = self._place().read(flat)
        else:
            held = (flat >= self.here[0]) & (flat < self.here[1])
            raw = np.zeros((flat.size, self.row_bytes), np.uint8)
            raw[held] = self._place().read(flat[held])
        return self.layout.arranged(raw).reshape(*rows.shape, self.row_bytes)

    def _elsewhere(self, flat: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Rows on pages, or of a part of a layer: each distinct one read by itself, in file order."""
        wanted, place = np.unique(flat, return_inverse=True)
        raw = np.empty((wanted.size, self.row_bytes), np.uint8)
        (part,) = self.parts
        for i, row in enumerate(wanted.tolist()):
            number = row - self.first
            start = part.start + number * part.stride
            if self.pages is not None:
                page, at = divmod(number, self.pages[0])
                start = part.start + page * self.pages[1] + at * part.stride
            part.file.read_into(raw[i].data, start, f"layer {self.layer} row {row}")
        return raw[place]

    def values(self, rows: NDArray[np.int64], tier: ModuleType) -> NDArray[np.uint16]:
        """[...] row numbers -> BF16 bits [..., 256] by `reference` or `fast`; an invalid row raises `FormatError`."""
        if not self.layout.lossless:
            return to_bf16(self.decoded(rows))
        flat = self._check_numbers(rows)
        place = self.place
        if place is not None and self.plain and self.here is None and hasattr(tier, "use_threads"):
            out = np.empty((flat.size, row264.WIDTH), np.uint16)
            doubtful = place.values(flat, out)
            if doubtful is not None:
                closer = flat[doubtful]
                self.check(closer, place.read(closer))
                return out.reshape(*rows.shape, row264.WIDTH)
        made: NDArray[np.uint16] = tier.lookup(self.read_valid(rows))
        return made

    def compiled(self, count: int) -> bool:
        """Is it quicker to load compiled code for `count` rows than to do without?"""
        from engramctl.placement.spans import NATIVE

        return count >= NATIVE or (self.place is not None and self.place.name in ("mmap", "ram"))

    def want(self, rows: NDArray[np.int64]) -> None:
        """These rows will be read soon: begin, wherever the placement can."""
        flat = self._check_numbers(rows)
        if self.here is not None:
            flat = flat[(flat >= self.here[0]) & (flat < self.here[1])]
        self._place().want(flat)

    def check(self, rows: NDArray[np.int64], raw: NDArray[np.uint8]) -> None:
        """Refuse the first invalid row of `read`'s answer, naming layer, row and byte."""
        flat = raw.reshape(-1, raw.shape[-1])
        if not self.layout.lossless:
            finite = np.isfinite(self.layout.decode(flat)).all(axis=1)
            if not finite.all():
                where = f"layer {self.layer} row {int(rows.reshape(-1)[int(finite.argmin())])}"
                raise FormatError(self.parts[0].file.path, where, "finite values", "others")
            return
        bad = row264.first_invalid(*row264.split(flat))
        if bad is not None:
            row = int(rows.reshape(-1)[bad.row])
            raise FormatError(
                self.parts[0].file.path, f"layer {self.layer} row {row} byte {bad.byte}", bad.expected, bad.found
            )

    def read_valid(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """As `read`, and an invalid row raises `FormatError`."""
        raw = self.read(rows)
        self.check(rows, raw)
        return raw

    def decoded(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """[...] row numbers -> [..., width] values as the layout has them, before any rounding."""
        return self.decode(self.read_valid(rows))

    @property
    def is_bf16(self) -> bool:
        """Is BF16 what the model looks up? In V4.1 it is."""
        return True

    def decode(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        """[..., 264] valid rows -> their exact values; of other layouts what the row stands for."""
        return self.layout.decode(raw)

    def decode_bf16(self, raw: NDArray[np.uint8]) -> NDArray[np.uint16]:
        """[..., 264] valid rows -> BF16 bits, what the model looks up."""
        return row264.decode_bf16(raw) if self.layout.lossless else to_bf16(self.layout.decode(raw))

    def close(self) -> None:
        """Let go of the placement, and of the source where the table opened it."""
        if self.place is not None:
            self.place.close()
        if self.source is not None:
            self.source.close()
