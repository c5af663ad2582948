"""Which code checks and interleaves rows: Numba where it pays and works, else NumPy. Bytes and refusals are equal."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from formats import row264
from formats.row264 import Invalid

Pack = Callable[[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]], Invalid | None]

PAYS_FROM = 1 << 20  # rows; loading Numba takes as long as packing fewer


def choose(rows: int) -> Pack:
    """The quickest `pack_valid` here for a job of so many rows."""
    if rows < PAYS_FROM:
        return row264.pack_valid
    try:
        fast = importlib.import_module("engramctl.fast.pack")
        fast.ready()
    except Exception:  # no Numba, or one that cannot compile here: slower, not different
        return row264.pack_valid
    pack: Pack = fast.pack_valid
    return pack
