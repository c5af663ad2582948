"""Rows as text, one position and layer a line: separated by tabs, commas or blanks, or JSON; or bare numbers in order.

T tokens, L layers, C columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl.arrays import Data
from formats.errors import FormatError, shown

INT64_MAX = 2**63 - 1
SEPARATOR = re.compile(rb" *[\t,] *| +")
LINE = re.compile(rb"-?\d{1,18}(?:(?: *[\t,] *| +)-?\d{1,18})+")
TEXT = re.compile(rb"[-\d\t,\r\n ]*", re.ASCII)
HEADING = re.compile(rb"\A *[A-Za-z#]")  # a first line that names the columns; NumPy's begins with #

Line = tuple[int, int, list[int]]  # position, layer, rows
Found = tuple[tuple[int, ...], NDArray[np.int64]]  # layers, [T, L, C] rows


def read(
    data: Data, tokens: int, layers: tuple[int, ...], columns: int, layer: int | None, form: str
) -> Found | NDArray[np.int64]:
    """Rows with their positions and layers, or bare numbers as an array, in the order in which they stand."""
    raw = data.read(0, data.size, "rows").tobytes()
    lines = [(f"line {number}", line) for number, line in enumerate(raw.splitlines(), 1) if line.strip()]
    if form == "tsv":
        if len(lines) > 1 and HEADING.match(lines[0][1]):
            lines = lines[1:]  # names of the columns
        widths = {len(SEPARATOR.split(_bare(line))) for _, line in lines}
        if widths and widths <= {columns, columns * len(layers)} and len(widths) == 1 and columns > 1:
            return np.array([_numbers(data, at, line) for at, line in lines], np.int64)
    elif raw.lstrip()[:1] == b"[":
        return _nested(data, lines)
    return _placed(data, lines, (tokens, layers, columns, layer), form)


def _nested(data: Data, lines: list[tuple[str, bytes]]) -> NDArray[np.int64]:
    """Lists of integers, one a line or all in one."""
    parsed = []
    for at, line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise FormatError(data.where, at, "an object with position, layer and rows", repr(line[:40])[1:]) from None
        parsed.append(_array(data, at, value))
    if len({part.shape for part in parsed}) > 1:
        raise FormatError(data.where, None, "lines of one shape", "several")
    return parsed[0] if len(parsed) == 1 else np.stack(parsed)


def _array(data: Data, at: str, value: Any) -> NDArray[np.int64]:  # noqa: ANN401 - whatever JSON holds
    flat = [value]
    while flat and all(isinstance(item, list) for item in flat):
        flat = [item for part in flat for item in part]
    if (bad := next(iter(_not_rows(flat)), None)) is not None:
        raise FormatError(data.where, at, "row numbers below 2**63", f"{bad!r:.40}")
    try:
        return np.array(value, np.int64)
    except ValueError:
        raise FormatError(data.where, at, "lists of one length", "others") from None


def _numbers(data: Data, at: str, line: bytes) -> list[int]:
    words = _bare(line)
    if not LINE.fullmatch(words):
        raise FormatError(
            data.where, at, "position, layer and rows, separated by tabs, commas or blanks", repr(line[:40])[1:]
        )
    return [int(word) for word in SEPARATOR.split(words)]


def _bare(line: bytes) -> bytes:
    """Without the blanks of aligned columns; a tab in front would be an empty column."""
    return line.rstrip().lstrip(b" ")


def _placed(
    data: Data, lines: list[tuple[str, bytes]], wanted: tuple[int, tuple[int, ...], int, int | None], form: str
) -> Found:
    """Lines in any order, each (position, layer) exactly once; layers that are not there at all were not dumped."""
    tokens, layers, columns, only = wanted
    rows = np.zeros((tokens, len(layers), columns), np.int64)
    seen = np.zeros(rows.shape[:2], np.bool_)
    for at, line in lines:
        position, layer, numbers = _tsv(data, at, line) if form == "tsv" else _jsonl(data, at, line)
        if not 0 <= position < tokens:
            raise FormatError(data.where, at, f"a position in 0..{tokens - 1}", f"{position}")
        if layer not in layers:
            raise FormatError(data.where, at, f"a layer among {list(layers)}", f"{layer}")
        if len(numbers) != columns:
            raise FormatError(data.where, at, f"{columns} rows", f"{len(numbers)}")
        place = layers.index(layer)
        if seen[position, place]:
            raise FormatError(
                data.where, at, "each position and layer once", f"position {position} layer {layer} again"
            )
        seen[position, place] = True
        rows[position, place] = numbers
    there = layers if only is None else (only,)
    there = tuple(layer for layer in there if seen[:, layers.index(layer)].any()) or there
    places = [layers.index(layer) for layer in there]
    for position, place in np.argwhere(~seen[:, places])[:1]:
        raise FormatError(data.where, None, f"a line for position {position} of layer {there[place]}", "none")
    return there, rows[:, places]


def _tsv(data: Data, at: str, line: bytes) -> Line:
    position, layer, *rows = _numbers(data, at, line)
    return position, layer, rows


def _jsonl(data: Data, at: str, line: bytes) -> Line:
    try:
        parsed = json.loads(line)
        position, layer, rows = parsed["position"], parsed["layer"], parsed["rows"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FormatError(data.where, at, "an object with position, layer and rows", repr(line[:40])[1:]) from None
    if type(position) is not int or type(layer) is not int or not isinstance(rows, list):
        raise FormatError(data.where, at, "integers as position and layer, a list as rows", shown(parsed))
    bad = next(iter(_not_rows(rows)), None)
    if bad is not None:
        raise FormatError(data.where, at, "row numbers below 2**63", f"{bad!r:.40}")
    return position, layer, rows


def _not_rows(rows: list[object]) -> Iterator[object]:
    yield from (row for row in rows if type(row) is not int or not -(2**63) <= row <= INT64_MAX)
