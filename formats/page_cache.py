"""Which bytes of a file lie in memory, and telling the system which will be wanted: advice, on which nothing depends.

What a system lacks is found out at the call: Linux has posix_fadvise and O_DIRECT, macOS fcntl's F_RDADVISE and
F_NOCACHE, both have mincore.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import struct
import sys

import numpy as np
from numpy.typing import NDArray

from formats import disk
from formats.closing import Closing
from formats.disk import ReadFile
from formats.errors import FormatError
from formats.system import PathLike, System

PAGE = mmap.PAGESIZE
BLOCK = 4096  # what uncached reads begin and end at: at least any disk's sector
F_RDADVISE, F_RDAHEAD, F_NOCACHE = 44, 45, 48  # macOS sys/fcntl.h; Python names only some of them
LINUX_ADVICE = {"MADV_POPULATE_READ": 22}  # Linux 5.14; not yet a name in Python
MOST_RESIDENT = 1 << 30  # bytes asked about at once: a vector of 256 KB


def native() -> bool:
    """May compiled code call the system by itself? Not where something else stands in its place."""
    return type(disk.system) is System


def size_now(file: ReadFile) -> int:
    """Whoever owns the file may have cut it short since it was opened."""
    return disk.system.size(file.fd)


def want(file: ReadFile, start: int, end: int) -> None:
    """These bytes will be read soon: begin now, in the background."""
    with contextlib.suppress(OSError, OverflowError, struct.error):
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fd, start, end - start, os.POSIX_FADV_WILLNEED)
        elif can_advise():
            fcntl.fcntl(file.fd, F_RDADVISE, struct.pack("@qi4x", start, end - start))


def can_advise() -> bool:
    """Is there any way to begin a read without waiting for it?"""
    return hasattr(os, "posix_fadvise") or hasattr(fcntl, "F_NOCACHE")


def at_random(file: ReadFile) -> None:
    """Reads will come in no order: nothing is to be read that was not asked for."""
    with contextlib.suppress(OSError):
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_RANDOM)
        elif hasattr(fcntl, "F_NOCACHE"):
            fcntl.fcntl(file.fd, F_RDAHEAD, 0)


def open_uncached(path: PathLike) -> ReadFile:
    """A file whose reads pass the page cache by; they begin and end at multiples of BLOCK. OSError if it cannot be."""
    direct = getattr(os, "O_DIRECT", None)
    if direct is None and not hasattr(fcntl, "F_NOCACHE"):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), os.fspath(path))
    file = ReadFile.open(path, direct or 0)
    if direct is None:
        try:
            fcntl.fcntl(file.fd, F_NOCACHE, 1)
        except OSError:
            file.close()
            raise
    return file


class Mapping(Closing):
    """A part of a file as memory, read only: `bytes` is what was asked for, page edges are kept apart."""

    def __init__(self, file: ReadFile, start: int, end: int) -> None:
        self.path, self.start, self.end = file.path, start, end
        self._slack = start % mmap.ALLOCATIONGRANULARITY
        if end > size_now(file):
            raise FormatError(file.path, start, f"{end - start} bytes", f"{max(size_now(file) - start, 0)}")
        try:
            self._map = mmap.mmap(
                file.fd, end - start + self._slack, access=mmap.ACCESS_READ, offset=start - self._slack
            )
        except OSError as error:
            error.filename = os.fspath(file.path)
            raise
        except ValueError:  # cut short just now
            found = f"{max(size_now(file) - start, 0)}"
            raise FormatError(file.path, start, f"{end - start} bytes", found) from None
        self._all: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)

    @property
    def bytes(self) -> NDArray[np.uint8]:
        return self._all[self._slack :]

    @property
    def address(self) -> int:
        """Of the first mapped page."""
        return int(self._all.ctypes.data)

    @property
    def length(self) -> int:
        """Of the mapped bytes, page edge included."""
        return len(self._all)

    def advise(self, name: str) -> bool:
        """madvise by its name ("MADV_RANDOM"); False where the system has no such advice, or does not take it."""
        advice = getattr(mmap, name, LINUX_ADVICE.get(name) if sys.platform == "linux" else None)
        if advice is None:
            return False
        with contextlib.suppress(OSError):
            self._map.madvise(advice)
            return True
        return False

    def resident(self, first: int = 0, last: int | None = None) -> NDArray[np.bool_] | None:
        """[pages] of bytes first..last: is it in memory? None where the system does not say.

        Linux says so only of files that the user may write or owns; of others it calls every page resident.
        """
        begin = (first + self._slack) // PAGE * PAGE
        end = (len(self.bytes) if last is None else last) + self._slack
        found = [_mincore(self.address + at, min(end - at, MOST_RESIDENT)) for at in range(begin, end, MOST_RESIDENT)]
        known = [each for each in found if each is not None]
        if len(known) < len(found):
            return None
        return np.concatenate(known) if known else np.empty(0, np.bool_)

    def close(self) -> None:
        del self._all
        with contextlib.suppress(BufferError):  # somebody still looks at its bytes: the map goes when they do
            self._map.close()


def _mincore(address: int, length: int) -> NDArray[np.bool_] | None:
    pages = np.empty(-(-length // PAGE), np.uint8)
    try:
        call = ctypes.CDLL(None, use_errno=True).mincore
    except (AttributeError, OSError):
        return None
    failed = call(ctypes.c_void_p(address), ctypes.c_size_t(length), ctypes.c_void_p(pages.ctypes.data))
    return None if failed else (pages & 1).astype(np.bool_)


def drop(file: ReadFile, start: int, end: int) -> bool:
    """Have the page cache forget these bytes, in whole pages. False where there is no such advice."""
    if not hasattr(os, "posix_fadvise"):
        return False
    with contextlib.suppress(OSError):
        os.fdatasync(file.fd)
    start, end = start // PAGE * PAGE, -(-end // PAGE) * PAGE
    file.done_with(start, end)
    return True
