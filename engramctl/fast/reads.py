"""Many small positioned reads by one thread that does not hold Python up: asked for ahead, then read.

Whatever is not whole at once (an interruption, a short read, an error) is left for Python's own way, which says why.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from engramctl.fast.cache import kernel, reads, writes
from engramctl.fast.emit import copy

WILLNEED = 3  # POSIX_FADV_WILLNEED on Linux
SECTOR = 4096  # uncached reads begin and end at multiples of it, in the file and in memory

_pread: Any = types.ExternalFunction("pread", types.int64(types.int32, types.intp, types.uint64, types.int64))
_fadvise: Any = types.ExternalFunction("posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32))


def fill(
    fd: int, starts: NDArray[np.int64], lengths: NDArray[np.int64], out: NDArray[np.uint8], window: int
) -> NDArray[np.bool_]:
    """Bytes starts[i] .. + lengths[i] of a file, one after another, into flat `out`; [n] which are there.

    `window` spans are asked for before they are read. Only for systems that have posix_fadvise, as `want` is.
    """
    done, places = np.zeros(len(starts), np.bool_), places_of(lengths)
    sizes = np.array([fd, window], np.int64)
    _fill(0, len(starts), sizes, starts, lengths, places, out, done)
    return done


def want(fd: int, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
    """Begin to read these spans. The device's queue may fill up; then this waits its turn."""
    _want(0, len(starts), np.array([fd], np.int64), starts, lengths)


def places_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each span begins when all stand one after another."""
    return np.cumsum(lengths) - lengths


@kernel(reads(types.int64, 1), reads(types.int64, 1), reads(types.int64, 1))
def _want(first: int, last: int, fd: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
    for i in range(first, last):
        _fadvise(fd[0], starts[i], lengths[i], WILLNEED)


@kernel(*(reads(types.int64, 1),) * 4, writes(types.uint8, 1), writes(types.boolean, 1))
def _fill(
    first: int, last: int, sizes: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64],
    places: NDArray[np.int64], out: NDArray[np.uint8], done: NDArray[np.bool_],
) -> None:  # fmt: skip
    fd, window = np.int32(sizes[0]), sizes[1]
    base, asked = out.ctypes.data, first
    for i in range(first, last):
        if asked - i <= window // 2:  # in bursts: the device sorts what it has
            while asked < min(i + window, last):
                _fadvise(fd, starts[asked], lengths[asked], WILLNEED)
                asked += 1
        done[i] = _pread(fd, base + places[i], np.uint64(lengths[i]), starts[i]) == lengths[i]


def fill_uncached(
    fd: int, starts: NDArray[np.int64], lengths: NDArray[np.int64], places: NDArray[np.int64], out: NDArray[np.uint8]
) -> NDArray[np.bool_]:
    """As `fill`, of a file opened for reads of whole sectors; `places` say where in flat `out`."""
    done = np.zeros(len(starts), np.bool_)
    scratch = np.empty(int(lengths.max(initial=0)) + 3 * SECTOR, np.uint8)
    _fill_uncached(0, len(starts), np.array([fd], np.int64), starts, lengths, places, scratch, out, done)
    return done


@kernel(*(reads(types.int64, 1),) * 4, writes(types.uint8, 1), writes(types.uint8, 1), writes(types.boolean, 1))
def _fill_uncached(
    first: int, last: int, fd: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64],
    places: NDArray[np.int64], scratch: NDArray[np.uint8], out: NDArray[np.uint8], done: NDArray[np.bool_],
) -> None:  # fmt: skip
    base = scratch.ctypes.data
    slack = -base % SECTOR
    for i in range(first, last):
        head = starts[i] % SECTOR
        whole = -(-(head + lengths[i]) // SECTOR) * SECTOR
        got = _pread(np.int32(fd[0]), base + slack, np.uint64(whole), starts[i] - head)
        done[i] = got >= head + lengths[i]  # the file's last sector may be short
        if done[i]:
            copy(out, places[i], scratch, slack + head, lengths[i])
