"""mmap and ram: the table as memory, rows gathered by compiled code, the next ones on their way into the cache."""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from numpy.typing import NDArray

from engramctl.placement import guard, memory, spans
from engramctl.placement.place import Extent, Io
from formats.disk import ReadFile
from formats.errors import FormatError
from formats.page_cache import Mapping, size_now
from formats.row264 import ROW_BYTES, WIDTH

PIECE = 8 << 20  # bytes read into memory at a time
GOOD_COVERAGE = 0.98


class Mapped:
    """The file itself as memory; no byte is read that was not asked for. Cut short under us: an error, not a signal."""

    name: Io = "mmap"

    def __init__(self, extent: Extent) -> None:
        self.extent, self.said = extent, list[str]()
        self._maps: list[Mapping] = []
        self._watches: list[guard.Watch] = []
        try:
            for part in extent.parts:
                self._maps.append(Mapping(part.file, *extent.span(part)))
                self._maps[-1].advise("MADV_RANDOM")
                if guard.available():
                    self._watches.append(guard.Watch(self._maps[-1].address, self._maps[-1].length))
        except BaseException:
            self.close()
            raise

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        from engramctl.fast import gather

        out = np.empty((rows.size, self.extent.row_bytes), np.uint8)

        def go() -> None:
            column = 0
            for part, mapped in zip(self.extent.parts, self._maps, strict=True):
                gather.raw(mapped.bytes, part.stride, rows - self.extent.first, out, column)
                column += part.stride

        self._watched(go)
        return out

    def values(self, rows: NDArray[np.int64], out: NDArray[np.uint16]) -> NDArray[np.bool_] | None:
        from engramctl.fast import gather

        strides = tuple(part.stride for part in self.extent.parts)
        near = rows - self.extent.first
        codes = self._maps[0].bytes
        doubtful: list[NDArray[np.bool_]] = []
        if strides == (ROW_BYTES,):
            self._watched(lambda: doubtful.append(gather.values(codes, ROW_BYTES, codes[WIDTH:], ROW_BYTES, near, out)))
        elif strides == (WIDTH, ROW_BYTES - WIDTH):
            scales = self._maps[1].bytes
            self._watched(lambda: doubtful.append(gather.values(codes, WIDTH, scales, ROW_BYTES - WIDTH, near, out)))
        return doubtful[0] if doubtful else None

    def _watched(self, go: Callable[[], None]) -> None:
        """Gather; a file that is shorter than it was, before or during that, raises and its bytes are not used."""
        for watch in self._watches:
            watch.ready()
        self._refuse_cut()
        go()
        if any(watch.cut for watch in self._watches):
            self._refuse_cut()
            part = self.extent.parts[[watch.cut for watch in self._watches].index(True)]
            raise FormatError(part.file.path, None, "a file that stays as it was opened", "a page that cannot be read")

    def _refuse_cut(self) -> None:
        for part in self.extent.parts:
            size, end = size_now(part.file), self.extent.span(part)[1]
            if size < end:
                what = f"{end} bytes up to the last row of layer {self.extent.layer}, as when it was opened"
                raise FormatError(part.file.path, None, what, f"{size}")

    def want(self, rows: NDArray[np.int64]) -> None:
        firsts, counts = spans.runs(np.unique(rows))
        for part in self.extent.parts:
            spans.want(part.file, part.start + firsts * part.stride, counts * part.stride)

    def populate(self, threads: int) -> None:
        """Every page into the page cache by big reads, then into this process's tables, each thread its own share."""
        for part, mapped in zip(self.extent.parts, self._maps, strict=True):
            in_shares(threads, *self.extent.span(part), partial(memory.touch, part.file))
            if not mapped.advise("MADV_POPULATE_READ"):
                self._watched(partial(memory.touch_pages, mapped))

    def close(self) -> None:
        for watch in self._watches:
            watch.release()
        for mapped in self._maps:
            mapped.close()
        self._watches, self._maps = [], []


class InMemory:
    """A copy in anonymous memory, huge pages where the system has them; a row's parts lie together."""

    name: Io = "ram"

    def __init__(self, extent: Extent, threads: int) -> None:
        self.extent, self.said = extent, list[str]()
        memory.require(extent.bytes, f"layer {extent.layer}")
        self._arena = memory.Arena(extent.bytes)
        self._rows = self._arena.bytes.reshape(-1, extent.row_bytes)
        column = 0
        for part in extent.parts:
            load = partial(self._load, column, part.start, part.stride, part.file)
            in_shares(threads, extent.first, extent.last, load, PIECE // extent.row_bytes)
            column += part.stride
        self._arena.collapse()
        self._say()

    def _load(self, column: int, start: int, stride: int, file: ReadFile, first: int, last: int) -> None:
        """Rows first..last, by the thread that first touches their pages: that is where the system puts them."""
        what, at = f"rows {first} to {last - 1} of layer {self.extent.layer}", first - self.extent.first
        with memory.kept_out(file, start + first * stride, start + last * stride):
            if len(self.extent.parts) == 1:
                file.read_into(self._rows[at : at + last - first].data, start + first * stride, what)
                return
            piece = np.empty((last - first, stride), np.uint8)
            file.read_into(piece.data, start + first * stride, what)
            self._rows[at : at + last - first, column : column + stride] = piece

    def _say(self) -> None:
        covered = self._arena.huge_share()
        size = f"layer {self.extent.layer}: {self.extent.bytes:,} bytes in memory"
        if covered is None:
            self.said.append(f"{size}, huge pages not reported by this system")
        else:
            self.said.append(f"{size}, {covered:.1%} on huge pages")
            if covered < GOOD_COVERAGE:
                self.said.append(
                    f"warning: layer {self.extent.layer}: huge pages cover {covered:.1%} of the table, below "
                    f"{GOOD_COVERAGE:.0%}: each row costs a page walk more"
                )

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        from engramctl.fast import gather

        out = np.empty((rows.size, self.extent.row_bytes), np.uint8)
        gather.raw(self._arena.bytes, self.extent.row_bytes, rows - self.extent.first, out, 0)
        return out

    def values(self, rows: NDArray[np.int64], out: NDArray[np.uint16]) -> NDArray[np.bool_] | None:
        from engramctl.fast import gather

        if self.extent.row_bytes != ROW_BYTES:
            return None
        flat = self._arena.bytes
        return gather.values(flat, ROW_BYTES, flat[WIDTH:], ROW_BYTES, rows - self.extent.first, out)

    def want(self, rows: NDArray[np.int64]) -> None:
        """It is here."""

    def close(self) -> None:
        del self._rows
        self._arena.close()


def in_shares(
    threads: int, first: int, last: int, work: Callable[[int, int], None], most: int = mmap.PAGESIZE * 2048
) -> None:
    """work(a, b) over first..last in pieces of at most `most`, each thread its own contiguous share of them."""

    def share(begin: int, end: int) -> None:
        for a in range(begin, end, most):
            work(a, min(a + most, end))

    edges = [first + (last - first) * i // threads for i in range(threads + 1)]
    with ThreadPoolExecutor(threads, "engramctl-load") as pool:
        for done in [pool.submit(share, a, b) for a, b in itertools.pairwise(edges)]:
            done.result()
