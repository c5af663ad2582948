"""How the released code of each model makes its hash constants from its sizes: a check on what a profile or file has.

moduli       unused_primes   the primes from `base` upwards, one walk over layers, orders and heads
             odd_walk        int(ratio * vocabulary + 1) + 2 * column, prime or not (the ratio may be fractional)
             constant        `base` for each column
             explicit        no rule gives them: they stand in the profile, for its sizes alone
multipliers  pcg64           numpy.random.default_rng(seed + 10007 * layer), odd, below 2**63 / ids
             splitmix64      SplitMix64 of seed + 10007 * (position in the list of layers), odd, below 2**63 / ids
             vocabulary      powers of the vocabulary's size, each modulo its column's modulus
             powers          powers of `prime` modulo 2**64
             explicit        as above
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import hash_params
from engramctl.errors import EngramctlError
from engramctl.hash_params import INT64_MAX, MOST_COLUMNS, SEED_STEP, HashParams
from engramctl.profiles import Profile, Sizes

U64 = 2**64
GAMMA = 0x9E3779B97F4A7C15  # SplitMix64's step (Steele, Lea, Flood 2014)

Array = NDArray[np.uint64]
EXPLICIT = "explicit"

How = dict[str, Any]  # the profile's [derivation]


def derive(profile: Profile, sizes: Sizes, token_map: NDArray[np.uint32]) -> HashParams:
    """The constants that the model's released code would derive. Not yet checked."""
    how = dict(profile.derivation)
    if (how["moduli"], how["multipliers"]) == ("unused_primes", "pcg64"):
        made = hash_params.derive(sizes, token_map, profile.seed)
        return hash_params.with_rule(made, profile, sizes)
    count = sizes.columns * len(sizes.layers)
    if not 1 <= count <= MOST_COLUMNS:
        raise EngramctlError("config", f"1 to {MOST_COLUMNS} hash columns", f"{count}")
    moduli = derive_moduli(profile, sizes)
    offsets = np.zeros_like(moduli)
    offsets[:, 1:] = np.cumsum(moduli, axis=1)[:, :-1]
    if how["moduli"] == EXPLICIT:
        offsets = profile.offsets
    multipliers = stated(profile, sizes, "multipliers")
    if multipliers is None:
        multipliers = MULTIPLIERS[how["multipliers"]](sizes, how, moduli)
    made = HashParams(
        sizes.layers, sizes.rows, sizes.heads, sizes.compressed, 0, token_map, multipliers, moduli, offsets
    )
    return hash_params.with_rule(made, profile, sizes)


def stated(profile: Profile, sizes: Sizes, name: str) -> Array | None:
    """Constants that no rule gives, as the profile states them, for its own sizes; None where there is a rule."""
    if profile.derivation[name] != EXPLICIT:
        return None
    if sizes != profile.sizes:
        what = f"the sizes of profile {profile.name}, whose {name} are explicit"
        raise EngramctlError(f"sizes for {name}", what, f"others: {', '.join(sizes.differences(profile.sizes))}")
    return np.asarray(getattr(profile, name))


def expected(profile: Profile, sizes: Sizes, token_map: NDArray[np.uint32]) -> HashParams:
    """The constants of these sizes: the profile's own where they are its sizes, else derived ones."""
    if sizes == profile.sizes and profile.moduli.size:
        return hash_params.published(profile, token_map)
    return derive(profile, sizes, token_map)


def rows(profile: Profile, sizes: Sizes) -> tuple[int, ...]:
    """Rows of each layer's table: the sum of its moduli, up to the next multiple of the padding."""
    made, padding = derive_moduli(profile, sizes), int(profile.derivation.get("padding", 1))
    return tuple(-(-int(layer.sum()) // padding) * padding for layer in made)


def derive_moduli(profile: Profile, sizes: Sizes) -> Array:
    """[L, C] moduli for these sizes."""
    explicit = stated(profile, sizes, "moduli")
    if explicit is not None:
        return explicit
    how, count = dict(profile.derivation), sizes.columns * len(sizes.layers)
    return np.array(MODULI[how["moduli"]](sizes, how, count), np.uint64).reshape(len(sizes.layers), sizes.columns)


def _unused_primes(sizes: Sizes, how: How, count: int) -> list[int]:
    return hash_params.unused_primes(sizes.base, count)


def _odd_walk(sizes: Sizes, how: How, count: int) -> list[int]:
    """As vLLM's longcat_flash_ngram.py has it: the float arithmetic is part of the rule."""
    m = sizes.ratio * sizes.vocabulary
    return [int(m + 2 * column + 1) for column in range(count)]


def _constant(sizes: Sizes, how: How, count: int) -> list[int]:
    return [sizes.base] * count


def _splitmix64(sizes: Sizes, how: How, moduli: Array) -> Array:
    half = INT64_MAX // sizes.compressed // 2
    return np.array(
        [
            [
                2 * (splitmix64(how["seed"] + SEED_STEP * ordinal + GAMMA * (i + 1)) % half) + 1
                for i in range(sizes.size)
            ]
            for ordinal in range(len(sizes.layers))
        ],
        np.uint64,
    )


def splitmix64(value: int) -> int:
    """One number of the generator, which adds its step first."""
    z = (value + GAMMA) % U64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % U64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % U64
    return z ^ (z >> 31)


def _vocabulary(sizes: Sizes, how: How, moduli: Array) -> Array:
    """[L, C, N]; 0 beyond a column's order."""
    weights = np.zeros((*moduli.shape, sizes.size), np.uint64)
    for layer, columns in enumerate(moduli.tolist()):
        for column, modulus in enumerate(columns):
            for i in range(sizes.smallest + column // sizes.heads):
                weights[layer, column, i] = pow(sizes.vocabulary, i, modulus)
    return weights


def _powers(sizes: Sizes, how: How, moduli: Array) -> Array:
    powers = [pow(how["prime"], i, U64) for i in range(sizes.size)]
    return np.array([powers] * len(sizes.layers), np.uint64)


MODULI: dict[str, Callable[[Sizes, How, int], list[int]]] = {
    "unused_primes": _unused_primes,
    "odd_walk": _odd_walk,
    "constant": _constant,
}
MULTIPLIERS: dict[str, Callable[[Sizes, How, Array], Array]] = {
    "splitmix64": _splitmix64,
    "vocabulary": _vocabulary,
    "powers": _powers,
}
