"""hash_rows in Numba: tokens in any number of parts, each looking back by itself. Integers only, so equal bits come
free.

Everything is uint64 until the row number exists: mixing signed and unsigned operands is silently wrong in Numba as
in NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import types
from numpy.typing import NDArray

from engramctl.fast.cache import in_parts, kernel, reads, writes
from engramctl.hash_params import HashParams, Mask, Tokens
from engramctl.rules import V41_RULE

LEAST_TOKENS = 1024  # a thread for fewer costs more than it saves


def hash_rows(
    tokens: Tokens, params: HashParams, mask: Mask | None = None, history: Sequence[int] = ()
) -> NDArray[np.int64]:
    """As `reference.hash_rows`: [T] token ids -> [T, L, C] rows."""
    if params.rule != V41_RULE:
        from engramctl.fast import mixes

        return mixes.hash_rows(tokens, params, mask, history)
    past = params.past(history)
    ids = np.concatenate([past, params.compress(tokens, mask)])
    rows = np.empty((len(tokens), len(params.layers), params.columns), np.int64)
    pad, counts = np.array([params.pad_id], np.uint64), np.array([past.size, params.heads], np.int64)
    constants = (np.ascontiguousarray(array) for array in (params.multipliers, params.moduli, params.offsets))
    in_parts(_hash_rows, len(tokens), LEAST_TOKENS, ids, pad, counts, *constants, rows)
    return rows


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
        blocked = False
        for back in range(size):
            at = past + t - back
            blocked = blocked or at < 0 or ids[at] < 0
            window[back] = pad[0] if blocked else np.uint64(ids[at])
        for layer in range(layers):
            mixed = window[0] * multipliers[layer, 0]
            for order in range(1, size):
                mixed ^= window[order] * multipliers[layer, order]
                for column in range((order - 1) * heads, order * heads):
                    rows[t, layer, column] = np.int64(mixed % moduli[layer, column] + offsets[layer, column])
