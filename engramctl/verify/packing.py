"""check packing: two holders of the same tables, byte by byte: a container and its checkpoint, or two containers.

Streams in file order with a few megabytes in memory. What is a hole on both sides is zeros on both sides, and not read.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engramctl import rowsets, telling
from engramctl.errors import EngramctlError
from engramctl.extents import data_rows, joined
from engramctl.hash_params import MOST_COLUMNS
from engramctl.profiles import Profile, Sizes
from engramctl.rowsets import Range
from engramctl.table import Table
from engramctl.verify import constants, quantised
from engramctl.verify.result import MOST_FINDINGS, Coverage, Result
from engramctl.verify.sides import WEIGHTS, Side, Weight, bands
from formats import row264

CHECK = "packing"
CHUNK_ROWS = 16384  # 4 MB a side
LOSSY_ROWS = 2048  # 4 MB a side as float64
MOST_SAMPLE = 1 << 22

Progress = Callable[[int], None]  # bytes compared since the last call
Rows = NDArray[np.uint8]


@dataclass(frozen=True)
class Asked:
    """Which part of the comparison is wanted; None is all of it."""

    layer: int | None = None
    rows: Sequence[Range] | None = None
    sample: int | None = None
    seed: int = 0


def check(want: Side, have: Side, profile: Profile, asked: Asked, progress: Progress = lambda n: None) -> Result:
    """Rows, weights and constants of `have` against those of `want`."""
    layers = _layers(want, have, asked.layer)
    result = Result(Coverage("rows", 0, 0, asked.sample is not None))
    holes = 0
    for layer in layers:
        if layer in want.tables and layer in have.tables:
            holes += _table(want, have, profile, layer, asked, progress, result)
        else:
            _lonely(want, have, layer, result)
    if holes:
        result.notes.append(f"{holes} rows lie in holes on both sides and count as zeros read")
    compared = [layer for layer in layers if layer in want.tables and layer in have.tables]
    rows_alone = any(side.stored is not None and not side.stored.names for side in (want, have))
    for layer in compared if not rows_alone else ():
        for role in WEIGHTS:
            _weight(want, have, layer, role, result)
    _constants(want, have, asked.layer, result)
    return result


def bytes_to_read(want: Side, have: Side, asked: Asked) -> int:
    """At most: what is a hole on both sides is not known before."""
    both = [layer for layer in want.tables if layer in have.tables and asked.layer in (None, layer)]
    rows = [min(want.tables[layer].rows, have.tables[layer].rows) for layer in both]
    if asked.sample is not None:
        rows = [min(count, asked.sample) for count in rows]
    elif asked.rows is not None:
        rows = [sum(last - first for first, last in rowsets.joined(asked.rows, count)) for count in rows]
    return sum(rows) * row264.ROW_BYTES


def _lonely(want: Side, have: Side, layer: int, result: Result) -> None:
    """A layer that only one side has."""
    if layer in want.tables:
        result.add(CHECK, f"layer {layer}", f"a table as in {want.path}", f"none in {have.path}")
        result.coverage.of += want.tables[layer].rows
    else:
        result.add(CHECK, f"layer {layer}", f"no table as in {want.path}", f"one in {have.path}")
        result.coverage.of += have.tables[layer].rows


def _layers(want: Side, have: Side, layer: int | None) -> list[int]:
    every = sorted({*want.tables, *have.tables})
    if layer is None:
        return every
    if layer not in every:
        raise EngramctlError("--layer", f"one of {', '.join(map(str, every))}", f"{layer}")
    return [layer]


def _table(
    want: Side, have: Side, profile: Profile, layer: int, asked: Asked, progress: Progress, result: Result
) -> int:
    """Compare one layer's rows; how many lay in holes on both sides."""
    expected, found = want.tables[layer], have.tables[layer]
    if expected.whole != found.whole:
        result.add(CHECK, f"layer {layer}", f"{expected.whole} rows", f"{found.whole}")
    count = min(expected.rows, found.rows)
    result.coverage.of += expected.rows
    if asked.sample is not None:
        picked = seeded_rows(profile, want.sizes, layer, count, asked.sample, asked.seed)
        result.coverage.checked += picked.size
        for start in range(0, picked.size, CHUNK_ROWS):
            some = picked[start : start + CHUNK_ROWS]
            if expected.layout.lossless and found.layout.lossless:
                _rows(layer, some, expected.read(some), found.read(some), result)
            else:
                _values(expected, found, some, result)
            progress(some.size * row264.ROW_BYTES)
        return 0
    lowest = max(expected.first, found.first)
    ranges = [(lowest, count)] if asked.rows is None else rowsets.joined(asked.rows, count)
    covered = found.covered or expected.covered
    if covered and asked.rows is None:
        ranges = [(max(first, lowest), min(last, count)) for first, last in covered]
    if lowest or covered or count < expected.whole:
        result.notes.append(f"layer {layer}: only the rows that the file holds were compared; others are elsewhere")
    if asked.rows is not None and max(last for _, last in asked.rows) > expected.rows:
        raise EngramctlError(
            "--rows", f"rows in 0..{expected.rows - 1} of layer {layer}", f"{max(last for _, last in asked.rows) - 1}"
        )
    if not (expected.layout.lossless and found.layout.lossless):
        return _reencoded(expected, found, ranges, progress, result)
    total, read = sum(last - first for first, last in ranges), 0
    buffers = np.empty((2, CHUNK_ROWS, row264.ROW_BYTES), np.uint8)
    for first, last in _pieces(expected, found, ranges):
        sides = [read_range(table, first, last, buffers[i]) for i, table in enumerate((expected, found))]
        if not np.array_equal(_words(sides[0]), _words(sides[1])):
            _rows(layer, np.arange(first, last), sides[0], sides[1], result)
        read += last - first
        progress((last - first) * row264.ROW_BYTES)
    result.coverage.checked += total
    return total - read


def _reencoded(expected: Table, found: Table, ranges: Sequence[Range], progress: Progress, result: Result) -> int:
    """Rows of which one side is lossy: values within its type's bound, or equal bytes where both are of one type."""
    for first, last in ranges:
        for row in range(first, last, LOSSY_ROWS):
            some = np.arange(row, min(row + LOSSY_ROWS, last))
            _values(expected, found, some, result)
            progress(some.size * row264.ROW_BYTES)
    result.coverage.checked += sum(last - first for first, last in ranges)
    return 0


def _values(expected: Table, found: Table, rows: NDArray[np.int64], result: Result) -> None:
    if expected.layout.name == found.layout.name:
        _rows(expected.layer, rows, expected.read(rows), found.read(rows), result)
        return
    lossy = found.layout if not found.layout.lossless else expected.layout
    want, have = (table.layout.decode(table.read(rows)).astype(np.float64) for table in (expected, found))
    wrong = quantised.outside(want, have, lossy.name)
    for row, allowed, off in wrong:
        result.add(CHECK, f"layer {expected.layer} row {rows[row]}", allowed, off)
    share = quantised.limit(lossy.name)
    note = f"{lossy.name} rows are re-encoded: values were compared, to within {share} of each row's RMS"
    if note not in result.notes:
        result.notes.append(note)


def seeded_rows(
    profile: Profile, sizes: Sizes | None, layer: int, count: int, sample: int, seed: int
) -> NDArray[np.int64]:
    """The telling rows of a table of `count`, and `sample` others by the seed, ascending."""
    if sample > MOST_SAMPLE:
        raise EngramctlError("--sample", f"at most {MOST_SAMPLE} rows, or all of them", f"{sample}")
    boundaries = []
    if sizes is not None and layer in sizes.layers and sizes.columns * len(sizes.layers) <= MOST_COLUMNS:
        boundaries = telling.heads(profile, sizes, sizes.layers.index(layer))
    seeded = np.random.default_rng([seed, layer]).choice(count, min(sample, count), replace=False)
    return np.unique(np.concatenate([np.array(telling.rows(count, boundaries), np.int64), seeded.astype(np.int64)]))


def _pieces(one: Table, other: Table, ranges: Sequence[Range]) -> Iterator[Range]:
    """Ranges of at most CHUNK_ROWS rows in which either side holds data, ascending."""
    for first, last in ranges:
        for start, stop in joined(heapq.merge(_data(one, first, last), _data(other, first, last))):
            yield from ((row, min(row + CHUNK_ROWS, stop)) for row in range(start, stop, CHUNK_ROWS))


def _data(table: Table, first: int, last: int) -> Iterator[Range]:
    """Where a table is no hole; of pages that is not asked."""
    return iter([(first, last)]) if any(part.page_rows for part in table.parts) else data_rows(table, first, last)


def _words(rows: Rows) -> NDArray[np.uint64]:
    return rows.reshape(-1).view(np.uint64)


def read_range(table: Table, first: int, last: int, buffer: Rows) -> Rows:
    """Rows first..last, their parts side by side, in `buffer`."""
    rows, column = buffer[: last - first], 0
    if not table.plain:
        rows[...] = table.read(np.arange(first, last))
        return rows
    for part in table.parts:
        start, size = part.start + first * part.stride, (last - first) * part.stride
        whole = part.stride == row264.ROW_BYTES
        piece = rows if whole else np.empty((last - first, part.stride), np.uint8)
        part.file.read_into(piece.data, start, f"rows {first} to {last} of layer {table.layer}")
        part.file.done_with(start, start + size)
        if not whole:
            rows[:, column : column + part.stride] = piece
        column += part.stride
    return rows


def _rows(layer: int, numbers: NDArray[np.int64], want: Rows, have: Rows, result: Result) -> None:
    differs = want != have
    wrong = np.flatnonzero(differs.any(axis=1))
    named = wrong[: max(0, MOST_FINDINGS - len(result.findings))]
    for i in named.tolist():
        byte, others = int(differs[i].argmax()), int(np.count_nonzero(differs[i])) - 1
        more = f" (and {others} bytes more)" if others else ""
        where = f"layer {layer} row {numbers[i]} byte {byte}"
        result.add(CHECK, where, f"{want[i, byte]:#04x}", f"{have[i, byte]:#04x}{more}")
    result.total += int(wrong.size - named.size)


def _weight(want: Side, have: Side, layer: int, role: str, result: Result) -> None:
    """Equal numbers, signs of zeros included."""
    expected, found = want.weights.get((layer, role)), have.weights.get((layer, role))
    if expected is None or found is None:
        if expected is not None:
            result.add(CHECK, f"layer {layer} {role}", f"a tensor as {expected.name} in {want.path}", "none")
        elif found is not None:
            result.add(CHECK, f"tensor {found.name}", f"no such tensor, as in {want.path}", "one")
        return
    if expected.shape != found.shape:
        result.add(CHECK, f"tensor {found.name}", f"{list(expected.shape)} as {expected.name}", f"{list(found.shape)}")
        return
    for first, rows in bands(expected.shape[0]):
        _band(expected, found, first, rows, result)


def _band(expected: Weight, found: Weight, first: int, rows: int, result: Result) -> None:
    want, have = expected.band(first, rows), found.band(first, rows)
    if want is None and have is None:
        return
    zeros = np.zeros((rows, expected.shape[1]))
    want, have = zeros if want is None else want, zeros if have is None else have
    if not (expected.exact and found.exact):
        kind = found.kind if not found.exact else expected.kind
        for row, allowed, off in quantised.outside(want, have, kind):
            result.add(CHECK, f"tensor {found.name} row {first + row}", allowed, off)
        return
    differs = (want != have) | (np.signbit(want) != np.signbit(have))
    count = int(np.count_nonzero(differs))
    if not count:
        return
    named = np.argwhere(differs)[: max(0, MOST_FINDINGS - len(result.findings))]
    for row, column in named.tolist():
        where = f"tensor {found.name} row {first + row} column {column}"
        result.add(CHECK, where, f"{want[row, column]:.9g}", f"{have[row, column]:.9g}")
    result.total += count - len(named)


def _constants(want: Side, have: Side, layer: int | None, result: Result) -> None:
    """Keys and texts of a container, whichever side it is on; two checkpoints have none."""
    stored = have.stored
    if stored is None or not stored.names:  # a checkpoint, or a file of rows alone
        if want.stored is not None and want.stored.names:
            _constants(have, want, layer, result)
        return
    layers = tuple(sorted(have.tables)) if have.sizes is None else constants.container_layers(stored, have.sizes)
    layers = tuple(each for each in layers if each in want.tables) or tuple(sorted(want.tables))
    constants.compare("constants", stored, want.expected(layers), layers, result)
    theirs = have.texts
    for role, expected in (want.texts or {}).items() if theirs is not None else ():
        found = None if theirs is None else theirs.get(role)
        if found != expected:
            text = f"the {role} of {want.path}" if role == "config" else expected
            result.add(
                "constants", role, text, "none" if found is None else "another" if role == "config" else found[:60]
            )
