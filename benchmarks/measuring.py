"""How to measure on a machine that others use too: one round-robin, ratios within a round, cold proved to be cold."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

PAGE = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)


processor = [0.0]  # seconds that the last `timed` work and its children kept a processor busy


def rounds(tasks: dict[str, Callable[[], float]], count: int) -> dict[str, list[float]]:
    """Seconds of each task in each round; every round runs all of them, in another order.

    Under `NAME: processor` stand the processor's seconds, which other users of the machine disturb less.
    """
    taken: dict[str, list[float]] = {name: [] for name in [*tasks, *(f"{name}: processor" for name in tasks)]}
    names = list(tasks)
    for number in range(count):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            taken[name].append(tasks[name]())
            taken[f"{name}: processor"].append(processor[0])
    return taken


def ratio(taken: dict[str, list[float]], name: str, peer: str) -> tuple[float, float]:
    """How much faster `name` is than `peer`: the median over the rounds, and best against best."""
    pairs = [there / here for here, there in zip(taken[name], taken[peer], strict=True)]
    return statistics.median(pairs), min(taken[peer]) / min(taken[name])


def timed(work: Callable[[], object]) -> float:
    start, before = time.perf_counter(), _busy()
    work()
    seconds = time.perf_counter() - start
    processor[0] = _busy() - before
    return seconds


def _busy() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def resident(path: Path) -> float:
    """The share of a file's pages that are in the page cache."""
    size = path.stat().st_size
    if size == 0:
        return 0.0
    with path.open("rb") as file:
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        pages = (ctypes.c_ubyte * -(-size // PAGE))()
        libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        code = libc.mincore(address, size, pages)
        libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        libc.munmap(address, size)
        if code:
            raise OSError(ctypes.get_errno(), "mincore")
    return sum(page & 1 for page in bytes(pages)) / len(pages)


def make_cold(paths: Iterable[Path]) -> None:
    """Out of the page cache, and proved to be out of it."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        share = resident(path)
        if share > 0.01:
            raise SystemExit(f"{path}: {share:.0%} of it stays in the page cache, so nothing cold can be measured")


def make_warm(paths: Iterable[Path]) -> None:
    buffer = bytearray(1 << 20)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def table(headings: list[str], rows: list[list[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
