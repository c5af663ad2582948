"""check values and check kv: looked-up values and projections that an engine dumped, against the source they came from.

T tokens, C columns, K = C * width inputs, N = (streams + 1) * hidden outputs. BF16 is its bits in uint16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import reference
from engramctl.arrays import Array
from engramctl.errors import EngramctlError
from engramctl.mistakes.hashing import HashCase, HashPlan, Maps, no_maps, tokens_of
from engramctl.source import Source
from engramctl.verify import bounds, explain_lookups
from engramctl.verify.name_lookups import Lookups
from engramctl.verify.result import MOST_FINDINGS, Coverage, Result
from formats import row264
from formats.floats import from_bf16

CHUNK_TOKENS = 256
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


def check_values(dump: Array, source: Source, layer: int, looked: Looked) -> Result:
    """Bit for bit: BF16 bits as uint16, exact values as float32, or raw rows as uint8."""
    width, lookups = source.sizes.width, looked.rows.shape
    shapes = [(*lookups, width), (*lookups, row264.ROW_BYTES)]
    if looked.rows.ndim == 2:
        shapes.append((lookups[0], lookups[1] * width))
    found = dump.load(("uint16", "float32", "uint8"), *shapes)
    raw = found.dtype == np.uint8
    each = row264.ROW_BYTES if raw else width
    if found.size != looked.rows.size * each:
        raise EngramctlError(dump.where, f"{each} numbers a row as {found.dtype}", f"{list(found.shape)}")
    found = found.reshape(*lookups, each)
    result = Result(Coverage("rows", looked.rows.size, looked.rows.size))
    rounded, numbers, somewhere = 0, 0, np.zeros(lookups[0], np.bool_)
    for start in range(0, lookups[0], CHUNK_TOKENS):
        some = slice(start, start + CHUNK_TOKENS)
        rows = source.table(layer).read_valid(looked.rows[some])
        expected, have = _expected(rows, found[some])
        differs = _bits(expected) != _bits(have)
        if found.dtype == np.float32 and differs.any():
            as_bf16 = from_bf16(reference.lookup(rows))
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
    if not result.ok:
        explain_lookups.values(found, source, layer, looked, somewhere, result)
    if rounded:
        result.notes.append(f"{rounded} float32 values are the exact ones rounded to BF16, which is what a model uses")
    return result


def _expected(rows: NDArray[np.uint8], have: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    if have.dtype == np.uint8:
        return rows, have
    return (row264.decode(rows) if have.dtype == np.float32 else reference.lookup(rows)), have


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array).view(np.uint32) if array.dtype == np.float32 else array


def _shown(number: Any) -> str:  # noqa: ANN401 - a NumPy scalar of any of the dump's dtypes
    if number.dtype == np.uint16:
        return f"{float(from_bf16(np.array([number], np.uint16))[0]):.9g} (bits {int(number):#06x})"
    return f"{float(number):.9g}" if number.dtype == np.float32 else f"{int(number):#04x}"


def check_kv(dump: Array, source: Source, layer: int, looked: Looked) -> Result:
    """The projection of each token's C rows in float64, and the dump within what BF16 and F32 summation may cost."""
    sizes = source.sizes
    if looked.rows.size % sizes.columns:
        raise EngramctlError("rows", f"{sizes.columns} for each token", f"{looked.rows.size}")
    rows = looked.rows.reshape(-1, sizes.columns)
    T = len(rows)
    found = dump.load(("uint16", "float32"), (T, sizes.streams + 1, sizes.hidden), (T, sizes.outputs))
    found = found.reshape(T, sizes.outputs)
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
