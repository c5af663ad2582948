"""pread and direct: each distinct row is read from the file when it is asked for, in the file's order."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError
from engramctl.placement import spans
from engramctl.placement.place import Extent, Io, Part
from formats import page_cache
from formats.disk import ReadFile

TOKENS_WORTH = 256  # rows up to which looking for neighbours takes longer than reading them one by one
QUEUE = 64  # uncached reads that wait at one time, a thread each
LEAST_SPANS = 4  # a thread for fewer costs more than it saves


class OnDisk:
    """Rows through the page cache: sorted, each once, a window of them asked for ahead."""

    name: Io = "pread"

    def __init__(self, extent: Extent) -> None:
        self.extent, self.said = extent, list[str]()
        for part in extent.parts:
            page_cache.at_random(part.file)

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        wanted, place = np.unique(rows, return_inverse=True)
        few = rows.size <= TOKENS_WORTH
        raw = self._rows(wanted.size, *((wanted, np.ones_like(wanted)) if few else spans.runs(wanted)))
        if wanted.size == rows.size and bool((place[1:] > place[:-1]).all()):
            return raw
        return raw[place]

    def _rows(self, count: int, firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The spans' rows, one after another."""
        parts = []
        for part in self.extent.parts:
            made = np.empty((count, part.stride), np.uint8)
            name = _names(self.extent.layer, firsts, counts)
            self._fill(part, part.start + firsts * part.stride, counts * part.stride, made.reshape(-1), name)
            parts.append(made)
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def _fill(
        self,
        part: Part,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        out: NDArray[np.uint8],
        name: spans.Name,
    ) -> None:
        spans.fill(part.file, starts, lengths, out, name)

    def values(self, rows: NDArray[np.int64], out: NDArray[np.uint16]) -> NDArray[np.bool_] | None:
        return None

    def want(self, rows: NDArray[np.int64]) -> None:
        firsts, counts = spans.runs(np.unique(rows))
        for part in self.extent.parts:
            spans.want(part.file, part.start + firsts * part.stride, counts * part.stride)

    def close(self) -> None:
        """The files are the source's."""


class Direct(OnDisk):
    """Rows past the page cache: whole sectors around each, QUEUE of them at a time. No other file's pages leave it."""

    name: Io = "direct"

    def __init__(self, extent: Extent) -> None:
        self.extent, self.said = extent, []
        self._files: dict[int, ReadFile] = {}
        try:
            for part in extent.parts:
                if part.file.fd not in self._files:
                    self._files[part.file.fd] = page_cache.open_uncached(part.file.path)
        except OSError as error:
            self.close()
            found = (error.strerror or str(error)).lower()
            raise EngramctlError(
                f"--io direct: {part.file.path}",
                "a file system with uncached reads",
                found,
                "--io pread reads the same",
            ) from None
        self._pool = ThreadPoolExecutor(QUEUE, "engramctl-direct")

    def _fill(
        self,
        part: Part,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        out: NDArray[np.uint8],
        name: spans.Name,
    ) -> None:
        places = np.cumsum(lengths) - lengths
        done = np.zeros(len(starts), np.bool_)
        if page_cache.native():
            from engramctl.fast import reads

            fd, count = self._files[part.file.fd].fd, len(starts)
            edges = np.linspace(0, count, max(1, min(QUEUE, count // LEAST_SPANS)) + 1).astype(int).tolist()
            shares = [slice(a, b) for a, b in itertools.pairwise(edges)]
            waiting = [
                self._pool.submit(reads.fill_uncached, fd, starts[some], lengths[some], places[some], out)
                for some in shares
            ]
            for some, part_done in zip(shares, waiting, strict=True):
                done[some] = part_done.result()
        for i in np.flatnonzero(~done).tolist():  # through the door, which says why
            part.file.read_into(out[places[i] : places[i] + lengths[i]].data, int(starts[i]), name(i))

    def want(self, rows: NDArray[np.int64]) -> None:
        """There is no cache to read ahead into."""

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()
        if hasattr(self, "_pool"):
            self._pool.shutdown()


def _names(layer: int, firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> spans.Name:
    def name(i: int) -> str:
        first, count = int(firsts[i]), int(counts[i])
        return f"layer {layer} row {first}" if count == 1 else f"layer {layer} rows {first} to {first + count - 1}"

    return name
