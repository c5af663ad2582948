"""Small hash constants and sequences for properties, and the rows of a sequence by a formula of their own."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from engramctl.hash_params import HashParams

DEAD = -1


@st.composite
def constants(draw: st.DrawFn) -> HashParams:
    """Valid constants of any small size; multipliers up to the largest allowed, rows beyond the sums."""
    layers, size, heads = draw(st.integers(1, 3)), draw(st.integers(2, 5)), draw(st.integers(1, 3))
    compressed = draw(st.sampled_from([1, 2, 5, 99_092, 2**32]))
    vocabulary, columns, most = draw(st.integers(1, 9)), (size - 1) * heads, (2**63 - 1) // compressed
    odd = st.integers(0, (most - 1) // 2).map(lambda half: 2 * half + 1)
    near = st.sampled_from([most - (most % 2 == 0), 1])
    moduli = draw(npst.arrays(np.uint64, (layers, columns), elements=st.integers(1, 2**40)))
    offsets = np.cumsum(moduli, axis=1, dtype=np.uint64) - moduli
    return HashParams(
        layers=tuple(range(layers)),
        rows=tuple(int(total) + draw(st.integers(0, 3)) for total in moduli.sum(axis=1)),
        heads=heads,
        compressed=compressed,
        pad_id=draw(st.integers(0, compressed - 1)),
        token_map=draw(npst.arrays(np.uint32, vocabulary, elements=st.integers(0, compressed - 1))),
        multipliers=draw(npst.arrays(np.uint64, (layers, size), elements=odd | near)),
        moduli=moduli,
        offsets=offsets,
    ).check()


@st.composite
def sequences(draw: st.DrawFn, params: HashParams, most: int = 24) -> tuple[np.ndarray, np.ndarray | None]:
    """Token ids, and a mask or none."""
    count = draw(st.integers(0, most))
    tokens = draw(npst.arrays(np.int64, count, elements=st.integers(0, params.token_map.size - 1)))
    return tokens, draw(st.none() | npst.arrays(np.bool_, count))


def pasts(params: HashParams) -> st.SearchStrategy[tuple[int, ...]]:
    """Histories: compressed ids or dead positions, as many as look-back reaches at most."""
    return st.lists(st.integers(DEAD, params.compressed - 1), max_size=params.size - 1).map(tuple)


def formula(
    params: HashParams, tokens: np.ndarray, mask: np.ndarray | None = None, past: tuple[int, ...] = ()
) -> np.ndarray:
    """Every row from the whole sequence: a slot is text where it and all younger ones are."""
    alive = np.ones(len(tokens), bool) if mask is None else mask
    ids = [*past, *(int(params.token_map[t]) if a else DEAD for t, a in zip(tokens, alive, strict=True))]
    rows = []
    for at in range(len(past), len(ids)):
        text = [all(at >= s and ids[at - s] != DEAD for s in range(shift + 1)) for shift in range(params.size)]
        slots = [ids[at - shift] if text[shift] else params.pad_id for shift in range(params.size)]
        for m, moduli, offsets in zip(params.multipliers, params.moduli, params.offsets, strict=True):
            products = [slot * int(multiplier) for slot, multiplier in zip(slots, m, strict=True)]
            for column in range(params.columns):
                order = 2 + column // params.heads
                mixed = _xor(products[:order])
                rows.append(mixed % int(moduli[column]) + int(offsets[column]))
    return np.array(rows, np.int64).reshape(len(tokens), len(params.layers), params.columns)


def _xor(numbers: list[int]) -> int:
    mixed = 0
    for number in numbers:
        mixed ^= number
    return mixed
