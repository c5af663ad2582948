"""check values and check kv: looked-up values and projections that an engine dumped, against the source they came from.

T tokens, C columns, K = C * width inputs, N = (streams + 1) * hidden outputs. BF16 is its bits in uint16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import axes, reference
from engramctl.arrays import Array
from engramctl.errors import EngramctlError
from engramctl.mistakes.hashing import HashCase, HashPlan, Maps, no_maps, tokens_of
from engramctl.source import V41_ROWS, Source
from engramctl.table import Table
from engramctl.verify import bounds, explain_lookups
from engramctl.verify.name_lookups import Lookups
from engramctl.verify.result import MOST_FINDINGS, Coverage, Result
from formats.floats import from_bf16

CHUNK_TOKENS = 256
KINDS = ("uint16", "float32", "uint8")  # dtypes of values: BF16 bits, exact, raw rows
MOST_AXES = 8  # of a dump: more dimensions than that are refused
VALUES, KV = "values", "kv"


@dataclass(frozen=True)
class Looked(Lookups):
    """The rows that were looked up: [T, C] for a sequence, or [n] as they were listed."""

    def at(self, at: tuple[int, ...]) -> str:
        """The look-up at an index of `rows`, in words."""
        if self.rows.ndim == 1:
            return f"row {self.rows[at[0]]} (number {at[0]} of the list)"
        return f"position {at[0]} column {at[1]} (row {self.rows[at[0], at[1]]})"


def looked_up(
    source: Source,
    layer: int,
    tokens: NDArray[np.int64],
    mask: NDArray[np.bool_] | None = None,
    history: Sequence[int] = (),
    maps: Maps = no_maps,
) -> Looked:
    """What a sequence looks up in a layer, by the reference."""
    params = source.params()
    place = params.layers.index(layer)
    rows = reference.hash_rows(tokens, params, mask, history)[:, place]
    plan, past = HashPlan.of(params, maps), tuple(int(entry) for entry in history)
    return Looked(rows, HashCase(tokens, mask, past, past_tokens=tokens_of(plan, past)), plan, place)


def check_values(dump: Array, source: Source, layer: int, looked: Looked, said: str | None = None) -> Result:
    """Bit for bit: BF16 bits as uint16, exact values as float32, or raw rows as uint8; `said` is the order of axes."""
    table, lookups, raw = source.table(layer), looked.rows.shape, dump.dtype == np.uint8
    each = table.row_bytes if raw else source.sizes.width
    found = _values(dump, source, layer, looked, each, said).reshape(*lookups, each)
    result = Result(Coverage("rows", looked.rows.size, looked.rows.size))
    rounded, numbers, somewhere = 0, 0, np.zeros(lookups[0], np.bool_)
    for start in range(0, lookups[0], CHUNK_TOKENS):
        some = slice(start, start + CHUNK_TOKENS)
        rows = table.read_valid(looked.rows[some])
        expected, have = _expected(table, rows, found[some])
        differs = _bits(expected) != _bits(have)
        if found.dtype == np.float32 and differs.any() and table.is_bf16:
            as_bf16 = from_bf16(table.decode_bf16(rows))
            only_rounded = _bits(as_bf16) == _bits(have)
            rounded += int(np.count_nonzero(differs & only_rounded))
            differs &= ~only_rounded
        numbers += int(np.count_nonzero(differs))
        wrong = differs.any(axis=-1)
        somewhere[some] = wrong.reshape(len(wrong), -1).any(axis=1)
        named = np.argwhere(wrong)[: max(0, MOST_FINDINGS - len(result.findings))]
        for at in named.tolist():
            element = int(differs[tuple(at)].argmax())
            where = f"{looked.at((start + at[0], *at[1:]))} {'byte' if raw else 'element'} {element}"
            result.add(VALUES, where, _shown(expected[(*at, element)]), _shown(have[(*at, element)]))
        result.total += int(np.count_nonzero(wrong)) - len(named)
    result.extra["differing_numbers"] = numbers
    if not result.ok and source.profile.storage.encoding == V41_ROWS:
        explain_lookups.values(found, source, layer, looked, somewhere, result)
    if rounded:
        result.notes.append(f"{rounded} float32 values are the exact ones rounded to BF16, which is what a model uses")
    return result


def _values(dump: Array, source: Source, layer: int, looked: Looked, each: int, said: str | None) -> NDArray[Any]:
    """The dump's numbers in the natural order; of several layers, those of `layer`."""
    N, L = source.sizes.size - 1, source.sizes.layers
    columns = {"N": N, "H": source.sizes.heads}
    if looked.rows.ndim == 2 and N * source.sizes.heads != looked.rows.shape[1]:
        columns = {"C": looked.rows.shape[1]}
    tokens = {"T": len(looked.rows)} | (columns if looked.rows.ndim == 2 else {}) | {"W": each}
    for sizes in (tokens, {"T": tokens["T"], "L": len(L)} | tokens):
        order = axes.chosen(dump.shape, sizes, said) if len(dump.shape) <= MOST_AXES else None
        if order is not None:
            whole = axes.natural(dump.load(KINDS, dump.shape), order, sizes)
            return whole if "L" not in sizes else whole[:, L.index(layer)]
    dump.load(KINDS, (*looked.rows.shape, source.sizes.width), (*looked.rows.shape, source.table(layer).row_bytes))
    raise EngramctlError(dump.where, f"{each} numbers a row as {dump.kind}", f"{list(dump.shape)}")


def _expected(table: Table, rows: NDArray[np.uint8], have: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    if have.dtype == np.uint8:
        return rows, have
    return (table.decode(rows) if have.dtype == np.float32 else table.decode_bf16(rows)), have


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array).view(np.uint32) if array.dtype == np.float32 else array


def _shown(number: Any) -> str:  # noqa: ANN401 - a NumPy scalar of any of the dump's dtypes
    if number.dtype == np.uint16:
        return f"{float(from_bf16(np.array([number], np.uint16))[0]):.9g} (bits {int(number):#06x})"
    return f"{float(number):.9g}" if number.dtype == np.float32 else f"{int(number):#04x}"


def check_kv(dump: Array, source: Source, layer: int, looked: Looked, said: str | None = None) -> Result:
    """The projection of each token's C rows in float64, and the dump within what BF16 and F32 summation may cost."""
    sizes = source.sizes
    if looked.rows.size % sizes.columns:
        raise EngramctlError("rows", f"{sizes.columns} for each token", f"{looked.rows.size}")
    rows = looked.rows.reshape(-1, sizes.columns)
    T = len(rows)
    letters = {"T": T, "S": sizes.streams + 1, "D": sizes.hidden}
    order = axes.chosen(dump.shape, letters, said) if len(dump.shape) <= MOST_AXES else None
    shapes = [(T, sizes.streams + 1, sizes.hidden), (T, sizes.outputs)] if order is None else [dump.shape]
    found = dump.load(("uint16", "float32"), *shapes)
    found = axes.natural(found, order or "TSD", letters).reshape(T, sizes.outputs)
    weight = source.weights(layer).projection
    table, worst, somewhere = source.table(layer), 0.0, np.zeros(found.shape, np.bool_)
    result = Result(Coverage("outputs", found.size, found.size))
    for start in range(0, T, CHUNK_TOKENS):
        some = slice(start, start + CHUNK_TOKENS)
        values = reference.lookup(table.read_valid(rows[some])).reshape(-1, sizes.inputs)
        exact, magnitude = bounds.kv_f64(values, weight)
        have = from_bf16(found[some]) if found.dtype == np.uint16 else found[some]
        with np.errstate(invalid="ignore", over="ignore"):  # a dump may hold NaNs of any kind
            have = have.astype(np.float64)
            bound = bounds.kv_bound(exact, np.where(np.isfinite(have), have, exact), magnitude, sizes.inputs)
            off = np.where(np.isfinite(have), np.abs(have - exact), np.inf)
            wrong = somewhere[some] = ~(off <= bound)  # not within, a bound that is no number included
            worst = max(worst, float((off / bound).max(initial=0.0)))
        named = np.argwhere(wrong)[: max(0, MOST_FINDINGS - len(result.findings))]
        for t, output in named.tolist():
            where = f"position {start + t} {output_name(output, sizes.streams, sizes.hidden)}"
            expected = f"{exact[t, output]:.9g} within {bound[t, output]:.3g}"
            result.add(KV, where, expected, f"{have[t, output]:.9g}")
        result.total += int(np.count_nonzero(wrong)) - len(named)
    if not result.ok:
        as_f32 = from_bf16(found) if found.dtype == np.uint16 else found
        explain_lookups.kv(as_f32, source, layer, replace(looked, rows=rows), somewhere, result)
    result.extra["largest_share_of_bound"] = worst if np.isfinite(worst) else None
    return result


def output_name(output: int, streams: int, hidden: int) -> str:
    stream, element = divmod(output, hidden)
    return f"{'value' if stream == streams else f'key {stream}'} element {element} (output {output})"
