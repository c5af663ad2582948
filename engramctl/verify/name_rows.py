"""Which mistake made these rows? Entries and pairs of the catalogue are tried on the dump's own tokens.

Every candidate is screened on a sample of positions; the best are then held against all of them. What a candidate
explains is its share, among the row numbers where the dump or the candidate differs from the right ones, of those
where the two agree: a candidate that changes more than the dump does is not a whole explanation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from engramctl.hash_params import DEAD, HashParams
from engramctl.mistakes import catalogue
from engramctl.mistakes.hashing import HashCase, HashPlan, Maps, rows, tokens_of
from engramctl.mistakes.history import SeenRows
from engramctl.mistakes.record import Mistake
from engramctl.row_dumps import Rows
from engramctl.verify.diagnosis import LEAST, PAIR_GAIN, Diagnosis, RunnerUp

OF = "the row numbers that differ"
MOST_POSITIONS = 1 << 14  # that are looked at, from shortly before the first difference on
BEFORE = 64
SAMPLE = 24  # differing positions, and as many that agree, on which candidates are screened
KEPT = 12  # candidates that pass the screen
FITTED_UNDER = 4  # single entries under which parameters are fitted again, for pairs
RUNNERS = 3

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Candidate:
    """One entry or two, applied."""

    entries: tuple[Mistake[HashPlan], ...]
    plan: HashPlan
    detail: str = ""

    @property
    def name(self) -> str:
        return " + ".join(entry.name for entry in self.entries)


class Part:
    """One sequence of a dump, its right rows, and the positions on which candidates are screened."""

    def __init__(self, plan: HashPlan, case: HashCase, seen: SeenRows, name: str = "") -> None:
        self.case, self.seen, self.name = case, seen, name
        self.right = seen.of(rows(plan, case))
        self.differs = ((self.right != seen.rows) & seen.wanted[:, None, None]).any(axis=(1, 2))
        self.every = np.flatnonzero(seen.wanted)
        self.sample = self._sample()

    def _sample(self) -> Ids:
        wrong, good = np.flatnonzero(self.differs), np.flatnonzero(~self.differs & self.seen.wanted)
        picked = [spread(some) for some in (wrong, good) if some.size]
        near = wrong[:4, None] + np.arange(-2, 5)
        near = near[(near >= 0) & (near < self.case.tokens.size)]
        sample: Ids = np.unique(np.concatenate([*picked, near.reshape(-1)]))
        return np.asarray(sample[self.seen.wanted[sample]])

    def score(self, plan: HashPlan, at: Ids) -> tuple[int, int]:
        """Row numbers where the candidate and the dump agree, of those where either is not the right one."""
        made = self.seen.of(rows(plan, self.case, at))
        right, found = self.right[at], self.seen.rows[at]
        either = (found != right) | (made != right)
        return int(np.count_nonzero(either & (made == found))), int(np.count_nonzero(either))


def spread(some: Ids) -> Ids:
    """At most SAMPLE of them, evenly spread."""
    return np.asarray(some[np.unique(np.linspace(0, some.size - 1, SAMPLE).astype(int))])


class Search:
    """A dump of one sequence or several, and how well candidates explain it."""

    def __init__(self, plan: HashPlan, parts: Sequence[Part]) -> None:
        self.plan, self.parts = plan, parts
        self.count = sum(part.score(plan, part.every)[1] for part in parts)  # row numbers that differ

    def explains(self, plan: HashPlan, sampled: bool = False) -> float:
        scores = [part.score(plan, part.sample if sampled else part.every) for part in self.parts]
        total = sum(either for _, either in scores)
        return sum(agree for agree, _ in scores) / total if total else 0.0

    def best(self, candidates: Sequence[Candidate]) -> list[tuple[float, Candidate]]:
        """The candidates that pass the screen, with what they explain of everything, best first."""
        screened = sorted(((-self.explains(one.plan, sampled=True), i) for i, one in enumerate(candidates)))
        kept = [candidates[i] for i in sorted(i for share, i in screened[:KEPT] if share < 0)]
        return sorted(((self.explains(one.plan), one) for one in kept), key=lambda pair: -pair[0])


def singles(search: Search) -> list[Candidate]:
    """Each entry by itself; those with a parameter as often as one fits."""
    made = []
    for entry in catalogue.HASHING:
        if entry.fit is not None and len(search.parts) == 1:
            made += fitted(search, entry, Candidate((), search.plan))
        elif (plan := entry.vary(search.plan)) is not None and not plan.same(search.plan):
            made.append(Candidate((entry,), plan))
    return made


def fitted(search: Search, entry: Mistake[HashPlan], under: Candidate) -> list[Candidate]:
    assert entry.fit is not None
    made = entry.fit(under.plan, search.parts[0].case, search.parts[0].seen)
    return [Candidate((*under.entries, entry), one.plan, one.detail) for one in made]


def pairs(search: Search, best: Sequence[tuple[float, Candidate]]) -> Iterator[Candidate]:
    """Two entries at once: all that need no fitting, and fitted ones under the best single entries."""
    alone = len(search.parts) == 1
    plain = [(entry, entry.vary(search.plan)) for entry in catalogue.HASHING if entry.fit is None or not alone]
    for (one, first), (other, second) in combinations(plain, 2):
        if first is None or second is None or one.stage == other.stage == "map":
            continue
        both = other.vary(first)
        if both is not None and not (both.same(first) or both.same(second)):
            yield Candidate((one, other), both)
    for _, under in best[: FITTED_UNDER if alone else 0]:
        if under.entries[0].fit is None:
            for entry in catalogue.HASHING:
                if entry.fit is not None:
                    yield from fitted(search, entry, under)


def diagnose(search: Search, layers: Sequence[int]) -> Diagnosis | None:
    """The entry or pair that explains most of the dump's differences; None where none explains half of them."""
    best = search.best(singles(search))
    alone = best[0][0] if best else 0.0
    if alone < 1 and search.count > search.plan.heads:  # a mistake of the hash shows in all heads of an order
        double = search.best([*pairs(search, best)])
        if double and (double[0][0] == 1 or double[0][0] > alone + PAIR_GAIN):
            best = sorted([*double, *best], key=lambda pair: -pair[0])
    if not best or best[0][0] < LEAST:
        return None
    share, chosen = best[0]
    return Diagnosis(
        chosen.entries, share, OF, chosen.detail, decided_at(search, chosen, layers), runners_up(search, best)
    )


def search_of(
    found: Rows,
    tokens: Ids,
    params: HashParams,
    mask: NDArray[np.bool_] | None,
    history: Sequence[int],
    wanted: NDArray[np.bool_],
    maps: Maps,
) -> Search:
    """A dump of one sequence; of a long one, the part from shortly before its first difference on."""
    plan, places = HashPlan.of(params, maps), tuple(params.layers.index(layer) for layer in found.layers)
    past, T = tuple(int(entry) for entry in history), tokens.size
    case = HashCase(tokens, mask, past, past_tokens=tokens_of(plan, past))
    seen = SeenRows(found.rows, places, wanted)
    if T <= MOST_POSITIONS:
        return Search(plan, [Part(plan, case, seen)])
    for start in range(0, T, MOST_POSITIONS):
        part = piece(plan, case, seen, start)
        if part.differs.any():
            part = piece(plan, case, seen, max(0, start + int(part.differs.argmax()) - BEFORE))
            break
    return Search(plan, [part])


def piece(plan: HashPlan, case: HashCase, seen: SeenRows, start: int) -> Part:
    """MOST_POSITIONS of a sequence from `start` on, with the ids before them as its history."""
    some, reach = slice(start, start + MOST_POSITIONS), plan.size - 1
    before = slice(max(0, start - reach), start)
    raw = case.tokens[before]
    raw = raw if case.mask is None else np.where(case.mask[before], raw, DEAD)
    ids = np.where(raw < 0, DEAD, plan.token_map[np.maximum(raw, 0)])
    part = replace(
        case,
        tokens=case.tokens[some],
        mask=None if case.mask is None else case.mask[some],
        history=(*case.history, *ids.tolist())[-reach:],
        past_tokens=(*case.past_tokens, *raw.tolist())[-reach:],
        first=case.first + start,
    )
    return Part(plan, part, SeenRows(seen.rows[some], seen.places, seen.wanted[some]))


def decided_at(search: Search, chosen: Candidate, layers: Sequence[int]) -> str:
    """The first row number where the dump follows the mistake and not the reference."""
    for part in search.parts:
        made = part.seen.of(rows(chosen.plan, part.case))
        follows = (made == part.seen.rows) & (made != part.right) & part.seen.wanted[:, None, None]
        if follows.any():
            t, place, column = (int(i) for i in np.unravel_index(int(follows.argmax()), follows.shape))
            name = f"sequence {part.name} " if part.name else ""
            return f"{name}position {part.case.first + t} layer {layers[place]} column {column}"
    return ""


def runners_up(search: Search, best: Sequence[tuple[float, Candidate]]) -> list[RunnerUp]:
    """Others that explain as much as the best, so that this input cannot tell them apart, and what would."""
    from engramctl.mistakes import hash_probes

    share, chosen = best[0]
    others = [(each, one) for each, one in best[1:] if each == share and len(one.entries) <= len(chosen.entries)]
    return [
        RunnerUp(other.name, each, hash_probes.told_apart(search.plan, chosen.plan, other.plan))
        for each, other in others[:RUNNERS]
    ]
