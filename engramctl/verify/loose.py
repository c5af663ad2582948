"""Tables that are not plain rows of 264, compared with others: pages, blocks, parts of a layer, lossy rows.

Bytes are compared where both sides hold the checkpoint's, or rows of one type; values within a bound where they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from engramctl.extents import Range
from engramctl.table import Table
from engramctl.verify import quantised
from engramctl.verify.result import Result
from formats import row264

CHUNK_ROWS = 2048  # 4 MB a side as float64

Progress = Callable[[int], None]
Compare = Callable[[int, NDArray[np.int64], NDArray[np.uint8], NDArray[np.uint8], Result], None]


def needed(expected: Table, found: Table) -> bool:
    """Is either of the two no plain table?"""
    return not (expected.plain and found.plain) or bool(expected.covered or found.covered)


def ranges(expected: Table, found: Table, asked: Sequence[Range] | None, count: int, result: Result) -> list[Range]:
    """The rows that both hold: where one file has a part of a layer, that part."""
    lowest = max(expected.first, found.first)
    if asked is not None:
        return [(max(first, lowest), last) for first, last in asked]
    covered = found.covered or expected.covered or ((lowest, count),)
    if lowest or found.covered or expected.covered or count < expected.whole:
        note = f"layer {found.layer}: only the rows that the file holds were compared; others are elsewhere"
        result.notes.append(note)
    return [(max(first, lowest), min(last, count)) for first, last in covered]


def compare(
    expected: Table,
    found: Table,
    wanted: Sequence[Range],
    same: Compare,
    check: str,
    progress: Progress,
    result: Result,
) -> None:
    """Every row of these ranges."""
    for first, last in wanted:
        for row in range(first, last, CHUNK_ROWS):
            some = np.arange(row, min(row + CHUNK_ROWS, last))
            rows(expected, found, some, same, check, result)
            progress(some.size * row264.ROW_BYTES)
        result.coverage.checked += max(0, last - first)


def rows(expected: Table, found: Table, some: NDArray[np.int64], same: Compare, check: str, result: Result) -> None:
    """These rows: bytes, or values within the bound of the side that was re-encoded."""
    if (expected.layout.lossless and found.layout.lossless) or expected.layout.name == found.layout.name:
        same(expected.layer, some, expected.read(some), found.read(some), result)
        return
    lossy = dict.fromkeys(table.layout.name for table in (found, expected) if not table.layout.lossless)
    want, have = (table.layout.decode(table.read(some)).astype(np.float64) for table in (expected, found))
    for row, allowed, off in quantised.outside(want, have, *lossy):
        result.add(check, f"layer {expected.layer} row {some[row]}", allowed, off)
    named = " and ".join(lossy)
    note = f"{named} rows are re-encoded: values were compared, to within {quantised.stated(*lossy)} (RMS)"
    if note not in result.notes:
        result.notes.append(note)
