"""Arrays as their headers describe them: name, dtype and shape, and memory only once the caller has agreed to them."""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from formats.disk import ReadFile
from formats.errors import FormatError, shown

STDIN = Path("-")
MOST_STDIN = 4 << 30  # held in memory: a longer stream is refused

Form = Literal["npy", "npz", "safetensors"]


@dataclass(frozen=True)
class Data:
    """The bytes of a file, or of standard input, which are held."""

    where: str
    size: int
    path: Path
    held: bytes | None = None

    def read(self, offset: int, count: int, what: str) -> NDArray[np.uint8]:
        """[count] bytes from `offset` on, exactly."""
        if self.held is not None:
            if offset + count > len(self.held):
                raise FormatError(self.where, offset, f"{count} bytes of {what}", f"{max(len(self.held) - offset, 0)}")
            return np.frombuffer(self.held, np.uint8, count, offset)
        with ReadFile.open(self.path) as file:
            if offset + count > file.size:
                raise FormatError(self.path, offset, f"{count} bytes of {what}", f"{max(file.size - offset, 0)}")
            made = np.empty(count, np.uint8)
            file.read_into(made.data, offset, what)
            return made

    def head(self, count: int) -> bytes:
        return self.read(0, min(count, self.size), "data").tobytes()

    def stream(self) -> IO[bytes]:
        return self.path.open("rb") if self.held is None else io.BytesIO(self.held)


@dataclass(frozen=True)
class Array:
    """One array as its header describes it; `dtype` is None where NumPy has none for it."""

    where: str
    name: str  # "" where the file holds one array without a name
    kind: str  # the dtype in the file's own words
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    read: Callable[[], NDArray[Any]]

    def load(self, dtypes: tuple[str, ...], *shapes: tuple[int | None, ...]) -> NDArray[Any]:
        """The array, if its dtype and shape (None: any size) are among those; else `FormatError`, before it is read."""
        fits = any(_fits(self.shape, shape) for shape in shapes)
        if self.dtype is None or self.dtype.name not in dtypes or not fits:
            wanted = f"{' or '.join(sizes(shape) for shape in shapes)} of {_kinds(dtypes)}"
            at = f"array {shown(self.name)}" if self.name else None
            raise FormatError(self.where, at, wanted, f"{sizes(self.shape)} of {self.kind}")
        most, size = (
            os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            math.prod(self.shape) * self.dtype.itemsize,
        )
        if size > most:
            raise FormatError(self.where, None, f"an array within the machine's memory of {most} bytes", f"{size}")
        made = self.read()
        return made if made.dtype.isnative else made.astype(made.dtype.newbyteorder("="))


@dataclass(frozen=True)
class Dump:
    """A file of arrays."""

    where: str
    form: Form
    arrays: dict[str, Array]

    def only(self, name: str) -> Array:
        """The array of that name, or the only one whatever its name; else `FormatError`."""
        if name in self.arrays:
            return self.arrays[name]
        if len(self.arrays) == 1:
            return next(iter(self.arrays.values()))
        raise FormatError(self.where, None, f"one array, or one named {name}", _names(self.arrays))

    def named(self, name: str) -> Array:
        if name not in self.arrays:
            raise FormatError(self.where, None, f"an array {name}", _names(self.arrays))
        return self.arrays[name]


def _names(arrays: dict[str, Array]) -> str:
    names = ", ".join(shown(name, 40) for name in list(arrays)[:8])
    return f"{len(arrays)} arrays: {names}" if arrays else "no array"


def sizes(shape: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"


def _kinds(dtypes: tuple[str, ...]) -> str:
    """Dtypes in words: eight kinds of integers are one word."""
    whole = [name for name in dtypes if name.strip("u").startswith("int")]
    others = [name for name in dtypes if name not in whole]
    return " or ".join([*others, *(["integers"] if len(whole) > 4 else whole)])


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(want in (None, size) for size, want in zip(shape, wanted, strict=True))


def open_data(path: Path) -> Data:
    """A file's bytes, unread, or standard input's, read; neither may be empty."""
    if path == STDIN:
        held = sys.stdin.buffer.read(MOST_STDIN + 1)
        data = Data("standard input", len(held), path, held)
        if data.size > MOST_STDIN:
            raise FormatError(data.where, None, f"at most {MOST_STDIN} bytes", "more")
    else:
        with ReadFile.open(path) as file:
            data = Data(str(path), file.size, path)
    if not data.size:
        raise FormatError(data.where, None, "data", "an empty input")
    return data
