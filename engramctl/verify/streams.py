"""Two tables side by side, once each and in order: which rows differ, and what the digest of the second is.

Blocks are compared on several threads where they lie: codes and scales of a checkpoint are not put together for it.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from engramctl.extents import Range, data_rows, joined
from engramctl.letting_go import LettingGo
from engramctl.ordered import in_order
from engramctl.row_blocks import Span, spans
from engramctl.table import Table
from engramctl.verify.result import MOST_FINDINGS
from formats import tree_digest
from formats.row264 import ROW_BYTES

WORD = np.uint64  # compared at a time

Rows = NDArray[np.uint8]


@dataclass
class Compared:
    """A span's outcome: rows that differ, the first of them with both sides' bytes, and the second side's leaves."""

    span: Span
    rows_read: int = 0
    differing: int = 0
    numbers: list[int] = field(default_factory=list)
    want: list[Rows] = field(default_factory=list)
    have: list[Rows] = field(default_factory=list)
    leaves: list[bytes] = field(default_factory=list)


class _Buffers(threading.local):
    """Whole blocks: one for each part of a row, whichever side has it."""

    def __init__(self) -> None:
        self.pieces: dict[tuple[int, int], Rows] = {}

    def of(self, side: int, part: int, stride: int, rows: int) -> Rows:
        piece = self.pieces.get((side, part))
        if piece is None or len(piece) < rows:
            piece = self.pieces[side, part] = np.empty((max(rows, tree_digest.LEAF_ROWS), stride), np.uint8)
        return piece[:rows]


def compare(want: Table, have: Table, rows: Range, leaves: bool, threads: int) -> Generator[Compared]:
    """Rows first..last in order, as spans; a span that is a hole on both sides is not read."""
    first, last = rows
    data = joined(heapq.merge(data_rows(want, first, last), data_rows(have, first, last)))
    buffers = _Buffers()

    def work(span: Span) -> Compared:
        return _compare(want, have, span, leaves, buffers)

    behind = [LettingGo(table, rows) for table in (want, have)]
    with closing(in_order(spans(data, first, last), work, threads)) as done:
        for span, compared in done:
            for side in behind:
                side.upto(span.last)
            yield compared


def _compare(want: Table, have: Table, span: Span, leaves: bool, buffers: _Buffers) -> Compared:
    done = Compared(span)
    if not span.data:
        done.leaves = tree_digest.zero_leaves(span.first, span.last) if leaves else []
        return done
    for first, last, data in span.blocks():
        done.rows_read += sum(end - start for start, end in data)
        if not data:
            if leaves:
                done.leaves.append(tree_digest.zero_leaf(last - first))
            continue
        sides = [_read(table, first, last, data, buffers, side) for side, table in enumerate((want, have))]
        if not all(np.array_equal(a.view(WORD), b.view(WORD)) for a, b in _shared(*sides)):
            _differ(done, first, *(np.concatenate(parts, axis=1) for parts in sides))
        if leaves:
            whole = sides[1][0] if len(sides[1]) == 1 else np.concatenate(sides[1], axis=1)
            done.leaves.append(tree_digest.leaf(whole.data))
    return done


def _read(table: Table, first: int, last: int, data: list[Range], buffers: _Buffers, side: int) -> list[Rows]:
    """[rows, bytes] of each part; what lies in a hole on both sides is zero and is not read."""
    pieces = []
    for number, part in enumerate(table.parts):
        piece = buffers.of(side, number, part.stride, last - first)
        if data != [(first, last)]:
            piece[...] = 0
        for start, end in data:
            at = part.start + start * part.stride
            some = piece[start - first : end - first]
            part.file.read_into(some.data, at, f"rows {start} to {end} of layer {table.layer}")
        pieces.append(piece)
    return pieces


def _shared(want: list[Rows], have: list[Rows]) -> Iterator[tuple[Rows, Rows]]:
    """The columns of both sides, cut where either side's parts end."""
    edges = sorted({0, *(end for side in (want, have) for end in accumulate(part.shape[1] for part in side))})
    for start, end in pairwise(edges):
        yield _columns(want, start, end), _columns(have, start, end)


def _columns(parts: list[Rows], start: int, end: int) -> Rows:
    for part in parts:
        if start < part.shape[1]:
            return part[:, start:end]
        start, end = start - part.shape[1], end - part.shape[1]
    raise AssertionError("both sides have rows of the same size")


def _differ(done: Compared, first: int, want: Rows, have: Rows) -> None:
    """Keep the first rows that differ, count the others."""
    wrong = np.flatnonzero((want != have).any(axis=1))
    done.differing += wrong.size
    for i in wrong[: max(0, MOST_FINDINGS - len(done.numbers))].tolist():
        done.numbers.append(first + i)
        done.want.append(want[i].copy())
        done.have.append(have[i].copy())


assert ROW_BYTES % np.dtype(WORD).itemsize == 0
