"""Hash constants from wherever they are: the profile, a params file, a container, a checkpoint; and what derivation
says of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engramctl import derivation, maps, params_file, profiles
from engramctl.arrays import STDIN
from engramctl.hash_params import HashParams, Status, compare, published
from engramctl.profiles import Profile, Sizes
from engramctl.source import FoundMap, fitting_map, is_container, open_source, subset_params


@dataclass(frozen=True)
class Found:
    """Constants, where they came from, and the whole model's sizes (None where the source does not say)."""

    params: HashParams
    origin: str
    whole: Sizes | None
    profile: Profile | None = None  # the model's, with what a config decides


def read(source: Path | None, profile_name: str | None = None, token_map: Path | None = None) -> Found:
    """The constants of `source`; without one, the profile's published ones. `token_map` replaces the source's map."""
    profile, given = profiles.load(profile_name or profiles.DEFAULT), maps.given(token_map)
    if source is None:
        ids = None if given is None else fitting_map(given, profile.sizes, given.origin).ids
        return Found(published(profile, ids), f"profile {profile.name}", profile.sizes, profile)
    if source != STDIN and (source.is_dir() or is_container(source) or source.suffix == ".safetensors"):
        with open_source(source, profile_name, given) as opened:
            return Found(opened.params(), str(source), opened.whole, opened.profile)
    found = params_file.read_file(source)
    ids = _map_for(found["token_map"], given, profile, source)
    return Found(params_file.with_map(found, ids, str(source)), str(source), None, profile)


def _map_for(
    stored: NDArray[np.uint32] | None, given: FoundMap | None, profile: Profile, source: Path
) -> NDArray[np.uint32]:
    if given is not None:
        return given.ids
    return profile.token_map() if stored is None else stored


def statuses(found: Found, profile: Profile) -> dict[str, Status]:
    """For each constant whether derivation from the sizes gives it; `stored only` where the sizes are not known."""
    return compare(found.params, derived(found, profile))


def derived(found: Found, profile: Profile) -> HashParams | None:
    """What the released code would derive for the same sizes and map; None where the sizes are not known."""
    whole, params = found.whole, found.params
    if derivation.EXPLICIT in profile.derivation.values():
        return None
    if whole is None:  # a params file: the profile's sizes, if its numbers are the profile's
        rows = tuple(
            rows for layer, rows in zip(profile.sizes.layers, profile.sizes.rows, strict=True) if layer in params.layers
        )
        if (params.rows, params.token_map.size, params.compressed) != (
            rows,
            profile.sizes.vocabulary,
            profile.sizes.compressed,
        ):
            return None
        whole = profile.sizes
    return subset_params(derivation.derive(profile, whole, params.token_map), params.layers)


def differs_from_profile(found: Found, profile: Profile) -> list[str]:
    """Names of the constants that are not the profile's published ones for the same layers."""
    kept = [i for i, layer in enumerate(profile.sizes.layers) if layer in found.params.layers]
    theirs = {name: getattr(profile, name)[kept] for name in ("multipliers", "moduli", "offsets")}
    theirs["rows"] = tuple(profile.sizes.rows[i] for i in kept)
    return [name for name, value in theirs.items() if not np.array_equal(getattr(found.params, name), value)]
