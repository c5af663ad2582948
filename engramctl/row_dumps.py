"""Row numbers that an engine dumped: npy, npz, safetensors, raw integers, and text by line.

T tokens, L layers, C columns. Axes may be in any order that the shape allows: if the natural one, [T, L, C], fits, it
counts, unless another one agrees with the right rows and it does not. What stays open is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from engramctl import axes, row_lines
from engramctl.array_files import read_arrays
from engramctl.arrays import Array, Data, Dump, open_data, sizes
from engramctl.errors import EngramctlError
from formats.errors import FormatError

NAME = "rows"  # of the array, where a file holds several
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64))
INT64_MAX = 2**63 - 1
AGREES = 0.5  # share of sampled row numbers that tells a reading from a wrong one
RAW: dict[str, str] = {"u32": "<u4", "u64": "<u8", "i64": "<i8"}
Form = Literal["auto", "arrays", "u32", "u64", "i64", "tsv", "jsonl"]  # arrays: npy, npz, safetensors say so themselves

Judge = Callable[["Rows"], float]  # the share of sampled row numbers that are right


@dataclass(frozen=True)
class Wanted:
    """What the dump must hold rows for, and what is known of its form."""

    tokens: int
    layers: tuple[int, ...]
    columns: int
    layer: int | None  # the only layer asked for
    heads: int = 1
    axes: str | None = None  # the order of its axes, where that was said
    judge: Judge | None = None

    def sizes(self, layers: tuple[int, ...]) -> dict[str, int]:
        return {"T": self.tokens, "L": len(layers), "N": self.columns // self.heads, "H": self.heads}


@dataclass(frozen=True)
class Rows:
    """[T, L, C] rows, the layers they belong to, and how they were read where that was not plain."""

    layers: tuple[int, ...]
    rows: NDArray[np.int64]
    absent: tuple[int, ...] = ()  # layers that were wanted too
    notes: list[str] = field(default_factory=list)


def read_rows(path: Path, wanted: Wanted, form: Form = "auto") -> Rows:
    """The dump's rows; one of another shape, dtype or length raises `FormatError`."""
    if wanted.layer is not None and wanted.layer not in wanted.layers:
        raise EngramctlError("--layer", f"one of {', '.join(map(str, wanted.layers))}", f"{wanted.layer}")
    data = open_data(path)
    chosen = _form(data) if form == "auto" else form
    if chosen == "arrays":
        return _from_arrays(data, wanted)
    if chosen in ("tsv", "jsonl"):
        found = row_lines.read(data, wanted.tokens, wanted.layers, wanted.columns, wanted.layer, chosen)
        if isinstance(found, tuple):
            return Rows(*found, _absent(found[0], wanted))
        return _read(data.where, found, wanted)
    return _from_raw(data, wanted, None if form == "auto" and chosen != "u64" else chosen)


def _form(data: Data) -> str:
    """By the name, then by the first bytes; what has no sign of its own is raw."""
    suffix = data.path.suffix.lower()
    if suffix in (".tsv", ".csv", ".jsonl", ".u32", ".u64", ".i64"):
        return "tsv" if suffix == ".csv" else suffix[1:]
    if read_arrays(data) is not None:
        return "arrays"
    head = data.head(1024)
    if row_lines.HEADING.match(head):
        head = head.partition(b"\n")[2]
    if head.lstrip()[:1] in (b"{", b"["):
        return "jsonl"
    return "tsv" if re.search(rb"\d[\t, ]+-?\d", head) and row_lines.TEXT.fullmatch(head) else "raw"


def _from_arrays(data: Data, wanted: Wanted) -> Rows:
    found = read_arrays(data)
    if found is None:
        raise FormatError(data.where, None, "an npy, npz or safetensors file", "none of them")
    by_layer = _by_layer(found, wanted)
    if by_layer is not None:
        return by_layer
    array = found.only(NAME)
    return _read(data.where, _loaded(array, wanted), wanted)


def _loaded(array: Array, wanted: Wanted, layers: tuple[int, ...] | None = None) -> NDArray[Any]:
    """The array, if its numbers are integers and its shape can be read at all."""
    options = _options(wanted) if layers is None else [layers]
    fits = any(axes.readings(array.shape, wanted.sizes(some)) for some in options)
    if not fits and layers is None:
        _name_layer(
            array.where, sizes(array.shape), axes.readings(array.shape, wanted.sizes(wanted.layers[:1])), wanted
        )
    return array.load(INTEGERS, array.shape if fits else (wanted.tokens, len(wanted.layers), wanted.columns))


def _name_layer(where: str, found: str, fits: object, wanted: Wanted) -> None:
    """Rows of one layer do not say which."""
    if fits and wanted.layer is None and len(wanted.layers) > 1:
        natural = [wanted.tokens, len(wanted.layers), wanted.columns]
        hint = f"--layer L says which of {', '.join(map(str, wanted.layers))} it is"
        raise EngramctlError(where, f"rows as {natural}, all layers", f"{found}, one layer", hint)


def _absent(there: tuple[int, ...], wanted: Wanted) -> tuple[int, ...]:
    every = wanted.layers if wanted.layer is None else ()
    return tuple(layer for layer in every if layer not in there)


def _by_layer(found: Dump, wanted: Wanted) -> Rows | None:
    """One array for each layer, by the layer's number in its name; None where the file is not like that."""
    if NAME in found.arrays or len(found.arrays) == 1:
        return None
    named = {
        layer: [name for name in found.arrays if str(layer) in re.findall(r"\d+", name)]
        for layer in (wanted.layers if wanted.layer is None else (wanted.layer,))
    }
    there = {layer: names[0] for layer, names in named.items() if len(names) == 1}
    if not there or any(len(names) > 1 for names in named.values()) or len({*there.values()}) != len(there):
        return None
    read = [
        _chosen(found.where, _loaded(found.arrays[name], wanted, (layer,)), wanted, [(layer,)])
        for layer, name in there.items()
    ]
    notes = list(dict.fromkeys(note for part in read for note in part.notes))
    return Rows(
        tuple(there), np.concatenate([part.rows for part in read], axis=1), _absent(tuple(there), wanted), notes
    )


def _from_raw(data: Data, wanted: Wanted, form: str | None) -> Rows:
    """Integers without a header: by their number, and by their content where the number leaves it open."""
    one = wanted.tokens * wanted.columns
    counts = {one * len(layers) for layers in _options(wanted)}
    kinds = {kind: np.dtype(dtype).itemsize for kind, dtype in RAW.items() if form in (None, "raw", kind)}
    possible = {size * n for size in kinds.values() for n in (one, *counts)}
    raw = data.read(0, data.size, "rows") if data.size in possible else None
    if raw is not None and form not in RAW and data.size in (8 * one, *(8 * n for n in counts)):
        upper = raw.view("<u4")[1::2]  # of 64-bit rows these are 0, or ones where a row is negative
        wide = raw.any() and np.isin(upper, (0, 2**32 - 1)).all()
        kinds = {"i64": 8} if wide else {"u32": 4} if data.size // 4 in counts else kinds
    for kind, size in kinds.items():
        if raw is not None and data.size // size in counts:
            return _read(data.where, raw.view(RAW[kind]), wanted)
    _name_layer(data.where, f"{data.size} bytes", any(data.size == size * one for size in kinds.values()), wanted)
    many = sorted(counts, reverse=True)
    listed = ", ".join(f"{kind} in {' or '.join(str(size * n) for n in many)} bytes" for kind, size in kinds.items())
    raise FormatError(data.where, None, f"npy, npz, safetensors, tsv, jsonl, or {listed}", f"{data.size} bytes")


def _options(wanted: Wanted) -> list[tuple[int, ...]]:
    """Which layers a dump may be of: all, or the one that was asked for."""
    every = [wanted.layers] if len(wanted.layers) > 1 or wanted.layer is None else []
    return [*every, *([(wanted.layer,)] if wanted.layer is not None else [])]


def _read(where: str, array: NDArray[Any], wanted: Wanted) -> Rows:
    return _only(_chosen(where, array, wanted, _options(wanted)), wanted)


def _chosen(where: str, array: NDArray[Any], wanted: Wanted, options: list[tuple[int, ...]]) -> Rows:
    """The array in the one way to read it: as it was said, the natural one, or the one that agrees."""
    if array.dtype == np.uint64 and array.size and int(array.max()) > INT64_MAX:
        raise FormatError(where, None, "row numbers below 2**63", f"{array.max()}")
    orders = [(layers, order) for layers in options for order in axes.readings(array.shape, wanted.sizes(layers))]
    if wanted.axes is not None:
        said = axes.parse(wanted.axes)
        fitting = [each for each in orders if each[1] == "".join(letter for letter in said if letter in each[1])]
        if not fitting:
            ways = " or ".join(dict.fromkeys(axes.shown(order) for _, order in orders)) or "none"
            raise EngramctlError("--axes", f"an order that {sizes(array.shape)} allows: {ways}", axes.shown(said))
        orders = fitting
    made = [_rows(array, layers, order, wanted) for layers, order in orders]
    if not made:
        natural = [wanted.tokens, len(wanted.layers), wanted.columns]
        raise FormatError(where, None, f"rows as {natural}, or with its axes in another order", sizes(array.shape))
    if len(made) == 1:
        return made[0]
    scores = [0.0 if wanted.judge is None else wanted.judge(each) for each in made]
    best, plain = int(np.argmax(scores)), _plain(orders)
    whole = scores[best] == 1 > scores[0]  # another reading is right in every number, the plain one is not
    if plain is not None and not whole and (scores[plain] >= AGREES or scores[best] < AGREES):
        return made[plain]
    if scores[best] < AGREES:
        _ask(where, array.shape, orders, wanted)
    layers, order = orders[best]
    return Rows(layers, made[best].rows, (), [f"read as [{axes.shown(order)}]: that way it agrees with the reference"])


def _rows(array: NDArray[Any], layers: tuple[int, ...], order: str, wanted: Wanted) -> Rows:
    whole = axes.natural(array, order, wanted.sizes(layers)).astype(np.int64)
    return Rows(layers, whole.reshape(wanted.tokens, len(layers), wanted.columns))


def _plain(orders: list[tuple[tuple[int, ...], str]]) -> int | None:
    """The natural order, if it is among the readings."""
    return 0 if axes.is_natural(orders[0][1], dict.fromkeys("TLNH", 1)) else None


def _ask(where: str, shape: tuple[int, ...], orders: list[tuple[tuple[int, ...], str]], wanted: Wanted) -> None:
    """More than one reading, and none of them agrees: the user has to say which it is."""
    natural = [wanted.tokens, len(wanted.layers), wanted.columns]
    ways = " or ".join(dict.fromkeys(axes.shown(order) for _, order in orders))
    raise FormatError(where, None, f"rows as {natural}, or --axes to say which of {ways} it is", sizes(shape))


def _only(found: Rows, wanted: Wanted) -> Rows:
    if wanted.layer is None or found.layers == (wanted.layer,):
        return found
    at = found.layers.index(wanted.layer)
    return Rows((wanted.layer,), found.rows[:, at : at + 1], (), found.notes)
