"""The functions of `reference`, in Numba: same arguments, same refusals, same bits on any number of threads."""

from __future__ import annotations

from engramctl.fast.cache import use_threads
from engramctl.fast.decode import lookup
from engramctl.fast.gate import gate
from engramctl.fast.hash import hash_rows
from engramctl.fast.project import project
from engramctl.fast.weights import hold

__all__ = ["gate", "hash_rows", "hold", "lookup", "project", "use_threads"]
