"""How rows differ where no known mistake explains it: facts only, no guesses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from engramctl.mistakes import invert
from engramctl.mistakes.hashing import HashPlan, sequence
from engramctl.verify.name_rows import Part, Search

LISTED = 6
Differs = NDArray[np.bool_]  # [T, l, C]


def facts(search: Search, layers: Sequence[int]) -> list[str]:
    """What is common to the row numbers that differ; of several sequences each fact once, with those that it is of."""
    made: dict[str, list[str]] = {}  # the names of the sequences by fact
    for part in search.parts:
        differs = (part.seen.rows != part.right) & part.seen.wanted[:, None, None]
        if differs.any():
            found = [
                *_layers(differs, layers),
                *_orders(differs, search.plan),
                *_positions(differs, search.plan, part),
                *_numbers(differs, search.plan, part),
                *_ids(differs, search.plan, part, layers),
            ]
            for fact in found:
                made.setdefault(fact, []).append(part.name)
    return [_of(names, len(search.parts)) + fact for fact, names in made.items()]


def _of(names: Sequence[str], count: int) -> str:
    """Of which of `count` sequences a fact is, as words before it."""
    if names[0] == "":
        return ""
    if len(names) == count > 1:
        return f"all {count} sequences: "
    return f"sequence{'s' if len(names) > 1 else ''} {', '.join(names)}: "


def _layers(differs: Differs, layers: Sequence[int]) -> Iterator[str]:
    counts = differs.any(axis=2).sum(axis=0).tolist()
    if set(counts) == {len(differs)}:
        return  # every position differs, which is said by itself
    yield "; ".join(f"layer {layer}: {n} of {len(differs)} positions" for layer, n in zip(layers, counts, strict=True))


def _orders(differs: Differs, plan: HashPlan) -> Iterator[str]:
    by_column = differs.sum(axis=(0, 1)).reshape(plan.size - 1, plan.heads)
    for what, first, counts in (("order", 2, by_column.sum(axis=1)), ("head", 0, by_column.sum(axis=0))):
        if len(set(counts.tolist())) > 1:
            yield "; ".join(f"{what} {first + i}: {n} row numbers" for i, n in enumerate(counts.tolist()) if n)
    columns = np.flatnonzero(by_column.reshape(-1))
    if columns.size < by_column.size:
        yield f"only column{'s' if columns.size > 1 else ''} {listed(columns)} of {by_column.size}"


def listed(numbers: NDArray[np.int64]) -> str:
    """0, 1, 2 and 5 others."""
    shown = ", ".join(map(str, numbers[:LISTED].tolist()))
    return shown + (f" and {numbers.size - LISTED} others" if numbers.size > LISTED else "")


def _positions(differs: Differs, plan: HashPlan, part: Part) -> Iterator[str]:
    wrong, first, T = np.flatnonzero(differs.any(axis=(1, 2))), part.case.first, len(differs)
    if wrong.size == T:
        yield "every position differs"
        return
    if wrong.size == 1:
        yield f"only position {first + wrong[0]} of {T}"
    else:
        run = "all from there on" if wrong.size == T - wrong[0] else f"{wrong.size} of {T}"
        yield f"positions {first + wrong[0]} to {first + wrong[-1]}, {run}"
    starts = wrong[np.flatnonzero(np.diff(wrong, prepend=-2) > 1)] + first
    if starts.size > 2 and (step := math.gcd(*np.diff(starts).tolist())) > 1:
        yield f"runs of them begin at positions that leave {starts[0] % step} when divided by {step}"
    if part.case.mask is not None:
        dead = ~part.case.mask
        near = np.zeros(T, np.bool_)
        for back in range(1, plan.size):
            near[back:] |= dead[:-back]
        yield f"{int(dead[wrong].sum())} of them are dead, {int((near & ~dead)[wrong].sum())} look back on a dead one"


def _numbers(differs: Differs, plan: HashPlan, part: Part) -> Iterator[str]:
    found, right = part.seen.rows, part.right
    total = int(np.count_nonzero(differs))
    places = list(part.seen.places)
    moduli, offsets = plan.moduli[places].astype(np.int64), plan.offsets[places].astype(np.int64)
    step = np.unique((found - right)[differs])
    if step.size == 1:
        yield f"every one is {int(step[0]):+d} from the right row"
    equal = int(np.count_nonzero(((found - right) % moduli == 0) & differs))
    if equal:
        yield f"{equal} of {total} have the right bucket under another offset"
    outside = int(np.count_nonzero(((found < offsets) | (found >= offsets + moduli)) & differs))
    other = "; --params FILE|DIR compares with another model's constants" if 2 * outside > total else ""
    yield f"{outside} of {total} lie outside of their column's range of rows{other}"
    moved = (np.sort(found, axis=2) == np.sort(right, axis=2)).all(axis=2) & differs.any(axis=2)
    if moved.any():
        yield f"{int(moved.sum())} times a position has a layer's right rows in other columns"


def _ids(differs: Differs, plan: HashPlan, part: Part, layers: Sequence[int]) -> Iterator[str]:
    """The ids behind the first differing position, if the constants are right and only the ids are not."""
    t, place = (int(i) for i in np.argwhere(differs.any(axis=2))[0])
    layer, columns = part.seen.places[place], part.seen.rows[t, place]
    right = slots(plan, part, t)
    for newest in dict.fromkeys((right[0], invert.newest(columns, plan, layer, right[1]))):
        ids = None if newest is None else invert.window(columns, plan, layer, newest)
        if ids is not None:
            where = f"position {part.case.first + t} layer {layers[place]}"
            filler = _filler(ids, right, plan.pad)
            said = "" if filler is None else f": the filler is {filler}, not {plan.pad}"
            yield f"{where} has the rows of compressed ids {ids[::-1]}, oldest first, for {right[::-1]}{said}"
            return


def _filler(ids: Sequence[int], right: Sequence[int], pad: int) -> int | None:
    """The one id that stands, from some slot on, where the pad should; None where others differ too."""
    blocked = len(right)
    while blocked and right[blocked - 1] == pad:
        blocked -= 1
    instead = set(ids[blocked:])
    return instead.pop() if len(instead) == 1 and list(ids[:blocked]) == list(right[:blocked]) else None


def slots(plan: HashPlan, part: Part, t: int) -> list[int]:
    """The compressed ids that a position looks back on, newest first."""
    ids, _, before = sequence(plan, part.case)
    window: list[int] = []
    for at in range(before + t, before + t - plan.size, -1):
        blocked = at < 0 or ids[at] < 0 or (window and window[-1] < 0)
        window.append(-1 if blocked else int(ids[at]))
    return [plan.pad if one < 0 else one for one in window]
