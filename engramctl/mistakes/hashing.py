"""The hash with every choice in the open: one plan, one function. A plan of defaults gives the reference's rows.

T tokens, L layers, N n-gram size, C = (N - 1) * heads columns. Vectorised: 4,096 tokens take a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from engramctl.hash_params import DEAD, HashParams

Ids = NDArray[np.int64]
Rows = NDArray[np.int64]
Words = NDArray[np.uint64]
Maps = Callable[[str], NDArray[np.uint32] | None]  # the map that a mistake of stage "map" gives, where it is known

Mask = Literal["as given", "ignored", "inverted", "all dead"]
Past = Literal["given", "none", "stale"]
Columns = Literal["order major", "head major", "dealt"]
Signed = Literal["", "toward zero", "floor"]


def no_maps(name: str) -> NDArray[np.uint32] | None:
    return None


@dataclass(frozen=True, eq=False)  # arrays have no one answer to ==: `same` compares
class HashPlan:
    """Constants, and how they are used. `token_map` may be short or hold other numbers than the right one."""

    token_map: Ids
    true_map: Ids  # in whose ids a history is given
    pad: int
    raw_pad: int
    heads: int
    compressed: int
    layers: tuple[int, ...]
    multipliers: Words  # [L, N]
    moduli: Words  # [L, C]
    offsets: Words  # [L, C]
    maps: Maps = no_maps

    beyond: int = 0  # compressed id of a token that the map has no entry for
    mask: Mask = "as given"
    past: Past = "given"
    stale: tuple[int, ...] = ()  # what a stale past holds, where the case does not say
    dead_until: int = 0  # positions before this one count as dead
    dead_itself: bool = True  # a dead position's own slot is filled, too
    sticky: bool = True  # behind a blocked slot every older one is blocked
    cuts: tuple[int, ...] | Literal["chunks"] = ()  # positions where look-back is lost
    kept: int = 0  # ids that look-back still has behind a cut
    newest_first: bool = True  # multiplier 0 meets the newest token of an n-gram
    aligned: bool = True  # a short n-gram ends at the current token
    add: bool = False  # sum for xor
    bits: int = 64  # of the mix
    signed: Signed = ""  # the mix is taken as signed, and how its remainder rounds
    columns: Columns = "order major"
    layer_step: int = 0  # a layer's place holds the rows of the layer so many places on
    offset_times: int = 1
    shift: int = 0  # a position holds the rows of the one so many before
    dead_rows: bool = True  # rows of dead positions are computed, not left at 0

    @classmethod
    def of(cls, params: HashParams, maps: Maps = no_maps) -> HashPlan:
        """The right plan of checked constants."""
        ids = params.token_map.astype(np.int64)
        padded = np.flatnonzero(ids == params.pad_id)
        return cls(
            token_map=ids,
            true_map=ids,
            pad=params.pad_id,
            raw_pad=int(padded[0]) if padded.size else params.pad_id,
            heads=params.heads,
            compressed=params.compressed,
            layers=params.layers,
            multipliers=params.multipliers,
            moduli=params.moduli,
            offsets=params.offsets,
            maps=maps,
        )

    @property
    def size(self) -> int:
        return int(self.multipliers.shape[1])

    def same(self, other: HashPlan) -> bool:
        """Is it the same computation, whatever the input?"""
        return all(_same(getattr(self, f.name), getattr(other, f.name)) for f in fields(self) if f.name != "maps")


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401 - any field of a plan
    return one is other or (np.array_equal(one, other) if isinstance(one, np.ndarray) else bool(one == other))


@dataclass(frozen=True)
class HashCase:
    """A sequence as an engine may get it. `stale` is what a fork's parent went on to, where it is a fork."""

    tokens: Ids
    mask: NDArray[np.bool_] | None = None
    history: tuple[int, ...] = ()  # compressed ids before it, DEAD where dead
    chunks: tuple[int, ...] = ()  # lengths of the calls that it came in
    stale: tuple[int, ...] = ()  # compressed ids
    past_tokens: tuple[int, ...] = ()  # the history's token ids, DEAD where dead, where they are known
    first: int = 0  # the first token's position, where the sequence is a part of one

    def cuts(self) -> tuple[int, ...]:
        return tuple(int(at) for at in np.cumsum(self.chunks, dtype=np.int64)[:-1])


def rows(plan: HashPlan, case: HashCase, at: Ids | None = None) -> Rows:
    """[n, L, C] rows of the positions `at` (all of them by default)."""
    T = case.tokens.size
    at = np.arange(T, dtype=np.int64) if at is None else at
    if plan.shift:
        inside = (at - plan.shift >= 0) & (at - plan.shift < T)
        made = _rows(plan, case, np.where(inside, at - plan.shift, 0))
        made[~inside] = 0
    else:
        made = _rows(plan, case, at)
    if not plan.dead_rows and case.mask is not None:
        made[~case.mask[at]] = 0
    return made


def _rows(plan: HashPlan, case: HashCase, at: Ids) -> Rows:
    slots = _slots(plan, case, at)
    N, heads = plan.size, plan.heads
    mixes = np.empty((len(at), len(plan.layers), N - 1), np.uint64)
    with np.errstate(over="ignore"):
        for n in range(2, N + 1):
            ngram = range(n) if plan.aligned else range(N - n, N)
            weights = range(n) if plan.newest_first else range(n - 1, -1, -1)
            mixed = np.zeros(mixes.shape[:2], np.uint64)
            for slot, weight in zip(ngram, weights, strict=True):
                product = slots[:, slot, None] * plan.multipliers[None, :, weight]
                mixed = mixed + product if plan.add else mixed ^ product
            mixes[:, :, n - 2] = mixed
    orders = np.arange(plan.moduli.shape[1])
    orders = orders % (N - 1) if plan.columns == "dealt" else orders // heads
    made = _remainder(plan, mixes[:, :, orders]) + plan.offset_times * plan.offsets.astype(np.int64)
    if plan.columns == "head major":
        made = made.reshape(*made.shape[:2], N - 1, heads).swapaxes(2, 3).reshape(made.shape)
    return np.roll(made, -plan.layer_step, axis=1) if plan.layer_step else made


def _remainder(plan: HashPlan, mixes: Words) -> Rows:
    """[n, L, C] buckets."""
    if plan.bits == 32:
        mixes = mixes & np.uint64(0xFFFFFFFF)
    if not plan.signed:
        return (mixes % plan.moduli).astype(np.int64)
    numbers = mixes.astype(np.uint32).view(np.int32).astype(np.int64) if plan.bits == 32 else mixes.view(np.int64)
    moduli = plan.moduli.astype(np.int64)
    return np.asarray(np.fmod(numbers, moduli) if plan.signed == "toward zero" else numbers % moduli)


def _slots(plan: HashPlan, case: HashCase, at: Ids) -> Words:
    """[n, N] compressed ids that each position looks back on, newest first, the filler where it is blocked."""
    ids, plain, before = sequence(plan, case)
    lowest = np.zeros(len(at), np.int64)  # the oldest entry of `ids` that a position can see
    cuts = np.array(case.cuts() if plan.cuts == "chunks" else plan.cuts, np.int64)
    if cuts.size:
        which = np.searchsorted(cuts, at, "right")
        lowest = np.where(which > 0, np.maximum(before + cuts[which - 1] - plan.kept, 0), 0)
    slots = np.empty((len(at), plan.size), np.uint64)
    blocked = np.zeros(len(at), np.bool_)
    for back in range(plan.size):
        index = before + at - back
        seen = ids if back or plan.dead_itself else plain
        dead = (index < lowest) | (seen[np.maximum(index, 0)] < 0)
        blocked = blocked | dead if plan.sticky else dead
        slots[:, back] = np.where(blocked, plan.pad, seen[np.maximum(index, 0)]).astype(np.uint64)
    return slots


def sequence(plan: HashPlan, case: HashCase) -> tuple[Ids, Ids, int]:
    """Compressed ids of history and tokens with DEAD where masked, the same without the mask, the history's length."""
    plain = compress(plan, case.tokens)
    text = np.ones(plain.size, np.bool_) if case.mask is None else case.mask
    if plan.mask == "inverted":
        text = ~text if case.mask is not None else text
    elif plan.mask != "as given":
        text = np.full(plain.size, plan.mask == "ignored")
    if plan.dead_until:
        text = text & (np.arange(plain.size) >= plan.dead_until)
    past = _past(plan, case)
    return np.concatenate([past, np.where(text, plain, DEAD)]), np.concatenate([past, plain]), past.size


def compress(plan: HashPlan, tokens: Ids) -> Ids:
    known = tokens < plan.token_map.size
    return np.where(known, plan.token_map[np.where(known, tokens, 0)], plan.beyond)


def _past(plan: HashPlan, case: HashCase) -> Ids:
    if plan.past == "none":
        return np.zeros(0, np.int64)
    stale = plan.stale or case.stale
    if plan.past == "stale" and stale:
        return np.array(stale, np.int64)
    if plan.token_map is plan.true_map or not case.history:
        return np.array(case.history, np.int64)
    raw = np.array(case.past_tokens or tokens_of(plan, case.history), np.int64)
    return np.where(raw < 0, DEAD, compress(plan, np.maximum(raw, 0)))


def tokens_of(plan: HashPlan, ids: tuple[int, ...]) -> tuple[int, ...]:
    """A token of each compressed id (the first of its class), for want of the real ones; DEAD where dead."""
    return tuple(DEAD if one == DEAD else int((plan.true_map == one).argmax()) for one in ids)
