"""How well a candidate explains dumped values, number for number, or dumped projections, by distance.

T tokens (or listed rows), K inputs, N outputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl.mistakes import rowplan
from engramctl.mistakes.projectplan import Projection, ProjectPlan
from engramctl.mistakes.tables import Reader
from engramctl.source import Source
from engramctl.verify import bounds
from engramctl.verify.name_lookups import LookPlan, Lookups, Scorer
from formats.floats import BF16_INFINITY, BF16_NAN, from_bf16, to_bf16
from formats.row264 import ROW_BYTES

SAMPLE = 4  # differing tokens on which candidates are screened, and a third as many that agree
MOST_TOKENS = 96  # that a candidate is held against in the end
MOST_OUTPUTS = (128, 16)  # of a projection that are computed in the end, and on the sample
FAR = 10.0  # how many times the right answer's distance a result counts that is no number

Ids = NDArray[np.int64]


def picked(wrong: NDArray[np.bool_], count: int) -> Ids:
    """Up to `count` differing tokens, evenly spread, and a third as many of the others."""
    made = []
    for some, most in ((np.flatnonzero(wrong), count), (np.flatnonzero(~wrong), count // 3)):
        if some.size:
            made.append(some[np.unique(np.linspace(0, some.size - 1, most).astype(int))])
    return np.unique(np.concatenate(made))


def reader(source: Source, layer: int) -> Reader:
    """The layer's table, and the next layer's."""
    layers = source.sizes.layers
    other = layers[(layers.index(layer) + 1) % len(layers)]
    return Reader(source.table(layer), None if other == layer else source.table(other))


def canonical(numbers: NDArray[Any]) -> NDArray[Any]:
    """Raw bytes as they are; values as BF16 bits with one NaN."""
    if numbers.dtype == np.uint8:
        return numbers
    bits = numbers if numbers.dtype == np.uint16 else to_bf16(numbers)
    return np.where(bits & np.uint16(0x7FFF) > np.uint16(BF16_INFINITY), np.uint16(BF16_NAN), bits)


class ValuesScorer(Scorer):
    """`found` is [T, ..., numbers of a row]; `wrong` says in which tokens something differs."""

    of = "the numbers that differ"

    def __init__(self, found: NDArray[Any], looked: Lookups, tables: Reader, wrong: NDArray[np.bool_]) -> None:
        self.found, self.looked, self.tables = found, looked, tables
        self.samples = (picked(wrong, MOST_TOKENS), picked(wrong, SAMPLE))
        right = [self.made(LookPlan(looked.plan), at) for at in self.samples]
        assert right[0] is not None
        assert right[1] is not None
        self.right = (right[0], right[1])

    def made(self, plan: LookPlan, at: Ids) -> NDArray[Any] | None:
        """[n, ..., numbers of a row] at some tokens."""
        shape = (len(at), *self.found.shape[1:])
        raw = self.tables.raw(plan.row, self.looked.of(plan, at))
        if raw is None:
            return None
        if self.found.dtype == np.uint8:
            return rowplan.relaid(plan.row, raw).reshape(shape)
        return canonical(to_bf16(rowplan.values(plan.row, raw))).reshape(shape)

    def explains(self, plan: LookPlan, sampled: bool) -> float:
        at, right = self.samples[sampled], self.right[sampled]
        made, found = self.made(plan, at), canonical(self.found[at])
        if made is None:
            return 0.0
        either = (found != right) | (made != right)
        total = int(np.count_nonzero(either))
        return int(np.count_nonzero(either & (made == found))) / total if total else 0.0

    def decided_at(self, plan: LookPlan) -> str:
        at, right = self.samples[0], self.right[0]
        made = self.made(plan, at)
        if made is None:
            return ""
        follows = (made == canonical(self.found[at])) & (made != right)
        if not follows.any():
            return ""
        first = np.argwhere(follows)[0].tolist()
        what = "byte" if self.found.shape[-1] == ROW_BYTES else "element"
        place = (
            f"position {at[first[0]]} column {first[1]}" if follows.ndim == 3 else f"number {at[first[0]]} of the list"
        )
        return f"{place} {what} {first[-1]}"


class KvScorer(Scorer):
    """`found` is [T, N] as F32, with the outputs in the dump's order."""

    of = "the distance beyond the bound"
    least = 0.9

    def __init__(
        self, found: NDArray[np.float32], looked: Lookups, tables: Reader, weights: Projection, wrong: NDArray[np.bool_]
    ) -> None:
        self.looked, self.tables, self.weights = looked, tables, weights
        N = weights.shape[0]
        self.outputs = tuple(np.unique(np.linspace(0, N - 1, min(N, most)).astype(np.int64)) for most in MOST_OUTPUTS)
        self.samples = (picked(wrong, MOST_TOKENS), picked(wrong, SAMPLE))
        self.found = tuple(
            found[at][:, outputs].astype(np.float64) for at, outputs in zip(self.samples, self.outputs, strict=True)
        )
        self.held: dict[tuple[ProjectPlan, bool], tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        self.worst = tuple(self._distance(LookPlan(looked.plan), sampled) for sampled in (False, True))

    def _weights(self, plan: ProjectPlan, sampled: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """[K, outputs] weights and their magnitudes."""
        if (plan, sampled) not in self.held:
            weight = np.ascontiguousarray(self.weights.weights(plan, self.outputs[sampled]).T)
            self.held[plan, sampled] = weight, np.abs(weight)
        return self.held[plan, sampled]

    def _excess(self, plan: LookPlan, sampled: bool) -> NDArray[np.float64] | None:
        """[n, outputs] distances beyond the bound; NaN where the candidate gives no number."""
        at, found = self.samples[sampled], self.found[sampled]
        raw = self.tables.raw(plan.row, self.looked.of(plan, at))
        if raw is None:
            return None
        values = from_bf16(to_bf16(rowplan.values(plan.row, raw))).reshape(len(at), -1).astype(np.float64)
        weight, size = self._weights(plan.project, sampled)
        with np.errstate(all="ignore"):
            want = values @ weight
            bound = bounds.kv_bound(want, found, np.abs(values) @ size, values.shape[1])
            excess = np.maximum(np.abs(found - want) - bound, 0.0)
        both = ~np.isfinite(want) & ~np.isfinite(found)
        return np.asarray(np.where(both, 0.0, excess))

    def _distance(self, plan: LookPlan, sampled: bool) -> float:
        excess = self._excess(plan, sampled)
        if excess is None:
            return np.inf
        found = self.found[sampled]
        size = np.abs(np.where(np.isfinite(found), found, 0.0)).max(initial=1.0)
        return float(np.where(np.isfinite(excess), excess, FAR * size).sum())

    def explains(self, plan: LookPlan, sampled: bool) -> float:
        worst = self.worst[sampled]
        return max(0.0, 1 - self._distance(plan, sampled) / worst) if worst else 0.0

    def decided_at(self, plan: LookPlan) -> str:
        right, made = self._excess(LookPlan(self.looked.plan), False), self._excess(plan, False)
        if right is None or made is None:
            return ""
        better = (made == 0) & ~(right == 0)
        if not better.any():
            return ""
        t, output = (int(i) for i in np.argwhere(better)[0])
        return f"position {self.samples[0][t]} output {self.outputs[0][output]}"
