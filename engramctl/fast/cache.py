"""How kernels are compiled, kept and run: one folder per version of the code, one signature per kernel, plain threads.

A kernel is a function(first, last, *arrays) over a range of tokens or outputs. It is compiled, or read from the cache,
when it is first called, lets go of the GIL, and is never told how many threads there are. Numba's own parallel loops
are not used: their default layers abort the process when two threads call at once, or after a fork.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import platform
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite
import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from engramctl import reference, threads
from engramctl.fast import cpu
from formats import floats, row264

F = TypeVar("F", bound=Callable[..., Any])
Argument = NDArray[Any] | np.generic | int  # of a kernel
settings: Any = numba.config


def sources() -> list[Path]:
    """Every file a kernel's code or constants come from: kernels take constants from these alone."""
    here = Path(__file__).parent
    return [*sorted(here.glob("*.py")), *(Path(str(module.__file__)) for module in (reference, floats, row264))]


def folder() -> Path | None:
    """The cache folder of exactly this code on this machine, made if need be; None where nothing can be written.

    Numba only looks at the file of the kernel itself, so an edit of a helper or a constant would go unseen: the
    folder's name holds the digest of all of them, of the versions and of the processor.
    """
    versions = numba.__version__, llvmlite.__version__, platform.python_version(), settings.OPT
    digest = hashlib.sha256(repr((*versions, *cpu.target())).encode())
    for path in sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    try:
        base = os.environ.get("XDG_CACHE_HOME", "")
        base = base if Path(base).is_absolute() else str(Path.home() / ".cache")
        path = Path(base) / "engramctl" / f"kernels-{digest.hexdigest()[:32]}"
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        return None


FOLDER = folder()
CACHE = FOLDER is not None


def reads(kind: types.Type, ndim: int) -> types.Type:
    """The Numba type of a C-ordered array that a kernel only reads, whether or not it could be written."""
    return types.Array(kind, ndim, "C", readonly=True)


def writes(kind: types.Type, ndim: int) -> types.Type:
    """The Numba type of a C-ordered array that a kernel fills."""
    return types.Array(kind, ndim, "C")


def _compiler(function: Callable[..., None], cache: bool) -> Any:  # noqa: ANN401
    """Numba's dispatcher, which looks up the cache folder when it is made: ours for this one, then the user's again."""
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(FOLDER or "")
    try:
        return numba.njit(nogil=True, error_model="numpy", cache=cache)(function)
    finally:
        settings.CACHE_DIR = before


class Kernel:
    """One compiled function(first, last, *arguments); `arguments` are its Numba types, and no others are compiled for.

    With one signature, processes that fill the cache at the same time write the same thing.
    """

    def __init__(self, function: Callable[..., None], arguments: tuple[types.Type, ...]) -> None:
        self._function, self._signature = function, types.void(types.int64, types.int64, *arguments)
        self._lock, self._compiled = threading.Lock(), _compiler(function, CACHE)
        self._ready = False

    def ready(self) -> None:
        """Compile now, or read from the cache, if that has not happened yet."""
        with self._lock:
            if self._ready:
                return
            try:
                self._compiled.compile(self._signature)
            except Exception:  # a full disk, a broken file: whatever is wrong with the cache, do without
                self._compiled = _compiler(self._function, cache=False)
                self._compiled.compile(self._signature)
            self._compiled.disable_compile()
            self._ready = True

    def __call__(self, first: int, last: int, *arguments: Argument) -> None:
        if not self._ready:
            self.ready()
        self._compiled(first, last, *arguments)


def kernel(*arguments: types.Type) -> Callable[[Callable[..., None]], Kernel]:
    """Decorator: `@kernel(reads(uint16, 2), writes(float32, 1))` on a function(first, last, a, b)."""
    return lambda function: Kernel(function, arguments)


def named_kernel(name: str, function: Callable[..., None], *arguments: types.Type) -> Kernel:
    """One of several kernels made from one text: a file of its own in the cache, or one would be taken for another."""
    function.__name__ = function.__qualname__ = name
    return Kernel(function, arguments)


def helper(function: F) -> F:
    """Decorator: a function for kernels to call, compiled into them; 1 / 0 is infinity, as in the reference."""
    return cast(F, numba.njit(error_model="numpy")(function))


class _Threads:
    """The pool, made when first needed, made anew after a fork: a child has none of its parent's threads."""

    def __init__(self) -> None:
        self.count = threads.count()
        self.pool: ThreadPoolExecutor | None = None
        self.lock = threading.Lock()

    def get(self) -> ThreadPoolExecutor:
        with self.lock:
            if self.pool is None:
                places = iter(threads.places())
                self.pool = ThreadPoolExecutor(self.count, "engramctl", lambda: _stay(next(places, None)))
            return self.pool

    def forget(self) -> None:
        self.pool, self.lock = None, threading.Lock()


def _stay(place: int | None) -> None:
    """This thread on that processor, from now on. One taken from us meanwhile is no reason to fail."""
    if place is not None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {place})


_threads = _Threads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.forget)


def use_threads(count: int) -> None:
    """From now on share work among `count` threads, at least 1. The bits of every result stay the same."""
    with _threads.lock:
        _threads.count, _threads.pool = max(1, count), None


def in_parts(run: Kernel, count: int, least: int, *arguments: Argument) -> None:
    """Call run(first, last, *arguments) for 0..count in as many parts as there are threads, none below `least` long."""
    parts = min(_threads.count, count // max(1, least))
    if parts <= 1:  # nothing is shared, and a small call's time is its overhead
        run(0, count, *arguments)
        return
    edges = list(itertools.pairwise(count * i // parts for i in range(parts + 1)))
    run.ready()
    here = 0 if threads.places() else 1  # the caller takes a part too, unless all belong where they are pinned
    waiting = [_threads.get().submit(run, first, last, *arguments) for first, last in edges[here:]]
    for first, last in edges[:here]:
        run(first, last, *arguments)
    for part in waiting:
        part.result()
