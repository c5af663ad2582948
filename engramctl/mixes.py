"""hash_rows for every rule, plain and slow: the truth for the siblings, and V4.1 as one point among them.

An n-gram of ids g[0..n-1] and constants m[0..n-1] become one number, which each column reduces to a row:

xor_mul    g[0]*m[0] ^ g[1]*m[1] ^ ...
poly_mod   g[0]*m[0] + g[1]*m[1] + ...    m: the column's own, powers of the vocabulary modulo its table's size
wrap_poly  the same sum modulo 2**64, read as a signed number
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engramctl.hash_params import DEAD, HashParams, Mask, Tokens

U64 = 2**64


def hash_rows(
    tokens: Tokens, params: HashParams, mask: Mask | None = None, history: Sequence[int] = ()
) -> NDArray[np.int64]:
    """[T] token ids -> [T, L, C] rows, as `reference.hash_rows`."""
    past = params.past(history).tolist()
    ids = past + params.compress(tokens, mask).tolist()
    rows = np.empty((len(tokens), len(params.layers), params.columns), np.int64)
    for t in range(len(tokens)):
        window = look_back(ids, len(past) + t, params)
        for layer in range(len(params.layers)):
            for column in range(params.columns):
                gram = ngram(window, params.smallest + column // params.heads, params)
                bucket = mix(gram, layer, column, params) % int(params.moduli[layer, column])
                rows[t, layer, column] = bucket + int(params.offsets[layer, column])
    return rows


def look_back(ids: list[int], at: int, params: HashParams) -> list[int]:
    """The ids at `at` and before it, newest first, as many as the longest n-gram has; from a boundary on, the filler.

    An EOS belongs to the segment that it ends: from itself all of it is seen, from later positions nothing.
    """
    window, blocked = [], False
    for position in range(at, at - params.size, -1):
        blocked = blocked or position < 0 or ids[position] == DEAD
        if not blocked and ids[position] == params.eos:
            blocked = "eos" in params.rule.boundary and (position < at or "eos_itself" in params.rule.boundary)
        window.append(params.pad_id if blocked else ids[position])
    return window


def ngram(window: list[int], n: int, params: HashParams) -> list[int]:
    """The n ids that an order-n column mixes, in the order in which its constants meet them."""
    if params.rule.align == "left":  # the oldest of the window: for short orders not the current token
        return window[::-1][:n]
    return window[:n] if params.rule.order == "newest_first" else window[:n][::-1]


def mix(gram: list[int], layer: int, column: int, params: HashParams) -> int:
    """One number of an n-gram."""
    own = params.rule.mix_scope == "column"
    constants = [int(m) for m in (params.multipliers[layer, column] if own else params.multipliers[layer])]
    products = [token * constant for token, constant in zip(gram, constants, strict=False)]
    if params.rule.mix == "xor_mul":
        mixed = 0
        for product in products:
            mixed ^= product
        return mixed
    total = sum(products)
    if params.rule.mix == "poly_mod":
        return total
    return (total + U64 // 2) % U64 - U64 // 2
