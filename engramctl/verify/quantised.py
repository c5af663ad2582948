"""Rows that were re-encoded, compared with the exact ones within a stated bound.

A row of n values passes if the RMS of its error is at most LIMITS[type] of the RMS of the exact row, plus SLACK.
A limit is about twice what rounding to the type's levels costs on rows whose largest value is three times their RMS;
another row's values are off by 1.4 times the RMS, and values of a wrong scale by a half or more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError

SLACK = 2.0**-21  # F16 scales end at 2**-24: smaller values are lost, and no fault of the converter
LIMITS = {
    "F32": 0.0,
    "BF16": 0.004,
    "F16": 0.0005,
    "Q8_0": 0.012,
    **dict.fromkeys(("Q6_K",), 0.04),
    **dict.fromkeys(("Q5_K", "Q5_0", "Q5_1"), 0.08),
    **dict.fromkeys(("Q4_K", "Q4_0", "Q4_1", "IQ4_XS", "IQ4_NL", "MXFP4", "NVFP4", "lloyd136"), 0.25),
    **dict.fromkeys(("Q3_K", "IQ3_S", "IQ3_XXS"), 0.4),
    **dict.fromkeys(("Q2_K", "IQ2_S", "IQ2_XS", "IQ2_XXS", "TQ1_0", "TQ2_0"), 0.7),
    **dict.fromkeys(("IQ1_S", "IQ1_M"), 0.9),
}


def limit(kind: str) -> float:
    """The share of a row's RMS that re-encoding to this type may cost."""
    if kind not in LIMITS:
        raise EngramctlError(kind, f"a type with a stated bound: {', '.join(LIMITS)}", "another")
    return LIMITS[kind]


def errors(want: NDArray[np.float64], have: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[n, values] exact and re-encoded -> RMS of each row's error, and of the exact row; a NaN is an endless error."""
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.sqrt(np.mean((have - want) ** 2, axis=1))
    return np.where(np.isfinite(off), off, np.inf), np.sqrt(np.mean(want**2, axis=1))


def outside(want: NDArray[np.float64], have: NDArray[np.float64], kind: str) -> list[tuple[int, str, str]]:
    """(row, expected, found) of each row that is off by more than its type may cost."""
    share = limit(kind)
    off, size = errors(want, have)
    bound = share * size + SLACK
    return [
        (int(row), f"values within {bound[row]:.3g} RMS, the bound of {kind}", f"{off[row]:.3g} off")
        for row in np.flatnonzero(off > bound)
    ]
