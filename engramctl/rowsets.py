"""Row sets: `0,5,100:200`, half open, order and duplicates kept. One syntax for every command that takes rows."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError
from formats.errors import shown

Range = tuple[int, int]  # first row, row after the last

ITEM = re.compile(r"(\d{1,18})(?::(\d{1,18}))?", re.ASCII)
MOST_ROWS = 1 << 24  # that a set may be expanded to


def parse(text: str, where: str) -> list[Range]:
    """The ranges of a row set, as given; anything else raises `EngramctlError`."""
    ranges = []
    for item in text.replace("\n", ",").split(","):
        word = item.strip()
        match = ITEM.fullmatch(word)
        if match is None:
            raise EngramctlError(where, "row numbers and ranges, as in 0,5,100:200", shown(word, 40))
        first = int(match[1])
        last = first + 1 if match[2] is None else int(match[2])
        if last <= first:
            raise EngramctlError(where, "ranges that hold a row", word)
        ranges.append((first, last))
    return ranges


def expand(ranges: Sequence[Range], where: str, rows: int | None = None) -> NDArray[np.int64]:
    """[n] row numbers in the set's order; too many, or one from `rows` on, raise `EngramctlError`."""
    count = sum(last - first for first, last in ranges)
    if count > MOST_ROWS:
        raise EngramctlError(where, f"at most {MOST_ROWS} rows", f"{count}")
    highest = max(last for _, last in ranges) - 1
    if rows is not None and highest >= rows:
        raise EngramctlError(where, f"rows in 0..{rows - 1}", f"{highest}")
    return np.concatenate([np.arange(first, last, dtype=np.int64) for first, last in ranges])


def joined(ranges: Sequence[Range], rows: int) -> list[Range]:
    """The set as ascending ranges apart from each other, cut off at `rows`."""
    made: list[Range] = []
    for first, last in sorted((first, min(last, rows)) for first, last in ranges if first < rows):
        if made and first <= made[-1][1]:
            made[-1] = (made[-1][0], max(made[-1][1], last))
        else:
            made.append((first, last))
    return made
