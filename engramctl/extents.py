"""Which rows of a table hold data: a row all of whose parts lie in holes is neither read nor written.

And how many are taken at a time, wherever rows are read or written in order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from engramctl.table import Part, Table

CHUNK_ROWS = 16384  # 4 MB of rows of 264 bytes

Range = tuple[int, int]  # first row, row after the last


def chunks(first: int, last: int) -> Iterator[Range]:
    """Rows first..last, so many at a time."""
    for start in range(first, last, CHUNK_ROWS):
        yield start, min(start + CHUNK_ROWS, last)


def data_rows(table: Table, first: int = 0, last: int | None = None) -> Iterator[Range]:
    """Ranges of rows in which some part is no hole, ascending and apart; a bounded amount of memory whatever the
    file."""
    end = table.rows if last is None else last
    yield from joined(heapq.merge(*(_part_rows(part, first, end) for part in table.parts)))


def _part_rows(part: Part, first: int, end: int) -> Iterator[Range]:
    for start, stop in part.file.data(part.start + first * part.stride, part.start + end * part.stride):
        yield (start - part.start) // part.stride, -(-(stop - part.start) // part.stride)


def joined(ranges: Iterator[Range]) -> Iterator[Range]:
    """Ascending ranges, overlapping and touching ones made one."""
    current: Range | None = None
    for first, last in ranges:
        if current is not None and first <= current[1]:
            current = (current[0], max(current[1], last))
        else:
            if current is not None:
                yield current
            current = (first, last)
    if current is not None:
        yield current
