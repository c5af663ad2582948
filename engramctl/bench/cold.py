"""Really cold: the pages are dropped, and it is looked at that they are gone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError
from engramctl.table import Table
from formats import page_cache
from formats.page_cache import PAGE, Mapping

STAY = 0.01  # of the pages asked for may stay: whatever reads the disk beside us


def drop(table: Table) -> None:
    """Have the page cache forget the table."""
    for part in table.parts:
        page_cache.drop(part.file, part.start, part.start + table.rows * part.stride)


def resident(table: Table, rows: NDArray[np.int64]) -> float | None:
    """The share of these rows' pages that are in memory; None where the system does not say."""
    there: list[NDArray[np.bool_]] = []
    for part in table.parts:
        mapped = Mapping(part.file, part.start, part.start + table.rows * part.stride)
        try:
            pages = mapped.resident()
        finally:
            mapped.close()
        if pages is None:
            return None
        slack = part.start % PAGE
        there += [pages[(rows * part.stride + slack) // PAGE], pages[((rows + 1) * part.stride - 1 + slack) // PAGE]]
    return float(np.concatenate(there).mean())


def make_cold(table: Table, rows: NDArray[np.int64]) -> None:
    """Drop the table and see that the rows' pages are gone, or `EngramctlError`."""
    drop(table)
    share = resident(table, rows)
    if share is None or share > STAY:
        found = "a system that does not say" if share is None else f"{share:.0%} of them there"
        raise EngramctlError(f"{table.parts[0].file.path}: cold rows", "pages that leave the page cache", found)
