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

from engramctl.hash_params import HashParams
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


class Search:
    """One dump, and how well candidates explain it."""

    def __init__(self, plan: HashPlan, case: HashCase, seen: SeenRows) -> None:
        self.plan, self.case, self.seen = plan, case, seen
        self.right = seen.of(rows(plan, case))
        self.differs = ((self.right != seen.rows) & seen.wanted[:, None, None]).any(axis=(1, 2))
        self.sample = self._sample()

    def _sample(self) -> Ids:
        wrong, good = np.flatnonzero(self.differs), np.flatnonzero(~self.differs & self.seen.wanted)
        picked = [
            some[np.unique(np.linspace(0, some.size - 1, SAMPLE).astype(int))] for some in (wrong, good) if some.size
        ]
        near = wrong[:4, None] + np.arange(-2, 5)
        near = near[(near >= 0) & (near < self.case.tokens.size)]
        sample = np.unique(np.concatenate([*picked, near.reshape(-1)]))
        return np.asarray(sample[self.seen.wanted[sample]])

    def explains(self, plan: HashPlan, at: Ids | None = None) -> float:
        places = np.flatnonzero(self.seen.wanted) if at is None else at
        made = self.seen.of(rows(plan, self.case, places))
        right, found = self.right[places], self.seen.rows[places]
        either = (found != right) | (made != right)
        total = int(np.count_nonzero(either))
        return int(np.count_nonzero(either & (made == found))) / total if total else 0.0

    def best(self, candidates: Sequence[Candidate]) -> list[tuple[float, Candidate]]:
        """The candidates that pass the screen, with what they explain of everything, best first."""
        screened = sorted(((self.explains(one.plan, self.sample), i) for i, one in enumerate(candidates)), reverse=True)
        kept = [candidates[i] for share, i in sorted(screened[:KEPT], key=lambda pair: pair[1]) if share > 0]
        return sorted(((self.explains(one.plan), one) for one in kept), key=lambda pair: -pair[0])


def singles(search: Search) -> list[Candidate]:
    """Each entry by itself; those with a parameter as often as one fits."""
    made = []
    for entry in catalogue.HASHING:
        if entry.fit is not None:
            made += fitted(search, entry, Candidate((), search.plan))
        elif (plan := entry.vary(search.plan)) is not None and not plan.same(search.plan):
            made.append(Candidate((entry,), plan))
    return made


def fitted(search: Search, entry: Mistake[HashPlan], under: Candidate) -> list[Candidate]:
    assert entry.fit is not None
    made = entry.fit(under.plan, search.case, search.seen)
    return [Candidate((*under.entries, entry), one.plan, one.detail) for one in made]


def pairs(search: Search, best: Sequence[tuple[float, Candidate]]) -> Iterator[Candidate]:
    """Two entries at once: all that need no fitting, and fitted ones under the best single entries."""
    plain = [(entry, entry.vary(search.plan)) for entry in catalogue.HASHING if entry.fit is None]
    for (one, first), (other, alone) in combinations(plain, 2):
        if first is None or alone is None or one.stage == other.stage == "map":
            continue
        second = other.vary(first)
        if second is not None and not (second.same(first) or second.same(alone)):
            yield Candidate((one, other), second)
    fitting = [entry for entry in catalogue.HASHING if entry.fit is not None]
    for _, under in best[:FITTED_UNDER]:
        if under.entries[0].fit is None:
            for entry in fitting:
                yield from fitted(search, entry, under)


def diagnose(
    found: Rows,
    tokens: Ids,
    params: HashParams,
    mask: NDArray[np.bool_] | None,
    history: Sequence[int],
    wanted: NDArray[np.bool_],
    maps: Maps,
) -> Diagnosis | None:
    """The entry or pair that explains most of the dump's differences; None where none explains half of them."""
    plan, places = HashPlan.of(params, maps), tuple(params.layers.index(layer) for layer in found.layers)
    past = tuple(int(entry) for entry in history)
    case = HashCase(tokens, mask, past, past_tokens=tokens_of(plan, past))
    search = narrowed(plan, case, SeenRows(found.rows, places, wanted))
    if search is None:
        return None
    best = search.best(singles(search))
    alone = best[0][0] if best else 0.0
    if alone < 1:
        double = search.best([*pairs(search, best)])
        if double and (double[0][0] == 1 or double[0][0] > alone + PAIR_GAIN):
            best = sorted([*double, *best], key=lambda pair: -pair[0])
    if not best or best[0][0] < LEAST:
        return None
    share, chosen = best[0]
    return Diagnosis(
        chosen.entries, share, OF, chosen.detail, decided_at(search, chosen, found.layers), runners_up(search, best)
    )


def narrowed(plan: HashPlan, case: HashCase, seen: SeenRows) -> Search | None:
    """The dump, or of a long one the part from its first difference on; None where nothing differs."""
    T = case.tokens.size
    if T <= MOST_POSITIONS:
        search = Search(plan, case, seen)
        return search if search.differs.any() else None
    for start in range(0, T, MOST_POSITIONS):
        search = _part(plan, case, seen, start)
        if search.differs.any():
            first = start + int(search.differs.argmax())
            return _part(plan, case, seen, max(0, first - BEFORE))
    return None


def _part(plan: HashPlan, case: HashCase, seen: SeenRows, start: int) -> Search:
    some, reach = slice(start, start + MOST_POSITIONS), plan.size - 1
    before = slice(max(0, start - reach), start)
    raw = case.tokens[before]
    raw = raw if case.mask is None else np.where(case.mask[before], raw, -1)
    history = np.where(raw < 0, -1, plan.token_map[np.maximum(raw, 0)])
    part = replace(
        case,
        tokens=case.tokens[some],
        mask=None if case.mask is None else case.mask[some],
        history=(*case.history, *history.tolist())[-reach:] if start else case.history,
        past_tokens=tuple(raw.tolist()) if raw.size == reach else (),
        first=case.first + start,
    )
    return Search(plan, part, SeenRows(seen.rows[some], seen.places, seen.wanted[some]))


def decided_at(search: Search, chosen: Candidate, layers: tuple[int, ...]) -> str:
    """The first row number where the dump follows the mistake and not the reference."""
    made = search.seen.of(rows(chosen.plan, search.case))
    follows = (made == search.seen.rows) & (made != search.right) & search.seen.wanted[:, None, None]
    if not follows.any():
        return ""
    t, place, column = (int(i) for i in np.unravel_index(int(follows.argmax()), follows.shape))
    return f"position {search.case.first + t} layer {layers[place]} column {column}"


def runners_up(search: Search, best: Sequence[tuple[float, Candidate]]) -> list[RunnerUp]:
    """Others that explain as much as the best, so that this input cannot tell them apart, and what would."""
    share, chosen = best[0]
    made: list[RunnerUp] = []
    for other_share, other in best[1:]:
        if other_share < share or len(other.entries) > len(chosen.entries) or len(made) == RUNNERS:
            continue
        from engramctl.mistakes import hash_probes

        made.append(RunnerUp(other.name, other_share, hash_probes.told_apart(search.plan, chosen.plan, other.plan)))
    return made
