"""Which mistake made these constants? Entries that change constants are tried on what they should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from engramctl.hash_params import HashParams
from engramctl.mistakes import catalogue
from engramctl.mistakes.hashing import HashPlan, Maps
from engramctl.mistakes.record import Mistake
from engramctl.verify.diagnosis import LEAST, PAIR_GAIN, Diagnosis, RunnerUp

OF = "the constants that differ"
ROLES = ("token_map", "pad_id", "multipliers", "moduli", "offsets")
RUNNERS = 3

Lists = dict[str, Any]  # integers by role; the token map as an array
Candidate = tuple[tuple[Mistake[HashPlan], ...], Lists]


def diagnose(stored: Mapping[str, Sequence[int]], right: HashParams, maps: Maps) -> Diagnosis | None:
    """The entry or pair that gives the constants as they are stored. Each constant counts alike, however long it is."""
    plan = HashPlan.of(right, maps)
    found = {role: _held(role, stored[role]) for role in ROLES if role in stored}
    truth = _lists(plan)
    plans = [(entry, made) for entry in catalogue.HASHING if (made := entry.vary(plan)) is not None]
    singles: list[Candidate] = [((entry,), _lists(made)) for entry, made in plans]
    best = _ranked(found, truth, singles)
    if not best or best[0][0] < 1:
        changing = [
            (entry, made) for (entry, made), (_, lists) in zip(plans, singles, strict=True) if changes(lists, truth)
        ]
        pairs: list[Candidate] = []
        for (one, first), (other, _) in combinations(changing, 2):
            both = None if one.stage == other.stage == "map" else other.vary(first)
            if both is not None:
                pairs.append(((one, other), _lists(both)))
        double, alone = _ranked(found, truth, pairs), best[0][0] if best else 0.0
        if double and (double[0][0] == 1 or double[0][0] > alone + PAIR_GAIN):
            best = sorted([*double, *best], key=lambda pair: -pair[0])
    if not best or best[0][0] < LEAST:
        return None
    share, (entries, lists) = best[0]
    role = next(role for role in changes(found, truth) if same(found[role], lists[role]))
    alike = [(each, one) for each, one in best[1:] if each == share and len(one[0]) <= len(entries)]
    runners = [
        RunnerUp(" + ".join(entry.name for entry in one[0]), each, "these constants are the same under both")
        for each, one in alike[:RUNNERS]
    ]
    return Diagnosis(entries, share, OF, "", role, runners)


def _held(role: str, numbers: Sequence[int]) -> Any:  # noqa: ANN401 - a list, or the token map's array
    small = role == "token_map" and len(numbers) and 0 <= min(numbers) <= max(numbers) < 2**32
    return np.array(numbers, np.int64) if small else list(numbers)


def _lists(plan: HashPlan) -> Lists:
    """The constants as a file would hold them; a plan that swaps layers stores them swapped."""
    arrays: dict[str, Any] = {role: getattr(plan, role) for role in ("multipliers", "moduli", "offsets")}
    rolled = {role: np.roll(array, -plan.layer_step, axis=0) for role, array in arrays.items()}
    rolled["offsets"] = rolled["offsets"] * np.uint64(plan.offset_times)
    lists = {role: array.reshape(-1).tolist() for role, array in rolled.items()}
    return {"token_map": plan.token_map, "pad_id": [plan.pad]} | lists


def same(one: Any, other: Any) -> bool:  # noqa: ANN401 - what `Lists` hold
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one is other or np.array_equal(one, other)
    return type(one) is type(other) and bool(one == other)


def changes(lists: Lists, truth: Lists) -> list[str]:
    """The constants that are not the right ones."""
    return [role for role in lists if not same(lists[role], truth[role])]


def _ranked(found: Lists, truth: Lists, candidates: Sequence[Candidate]) -> list[tuple[float, Candidate]]:
    """Best first; of those that explain as much, the one that changes the fewest constants, stored or not."""
    wrong, scored = changes(found, truth), []
    for one in candidates:
        mine = changes(one[1], truth)
        either = [role for role in found if role in wrong or role in mine]
        agree = sum(same(found[role], one[1][role]) for role in either)
        if agree:
            scored.append((agree / len(either), len(mine), one))
    return [(share, one) for share, _, one in sorted(scored, key=lambda each: (-each[0], each[1]))]


def facts(stored: Mapping[str, Sequence[int]], right: HashParams) -> list[str]:
    """Which constants differ, in how many places, and by what."""
    truth, made = _lists(HashPlan.of(right)), []
    for role in ROLES:
        right_ones = list(truth[role])
        if role not in stored or list(stored[role]) == right_ones:
            continue
        found = stored[role]
        if len(found) != len(right_ones):
            made.append(f"{role}: {len(found)} entries for {len(right_ones)}")
            continue
        steps = {have - want for have, want in zip(found, right_ones, strict=True) if have != want}
        wrong = sum(have != want for have, want in zip(found, right_ones, strict=True))
        by = f", each by {int(steps.pop()):+d}" if len(steps) == 1 else ""
        order = ", the right numbers in another order" if sorted(found) == sorted(right_ones) else ""
        order = _of_layers(found, right_ones, right.layers) or order
        made.append(f"{role}: {wrong} of {len(found)} entries{by}{order}")
    return made


def _of_layers(found: Sequence[int], right: Sequence[int], layers: Sequence[int]) -> str:
    """Which layers have another one's numbers, where each has those of one; nothing otherwise."""
    size, rest = divmod(len(right), len(layers))
    if rest or not size:
        return ""
    mine, truth = ([list(each[i : i + size]) for i in range(0, len(each), size)] for each in (found, right))
    if any(one not in truth for one in mine):
        return ""
    others = [(layer, layers[truth.index(one)]) for layer, one in zip(layers, mine, strict=True)]
    return "".join(f", layer {layer} has layer {other}'s" for layer, other in others if layer != other)
