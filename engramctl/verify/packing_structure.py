"""What is common to the rows that check packing found to differ: zeros, another row's bytes, an order, one bit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl.table import Table
from engramctl.verify import loose
from engramctl.verify.result import Result
from formats import row264

LOOKED = 20  # rows of a layer that are looked into, those that differ first
NEAR = 32  # rows before and after, among which the bytes of a row are looked for
ROW = re.compile(r"layer (-?\d+) row (\d+) byte \d+")  # of a finding, which an earlier run may have left

Rows = NDArray[np.uint8]


def facts(want: Mapping[int, Table], have: Mapping[int, Table], result: Result) -> list[str]:
    """Facts about the first rows that differ in each layer; none where layouts are compared by value."""
    made: list[str] = []
    named = [ROW.fullmatch(finding.where) for finding in result.findings]
    places = [(int(match[1]), int(match[2])) for match in named if match]
    for layer in dict.fromkeys(layer for layer, _ in places):
        if loose.needed(want[layer], have[layer]):
            continue
        numbers = np.unique([row for at, row in places if at == layer])[:LOOKED]
        right, found = want[layer].read(numbers), have[layer].read(numbers)
        words = list(_facts(right, found)) or list(_elsewhere(want, layer, numbers, right, found))
        of = "the row that differs" if numbers.size == 1 else f"the first {numbers.size} rows that differ"
        made += [f"layer {layer}, {of}: {word}" for word in words]
    return made


def _facts(right: Rows, found: Rows) -> Iterator[str]:
    differs = right != found
    codes = row264.WIDTH
    if int(differs.sum()) > len(right) and not found[differs].any():
        yield "every byte that differs is zero there: not written, or a hole"
    elif np.array_equal(found, np.concatenate([right[:, codes:], right[:, :codes]], axis=1)):
        yield "scales stand before the codes"
    elif np.array_equal(found[:, :codes], right[:, :codes]):
        yield "scales alone differ"
    elif np.array_equal(found[:, codes:], right[:, codes:]):
        yield "codes alone differ"
    if (np.unpackbits(right ^ found, axis=1).sum(axis=1) == 1).all():
        yield f"one bit is another, in byte {_listed(differs.argmax(axis=1))}"


def _elsewhere(
    want: Mapping[int, Table], layer: int, numbers: NDArray[np.int64], right: Rows, found: Rows
) -> Iterator[str]:
    """Whose bytes they are instead."""
    steps = [_step(want[layer], int(row), bytes_) for row, bytes_ in zip(numbers, found, strict=True)]
    if None not in steps and len(set(steps)) == 1:
        yield f"they have the bytes of the row {_far(steps[0])}"
    elif None not in steps:
        some = ", ".join(f"{row} has row {row + step}" for row, step in zip(numbers[:4].tolist(), steps, strict=False))
        yield f"rows changed places: {some}"
    for other, table in want.items():
        held = not loose.needed(table, table) and table.first <= numbers[0] and numbers[-1] < table.rows
        if other != layer and held and np.array_equal(table.read(numbers), found):
            yield f"they have the bytes of layer {other}'s rows"


def _step(table: Table, row: int, found: Rows) -> int | None:
    first, last = max(table.first, row - NEAR), min(table.rows, row + NEAR + 1)
    equal = np.flatnonzero((table.read(np.arange(first, last)) == found).all(axis=1)) + first - row
    return int(equal[np.abs(equal).argmin()]) if equal.size else None


def _far(step: int | None) -> str:
    assert step is not None
    return f"{abs(step)} {'after' if step > 0 else 'before'} theirs"


def _listed(numbers: NDArray[Any]) -> str:
    every = np.unique(numbers).tolist()
    return ", ".join(map(str, every[:6])) + (f" and {len(every) - 6} others" if len(every) > 6 else "")
