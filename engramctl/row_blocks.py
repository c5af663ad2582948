"""A table cut into work: spans of whole digest blocks, and in each the rows that hold data.

rows   | block | block | block | block | block | block |
data       ##########    #                 ##
spans  | data: 2 ranges        | hole          | data  |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from engramctl.extents import Range
from formats import tree_digest

SPAN_BLOCKS = 4  # what a thread does at a time: 16,384 rows, 4.3 MB


@dataclass(frozen=True)
class Span:
    """Rows first..last and the ranges of them that hold data, ascending; none in a hole, however long."""

    first: int
    last: int
    data: tuple[Range, ...]

    def blocks(self) -> Iterator[tuple[int, int, list[Range]]]:
        """(first row, row after the last, data) of each digest block."""
        return pieces(self.first, self.last, self.data, tree_digest.LEAF_ROWS)


def pieces(first: int, last: int, data: Iterable[Range], step: int) -> Iterator[tuple[int, int, list[Range]]]:
    """Rows first..last cut at the multiples of `step`: (first row, row after the last, data) of each piece."""
    waiting = list(reversed(list(data)))
    while first < last:
        end = min((first // step + 1) * step, last)
        held = []
        while waiting and waiting[-1][0] < end:
            start, stop = waiting.pop()
            held.append((start, min(stop, end)))
            if stop > end:
                waiting.append((end, stop))
        yield first, end, held
        first = end


def spans(data: Iterable[Range], first: int, last: int) -> Iterator[Span]:
    """Rows first..last in order: spans that hold data are cut at every SPAN_BLOCKS-th block, holes are not cut."""
    step = SPAN_BLOCKS * tree_digest.LEAF_ROWS
    at, held = first, list[Range]()  # rows from `at` on are not in a span yet; what is known to lie there

    def cut(end: int) -> Iterator[Span]:
        nonlocal at, held
        if held and at < held[0][0] // tree_digest.LEAF_ROWS * tree_digest.LEAF_ROWS:
            begin = held[0][0] // tree_digest.LEAF_ROWS * tree_digest.LEAF_ROWS
            yield Span(at, begin, ())
            at = begin
        yield Span(at, end, tuple(held))
        at, held = end, []

    for start, end in data:
        while start < end:
            edge = min((start // step + 1) * step, last)
            if held and held[-1][1] <= start and start // step > held[0][0] // step:
                yield from cut(min((held[0][0] // step + 1) * step, last))
            held.append((start, min(end, edge)))
            if end >= edge:
                yield from cut(edge)
            start = min(end, edge)
    if held:
        yield from cut(min(-(-held[-1][1] // tree_digest.LEAF_ROWS) * tree_digest.LEAF_ROWS, last))
    if at < last:
        yield Span(at, last, ())
