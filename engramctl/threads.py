"""How many threads to use, and where: as many as there are processors for us, or as were asked for, or one a core."""

from __future__ import annotations

import os
import sys

from engramctl import pinning
from engramctl.errors import EngramctlError

_asked: list[int] = []
_places: list[int] = []  # processors, one for each thread of the kernels; none: wherever the system puts them


def use(count: int) -> None:
    """From now on; the compiled kernels are told when they are loaded, or now if they are."""
    _asked[:] = [max(1, count)]
    if "engramctl.fast.cache" in sys.modules:
        from engramctl import fast

        fast.use_threads(count)


def pin(turn: int = 0) -> None:
    """Keep the kernels' threads on physical cores from now on, as `pinning` says for the layer number `turn`.

    As many threads as were asked for, else as there are cores; more than there are, or a system that cannot: refused.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise EngramctlError("--pin", "Linux, which keeps threads where it is told", sys.platform)
    found = pinning.processors(os.sched_getaffinity(0), turn)
    if _asked and _asked[0] > len(found):
        raise EngramctlError("--pin", f"at most {len(found)} threads, one a core", f"{_asked[0]}")
    _places[:] = found[: _asked[0]] if _asked else found
    use(len(_places))


def places() -> tuple[int, ...]:
    return tuple(_places)


def count() -> int:
    if _asked:
        return _asked[0]
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
