"""How many threads to use: as many as there are processors for us, or as many as were asked for."""

from __future__ import annotations

import os
import sys

MOST_FOR_FILES = 4  # more than that, and the disk or the memory is what is waited for

_asked: list[int] = []


def use(count: int) -> None:
    """From now on; the compiled kernels are told when they are loaded, or now if they are."""
    _asked[:] = [max(1, count)]
    if "engramctl.fast.cache" in sys.modules:
        from engramctl import fast

        fast.use_threads(count)


def count() -> int:
    if _asked:
        return _asked[0]
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def for_files(asked: int | None) -> int:
    """So many that move a file's bytes: those asked for, or ours as far as they help."""
    return asked or min(count(), MOST_FOR_FILES)
