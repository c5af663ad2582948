"""Mistakes of the hash constants: multipliers, moduli and offsets that are another model's, layer's or position's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from engramctl.hash_params import pcg64_multipliers
from engramctl.mistakes.hashing import HashPlan, Words
from engramctl.mistakes.record import ENGRAM, Mistake

ALL_WRONG = "No row is the trained one: the memory is noise in every layer that is affected."


def drawn(
    layers: Callable[[HashPlan], list[int]], compressed: Callable[[HashPlan], int]
) -> Callable[[HashPlan], HashPlan]:
    """Multipliers as derivation would draw them for other layer numbers or another bound."""

    def vary(plan: HashPlan) -> HashPlan:
        made = [pcg64_multipliers(layer, plan.size, compressed(plan)) for layer in layers(plan)]
        return replace(plan, multipliers=np.array(made, np.uint64))

    return vary


def running_sums(moduli: Words) -> Words:
    offsets = np.zeros_like(moduli)
    offsets[:, 1:] = np.cumsum(moduli, axis=1)[:, :-1]
    return offsets


def restarted(plan: HashPlan) -> HashPlan:
    moduli = np.repeat(plan.moduli[:1], len(plan.layers), axis=0)
    return replace(plan, moduli=moduli, offsets=running_sums(moduli))


MISTAKES: tuple[Mistake[HashPlan], ...] = (
    Mistake(
        "seed-by-index",
        "constants",
        "Multipliers are seeded by the Engram's index (0, 1) instead of its decoder layer (1, 14).",
        "Every row of every layer differs; the moduli are right, so rows stay inside their columns.",
        ALL_WRONG,
        "Seed with 10007 * decoder layer, or take the published multipliers.",
        ENGRAM + ": default_rng(seed + 10007 * layer_id)",
        drawn(lambda plan: list(range(len(plan.layers))), lambda plan: plan.compressed),
    ),
    Mistake(
        "seed-layer-plus-one",
        "constants",
        "Multipliers are seeded by layer + 1, counting layers from one.",
        "Every row of every layer differs; the moduli are right, so rows stay inside their columns.",
        ALL_WRONG,
        "Count decoder layers from 0, or take the published multipliers.",
        ENGRAM + ": default_rng(seed + 10007 * layer_id)",
        drawn(lambda plan: [layer + 1 for layer in plan.layers], lambda plan: plan.compressed),
    ),
    Mistake(
        "bound-from-raw-vocabulary",
        "constants",
        "Multipliers are drawn below 2**63 / raw vocabulary size instead of 2**63 / compressed size.",
        "Every row differs; each multiplier is about three quarters of the right one.",
        ALL_WRONG,
        "Divide by the number of compressed ids, or take the published multipliers.",
        ENGRAM + ": the bound is of the compressed vocabulary",
        drawn(lambda plan: list(plan.layers), lambda plan: int(plan.true_map.size)),
    ),
    Mistake(
        "multipliers-reversed",
        "constants",
        "A layer's multipliers are stored last first: the current token meets the last one, in every order.",
        "Every row differs.",
        ALL_WRONG,
        "multiplier[0] belongs to the current token, multiplier[n - 1] to the oldest of an n-gram.",
        ENGRAM + ": shift k meets multiplier k",
        lambda plan: replace(plan, multipliers=plan.multipliers[:, ::-1].copy()),
    ),
    Mistake(
        "multipliers-shared",
        "constants",
        "All layers use the first layer's multipliers.",
        "The first layer agrees; every row of the others differs.",
        "The later layers' memory is noise.",
        "Keep one set of multipliers for each layer.",
        ENGRAM + ": multipliers are drawn per layer",
        lambda plan: replace(plan, multipliers=np.repeat(plan.multipliers[:1], len(plan.layers), axis=0)),
    ),
    Mistake(
        "multipliers-32-bit",
        "constants",
        "Multipliers are stored in 32 bits: their upper bits are lost.",
        "Every row differs; each stored multiplier is the right one modulo 2**32.",
        ALL_WRONG,
        "Store multipliers as 64-bit integers: they have 47 bits.",
        "ggml-org/llama.cpp#28696",
        lambda plan: replace(plan, multipliers=plan.multipliers & np.uint64(0xFFFFFFFF)),
    ),
    Mistake(
        "primes-restart",
        "constants",
        "The walk over primes starts anew for each layer instead of going on.",
        "The first layer agrees. The others' rows sum to the first's row count (384,006,168 for 384,016,682).",
        "The later layers' memory is noise.",
        "Keep one set of used primes over all layers and orders.",
        ENGRAM + ": one seen set for all primes",
        restarted,
    ),
)
