"""check packing, for Qwen3.8's table: two sources row by row and weight by weight, each converted by its own rule.

Nothing here uses the plan of `repack`: what a row should be is derived from the source again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from engramctl import rowsets, telling
from engramctl.errors import EngramctlError
from engramctl.extents import Range, chunks
from engramctl.siblings.opened import Opened, as_sibling
from engramctl.siblings.table import PlainTable
from engramctl.siblings.tensors import SCALED
from engramctl.source import Source
from engramctl.verify.result import MOST_FINDINGS, Coverage, Result
from formats import row_q8_0
from formats.floats import to_bf16
from formats.ple_gguf import SIDECAR

Ranges = Sequence[Range]

CHECK = "packing"
WEIGHTS = ("key", "value", "norm_key", "norm_query", "norm_conv", "conv")


def check(want_source: Source, have_source: Source, ranges: Ranges | None, sample: tuple[int, int] | None) -> Result:
    """Every row, those of `ranges`, or the telling ones and a seeded sample; then weights and constants."""
    want, have = as_sibling(want_source), as_sibling(have_source)
    if want.profile.storage.layout != "shards" or have.profile.storage.layout != "shards":
        raise EngramctlError(str(have.path), "containers of qwen3.8-flash-next", have.profile.name)
    layer = want.sizes.layers[0]
    mine, theirs = want.table(layer), have.table(have.sizes.layers[0])
    result = Result(Coverage("rows", 0, mine.rows, sample is not None))
    if (mine.rows, mine.layout.width) != (theirs.rows, theirs.layout.width):
        found = f"{theirs.rows} of {theirs.layout.width}"
        result.add(CHECK, "table", f"{mine.rows} rows of {mine.layout.width}", found)
        return result
    if mine.layout.dtype == theirs.layout.dtype == SCALED and mine.layout.scale != theirs.layout.scale:
        result.add(CHECK, "scale of the table", f"{mine.layout.scale}", f"{theirs.layout.scale}")
    for numbers in _numbers(mine, theirs, want, ranges, sample):
        _rows(mine, theirs, numbers, layer, result)
        result.coverage.checked += int(numbers.size)
    if ranges is None and sample is None and result.coverage.checked < mine.rows:
        holes = mine.rows - result.coverage.checked
        result.notes.append(f"{holes} rows lie in holes of both files: zeros in each")
        result.coverage.checked = mine.rows
    _constants(want, have, result)
    alone = [source for source in (want, have) if source.table_alone]
    if alone:
        result.notes.append(f"weights are not compared: {alone[0].path} holds the table alone")
    else:
        _weights(want, have, result)
    return result


def _numbers(
    table: PlainTable, other: PlainTable, source: Opened, ranges: Ranges | None, sample: tuple[int, int] | None
) -> Iterator[NDArray[np.int64]]:
    """The rows to compare, a chunk at a time; of all rows those that are no hole on either side."""
    if sample is not None:
        params = source.params()
        edges = [*table.firsts().tolist(), *(int(x) for x in params.offsets[0])]
        told = telling.plain_rows(table.rows, edges, table.row_bytes)
        drawn = np.random.default_rng(sample[1]).integers(0, table.rows, sample[0])
        picked = np.unique(np.concatenate([np.array(told, np.int64), drawn]))
        yield from (picked[first:last] for first, last in chunks(0, picked.size))
        return
    spans = ranges
    if spans is None:
        spans = rowsets.joined([*table.data_ranges(), *other.data_ranges()], table.rows)
    for low, high in spans:
        for first, last in chunks(low, min(high, table.rows)):
            yield np.arange(first, last)


def _rows(want: PlainTable, have: PlainTable, numbers: NDArray[np.int64], layer: int, result: Result) -> None:
    if have.layout.dtype == SCALED:  # nothing is rounded to such rows: what they give is compared
        expected, found = want.read(numbers), expected_rows(have, numbers, want.layout.dtype)
    else:
        expected, found = expected_rows(want, numbers, have.layout.dtype), have.read(numbers)
    wrong = np.flatnonzero((expected != found).any(axis=1))
    named = wrong[: max(0, MOST_FINDINGS - len(result.findings))]
    for at in named.tolist():
        byte = int((expected[at] != found[at]).argmax())
        where = f"layer {layer} row {numbers[at]} byte {byte}"
        result.add(CHECK, where, f"{expected[at, byte]:#04x}", f"{found[at, byte]:#04x}")
    result.total += int(wrong.size - named.size)


def expected_rows(table: PlainTable, numbers: NDArray[np.int64], dtype: str) -> NDArray[np.uint8]:
    """The bytes that rows should have in another type: looked-up values, rounded by that type's rule."""
    raw = table.read(numbers)
    if table.layout.dtype == dtype:
        return raw
    values = table.decode(raw)
    if dtype == "BF16":
        return np.ascontiguousarray(to_bf16(values).astype("<u2")).view(np.uint8)
    if dtype == "Q8_0":
        return row_q8_0.encode(values)
    return np.ascontiguousarray(values.astype("<f2" if dtype == "F16" else "<f4")).view(np.uint8)


def _weights(want: Opened, have: Opened, result: Result) -> None:
    for role in WEIGHTS:
        mine, theirs = (_values(source, role) for source in (want, have))
        if mine.size != theirs.size:
            result.add(CHECK, role, f"{mine.size} numbers", f"{theirs.size}")
            continue
        wrong = np.flatnonzero(mine.view(np.uint32) != theirs.view(np.uint32))
        if wrong.size:
            at = int(wrong[0])
            result.add(CHECK, f"{role} number {at}", f"{mine[at]:.9g}", f"{theirs[at]:.9g}", int(wrong.size))


def _values(source: Opened, role: str) -> NDArray[np.float32]:
    """A weight flat, a norm's with the 1 added in F32 wherever it is kept."""
    values = source.floats(role, source.sizes.layers[0])[0].reshape(-1)
    if role.startswith("norm") and source.profile.module.norm == "one_plus":
        values = values + np.float32(1)
    return np.ascontiguousarray(values)


def _constants(want: Opened, have: Opened, result: Result) -> None:
    for role, layers in want.stored().items():
        mine, theirs = next(iter(layers.values())), next(iter(have.stored()[role].values()))
        if not np.array_equal(mine, theirs):
            result.add(CHECK, have.stored_name(role), f"{mine.tolist()}"[:80], f"{theirs.tolist()}"[:80])
    if want.dialect != SIDECAR.name != have.dialect and want.sizes.eos_token_id != have.sizes.eos_token_id:
        result.add(CHECK, "EOS token id", f"{want.sizes.eos_token_id}", f"{have.sizes.eos_token_id}")
