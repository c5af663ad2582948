"""Digests of tables: the tree's from known leaves, re-reading what is not known; SHA-256 in the order of the file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from engramctl.extents import data_rows
from engramctl.journal import Leaves
from engramctl.letting_go import LettingGo
from engramctl.ordered import in_order
from engramctl.repack_plan import Plan
from engramctl.row_blocks import Span, spans
from engramctl.slices import Slice
from engramctl.table import Part, Table
from formats import tree_digest
from formats.disk import ReadFile
from formats.row264 import ROW_BYTES
from formats.tree_digest import block_rows, blocks

Say = Callable[[str], None]
KINDS = ("tree", "sha256")


def whole_leaves(leaves: Leaves, part: Slice, made: Plan) -> Leaves:
    """Those leaves of a part that are also leaves of the whole tables: not cut by the part's ends."""
    ranges = {layer: (first, last) for layer, first, last in part.tables(made.source.sizes)}
    kept: Leaves = {}
    for number, known in leaves.items():
        target = made.targets[number]
        first, last = ranges.get(target.layer, (0, 0))
        for block, digest in known.items():
            start, end = block_rows(block, 0, target.shape[1])
            if first <= start and end <= last:
                kept.setdefault(number, {})[block] = digest
    return kept


def tree(made: Plan, part: Slice, known: Leaves, file: Path, threads: int, say: Say) -> dict[int, str]:
    """The tree digest of each table of the slice, by layer; blocks without a known leaf are read from `file`."""
    numbers = {target.layer: number for number, target in enumerate(made.targets) if target.role == "table"}
    found = {}
    with ReadFile.open(file) as opened:
        for layer, first, last in part.tables(made.source.sizes):
            number = numbers[layer]
            leaves = dict(known.get(number, {}))
            target = made.targets[number]
            table = Table(layer, target.shape[1], (Part(opened, target.start, ROW_BYTES),))
            for start, end in _runs(block for block in blocks(first, last) if block not in leaves):
                rows = block_rows(start, first, last)[0], block_rows(end - 1, first, last)[1]
                say(f"reading rows {rows[0]}:{rows[1]} of layer {layer} again for the digest")
                leaves.update(hashed(table, *rows, threads))
            found[layer] = tree_digest.root(first, last, [leaves[block] for block in blocks(first, last)])
    return found


def hashed(table: Table, first: int, last: int, threads: int) -> Iterator[tuple[int, bytes]]:
    """(block, leaf) of rows first..last of a container's table; holes are not read."""
    jobs = spans(data_rows(table, first, last), first, last)
    behind = LettingGo(table, (first, last))
    with closing(in_order(jobs, lambda span: _span_leaves(table, span), threads)) as done:
        for span, leaves in done:
            behind.upto(span.last)
            yield from zip(blocks(span.first, span.last), leaves, strict=True)


def _span_leaves(table: Table, span: Span) -> list[bytes]:
    (part,), leaves = table.parts, []
    rows = np.empty(((tree_digest.LEAF_ROWS if span.data else 0), ROW_BYTES), np.uint8)
    for first, last, data in span.blocks():
        if not data:
            leaves.append(tree_digest.zero_leaf(last - first))
            continue
        view, start = rows[: last - first].data, part.start + first * ROW_BYTES
        part.file.read_into(view, start, f"rows {first} to {last} of layer {table.layer}")
        leaves.append(tree_digest.leaf(view))
    return leaves


def _runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Neighbouring numbers as (first, after the last)."""
    first = after = -1
    for number in numbers:
        if number != after:
            if first >= 0:
                yield first, after
            first = number
        after = number + 1
    if first >= 0:
        yield first, after


class FileOrder:
    """SHA-256 of each table's bytes in the order of the file, following the writer through what it has just written."""

    def __init__(self, made: Plan, file: Path) -> None:
        self.made, self.file = made, ReadFile.open(file)
        self.states = {number: hashlib.sha256() for number, t in enumerate(made.targets) if t.role == "table"}
        self.rows = dict.fromkeys(self.states, 0)
        self.buffer = np.empty((tree_digest.LEAF_ROWS, ROW_BYTES), np.uint8)

    def advance(self, number: int, row: int) -> None:
        """Take in the rows of a table up to `row`."""
        target = self.made.targets[number]
        while self.rows.get(number, row) < row:
            first, last = self.rows[number], min(self.rows[number] + tree_digest.LEAF_ROWS, row)
            view = self.buffer[: last - first].data
            self.file.read_into(view, target.start + first * ROW_BYTES, f"rows {first} to {last}")
            self.states[number].update(view)
            self.rows[number] = last

    def finish(self) -> dict[int, str]:
        """By layer, once everything has been written."""
        for number in self.states:
            self.advance(number, self.made.targets[number].shape[1])
        return {self.made.targets[number].layer: state.hexdigest() for number, state in self.states.items()}

    def close(self) -> None:
        self.file.close()


def of_file(made: Plan, file: Path) -> dict[int, str]:
    """SHA-256 of each finished table, by layer."""
    with closing(FileOrder(made, file)) as order:
        return order.finish()
