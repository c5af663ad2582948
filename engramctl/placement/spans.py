"""Rows as spans of a file: neighbours in one read, each span asked for before it is waited for."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from formats import page_cache
from formats.disk import ReadFile

WINDOW = 256  # spans asked for ahead: one thread keeps a disk's whole queue busy, and seldom has to wake up
LONGEST = 256  # rows in one span
NATIVE = 4096  # spans from which on it pays to load compiled code

Name = Callable[[int], str]  # of a span, for the message when it cannot be read


def runs(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Distinct ascending rows -> the first row and the number of rows of each run of neighbours, LONGEST at most."""
    if not rows.size:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    begins = np.flatnonzero(np.concatenate([[True], (np.diff(rows) != 1) | (rows[1:] % LONGEST == 0)]))
    return rows[begins], np.diff(np.append(begins, rows.size))


def compiled(count: int) -> bool:
    """Read `count` spans by compiled code? Where the system is the real one and takes advice, and for many."""
    return (
        page_cache.native()
        and hasattr(os, "posix_fadvise")
        and (count >= NATIVE or "engramctl.fast.reads" in sys.modules)
    )


def fill(
    file: ReadFile, starts: NDArray[np.int64], lengths: NDArray[np.int64], out: NDArray[np.uint8], name: Name
) -> None:
    """The spans' bytes, one after another, into flat `out`; the first that cannot be read raises."""
    if compiled(len(starts)):
        from engramctl.fast import reads

        done = reads.fill(file.fd, starts, lengths, out, WINDOW)
        if done.all():
            return
        left = np.flatnonzero(~done)
    else:
        left = np.arange(len(starts))
    places = (np.cumsum(lengths) - lengths).tolist()
    todo = [(int(i), int(starts[i]), int(lengths[i])) for i in left]
    asked = 0
    for number, (i, start, length) in enumerate(todo):
        while asked < min(number + WINDOW, len(todo)):
            page_cache.want(file, todo[asked][1], todo[asked][1] + todo[asked][2])
            asked += 1
        file.read_into(out[places[i] : places[i] + length].data, start, name(i))


def want(file: ReadFile, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
    """Begin to read these spans."""
    if compiled(len(starts)):
        from engramctl.fast import reads

        reads.want(file.fd, starts, lengths)
        return
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        page_cache.want(file, start, start + length)
