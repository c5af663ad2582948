"""The mistake behind values or projections that differ, put into a check's result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl.mistakes import hashing
from engramctl.mistakes.projectplan import Projection, ProjectPlan
from engramctl.mistakes.tables import Reader
from engramctl.source import Source
from engramctl.verify import name_lookups, score_lookups
from engramctl.verify.name_lookups import LookPlan, Lookups
from engramctl.verify.result import Result

LEAST_NUMBERS = 0.5  # of the outputs that differ must be finite, or nothing can be told from their distances
MOST_STRUCTURE = 6  # groups that are named in a fact


def values(
    found: NDArray[Any], source: Source, layer: int, looked: Lookups, wrong: NDArray[np.bool_], result: Result
) -> None:
    """`found` is [T, C, numbers] or [n, numbers]; `wrong` [T] or [n] says where something differs."""
    scorer = score_lookups.ValuesScorer(found, looked, score_lookups.reader(source, layer), wrong)
    result.diagnosis = name_lookups.diagnose(LookPlan(looked.plan), scorer, project=False)
    if result.diagnosis is None:
        at = scorer.samples[0]
        result.structure = value_facts(scorer.right[0], score_lookups.canonical(found[at]), len(at), wrong.size)


def value_facts(right: NDArray[Any], found: NDArray[Any], looked: int, of: int) -> list[str]:
    """Which columns and elements differ, and whether by one factor."""
    differs = right != found
    facts = [f"looked into {looked} of {of} tokens or rows, those that differ first"]
    if differs.ndim == 3 and not (by := differs.any(axis=(0, 2))).all():
        facts.append(f"only columns {_some(np.flatnonzero(by))}")
    by = differs.reshape(-1, differs.shape[-1]).any(axis=0)
    if not by.all():
        facts.append(f"only elements {_some(np.flatnonzero(by))} of a row's {by.size}")
    if right.dtype == np.uint16:
        from formats.floats import from_bf16

        one, other = from_bf16(right[differs]), from_bf16(found[differs])
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.unique(other[one != 0] / one[one != 0])
        if ratios.size == 1:
            facts.append(f"each is {ratios[0]:.9g} times the right one")
        if not np.isfinite(other).all():
            facts.append(f"{int((~np.isfinite(other)).sum())} of {other.size} are no finite numbers")
    return facts


def _some(numbers: NDArray[np.int64]) -> str:
    shown = ", ".join(map(str, numbers[:MOST_STRUCTURE].tolist()))
    return shown + (f" and {numbers.size - MOST_STRUCTURE} others" if numbers.size > MOST_STRUCTURE else "")


def kv(
    found: NDArray[np.float32], source: Source, layer: int, looked: Lookups, wrong: NDArray[np.bool_], result: Result
) -> None:
    """`found` is [T, N]; `wrong` [T, N] says where it is beyond the bound."""
    weights = projection(source, layer)
    tables = score_lookups.reader(source, layer)
    scorer = score_lookups.KvScorer(found, looked, tables, weights, np.asarray(wrong.any(axis=1)))
    plan, numbers = LookPlan(looked.plan, project=ProjectPlan(quantised=weights.codes is not None)), np.isfinite(found)
    if numbers[wrong].mean() > LEAST_NUMBERS:
        result.diagnosis = name_lookups.diagnose(plan, scorer, project=True)
    if result.diagnosis is None:
        somewhere = np.asarray(wrong.any(axis=1))
        result.structure = [*_of_another_layer(found, source, layer, looked, somewhere)]
        result.structure += kv_facts(wrong, source.sizes.streams)
        if not numbers.all():
            odd = int(np.count_nonzero(~numbers))
            result.structure.append(f"{odd} of {found.size} outputs are no finite numbers: `check values` says more")


def _of_another_layer(
    found: NDArray[np.float32], source: Source, layer: int, looked: Lookups, wrong: NDArray[np.bool_]
) -> Iterator[str]:
    """Is what was found within the bounds of another layer's rows and weights, or of its weights alone?"""
    for place, other in enumerate(source.sizes.layers):
        if other == layer:
            continue
        weights = projection(source, other)
        trials = [(f"this layer's rows through layer {other}'s projection", layer, looked.rows)]
        if looked.plan is not None and looked.case is not None:
            rows = hashing.rows(looked.plan, looked.case, np.arange(len(looked.rows)))[:, place]
            trials.append((f"layer {other}'s keys and value", other, rows))
        for what, table, rows in trials:
            reader = Reader(source.table(table), None)
            scorer = score_lookups.KvScorer(found, Lookups(rows), reader, weights, wrong)
            if not any(scorer.worst):
                yield f"they are {what}"


def kv_facts(wrong: NDArray[np.bool_], streams: int) -> list[str]:
    """Which tokens, keys and places differ."""
    tokens, parts = wrong.any(axis=1), wrong.reshape(len(wrong), streams + 1, -1)
    counts = parts.sum(axis=(0, 2)).tolist()
    names = [*(f"key {stream}" for stream in range(streams)), "value"]
    facts = ["; ".join(f"{name}: {n} outputs" for name, n in zip(names, counts, strict=True) if n)]
    if not tokens.all():
        facts.append(f"only positions {_some(np.flatnonzero(tokens))} of {tokens.size}")
    places = parts.any(axis=(0, 1))
    if not places.all():
        facts.append(f"only elements {_some(np.flatnonzero(places))} of {places.size}")
    return facts


def projection(source: Source, layer: int) -> Projection:
    """The layer's weights, with their scales where the source has them."""
    read = getattr(source, "array", None)
    if read is None:
        return Projection(source.sizes.streams, None, None, source.weights(layer).projection.bits())
    return Projection(source.sizes.streams, read(layer, "projection"), read(layer, "projection_scale"), None)
