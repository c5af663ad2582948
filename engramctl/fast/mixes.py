"""hash_rows in Numba for the siblings' rules. Boundaries are settled in the ids, so that V4.1's kernel serves them too.

An EOS ends its segment: a DEAD entry is put behind it, which stops every later look-back there. Windows that are read
from the oldest token on are V4.1's windows of the sequence read backwards. What is left are the other mixes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import types
from numpy.typing import NDArray

from engramctl.fast.cache import in_parts, kernel, reads, writes
from engramctl.fast.hash import LEAST_TOKENS, _hash_rows
from engramctl.hash_params import DEAD, HashParams, Mask, Tokens


def hash_rows(
    tokens: Tokens, params: HashParams, mask: Mask | None = None, history: Sequence[int] = ()
) -> NDArray[np.int64]:
    """As `mixes.hash_rows`: [T] token ids -> [T, L, C] rows."""
    past = params.past(history)
    ids = np.concatenate([past, params.compress(tokens, mask)])
    if params.rule.align == "left":
        return _backwards(ids, past.size, params)
    ids, places = _segments(ids, params)
    first = int(places[past.size]) if len(tokens) else ids.size
    rows = _run(ids, first, params)
    return rows if ids.size == past.size + len(tokens) else rows[places[past.size :] - first]


def _segments(ids: NDArray[np.int64], params: HashParams) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The ids with a DEAD entry behind each EOS, and where each id went."""
    here = np.arange(ids.size)
    if "eos" not in params.rule.boundary:
        return ids, here
    ends = ids == params.eos
    if "eos_itself" in params.rule.boundary:
        return np.where(ends, DEAD, ids), here
    return np.insert(ids, np.flatnonzero(ends) + 1, DEAD), here + np.cumsum(ends) - ends


def _backwards(ids: NDArray[np.int64], past: int, params: HashParams) -> NDArray[np.int64]:
    """Windows of the size - 1 ids before a token and itself, oldest first."""
    count, before = ids.size - past, params.size - 1 - past
    padded = np.concatenate([np.full(before, params.pad_id, np.int64), ids])
    return _run(np.ascontiguousarray(padded[::-1]), params.size - 1, params)[:count][::-1]


def _run(ids: NDArray[np.int64], past: int, params: HashParams) -> NDArray[np.int64]:
    """[count - past, L, C] rows of the ids from `past` on."""
    count = ids.size - past
    rows = np.empty((count, len(params.layers), params.columns), np.int64)
    pad = np.array([params.pad_id], np.uint64)
    constants = [np.ascontiguousarray(array) for array in (params.multipliers, params.moduli, params.offsets)]
    counts = np.array([past, params.heads, params.smallest], np.int64)
    run = {"xor_mul": _hash_rows, "poly_mod": _poly_mod, "wrap_poly": _wrap_poly}[params.rule.mix]
    in_parts(run, count, LEAST_TOKENS, ids, pad, counts, *constants, rows)
    return rows


@kernel(
    reads(types.int64, 1), reads(types.uint64, 1), reads(types.int64, 1), reads(types.uint64, 3),
    reads(types.uint64, 2), reads(types.uint64, 2), writes(types.int64, 3),
)  # fmt: skip
def _poly_mod(
    first: int, last: int, ids: NDArray[np.int64], pad: NDArray[np.uint64], counts: NDArray[np.int64],
    multipliers: NDArray[np.uint64], moduli: NDArray[np.uint64], offsets: NDArray[np.uint64], rows: NDArray[np.int64],
) -> None:  # fmt: skip
    past = counts[0]
    layers, columns, size = multipliers.shape
    window = np.empty(size, np.uint64)
    for t in range(first, last):
        blocked = False
        for back in range(size):
            at = past + t - back
            blocked = blocked or at < 0 or ids[at] < 0
            window[back] = pad[0] if blocked else np.uint64(ids[at])
        for layer in range(layers):
            for column in range(columns):
                total = np.uint64(0)
                for back in range(size):  # weights beyond the column's order are 0
                    total += window[back] * multipliers[layer, column, back]
                rows[t, layer, column] = np.int64(total % moduli[layer, column] + offsets[layer, column])


@kernel(
    reads(types.int64, 1), reads(types.uint64, 1), reads(types.int64, 1), reads(types.uint64, 2),
    reads(types.uint64, 2), reads(types.uint64, 2), writes(types.int64, 3),
)  # fmt: skip
def _wrap_poly(
    first: int, last: int, ids: NDArray[np.int64], pad: NDArray[np.uint64], counts: NDArray[np.int64],
    multipliers: NDArray[np.uint64], moduli: NDArray[np.uint64], offsets: NDArray[np.uint64], rows: NDArray[np.int64],
) -> None:  # fmt: skip
    past, heads, smallest = counts[0], counts[1], counts[2]
    layers, size = multipliers.shape
    window = np.empty(size, np.uint64)
    for t in range(first, last):
        blocked = False
        for back in range(size):
            at = past + t - back
            blocked = blocked or at < 0 or ids[at] < 0
            window[back] = pad[0] if blocked else np.uint64(ids[at])
        for layer in range(layers):
            for order in range(smallest, size + 1):
                total = np.uint64(0)
                for i in range(order):  # the oldest of the group first
                    total += window[order - 1 - i] * multipliers[layer, i]
                for column in range((order - smallest) * heads, (order - smallest + 1) * heads):
                    modulus = np.int64(moduli[layer, column])
                    bucket = np.int64(total) % modulus  # of signed numbers, and in Numba as in Python never negative
                    rows[t, layer, column] = bucket + np.int64(offsets[layer, column])
