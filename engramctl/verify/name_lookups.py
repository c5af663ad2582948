"""Which mistake made these values or projections? Entries and pairs are tried on the rows that were looked up.

A candidate varies the hash (where token ids were given), the decoding of rows, or the projection. Values are compared
bit for bit; what a candidate explains of a projection is the share of the distance beyond the bound that it removes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl.mistakes import catalogue
from engramctl.mistakes.hashing import HashCase, HashPlan, rows
from engramctl.mistakes.projectplan import ProjectPlan
from engramctl.mistakes.record import Mistake
from engramctl.mistakes.rowplan import RowPlan
from engramctl.verify.diagnosis import LEAST, PAIR_GAIN, Diagnosis, RunnerUp

KEPT = 8  # candidates that pass the screen
RUNNERS = 3

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class LookPlan:
    """Everything between token ids, or listed rows, and a projection; `hash` is None where rows were listed."""

    hash: HashPlan | None
    row: RowPlan = field(default_factory=RowPlan)
    project: ProjectPlan = field(default_factory=ProjectPlan)


@dataclass(frozen=True)
class Lookups:
    """What was looked up in a layer: rows as they were listed, or a sequence that the reference hashed to them."""

    rows: Ids  # [T, C], or [n]
    case: HashCase | None = None
    plan: HashPlan | None = None
    place: int = 0  # of the layer among the plan's

    def of(self, plan: LookPlan, at: Ids) -> Ids:
        """The rows that a plan looks up at some of the tokens."""
        if plan.hash is None or self.case is None or plan.hash is self.plan:
            return np.asarray(self.rows[at])
        return rows(plan.hash, self.case, at)[:, self.place]


@dataclass(frozen=True)
class Candidate:
    entries: tuple[Mistake[Any], ...]
    plan: LookPlan

    @property
    def name(self) -> str:
        return " + ".join(entry.name for entry in self.entries)


class Scorer:
    """How much of a difference a plan explains, at all tokens or on a sample of them."""

    of: str
    least: float = LEAST  # what an entry must explain to be named

    def explains(self, plan: LookPlan, sampled: bool) -> float:
        raise NotImplementedError

    def decided_at(self, plan: LookPlan) -> str:
        raise NotImplementedError


Vary = Callable[[LookPlan], LookPlan | None]


def _on_hash(entry: Mistake[HashPlan]) -> Vary:
    def vary(plan: LookPlan) -> LookPlan | None:
        made = None if plan.hash is None else entry.vary(plan.hash)
        same = made is None or plan.hash is None or made.same(plan.hash)
        return None if same else replace(plan, hash=made)

    return vary


def _on_row(entry: Mistake[RowPlan]) -> Vary:
    def vary(plan: LookPlan) -> LookPlan | None:
        made = entry.vary(plan.row)
        return None if made is None else replace(plan, row=made)

    return vary


def _on_project(entry: Mistake[ProjectPlan]) -> Vary:
    def vary(plan: LookPlan) -> LookPlan | None:
        made = entry.vary(plan.project)
        return None if made is None else replace(plan, project=made)

    return vary


def entries(plan: LookPlan, project: bool) -> list[tuple[Mistake[Any], Vary]]:
    """What can be varied in `plan`, in the order of the stages."""
    made: list[tuple[Mistake[Any], Vary]] = []
    if plan.hash is not None:
        made += [(entry, _on_hash(entry)) for entry in catalogue.HASHING]
    made += [(entry, _on_row(entry)) for entry in catalogue.DECODING]
    if project:
        made += [(entry, _on_project(entry)) for entry in catalogue.PROJECTING]
    return made


def diagnose(plan: LookPlan, scorer: Scorer, project: bool) -> Diagnosis | None:
    """The entry, or the pair of entries of which not both are the hash's, that explains most."""
    known = entries(plan, project)
    singles = [Candidate((entry,), made) for entry, vary in known if (made := vary(plan)) is not None]
    best = _best(scorer, singles)
    if not best or best[0][0] < 1:
        pairs = [*_pairs(plan, known)]
        double = _best(scorer, pairs)
        alone = best[0][0] if best else 0.0
        if double and (double[0][0] == 1 or double[0][0] > alone + PAIR_GAIN):
            best = sorted([*double, *best], key=lambda pair: -pair[0])
    if not best or best[0][0] < scorer.least:
        return None
    share, chosen = best[0]
    alike = [(each, one) for each, one in best[1:] if each == share and len(one.entries) <= len(chosen.entries)]
    runners = [RunnerUp(one.name, each, told_apart(plan, chosen, one)) for each, one in alike[:RUNNERS]]
    return Diagnosis(chosen.entries, share, scorer.of, "", scorer.decided_at(chosen.plan), runners)


def _pairs(plan: LookPlan, known: Sequence[tuple[Mistake[Any], Vary]]) -> list[Candidate]:
    hashing = {entry.name for entry in catalogue.HASHING}
    made = []
    for (one, first), (other, second) in combinations(known, 2):
        if one.name in hashing and other.name in hashing:
            continue  # check hash finds those
        once = first(plan)
        twice = None if once is None else second(once)
        if twice is not None and twice not in (once, second(plan)):
            made.append(Candidate((one, other), twice))
    return made


def _best(scorer: Scorer, candidates: Sequence[Candidate]) -> list[tuple[float, Candidate]]:
    """The candidates that pass the screen, with what they explain of everything, best first."""
    screened = sorted((-scorer.explains(one.plan, True), i) for i, one in enumerate(candidates))
    kept = [candidates[i] for i in sorted(i for share, i in screened[:KEPT] if share < 0)]
    return sorted(((scorer.explains(one.plan, False), one) for one in kept), key=lambda pair: -pair[0])


def told_apart(plan: LookPlan, one: Candidate, other: Candidate) -> str:
    """The input that would tell two candidates apart."""
    if plan.hash is not None and (one.plan.hash is not plan.hash or other.plan.hash is not plan.hash):
        from engramctl.mistakes import hash_probes

        if one.plan.hash is not None and other.plan.hash is not None:
            return hash_probes.told_apart(plan.hash, one.plan.hash, other.plan.hash)
    return "rows with other scale bytes, and with codes 0x80 and 0x01, would tell them apart"
