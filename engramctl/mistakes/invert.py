"""From rows back to compressed ids: which ids must an engine have hashed to get these rows?

An order's rows tell its oldest id once the newer ones are known: of all compressed ids, only one in millions fits
eight moduli at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engramctl.mistakes.hashing import HashPlan, Words

Columns = NDArray[np.int64]  # [C] rows of one position and layer


def window(found: Columns, plan: HashPlan, layer: int, newest: int) -> list[int] | None:
    """The compressed ids, newest first, whose rows these are if the newest is `newest`; None if there are none.

    `layer` is a place among the plan's layers.
    """
    ids = [newest]
    for n in range(2, plan.size + 1):
        known = np.zeros(1, np.uint64)
        for slot, one in enumerate(ids):
            known ^= np.uint64(one) * plan.multipliers[layer, slot : slot + 1]
        oldest = _fitting(found, plan, layer, n, known, plan.multipliers[layer, n - 1])
        if oldest is None:
            return None
        ids.append(oldest)
    return ids


def newest(found: Columns, plan: HashPlan, layer: int, before: int) -> int | None:
    """The compressed id whose 2-grams behind `before` have these rows; None if there is none."""
    known = np.uint64(before) * plan.multipliers[layer, 1:2]
    return _fitting(found, plan, layer, 2, known, plan.multipliers[layer, 0])


def _fitting(found: Columns, plan: HashPlan, layer: int, n: int, known: Words, multiplier: np.uint64) -> int | None:
    """The one compressed id that, mixed into `known`, gives order n's rows in every head."""
    ids = np.arange(plan.compressed, dtype=np.uint64)
    for column in range((n - 2) * plan.heads, (n - 1) * plan.heads):
        with np.errstate(over="ignore"):
            mixes = known ^ (ids * multiplier)
        made = mixes % plan.moduli[layer, column] + plan.offsets[layer, column]
        ids = ids[made.astype(np.int64) == found[column]]
        if not ids.size:
            return None
    return int(ids[0]) if ids.size == 1 else None
