"""Row numbers that an engine dumped: npy, npz, safetensors, raw u32, and the tsv and jsonl that `hash` prints.

T tokens, L layers, C columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from engramctl.array_files import read_arrays
from engramctl.arrays import Data, open_data
from engramctl.errors import EngramctlError
from formats.errors import FormatError, shown

NAME = "rows"  # of the array, where a file holds several
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64))
INT64_MAX = 2**63 - 1
LINE = re.compile(rb"-?\d{1,18}(?:\t-?\d{1,18})+")
Form = Literal["auto", "arrays", "u32", "tsv", "jsonl"]  # arrays: npy, npz and safetensors say so themselves
TEXT = re.compile(rb"[-\d\t\r\n ]*", re.ASCII)


@dataclass(frozen=True)
class Wanted:
    """What the dump must hold rows for."""

    tokens: int
    layers: tuple[int, ...]
    columns: int
    layer: int | None  # the only layer asked for


@dataclass(frozen=True)
class Rows:
    """[T, L, C] rows and the layers they belong to."""

    layers: tuple[int, ...]
    rows: NDArray[np.int64]
    absent: tuple[int, ...] = ()  # layers that were wanted too


def read_rows(path: Path, wanted: Wanted, form: Form = "auto") -> Rows:
    """The dump's rows; one of another shape, dtype or length raises `FormatError`."""
    if wanted.layer is not None and wanted.layer not in wanted.layers:
        raise EngramctlError("--layer", f"one of {', '.join(map(str, wanted.layers))}", f"{wanted.layer}")
    data = open_data(path)
    form = _form(data) if form == "auto" else form
    if form == "arrays":
        return _from_arrays(data, wanted)
    if form == "u32":
        return _from_u32(data, wanted)
    return _from_lines(data, wanted, _tsv if form == "tsv" else _jsonl)


def _form(data: Data) -> Form:
    """By the name, then by the first bytes; what has no sign of its own is raw u32."""
    suffix = data.path.suffix.lower()
    known: dict[str, Form] = {".tsv": "tsv", ".jsonl": "jsonl", ".u32": "u32"}
    if suffix in known:
        return known[suffix]
    if read_arrays(data) is not None:
        return "arrays"
    head = data.head(256)
    if head.lstrip()[:1] == b"{":
        return "jsonl"
    return "tsv" if b"\t" in head and TEXT.fullmatch(head) else "u32"


def _shapes(wanted: Wanted) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Shapes that a dump may have, and the layers each holds."""
    T, L, C = wanted.tokens, len(wanted.layers), wanted.columns
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {(T, L, C): wanted.layers}
    only = wanted.layers if L == 1 else () if wanted.layer is None else (wanted.layer,)
    return shapes | ({(T, 1, C): only, (T, C): only} if only else {})


def _from_arrays(data: Data, wanted: Wanted) -> Rows:
    found = read_arrays(data)
    if found is None:
        raise FormatError(data.where, None, "an npy, npz or safetensors file", "none of them")
    shapes = _shapes(wanted)
    named = found.only(NAME)
    _name_layer(data.where, named.shape, shapes, wanted)
    array = named.load(INTEGERS, *shapes)
    if array.dtype == np.uint64 and array.size and int(array.max()) > INT64_MAX:
        raise FormatError(data.where, None, "row numbers below 2**63", f"{array.max()}")
    layers = shapes[array.shape]
    return _chosen(Rows(layers, array.astype(np.int64).reshape(wanted.tokens, len(layers), wanted.columns)), wanted)


def _name_layer(
    where: str, shape: tuple[int, ...], shapes: dict[tuple[int, ...], tuple[int, ...]], wanted: Wanted
) -> None:
    """Rows of one layer do not say which."""
    T, C = wanted.tokens, wanted.columns
    if shape in ((T, C), (T, 1, C)) and shape not in shapes:
        hint = f"--layer L says which of {', '.join(map(str, wanted.layers))} it is"
        raise EngramctlError(where, f"{list(next(iter(shapes)))}, all layers", f"{list(shape)}, one layer", hint)


def _from_u32(data: Data, wanted: Wanted) -> Rows:
    sizes = {4 * wanted.tokens * len(layers) * wanted.columns: layers for layers in _shapes(wanted).values()}
    if data.size not in sizes:
        forms = f"npy, npz, safetensors, tsv, jsonl, or u32 in {' or '.join(map(str, sizes))} bytes"
        one = data.size == 4 * wanted.tokens * wanted.columns
        hint = f"--layer L, if it is of one layer among {', '.join(map(str, wanted.layers))}" if one else None
        raise EngramctlError(data.where, forms, f"{data.size} bytes", hint)
    layers = sizes[data.size]
    rows = data.read(0, data.size, "rows").view("<u4").astype(np.int64)
    return _chosen(Rows(layers, rows.reshape(wanted.tokens, len(layers), wanted.columns)), wanted)


def _chosen(found: Rows, wanted: Wanted) -> Rows:
    if wanted.layer is None or found.layers == (wanted.layer,):
        return found
    at = found.layers.index(wanted.layer)
    return Rows((wanted.layer,), found.rows[:, at : at + 1])


Line = tuple[int, int, list[int]]  # position, layer, rows


def _from_lines(data: Data, wanted: Wanted, parse: object) -> Rows:
    """Lines in any order, each (position, layer) exactly once; layers that are not there at all were not dumped."""
    assert callable(parse)
    rows = np.zeros((wanted.tokens, len(wanted.layers), wanted.columns), np.int64)
    seen = np.zeros(rows.shape[:2], np.bool_)
    for number, line in enumerate(data.read(0, data.size, "rows").tobytes().splitlines(), 1):
        if not line.strip():
            continue
        at = f"line {number}"
        position, layer, numbers = parse(data, at, line)
        if not 0 <= position < wanted.tokens:
            raise FormatError(data.where, at, f"a position in 0..{wanted.tokens - 1}", f"{position}")
        if layer not in wanted.layers:
            raise FormatError(data.where, at, f"a layer among {list(wanted.layers)}", f"{layer}")
        if len(numbers) != wanted.columns:
            raise FormatError(data.where, at, f"{wanted.columns} rows", f"{len(numbers)}")
        place = wanted.layers.index(layer)
        if seen[position, place]:
            raise FormatError(
                data.where, at, "each position and layer once", f"position {position} layer {layer} again"
            )
        seen[position, place] = True
        rows[position, place] = numbers
    there = tuple(wanted.layers) if wanted.layer is None else (wanted.layer,)
    there = tuple(layer for layer in there if seen[:, wanted.layers.index(layer)].any()) or there
    places = [wanted.layers.index(layer) for layer in there]
    for position, place in np.argwhere(~seen[:, places])[:1]:
        what = f"a line for position {position} of layer {there[place]}"
        raise FormatError(data.where, None, what, "none")
    wanted_too = () if wanted.layer is not None else wanted.layers
    return Rows(there, rows[:, places], tuple(layer for layer in wanted_too if layer not in there))


def _tsv(data: Data, at: str, line: bytes) -> Line:
    words = line.rstrip()
    if not LINE.fullmatch(words):
        raise FormatError(data.where, at, "tab-separated position, layer and rows", repr(line[:40])[1:])
    position, layer, *rows = map(int, words.split(b"\t"))
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
