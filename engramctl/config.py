"""A checkpoint's config.json: the sizes of its Engram, under whichever published spelling."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engramctl.errors import EngramctlError
from engramctl.profiles import Profile, Sizes
from formats import strict_json
from formats.errors import FormatError, shown

SYNTHETIC = "engramctl_synthetic"  # set in configs that `synth` writes

# Far above any model, low enough that shapes and loops stay small: a config is as hostile as any other file.
MOST = {"layers": 256, "size": 64, "heads": 1024, "width": 1 << 16, "vocabulary": 1 << 24, "compressed": 1 << 24}
MOST |= {"rows": 1 << 40, "base": 1 << 40, "pad_token_id": 1 << 24, "hidden": 1 << 20, "streams": 1 << 10}
LEAST = {
    "size": 2,
    "pad_token_id": 0,
    "eos_token_id": 0,
    "image_token_id": 0,
}  # the others are at least 1; a layer id at least 0


def is_synthetic(config: Mapping[str, object] | None) -> bool:
    """Does the config say that `synth` made it?"""
    return config is not None and config.get(SYNTHETIC) is True


def parse(text: str, path: str) -> dict[str, Any]:
    """The config as a dict; anything else raises `FormatError`."""
    try:
        config = json.loads(text, object_pairs_hook=strict_json.once(path, None))
    except (ValueError, RecursionError) as error:
        raise FormatError(path, None, "a JSON object", f"{error or type(error).__name__}") from None
    if not isinstance(config, dict):
        raise FormatError(path, None, "a JSON object", type(config).__name__)
    return config


def text_part(config: dict[str, Any], path: str) -> dict[str, Any]:
    """The language model's part: `text_config` where there is one, else the config itself."""
    part = config.get("text_config", config)
    if not isinstance(part, dict):
        raise FormatError(path, "text_config", "a JSON object", type(part).__name__)
    return part


def read_sizes(config: dict[str, Any], profile: Profile, path: str) -> Sizes:
    """Sizes as the config states them; a missing, odd or contradictory one raises `FormatError` naming the key.

    A profile that does not say under which keys they stand raises `EngramctlError`.
    """
    profile.needs_constants()
    if not profile.config_keys:
        raise EngramctlError(f"profile {profile.name}", f"[config_keys], to read {path} by", "none")
    part = text_part(config, path)
    found: dict[str, Any] = {}
    for size, spellings in profile.config_keys.items():
        present = {key: part[key] for key in spellings if part.get(key) is not None}
        if not present:
            raise FormatError(path, "text_config", " or ".join(spellings), "no such key")
        key, value = next(iter(present.items()))
        for other, theirs in present.items():
            if theirs != value:
                raise FormatError(path, other, f"{value} as in {key}", f"{theirs}")
        found[size] = _checked(size, value, f"text_config.{key}", path)
    if len(found["layers"]) != len(found["rows"]):
        raise FormatError(
            path,
            profile.config_keys["rows"][0],
            f"{len(found['layers'])} row counts, one a layer",
            f"{len(found['rows'])}",
        )
    if len(set(found["layers"])) != len(found["layers"]):
        raise FormatError(path, profile.config_keys["layers"][0], "each layer once", f"{list(found['layers'])}")
    if found["pad_token_id"] >= found["vocabulary"]:
        raise FormatError(
            path,
            profile.config_keys["pad_token_id"][0],
            f"a token id below {found['vocabulary']}",
            f"{found['pad_token_id']}",
        )
    if found["compressed"] > found["vocabulary"]:
        raise FormatError(
            path,
            profile.config_keys["compressed"][0],
            f"at most the {found['vocabulary']} token ids",
            f"{found['compressed']}",
        )
    return replace(profile.sizes, **found)


def _checked(size: str, value: object, at: str, path: str) -> object:
    if size == "eps":
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
            raise FormatError(path, at, "a number from 0 up to 1", f"{shown(value):.40}")
        return float(value)
    if size in ("layers", "rows"):
        if not isinstance(value, list) or not 1 <= len(value) <= MOST["layers"]:
            raise FormatError(path, at, f"a list of 1 to {MOST['layers']} integers", f"{shown(value):.40}")
        least = 0 if size == "layers" else 1
        most = MOST["layers"] * 16 if size == "layers" else MOST["rows"]
        return tuple(_integer(item, least, most, at, path) for item in value)
    return _integer(value, LEAST.get(size, 1), MOST.get(size, MOST["vocabulary"]), at, path)


def _integer(value: object, least: int, most: int, at: str, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise FormatError(path, at, f"an integer from {least} to {most}", f"{shown(value):.40}")
    return value
