"""Hidden states, keys, values and weights on which every mistake of the gate shows, and no two look alike.

T tokens, S streams, D hidden width. Numbers come from splitmix64, so that one seed gives one probe everywhere.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl.mistakes import catalogue
from engramctl.mistakes.gateplan import GateInputs, GatePlan, gates
from engramctl.mistakes.hash_probes import TRUTH, Pair
from engramctl.synth import random_u64
from formats.floats import from_bf16, to_bf16

SEED = 9
APART = 4e-6  # gates that differ by more than this are told apart: twice what a check allows, on either side
WHY = (  # of each token, in order
    "ordinary",
    "streams of different sizes",
    "small stream and key: eps shows",
    "key of zeros: the dot product is exactly 0",
    "key that is almost orthogonal: the clamp shows",
    "the same, other sign",
    "stream equal to key",
    "dead",
    "dead, of other numbers",
    "ordinary",
)


def uniform(seed: int, *shape: int) -> NDArray[np.float32]:
    """In -1..1, BF16 values."""
    count = int(np.prod(shape))
    made = (random_u64(seed, 0, count) >> np.uint64(40)).astype(np.float64) / 2**23 - 1
    return from_bf16(to_bf16(made.reshape(shape).astype(np.float32)))


def inputs(streams: int, hidden: int) -> GateInputs:
    """The probe for a model's streams and hidden width."""
    T = len(WHY)
    h, k = uniform(SEED, T, streams, hidden), uniform(SEED + 1, T, streams, hidden)
    value = uniform(SEED + 2, T, hidden)
    q, w = (np.float32(1) + uniform(seed, streams, hidden) / np.float32(2) for seed in (SEED + 3, SEED + 4))
    h[1] *= (2.0 ** np.arange(streams, dtype=np.float32))[:, None]
    k[1] *= (2.0 ** -np.arange(streams, dtype=np.float32))[:, None]
    h[2], k[2] = h[2] * np.float32(2**-13), h[2] * np.float32(2**-13)
    k[3] = 0
    for token, sign in ((4, 1), (5, -1)):  # one product of the sum is not cancelled: a tiny dot product
        h[token], k[token] = 0, 0
        h[token, :, 0], k[token, :, 0] = np.float32(2**-30), np.float32(sign)
        h[token, :, 1], k[token, :, 2] = 1, 1
    k[6] = h[6]
    mask = np.array(["dead" not in why for why in WHY])
    return GateInputs(to_bf16(h), to_bf16(k), to_bf16(value), to_bf16(q), to_bf16(w), mask)


def variations(plan: GatePlan) -> dict[str, GatePlan]:
    """The truth and each entry's plan."""
    made = {entry.name: entry.vary(plan) for entry in catalogue.GATING}
    return {TRUTH: plan} | {name: varied for name, varied in made.items() if varied is not None}


def matrix(plan: GatePlan, probe: GateInputs) -> list[Pair]:
    """Every pair of the truth and the entries, and the token that tells them apart."""
    plans = variations(plan)
    return [
        Pair(one, other, WHY[at] if at is not None else None, at, None if at is not None else reason(first, second))
        for (one, first), (other, second) in combinations(plans.items(), 2)
        for at in [apart(first, second, probe)]
    ]


def apart(one: GatePlan, other: GatePlan, probe: GateInputs) -> int | None:
    """The first token at which two plans give other gates."""
    differs = np.abs(gates(one, probe) - gates(other, probe)).max(axis=1) > APART
    return int(differs.argmax()) if differs.any() else None


def reason(one: GatePlan, other: GatePlan) -> str | None:
    if one == other:
        return "both come to the same eps, clamp and rules here"
    if {one.clamp == 0, other.clamp == 0} == {True, False} and (one.clamp_after or other.clamp_after):
        return "their gates differ only for dot products below 1e-12, by at most 2.5e-7: F32 sums may cost more"
    return None


def told_apart(plan: GatePlan, one: GatePlan, other: GatePlan) -> str:
    """What would tell two candidates apart, in words."""
    at = apart(one, other, inputs(4, 64))
    if at is not None:
        return f"token {at} of `engramctl probe gate` ({WHY[at]}) tells them apart"
    return reason(one, other) or "no token of `engramctl probe gate` tells them apart"


def arrays(probe: GateInputs) -> dict[str, NDArray[Any]]:
    """By the names that `check gate` reads."""
    assert probe.mask is not None
    return {
        "hidden": probe.hidden,
        "key": probe.key,
        "value": probe.value,
        "q_weight": probe.q_weight,
        "k_weight": probe.k_weight,
        "mask": probe.mask,
    }
