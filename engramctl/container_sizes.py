"""The sizes of a container's model: its own config's, the profile's where its tables are that model's, or its keys'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engramctl import config as configs
from engramctl.profiles import Profile, Sizes
from formats import recognise
from formats.dialect import Dialect
from formats.errors import FormatError
from formats.gguf_file import GgufHeader

Constants = Mapping[str, list[int]]  # by role, as stored


def read_config(header: GgufHeader, dialect: Dialect) -> dict[str, Any] | None:
    """The checkpoint's config.json that the container carries, parsed; None where there is none."""
    if dialect.config not in header.keys:
        return None
    value = header.keys[dialect.config]
    if not isinstance(value.value, str):
        raise FormatError(header.path, f"key {dialect.config}", "string", recognise.describe(value))
    return configs.parse(value.value, f"{header.path} at key {dialect.config}")


def of_container(header: GgufHeader, dialect: Dialect, stored: Constants, profile: Profile) -> Sizes | None:
    """The whole model's sizes; None where a container of another model does not say them all."""
    config = read_config(header, dialect)
    if config is not None:
        return configs.read_sizes(config, profile, f"{header.path} at key {dialect.config}")
    layers = tuple(stored.get("layers") or recognise.layers_of(header, dialect))
    if len(layers) > configs.MOST["layers"]:
        return None
    rows = rows_of(header, dialect, stored, layers)
    profile.needs_constants()
    ours = dict(zip(profile.sizes.layers, profile.sizes.rows, strict=True))
    if layers and all(rows.get(layer) in (None, ours.get(layer, -1)) for layer in layers):
        return profile.sizes
    return _of_keys(header, dialect, stored, layers, rows, profile)


def rows_of(header: GgufHeader, dialect: Dialect, stored: Constants, layers: tuple[int, ...]) -> dict[int, int]:
    """Rows of each table: as the tensors have them, else as the keys say."""
    there = header.named
    said = stored.get("rows", [])
    found = {}
    for number, layer in enumerate(layers):
        tensor = there.get(dialect.tensors.get("table", "").format(layer=layer))
        if tensor is not None and len(tensor.shape) == 2:
            found[layer] = tensor.shape[1]
        elif number < len(said):
            found[layer] = said[number]
    return found


def _of_keys(
    header: GgufHeader,
    dialect: Dialect,
    stored: Constants,
    layers: tuple[int, ...],
    rows: Mapping[int, int],
    profile: Profile,
) -> Sizes | None:
    """Sizes that keys and tensors say; primes are taken to begin where the smallest one is."""
    ids, moduli, own = stored.get("token_map"), stored.get("moduli"), profile.sizes
    if not layers or not ids or not moduli or set(rows) != set(layers) or min(ids) < 0 or min(moduli) < 1:
        return None

    def scalar(role: str, default: int) -> int:
        return stored[role][0] if stored.get(role) else default

    pads = stored.get("pad_token_id") or [i for i, each in enumerate(ids) if [each] == stored.get("pad_id")][:1]
    if not pads:
        return None
    there = header.named
    gate = there.get(dialect.tensors.get("q_weight", "").format(layer=layers[0]))
    shape = gate.shape if gate is not None and len(gate.shape) == 2 else (own.hidden, own.streams)
    made = replace(
        own,
        layers=layers,
        rows=tuple(rows[layer] for layer in layers),
        size=scalar("size", own.size),
        heads=scalar("heads", own.heads),
        width=scalar("width", own.width),
        base=scalar("base", min(moduli)),
        vocabulary=len(ids),
        compressed=scalar("compressed", max(ids) + 1),
        pad_token_id=pads[0],
        hidden=shape[0],
        streams=shape[1],
    )
    return made if _sound(made) else None


def _sound(sizes: Sizes) -> bool:
    """Within the bounds that a config's sizes have to keep."""
    most, least = configs.MOST, configs.LEAST
    names = ("size", "heads", "width", "base", "vocabulary", "compressed", "hidden", "streams")
    return (
        len(sizes.layers) <= most["layers"]
        and all(least.get(name, 1) <= getattr(sizes, name) <= most[name] for name in names)
        and all(0 <= layer <= most["layers"] * 16 for layer in sizes.layers)
        and all(1 <= rows <= most["rows"] for rows in sizes.rows)
        and 0 <= sizes.pad_token_id < sizes.vocabulary
        and len(set(sizes.layers)) == len(sizes.layers)
    )
