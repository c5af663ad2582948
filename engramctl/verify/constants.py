"""Hash constants as a file has them, right or wrong, and what they should be. Nothing here refuses an odd value.

A constant is a list of integers by role; `ROLES` names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import derivation, hash_params
from engramctl.hash_params import HashParams
from engramctl.profiles import Profile, Sizes
from engramctl.source import subset_params
from engramctl.stored import ROLES, Stored, of_container
from engramctl.verify.result import Result

__all__ = ["BY_LAYER", "ROLES", "Constants", "Expectation", "Stored", "compare", "container_layers", "derived"]
__all__ += ["of_container", "of_file", "of_params", "of_sizes", "published", "same_model", "statuses"]

BY_LAYER = {"multipliers": "position", "moduli": "column", "offsets": "column"}  # what counts within a layer
OTHER_PAD = {"pad_id": ("pad_token_id", "raw"), "pad_token_id": ("pad_id", "compressed")}

Constants = Mapping[str, list[int]]


def of_file(found: Mapping[str, Any]) -> Stored:
    """The constants of a params file, as `params_file.read` gives them."""
    stored = Stored(names={role: role for role in ROLES})
    for role in ROLES:
        value = found.get(role)
        if value is not None:
            stored.constants[role] = np.asarray(value).reshape(-1).tolist()
    for role in ("vocabulary", "token_map_sha256"):
        if found.get(role) is not None:
            stored.of_map[role] = str(found[role])
    return stored


def of_params(params: HashParams) -> dict[str, list[int]]:
    return {role: np.asarray(getattr(params, role)).reshape(-1).tolist() for role in ROLES if hasattr(params, role)}


def of_sizes(sizes: Sizes) -> dict[str, list[int]]:
    """What a model's sizes say beside its hash constants: the raw pad among them."""
    return {role: [getattr(sizes, role)] for role in ("width", "base", "pad_token_id")}


def derived(whole: Sizes, layers: tuple[int, ...], token_map: NDArray[np.uint32], profile: Profile) -> HashParams:
    """What the released code derives for a model of `whole` sizes, as far as `layers` go; the pad through the map."""
    sizes = replace(whole, pad_token_id=min(whole.pad_token_id, token_map.size - 1))
    made = derivation.derive(profile, sizes, token_map)
    padding = int(profile.derivation.get("padding", 1))
    rows = tuple(-(-int(each.sum()) // padding) * padding for each in made.moduli.astype(object))
    return subset_params(replace(made, rows=rows), layers)


def published(whole: Sizes, layers: tuple[int, ...], profile: Profile) -> HashParams | None:
    """The profile's published constants, where the sizes are the profile's; else None."""
    if replace(whole, eps=profile.sizes.eps) != profile.sizes:
        return None
    return subset_params(hash_params.published(profile), layers)


def same_model(whole: Sizes, profile: Profile) -> bool:
    return replace(whole, eps=profile.sizes.eps) == profile.sizes


@dataclass(frozen=True)
class Expectation:
    """Constants and who says so."""

    origin: str
    constants: Constants


def compare(
    check: str, stored: Stored, expectations: list[Expectation], layers: tuple[int, ...], result: Result
) -> None:
    """Each stored constant with each expectation that has it; equal expectations are one."""
    for where, expected, found in stored.problems:
        result.add(check, where, expected, found)
    for role in ROLES:
        by_value: dict[str, list[int]] = {}
        for expectation in expectations:
            if role in expectation.constants:
                value = expectation.constants[role]
                origin = next((name for name, other in by_value.items() if other == value), None)
                if origin is not None:
                    del by_value[origin]
                by_value[expectation.origin if origin is None else f"{origin} and {expectation.origin}"] = value
        if role in stored.constants:
            others = {each: theirs for made in expectations for each, theirs in made.constants.items()}
            label, listed = stored.names.get(role, role), stored.constants[role]
            for origin, value in by_value.items():
                _entries(check, label, role, listed, value, origin, layers, others, result)


def lacking(check: str, wanted: Stored, found: Stored, origin: str, result: Result) -> None:
    """Constants that are in `found` alone: there is nothing to hold them against, and that is a difference."""
    for role in found.constants:
        if role not in wanted.constants:
            result.add(check, f"key {found.names.get(role, role)}", f"no such key, as in {origin}", "one")


def _entries(
    check: str,
    name: str,
    role: str,
    found: list[int],
    expected: list[int],
    origin: str,
    layers: tuple[int, ...],
    others: Constants,
    result: Result,
) -> None:
    other, word = OTHER_PAD.get(role, ("", ""))
    also = others.get(other, [])
    if len(found) != len(expected):
        result.add(check, name, f"{len(expected)} entries as {origin}", f"{len(found)}")
    each = max(1, len(expected) // max(1, len(layers)))
    for i, (want, have) in enumerate(zip(expected, found, strict=False)):
        if want != have:
            confused = f", which is the {word} pad" if [have] == also else ""
            where = f"{name}{_place(role, i, each, layers, len(expected))}"
            result.add(check, where, f"{want} as {origin}", f"{have}{confused}")


def _place(role: str, i: int, each: int, layers: tuple[int, ...], count: int) -> str:
    if role in BY_LAYER and layers:
        return f", layer {layers[min(i // each, len(layers) - 1)]} {BY_LAYER[role]} {i % each}"
    if role == "token_map":
        return f", token id {i}"
    return f", entry {i}" if count > 1 else ""


def statuses(stored: Stored, expected: Constants | None) -> dict[str, str]:
    """For each stored constant: does the derivation give it?"""
    found = {}
    for role, value in stored.constants.items():
        if expected is None or role not in expected:
            found[role] = "stored only"
        else:
            found[role] = "stored = derived" if value == expected[role] else "conflict"
    return found


def container_layers(stored: Stored, whole: Sizes) -> tuple[int, ...]:
    """The model's layers that the container says it holds, in the model's order; all of them if it names others."""
    named = stored.constants.get("layers", [])
    return (
        tuple(layer for layer in whole.layers if layer in named)
        if named and set(named) <= {*whole.layers}
        else whole.layers
    )
