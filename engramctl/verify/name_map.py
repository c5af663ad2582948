"""Which mistake made this token map? Compared class by class, so that the numbers of later classes do not matter."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from engramctl.mistakes.hashing import HashPlan, Maps
from engramctl.mistakes.map_deltas import First, first_of
from engramctl.mistakes.record import Mistake
from engramctl.mistakes.token_map import MISTAKES
from engramctl.verify.diagnosis import LEAST, PAIR_GAIN, Diagnosis, RunnerUp

OF = "the tokens whose class differs"
ABSENT = -2  # the class of a token without an entry
RUNNERS = 3

Ids = NDArray[np.uint32]
Candidate = tuple[tuple[Mistake[HashPlan], ...], First]


def diagnose(ids: Ids, truth: Ids, maps: Maps) -> Diagnosis | None:
    """The entry, or the two whose differences together, give the map's classes."""
    size = min(max(ids.size, truth.size), 2 * truth.size)  # what a much longer map has beyond says no more
    ids = ids[:size]
    found, right = _classes(ids, size), _classes(truth, size)
    if np.array_equal(found, right):
        return None
    singles: list[Candidate] = []
    for entry in MISTAKES:
        varied = np.arange(truth.size, dtype=np.uint32) if entry.name == "raw-ids" else maps(entry.name)
        if varied is not None:
            singles.append(((entry,), _classes(varied, size)))
    best = _ranked(found, right, singles)
    if not best or best[0][0] < 1:
        pairs = [
            ((*one, *other), _both(first, second, right)) for (one, first), (other, second) in combinations(singles, 2)
        ]
        double, alone = _ranked(found, right, pairs), best[0][0] if best else 0.0
        if double and (double[0][0] == 1 or double[0][0] > alone + PAIR_GAIN):
            best = sorted([*double, *best], key=lambda pair: -pair[0])
    if not best or best[0][0] < LEAST:
        return None
    share, (entries, classes) = best[0]
    token = int(((found != right) & (found == classes)).argmax())
    alike = [(each, one) for each, one in best[1:] if each == share and len(one[0]) <= len(entries)]
    runners = [RunnerUp(one[0][0].name, each, "their maps are one and the same") for each, one in alike[:RUNNERS]]
    return Diagnosis(entries, share, OF, "", f"token id {token}", runners)


def _classes(ids: Ids, size: int) -> First:
    """[size] the first token of each token's class; ABSENT where the map has no entry."""
    made = np.full(size, ABSENT, np.int64)
    made[: ids.size] = first_of(ids)
    return made


def _both(one: First, other: First, right: First) -> First:
    """The differences of both from the right classes, the second's where they meet; classes that meet are one."""
    joined = np.where(other != right, other, one)
    while True:
        known = joined >= 0
        again = joined.copy()
        again[known] = joined[joined[known]]
        again[known & (again < 0)] = joined[known & (again < 0)]
        if np.array_equal(again, joined):
            return joined
        joined = again


def _ranked(found: First, right: First, candidates: list[Candidate]) -> list[tuple[float, Candidate]]:
    scored = [(_share(found, right, one[1]), one) for one in candidates]
    return sorted((pair for pair in scored if pair[0] > 0), key=lambda pair: -pair[0])


def _share(found: First, right: First, made: First) -> float:
    either = (found != right) | (made != right)
    return int(np.count_nonzero(either & (found == made))) / max(1, int(np.count_nonzero(either)))


def facts(ids: Ids, truth: Ids) -> list[str]:
    """How the classes of two maps differ, and how their numbers do."""
    size = min(ids.size, truth.size)
    found, right = first_of(ids[:size]), first_of(truth[:size])
    made = []
    if ids.size != truth.size:
        made.append(f"{ids.size} entries for {truth.size}")
    if np.array_equal(found, right):
        if np.array_equal(ids[:size], truth[:size]):
            return made  # what differs is what the source says of it
        made.append("the classes are the right ones, under other numbers")
        step = np.unique(ids[:size].astype(np.int64) - truth[:size])
        if step.size == 1 and step[0]:
            made.append(f"every number is {int(step[0]):+d} from the right one")
        return made
    moved = found != right
    made.append(f"{int(moved.sum())} tokens are in another class, the first is token id {int(moved.argmax())}")
    own = np.arange(size)
    made.append(f"{int(((found == own) & (right != own)).sum())} tokens begin a class that should join an earlier one")
    made.append(f"{int(((found != own) & (right == own)).sum())} tokens join an earlier class that should begin one")
    return made
