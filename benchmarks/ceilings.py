"""What this machine gives anybody: bytes read, copied and filled, numbers multiplied and added, as fast as we can."""

# ruff: noqa: ANN401 - torch may not be there, and has no types here
from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from engramctl import threads
from engramctl.bench.measure import Line, Work, compare
from engramctl.fast.emit import prefetch
from engramctl.fast.gather import LINE

SIDE = 2048  # of the square matrices
WORDS = 64  # read together
AHEAD = 8192  # bytes that reading is told of beforehand: a sixth faster than without
Share = Callable[[int, int], None]


@numba.njit(nogil=True)
def _read(words: NDArray[np.uint64], text: NDArray[np.uint8], first: int, last: int, seen: NDArray[np.uint64]) -> None:
    for i in range(first, last):
        for line in range(0, 8 * WORDS, LINE):
            prefetch(text, i * 8 * WORDS + AHEAD + line)
        for j in range(WORDS):
            seen[j] ^= words[i, j]


def measured(size: int, rounds: int, t: Any) -> Iterator[Line]:
    """`size` bytes read, copied and filled by one thread and by all; square matrices multiplied by NumPy and torch."""
    words = np.ones((size // (8 * WORDS), WORDS), np.uint64)
    copy, count, text = np.empty_like(words), threads.count(), words.reshape(-1).view(np.uint8)

    def read(first: int, last: int) -> None:
        _read(words, text, first, last, np.zeros(WORDS, np.uint64))

    def copied(first: int, last: int) -> None:
        np.copyto(copy[first:last], words[first:last])

    def filled(first: int, last: int) -> None:
        copy[first:last].view(np.uint8).fill(1)  # memset

    with ThreadPoolExecutor(count) as pool:
        work: dict[str, Work] = {}
        for name, share in (("read", read), ("copy", copied), ("fill", filled)):
            for parts in sorted({count, 1}, reverse=True):
                work[_named(name, parts)] = partial(_shared, pool, share, len(words), parts)
        yield from compare(
            "memory", f"{words.nbytes / 1e6:.0f} MB", words.nbytes, "bytes", work, next(iter(work)), rounds
        )
    numbers = np.ones((SIDE, SIDE), np.float32)
    out = np.empty_like(numbers)
    work = {"NumPy F32": lambda: np.matmul(numbers, numbers, out=out)}
    if t is not None:
        narrow = t.ones((SIDE, SIDE), dtype=t.bfloat16)
        work["torch BF16"] = lambda: narrow @ narrow
    yield from compare("multipliers", f"{SIDE} x {SIDE} x {SIDE}", 2 * SIDE**3, "FLOP", work, "NumPy F32", rounds)


def _named(what: str, count: int) -> str:
    return f"{what}, {count} thread{'s' if count > 1 else ''}"


def _shared(pool: ThreadPoolExecutor, work: Share, size: int, parts: int) -> None:
    edges = [size * i // parts for i in range(parts + 1)]
    for job in [pool.submit(work, edges[i], edges[i + 1]) for i in range(parts)]:
        job.result()


class Ceilings:
    """The measured rates, and what they allow a piece of work."""

    def __init__(self, lines: list[Line], count: int) -> None:
        self.rates = {line.candidate: line.rate for line in lines if line.group == "memory"}
        self.multiplied = max((line.rate for line in lines if line.group == "multipliers"), default=None)
        self.count = count

    def allow(self, reads: float, writes: float, sums: float, parts: int | None = None) -> dict[str, float]:
        """The fewest seconds of each ceiling for so many bytes read and written and FLOP, on `parts` threads or all.

        A copy's bytes are counted once and moved twice: mixed work takes half of its bytes at that rate. Nothing is
        written faster than it is filled: a line is read before it is written.
        """
        parts, found = parts or self.count, dict[str, float]()
        rate, filling = (self.rates.get(_named(what, parts)) for what in ("copy" if writes else "read", "fill"))
        if rate and reads + writes:
            found["memory"] = (reads + writes) / (2 if writes else 1) / rate
        if filling and writes:
            found["memory"] = max(writes / filling, found.get("memory", 0))
        if self.multiplied and sums:
            found["multipliers"] = sums / (self.multiplied * parts / self.count)
        return found
