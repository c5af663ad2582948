"""Which kernels can run here, and which were asked for. Asked before anything is compiled: for an instruction that its
target lacks, LLVM ends the process."""

from __future__ import annotations

import functools
from typing import Any

import numba
from llvmlite import binding
from numba.core import codegen

from engramctl.errors import EngramctlError

settings: Any = numba.config
host_features: Any = codegen.get_host_cpu_features  # as LLVM is told where nothing else is asked for
VECTORS = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma", "f16c"}
NEEDS = {  # fastest first
    "amx": {"amx-tile", "amx-bf16", *VECTORS},
    "avx512": VECTORS,
    "avx2": {"avx2", "fma", "f16c"},
    "portable": set[str](),
}


@functools.cache
def features() -> set[str]:
    """What the processor has and Numba compiles for; `NUMBA_CPU_FEATURES` and `NUMBA_ENABLE_AVX` take away."""
    there = {name for name, has in binding.get_host_cpu_features().items() if has}
    return there & {name[1:] for name in target()[1].split(",") if name.startswith("+")}


def target() -> tuple[str, str]:
    """The processor's name and features as Numba's compiler is told."""
    told = settings.CPU_FEATURES
    named = settings.CPU_NAME or binding.get_host_cpu_name()
    return named, host_features() if told is None else told


def can(path: str) -> bool:
    """Can it run here? AMX only by permission, and after it gave the defined bits in another process."""
    if not NEEDS[path] <= features():
        return False
    if path == "amx":
        from engramctl.fast import amx

        return amx.permitted() and amx.trusted()
    return True


def paths() -> list[str]:
    """The paths that can run, fastest first."""
    return [path for path in NEEDS if can(path)]


@functools.cache
def vectors() -> str:
    """The fastest path without tiles, for operands that these are not for and for all but projections. Asks nothing of
    AMX: whoever tries that comes here too."""
    return next(path for path in NEEDS if path != "amx" and can(path))


def choose(kernel: str) -> str:
    """The path for `--kernel`: the fastest for auto; one that cannot run here raises `EngramctlError`."""
    if kernel == "auto":
        return next(path for path in NEEDS if can(path))
    if kernel not in NEEDS or not can(kernel):
        raise EngramctlError("--kernel", f"one of {', '.join(('auto', *paths()))} on this machine", kernel)
    return kernel
