"""Sequences on which every mistake of the hash shows, and no two look alike where that is possible at all.

The matrix says for each pair of entries (and the truth) where the probe tells them apart. A pair that it cannot tell
apart must be one and the same computation with the constants at hand; the reason is given with the pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl.hash_params import DEAD
from engramctl.mistakes import catalogue
from engramctl.mistakes.hashing import HashCase, HashPlan, Rows, rows
from engramctl.mistakes.history import CACHED

TRUTH = "truth"
SEED = 5
TEXT = 8  # tokens of a short stretch of text

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class ProbeSequence:
    """A sequence and what it is there for."""

    name: str
    why: str
    case: HashCase


def telling_tokens(plan: HashPlan) -> Ids:
    """Tokens at which mistaken maps first leave the right one, and the last ones, where counts of classes show."""
    V = plan.true_map.size
    picked = {0, 1, V // 2, V - 2, V - 1, *_late(plan)}
    for entry in catalogue.HASHING:
        if entry.stage != "map" or (varied := entry.vary(plan)) is None:
            continue
        ids = varied.token_map
        other = np.flatnonzero(ids != plan.true_map[: ids.size])
        if other.size:
            picked.add(int(other[0]))
        if ids.size < V:
            picked |= {ids.size - 1, ids.size}
    return np.array(sorted(picked), np.int64)


def _late(plan: HashPlan) -> set[int]:
    """The first ids whose product with a multiplier passes 2**63, if they are hashed raw."""
    most = int(plan.multipliers.max())
    first = 2**63 // most + 1
    return {first, first + 1} if first + 1 < plan.true_map.size else set()


def text(plan: HashPlan, count: int, seed: int) -> Ids:
    return np.random.default_rng([SEED, seed]).integers(0, plan.true_map.size, count, dtype=np.int64)


def sequences(plan: HashPlan) -> list[ProbeSequence]:
    """The probe for a model's constants; `plan` is the right one."""
    reach, image = plan.size - 1, plan.true_map.size - min(16, plan.true_map.size)
    gap = text(plan, 3 * TEXT, 1)
    alive = np.ones(gap.size, np.bool_)
    alive[[0, TEXT, TEXT + 1, TEXT + 5, 2 * TEXT + 2]] = False
    gap[~alive] = image
    parent = text(plan, 2 * TEXT, 2)
    middle, end = parent[TEXT - reach : TEXT], parent[-reach:]
    past = tuple(int(x) for x in middle)
    compressed, ended = (tuple(int(x) for x in plan.true_map[raw]) for raw in (middle, end))
    return [
        ProbeSequence(
            "telling", "tokens where mistaken maps leave the right one, late ids", HashCase(telling_tokens(plan))
        ),
        ProbeSequence(
            "gaps",
            "dead positions: the first, two in a row, one with little text before the next",
            HashCase(gap, alive),
        ),
        ProbeSequence(
            "chunks", "a sequence that comes in several calls", HashCase(text(plan, 12, 3), chunks=(4, 1, 1, 2, 4))
        ),
        ProbeSequence(
            "fork",
            "resumed in the middle of a sequence that has gone on since: `history` is that of the fork",
            HashCase(text(plan, TEXT, 4), history=compressed, stale=ended, past_tokens=past),
        ),
        ProbeSequence(
            "dead-history",
            "resumed right behind an image",
            HashCase(text(plan, 4, 5), history=(*compressed[:-1], DEAD), past_tokens=(*past[:-1], DEAD)),
        ),
        ProbeSequence("long", f"text beyond position {CACHED}", HashCase(text(plan, CACHED + TEXT, 6))),
    ]


@dataclass(frozen=True)
class Pair:
    """Two entries, and the sequence and position that tell them apart, or the reason why nothing can."""

    one: str
    other: str
    sequence: str | None
    position: int | None
    reason: str | None

    def facts(self) -> dict[str, Any]:
        if self.reason is not None:
            return {"one": self.one, "other": self.other, "reason": self.reason}
        return {"one": self.one, "other": self.other, "sequence": self.sequence, "position": self.position}


def matrix(plan: HashPlan) -> list[Pair]:
    """Every pair of the truth and the entries that can be said of `plan`."""
    probe = sequences(plan)
    plans = {TRUTH: plan} | {name: varied for name, varied in variations(plan).items() if varied is not None}
    made = {name: [rows(varied, each.case) for each in probe] for name, varied in plans.items()}
    return [_pair(probe, plans, made, *names) for names in combinations(plans, 2)]


def variations(plan: HashPlan) -> dict[str, HashPlan | None]:
    """Each entry's plan; None where it cannot be made here (no mistaken map is known for this token map)."""
    return {entry.name: entry.vary(plan) for entry in catalogue.HASHING}


def _pair(
    probe: Sequence[ProbeSequence], plans: dict[str, HashPlan], made: dict[str, list[Rows]], one: str, other: str
) -> Pair:
    for each, first, second in zip(probe, made[one], made[other], strict=True):
        differs = (first != second).any(axis=(1, 2))
        if differs.any():
            return Pair(one, other, each.name, int(differs.argmax()), None)
    return Pair(one, other, None, None, reason(plans[one], plans[other]))


def reason(one: HashPlan, other: HashPlan) -> str | None:
    """Why no input can tell two plans apart; None if one might."""
    if one.same(other):
        return "both come to the same token map, constants and rules here"
    return None


def told_apart(plan: HashPlan, one: HashPlan, other: HashPlan) -> str:
    """What would tell two candidates apart, in words."""
    for each in sequences(plan):
        differs = (rows(one, each.case) != rows(other, each.case)).any(axis=(1, 2))
        if differs.any():
            return (
                f"position {int(differs.argmax())} of sequence {each.name} of `engramctl probe hash` tells them apart"
            )
    return reason(one, other) or "no sequence of `engramctl probe hash` tells them apart"
