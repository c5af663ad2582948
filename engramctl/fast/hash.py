"""hash_rows in Numba: tokens in any number of parts, each looking back by itself. Integers only, so equal bits come
free.

Everything is uint64 until the row number exists: mixing signed and unsigned operands is silently wrong in Numba as
in NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from engramctl import operands
from engramctl.errors import EngramctlError
from engramctl.fast import reciprocal
from engramctl.fast.cache import Kernel, helper, in_parts, kernel, named_kernel, reads, writes
from engramctl.fast.reciprocal import LANES, eight_rows
from engramctl.hash_params import HashParams, Mask, Tokens
from engramctl.rules import V41_RULE

LEAST_TOKENS = 1024  # a thread for fewer costs more than it saves


def hash_rows(
    tokens: Tokens,
    params: HashParams,
    mask: Mask | None = None,
    history: Sequence[int] = (),
    out: NDArray[np.int64] | NDArray[np.int32] | None = None,
) -> NDArray[Any]:
    """As `reference.hash_rows`: [T] token ids -> [T, L, C] rows, into `out` where it is given.

    An `out` of int32 is for tables whose last row it can number; multiply what is in it as int64.
    """
    if params.rule != V41_RULE:
        from engramctl.fast import mixes

        made = mixes.hash_rows(tokens, params, mask, history)
        return _filled(out, made, params)
    past = params.past(history)
    ids = np.concatenate([past, params.compress(tokens, mask)])
    shape = ids.size - past.size, len(params.layers), params.columns
    pad, counts = np.array([params.pad_id], np.uint64), np.array([past.size, params.heads], np.int64)
    multipliers, moduli, offsets = (
        np.ascontiguousarray(array) for array in (params.multipliers, params.moduli, params.offsets)
    )
    if params.heads % LANES or not reciprocal.fits(moduli):
        rows = np.empty(shape, np.int64)
        in_parts(_hash_rows, len(rows), LEAST_TOKENS, ids, pad, counts, multipliers, moduli, offsets, rows)
        return _filled(out, rows, params)
    if out is not None:
        _expect_room(out, shape, params)
    direct = out if out is not None and out.flags.c_contiguous and out.flags.aligned else np.empty(shape, np.int64)
    run = _by_reciprocals if direct.dtype == np.int64 else _by_reciprocals_32
    constants = multipliers, moduli.astype(np.uint32), reciprocal.inverses(moduli), offsets
    in_parts(run, len(direct), LEAST_TOKENS, ids, pad, counts, *constants, direct)
    return direct if direct is out else _filled(out, direct, params)


def _expect_room(out: NDArray[Any], shape: tuple[int, ...], params: HashParams) -> None:
    operands.expect("out", out, (np.int64, np.int32), shape)
    if out.dtype == np.int32 and max(params.rows) - 1 > np.iinfo(np.int32).max:
        raise EngramctlError("out", f"int64 for {max(params.rows)} rows", "int32")


def _filled(out: NDArray[Any] | None, rows: NDArray[Any], params: HashParams) -> NDArray[Any]:
    if out is None:
        return rows
    _expect_room(out, rows.shape, params)
    out[...] = rows
    return out


@helper
def _look_back(ids: NDArray[np.int64], at: int, pad: np.uint64, window: NDArray[np.uint64]) -> None:
    """`reference.look_back`."""
    blocked = False
    for back in range(window.size):
        blocked = blocked or at < back or ids[at - back] < 0
        window[back] = pad if blocked else np.uint64(ids[at - back])


@kernel(
    reads(types.int64, 1),
    reads(types.uint64, 1),
    reads(types.int64, 1),
    reads(types.uint64, 2),
    reads(types.uint64, 2),
    reads(types.uint64, 2),
    writes(types.int64, 3),
)
def _hash_rows(
    first: int,
    last: int,
    ids: NDArray[np.int64],
    pad: NDArray[np.uint64],
    counts: NDArray[np.int64],
    multipliers: NDArray[np.uint64],
    moduli: NDArray[np.uint64],
    offsets: NDArray[np.uint64],
    rows: NDArray[np.int64],
) -> None:
    past, heads = counts[0], counts[1]
    layers, size = multipliers.shape
    window = np.empty(size, np.uint64)
    for t in range(first, last):
        _look_back(ids, past + t, pad[0], window)
        for layer in range(layers):
            mixed = window[0] * multipliers[layer, 0]
            for order in range(1, size):
                mixed ^= window[order] * multipliers[layer, order]
                for column in range((order - 1) * heads, order * heads):
                    rows[t, layer, column] = np.int64(mixed % moduli[layer, column] + offsets[layer, column])


def _reciprocal_kernel(name: str, kind: types.Type) -> Kernel:
    def run(
        first: int, last: int, ids: NDArray[np.int64], pad: NDArray[np.uint64], counts: NDArray[np.int64],
        multipliers: NDArray[np.uint64], moduli: NDArray[np.uint32], inverses: NDArray[np.float64],
        offsets: NDArray[np.uint64], rows: NDArray[Any],
    ) -> None:  # fmt: skip
        past, heads = counts[0], counts[1]
        (layers, size), columns = multipliers.shape, moduli.shape[1]
        window = np.empty(size, np.uint64)
        p, inverse, offset, out = moduli.reshape(-1), inverses.reshape(-1), offsets.reshape(-1), rows.reshape(-1)
        for t in range(first, last):
            _look_back(ids, past + t, pad[0], window)
            for layer in range(layers):
                mixed, to = window[0] * multipliers[layer, 0], (t * layers + layer) * columns
                for order in range(1, size):
                    mixed ^= window[order] * multipliers[layer, order]
                    for column in range((order - 1) * heads, order * heads, LANES):
                        eight_rows(mixed, p, inverse, offset, layer * columns + column, out, to + column)

    constants = reads(types.uint64, 2), reads(types.uint32, 2), reads(types.float64, 2), reads(types.uint64, 2)
    sequence = reads(types.int64, 1), reads(types.uint64, 1), reads(types.int64, 1)
    return named_kernel(name, run, *sequence, *constants, writes(kind, 3))


_by_reciprocals = _reciprocal_kernel("_by_reciprocals", types.int64)
_by_reciprocals_32 = _reciprocal_kernel("_by_reciprocals_32", types.int32)
