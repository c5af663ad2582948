"""Rows that were re-encoded, compared with the exact ones within a stated bound.

A row passes if the RMS of its error is at most `near` times the RMS of its blocks' largest values, and `far` times that
of its blocks of 256, and what an F16 scale can lose at its lower end. `near` is half a type's widest step (a whole one
where the type clips the largest value of the other sign), `far` half a step of the scales of scales: no rounding to
nearest costs more, however the values lie. The codebook types (IQ) have no such step: theirs is four times what they
cost on average. Where 0 is a level no rounding costs more than the row itself. Another row's values are off by 1.4
times the RMS of the row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError

SUPER = 256  # values under one F16 scale of a K-quant
LEAST_F16 = 2.0**-25  # half of the least step of F16, which its scales are rounded to
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Bound:
    """`block` values have one step; `most` is the largest number that an F16 scale is multiplied by."""

    block: int
    near: float
    far: float = 0.0
    most: int = 0

    def of(self, values: Floats) -> Floats:
        """[n, values] -> [n] the most that the RMS of a row's error may be."""
        size = _rms(values)
        made = self.near * _rms(_peaks(values, self.block))
        if self.far:
            made = made + self.far * _rms(_peaks(values, SUPER))
        return np.minimum(made, size) + self.most * LEAST_F16


BOUNDS = {
    "F32": Bound(1, 0.0),
    "BF16": Bound(1, 2.0**-8),
    "F16": Bound(1, 2.0**-11, most=1),
    "Q8_0": Bound(32, 0.0045, most=127),
    "Q5_0": Bound(32, 0.0635, most=16),
    "Q5_1": Bound(32, 0.0335, most=32),
    "Q4_0": Bound(32, 0.126, most=8),
    "Q4_1": Bound(32, 0.0675, most=16),
    "Q6_K": Bound(16, 0.0325, 0.005, 32 * 127),
    "Q5_K": Bound(32, 0.0335, 0.025, 32 * 63),
    "Q4_K": Bound(32, 0.0675, 0.025, 16 * 63),
    "Q3_K": Bound(16, 0.25, 0.02, 4 * 32),
    "Q2_K": Bound(16, 0.334, 0.1, 4 * 15),
    **dict.fromkeys(("TQ1_0", "TQ2_0"), Bound(256, 0.5, most=1)),
    "MXFP4": Bound(32, 0.25),
    "NVFP4": Bound(16, 0.25),
    "lloyd136": Bound(32, 0.19, most=16),
    "IQ4_NL": Bound(32, 0.135, most=127),
    "IQ4_XS": Bound(32, 0.135, 0.02, 127 * 32),
    **dict.fromkeys(("IQ3_S", "IQ3_XXS"), Bound(32, 0.2, 0.02, 4096)),
    **dict.fromkeys(("IQ2_S", "IQ2_XS", "IQ2_XXS"), Bound(16, 0.4, 0.02, 4096)),
    **dict.fromkeys(("IQ1_S", "IQ1_M"), Bound(32, 0.42, 0.02, 4096)),
}


def bound(kind: str) -> Bound:
    """What re-encoding to this type may cost."""
    if kind not in BOUNDS:
        raise EngramctlError(kind, f"a type with a stated bound: {', '.join(BOUNDS)}", "another")
    return BOUNDS[kind]


def outside(want: Floats, have: Floats, *kinds: str) -> list[tuple[int, str, str]]:
    """(row, expected, found) of each row that is off by more than its types may cost; a NaN is endlessly far off."""
    with np.errstate(invalid="ignore", over="ignore"):
        off = _rms(have - want)
        allowed = sum((bound(kind).of(want) for kind in kinds), np.zeros(len(want)))
    off = np.where(np.isfinite(off), off, np.inf)
    words = f"the bound of {' and '.join(kinds)}"
    rows = np.flatnonzero(off > allowed).tolist()
    return [(row, f"values within {allowed[row]:.3g} RMS, {words}", f"{off[row]:.3g} off") for row in rows]


def stated(*kinds: str) -> str:
    """The bound in words, for people."""
    words = []
    for kind in kinds:
        known = bound(kind)
        far = f" and {known.far:g} of its blocks' of {SUPER}" if known.far else ""
        words.append(f"{known.near:g} of the largest value in each {known.block}{far}")
    return " and ".join(words)


def _rms(values: Floats) -> Floats:
    made: Floats = np.sqrt(np.mean(values**2, axis=1))
    return made


def _peaks(values: Floats, block: int) -> Floats:
    """[n, values] -> [n, blocks] the largest magnitude in each; a row that is no whole blocks counts as one."""
    n, width = values.shape
    count = width // block if width % block == 0 else 1
    made: Floats = np.abs(values).reshape(n, count, -1).max(axis=2)
    return made
