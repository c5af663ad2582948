"""Where repaired constants come from, and that they are right before a byte is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engramctl import config as configs
from engramctl import constants, container_sizes, hash_params, maps, profiles, stored
from engramctl.checkpoint import read_config
from engramctl.errors import EngramctlError
from engramctl.hash_params import HashParams
from engramctl.profiles import Profile, Sizes
from engramctl.source import FoundMap, fitting_map, is_container, subset_params
from formats import gguf_split, recognise
from formats.dialect import Dialect
from formats.dialects import DS4
from formats.errors import FormatError
from formats.gguf_file import GgufHeader


@dataclass(frozen=True)
class Truth:
    """Constants of the layers that a file holds, the model's sizes, and who says so."""

    params: HashParams
    sizes: Sizes
    origin: str
    config_text: str | None = None


def find(
    header: GgufHeader, dialect: Dialect, source: Path | None, profile: Profile, profile_name: str | None
) -> Truth:
    """The right constants for a container: of `source`, else of the profile; they must fit its tables."""
    layers = recognise.table_layers(header, dialect) or recognise.layers_of(header, dialect)
    if not layers:
        found = "; ".join(("none", *gguf_split.notes(header)))
        raise FormatError(header.path, None, "a table, so that constants can be held against it", found)
    own = profile.sizes.layers
    if min(own) < 0 or (source is None and not set(layers) <= set(own)):
        found = f"{profile.name} with {list(own) if min(own) >= 0 else 'none'}"
        raise EngramctlError(str(header.path), f"a profile with its layers {layers}", found, _other(source))
    truth = _truth(header, dialect, source, profile, profile_name)
    rows = container_sizes.rows_of(header, dialect, {}, layers)
    strange = [layer for layer in layers if layer not in truth.params.layers]
    if strange:
        where = f"layers among {list(truth.params.layers)} as {truth.origin} has them"
        raise EngramctlError(str(header.path), where, f"{strange[0]}", _other(source))
    params = subset_params(truth.params, layers)
    for layer, count in zip(params.layers, params.rows, strict=True):
        if rows.get(layer, count) != count:
            where = f"{count} rows in layer {layer}, as {truth.origin} has them"
            raise EngramctlError(str(header.path), where, f"{rows[layer]}", _other(source))
    truth = replace(truth, params=params.check(truth.origin))
    if truth.config_text is not None:
        _require_gates(header, dialect, truth)
    return truth


def _other(source: Path | None) -> str | None:
    return "give --from CHECKPOINT, TOKENIZER or FILE of that model" if source is None else None


def _truth(
    header: GgufHeader, dialect: Dialect, source: Path | None, profile: Profile, profile_name: str | None
) -> Truth:
    if source is None:
        return _checked(hash_params.published(profile), profile.sizes, f"profile {profile.name}", profile)
    if source.is_dir():
        text, config = read_config(source)
        if config is None:
            raise FormatError(source, None, "a config.json", "none")
        sizes = configs.read_sizes(config, profile, str(source / "config.json"))
        found = _map_of(source, sizes, profile)
        return replace(_derived(sizes, found, str(source), profile), config_text=text)
    if is_container(source) or _is_params(source):
        known = constants.read(source, profile_name)
        whole = known.whole or _sizes_beside(header, dialect, known.params, profile)
        text = _config_text(source) if is_container(source) else None
        return replace(_checked(known.params, whole, str(source), profile), config_text=text)
    found = maps.read(source, profile)
    sizes = _sizes_beside(header, dialect, found.ids, profile)
    return _derived(sizes, fitting_map(found, sizes, source), str(source), profile)


def _config_text(source: Path) -> str | None:
    """The config that another container carries, which its sizes were read from."""
    header = gguf_split.read_model(source)
    held = header.keys.get((recognise.recognise(header).best or DS4).config)
    return held.value if held is not None and isinstance(held.value, str) else None


def _require_gates(header: GgufHeader, dialect: Dialect, truth: Truth) -> None:
    """A config that is to be written has the hidden states' sizes that the file's own gate weights have."""
    wanted = [truth.sizes.hidden, truth.sizes.streams]
    for layer in truth.params.layers:
        gate = header.named.get(dialect.tensors.get("q_weight", "").format(layer=layer))
        if gate is not None and len(gate.shape) == 2 and list(gate.shape) != wanted:
            where = f"{header.path}: tensor {gate.name}"
            raise EngramctlError(where, f"{wanted}, as the config of {truth.origin} has them", f"{list(gate.shape)}")


def _is_params(path: Path) -> bool:
    return path.suffix in (".npz",) or (path.suffix == ".json" and b'"multipliers"' in path.read_bytes()[: 1 << 20])


def _map_of(folder: Path, sizes: Sizes, profile: Profile) -> FoundMap:
    tokenizer = folder / "tokenizer.json"
    if tokenizer.exists():
        return fitting_map(maps.read(tokenizer, profile), sizes, tokenizer)
    if (sizes.vocabulary, sizes.compressed) == (profile.sizes.vocabulary, profile.sizes.compressed):
        return FoundMap(profile.token_map(), f"profile {profile.name}")
    raise FormatError(folder, None, "a tokenizer.json", "none, and the profile's map has other sizes")


def _sizes_beside(
    header: GgufHeader, dialect: Dialect, known: HashParams | NDArray[np.uint32], profile: Profile
) -> Sizes:
    """Constants without sizes, or a map alone: the sizes are the container's own, else the profile's."""
    said: dict[str, list[int]] = dict(stored.of_container(header, dialect).constants)
    if isinstance(known, HashParams):
        said |= {"token_map": known.token_map.tolist(), "moduli": known.moduli.reshape(-1).tolist()}
        said["compressed"] = [known.compressed]
    else:
        said["token_map"] = known.tolist()
    own = container_sizes.of_container(header, dialect, said, profile)
    return profile.sizes if own is None else own


def _derived(sizes: Sizes, found: FoundMap, origin: str, profile: Profile) -> Truth:
    if sizes == profile.sizes:
        return _checked(hash_params.published(profile, found.ids), sizes, origin, profile)
    return _checked(hash_params.derive(sizes, found.ids, profile.seed), sizes, origin, profile)


def _checked(params: HashParams, sizes: Sizes, origin: str, profile: Profile) -> Truth:
    """Constants that contradict their own derivation are not written anywhere."""
    params = params.check(origin)
    derived = hash_params.derive(sizes, params.token_map, profile.seed)
    for name, status in hash_params.compare(params, subset_params(derived, params.layers)).items():
        if status == "conflict":
            raise EngramctlError(origin, f"{name} as derived from its sizes and map", "others")
    if replace(sizes, eps=profile.sizes.eps) == profile.sizes:
        digest = hash_params.digest(params.token_map, "<u4")
        if digest != profile.digests["token_map_u32"]:
            want = f"the published token map {profile.digests['token_map_u32']}"
            raise EngramctlError(origin, want, digest)
    assert np.all(params.multipliers % 2)
    return Truth(params, sizes, origin)


def of_name(name: str | None) -> Profile:
    return profiles.load(name or profiles.DEFAULT)
