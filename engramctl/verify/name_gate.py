"""Which mistake made these gates or outputs? Entries and pairs are tried on the dump's own inputs, in float64.

What one explains is the share that it removes of the distance beyond what F32 may cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl.mistakes import catalogue
from engramctl.mistakes.gateplan import GateInputs, GatePlan, gates, outputs
from engramctl.mistakes.record import Mistake
from engramctl.verify import bounds
from engramctl.verify.diagnosis import PAIR_GAIN, Diagnosis, RunnerUp
from engramctl.verify.score_lookups import picked
from formats.floats import bf16_finite, from_bf16

OF = "the distance beyond the bound"
LEAST = 0.9
MOST_TOKENS = 96  # that candidates are held against: the differing ones, evenly spread, and some others
RUNNERS = 3


@dataclass(frozen=True)
class Dumped:
    """What an engine made: gates [T, S] and outputs [T, S, D] as BF16 bits; either may be absent."""

    gates: NDArray[np.float32] | None
    out: NDArray[np.uint16] | None


class Search:
    """The tokens that are looked at, and the distances of any plan there."""

    def __init__(self, plan: GatePlan, inputs: GateInputs, found: Dumped, wrong: NDArray[np.bool_]) -> None:
        self.plan, self.at = plan, picked(wrong, MOST_TOKENS)
        self.inputs = inputs.some(self.at)
        self.found_gates = None if found.gates is None else found.gates[self.at].astype(np.float64)
        self.out = None if found.out is None else found.out[self.at]
        some = self.inputs  # a plan may open the gates of dead tokens: their sums cost as much as others'
        allowed = bounds.gate_range(some.hidden, some.key, some.q_weight, some.k_weight, None, plan.eps, plan.clamp)
        self.slack = allowed.bound() + bounds.GATE_SLACK
        self.right = self.distances(plan)

    def excess(self, plan: GatePlan) -> list[NDArray[np.float64]]:
        """Of each array that was dumped, the distances beyond the bound."""
        made = []
        if self.found_gates is not None:
            made.append(_beyond(self.found_gates, gates(plan, self.inputs), self.slack))
        if self.out is not None:
            gate = gates(plan, self.inputs)
            have = np.where(bf16_finite(self.out), self.out, np.uint16(0))
            value = self.inputs.key[:, 0] if plan.value_as_key else self.inputs.value
            bound = bounds.out_bound(self.inputs.hidden, value, gate, have, self.slack)
            made.append(_beyond(from_bf16(self.out).astype(np.float64), outputs(plan, self.inputs), bound))
        return made

    def distances(self, plan: GatePlan) -> list[float]:
        return [float(each.sum()) for each in self.excess(plan)]

    def explains(self, plan: GatePlan) -> float:
        """1 where a plan leaves no distance; a distance where the right answer has none counts whole."""
        left = []
        for mine, right in zip(self.distances(plan), self.right, strict=True):
            if right or mine:
                left.append(mine / right if right else 1.0)
        return max(0.0, 1 - sum(left) / len(left)) if left else 0.0


def _beyond(found: NDArray[np.float64], want: NDArray[np.float64], bound: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        excess = np.maximum(np.abs(found - want) - bound, 0.0)
    odd = ~np.isfinite(excess)
    size = np.abs(np.where(np.isfinite(found), found, 0.0)).max(initial=1.0)
    return np.asarray(np.where(odd, np.where(np.isfinite(found) == np.isfinite(want), 0.0, 10 * size), excess))


Candidate = tuple[tuple[Mistake[GatePlan], ...], GatePlan]


def diagnose(plan: GatePlan, inputs: GateInputs, found: Dumped, wrong: NDArray[np.bool_]) -> Diagnosis | None:
    """The entry or pair that removes most of the distance; `wrong` [T] says which tokens differ."""
    search = Search(plan, inputs, found, wrong)
    singles: list[Candidate] = [
        ((entry,), made) for entry in catalogue.GATING if (made := entry.vary(plan)) is not None and made != plan
    ]
    best = _ranked(search, singles)
    if not best or best[0][0] < 1:
        pairs: list[Candidate] = []
        for ((one, *_), first), ((other, *_), second) in combinations(singles, 2):
            both = other.vary(first)
            if both is not None and both not in (first, second):
                pairs.append(((one, other), both))
        double, alone = _ranked(search, pairs), best[0][0] if best else 0.0
        if double and (double[0][0] == 1 or double[0][0] > alone + PAIR_GAIN):
            best = sorted([*double, *best], key=lambda pair: -pair[0])
    if not best or best[0][0] < LEAST:
        return None
    share, (entries, chosen) = best[0]
    alike = [(each, one) for each, one in best[1:] if each == share and len(one[0]) <= len(entries)]
    runners = [RunnerUp(_name(one[0]), each, _told_apart(plan, chosen, one[1])) for each, one in alike[:RUNNERS]]
    return Diagnosis(entries, share, OF, "", _decided_at(search, chosen), runners)


def _ranked(search: Search, candidates: Sequence[Candidate]) -> list[tuple[float, Candidate]]:
    scored = [(search.explains(one[1]), one) for one in candidates]
    return sorted((pair for pair in scored if pair[0] > 0), key=lambda pair: -pair[0])


def _name(entries: tuple[Mistake[Any], ...]) -> str:
    return " + ".join(entry.name for entry in entries)


def _decided_at(search: Search, chosen: GatePlan) -> str:
    for mine, right in zip(search.excess(chosen), search.excess(search.plan), strict=True):
        better = (mine == 0) & (right > 0)
        if better.any():
            t, stream, *element = np.argwhere(better)[0].tolist()
            return f"position {search.at[t]} stream {stream}" + (f" element {element[0]}" if element else "")
    return ""


def _told_apart(plan: GatePlan, one: GatePlan, other: GatePlan) -> str:
    from engramctl.mistakes import gate_probes

    return gate_probes.told_apart(plan, one, other)


def facts(inputs: GateInputs, found: Dumped, wrong: NDArray[np.bool_]) -> list[str]:
    """Which positions and streams differ, where no mistake explains it."""
    T, count = len(inputs.hidden), int(wrong.sum())
    made = [f"{count} of {T} positions" if count < T else "every position"]
    if inputs.mask is not None and count:
        made.append(f"{int((wrong & ~inputs.mask).sum())} of them are dead")
    if found.gates is not None and count:
        some = found.gates[wrong]
        made.append(f"their gates lie between {some.min():.6g} and {some.max():.6g}")
    return made
