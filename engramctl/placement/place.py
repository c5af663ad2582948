"""What every placement answers, and the parts of rows that it answers from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from formats.disk import ReadFile

Io = Literal["auto", "mmap", "pread", "ram", "direct"]
NAMES: tuple[Io, ...] = ("auto", "mmap", "pread", "ram", "direct")


@dataclass(frozen=True)
class Part:
    """Where one part of every row lies: `stride` bytes a row, from `start` on."""

    file: ReadFile
    start: int
    stride: int


@dataclass(frozen=True)
class Extent:
    """Rows first..last of a layer's table: what a placement is asked to hold."""

    layer: int
    parts: tuple[Part, ...]
    first: int
    last: int

    @property
    def row_bytes(self) -> int:
        return sum(part.stride for part in self.parts)

    @property
    def bytes(self) -> int:
        return (self.last - self.first) * self.row_bytes

    def span(self, part: Part) -> tuple[int, int]:
        """Its bytes of that part's file."""
        return part.start + self.first * part.stride, part.start + self.last * part.stride


class Place(Protocol):
    """Rows are [n] numbers in first..last of the extent, checked by the table, in any order, repeated or not."""

    name: Io
    said: list[str]  # what a person should know of it

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """[n, row bytes], one part after another."""
        ...

    def values(self, rows: NDArray[np.int64], out: NDArray[np.uint16]) -> NDArray[np.bool_] | None:
        """BF16 bits to `out`, and which rows need a closer look; None where rows must be read first."""
        ...

    def want(self, rows: NDArray[np.int64]) -> None:
        """These rows will be read soon: begin, if there is anything to begin."""
        ...

    def close(self) -> None: ...
