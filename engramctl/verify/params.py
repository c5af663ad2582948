"""check params: a file's hash constants against the derivation and against what is published."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engramctl import container_sizes, hash_params, mendable, params_file, sidecars
from engramctl.arrays import STDIN
from engramctl.checkpoint import read_config as checkpoint_config
from engramctl.errors import EngramctlError
from engramctl.mistakes import map_sources
from engramctl.profiles import Profile, Sizes
from engramctl.rules import V41_RULE
from engramctl.siblings import config as configs
from engramctl.source import FoundMap, is_container
from engramctl.verify import constants, name_params
from engramctl.verify.constants import Expectation, Stored
from engramctl.verify.result import Coverage, Result
from formats import recognise, tsd41
from formats.dialects import DS4, TENSORSHARP
from formats.disk import ReadFile
from formats.gguf_split import read_model

CHECK = "params"


def check(path: Path, profile: Profile, given: FoundMap | None = None, model: Path | None = None) -> Result:
    """Every constant of `path` (params file, container, checkpoint), entry by entry.

    The sizes that it is derived from are those of its own config, else of `model`'s, else the profile's; the token map
    is the given one, else the checkpoint's tokenizer's, else its own, else the profile's.
    """
    stored, whole, own = read(path, profile)
    of_model, model_map = (None, None) if model is None else sizes_of(model, profile)
    sizes = whole or of_model or stored.guess or profile.sizes
    shipped = FoundMap(profile.token_map(), f"profile {profile.name}") if _fits(profile, sizes) else None
    found_map = _as_map(stored)
    sure = given or own or model_map or shipped
    ids = sure.ids if sure is not None else found_map
    layers = constants.container_layers(stored, sizes)
    result = Result(Coverage("constants", 0, len(stored.constants) + len(stored.problems)))
    result.coverage.checked = len(stored.constants)
    if not result.coverage.of:
        raise EngramctlError(str(path), "stored constants to compare", "none", "repair writes them into a container")
    if whole is None and of_model is None and stored.guess is not None:
        result.notes.append("the sizes are what its own keys say: --source CHECKPOINT gives better ones")
    elif sizes is profile.sizes and stored.constants.get("rows", list(sizes.rows)) != list(sizes.rows):
        result.notes.append(f"not the rows of profile {profile.name}: --source CHECKPOINT says another model's sizes")
    expectations, derived = [], None
    if ids is not None:
        made = constants.derived(sizes, layers, ids, profile)
        derived = {role: value for role, value in constants.of_params(made).items() if role != "token_map" or sure}
        derived |= constants.of_sizes(sizes)
        expectations.append(Expectation("derived", derived))
    public = constants.published(sizes, layers, profile)
    if public is None:
        result.notes.append(f"not the sizes of profile {profile.name}: compared with the derivation alone")
    else:
        expectations.append(Expectation("published", constants.of_params(public) | constants.of_sizes(profile.sizes)))
    if ids is None:
        result.notes.append("no token map: nothing could be derived")
    elif sure is None:
        result.notes.append("no tokenizer: the token map is stored only, and the pad was derived through it")
    else:
        result.notes.append(f"token map of {sure.origin}")
    if public is not None and derived is not None:
        _derivation(constants.of_params(public), derived, layers, result)
    constants.compare(CHECK, stored, expectations, layers, result)
    inside = [] if found_map is None else [FoundMap(found_map, "the token map inside")]
    _map_facts(stored, inside + ([] if sure is None else [sure]), result)
    result.extra["constants"] = constants.statuses(stored, derived)
    if not result.ok and path != STDIN and path.is_file() and is_container(path):
        header = read_model(path, strict=False)
        mend = mendable.note(path, header, recognise.recognise(header), [mendable.KEY])
        result.notes += [mend] if mend else []
    right = public if public is not None or ids is None else made
    if not result.ok and right is not None and profile.rule == V41_RULE:
        tokenizer = next(
            (each / "tokenizer.json" for each in (path, model) if each is not None and each.is_dir()), None
        )
        known = map_sources.for_params(right, profile, tokenizer if tokenizer and tokenizer.is_file() else None)
        result.diagnosis = name_params.diagnose(stored.constants, right, known)
        if result.diagnosis is None:
            result.structure = name_params.facts(stored.constants, right)
    return result


def _derivation(
    public: constants.Constants, derived: constants.Constants, layers: tuple[int, ...], result: Result
) -> None:
    """NumPy promises no stream across versions: that the derivation still gives what is published is a check too."""
    for role in ("multipliers", "moduli", "offsets"):
        if public[role] != derived[role]:
            result.add("derivation", f"{role} of layers {list(layers)}", "the published ones", "others, by this NumPy")


def read(path: Path, profile: Profile) -> tuple[Stored, Sizes | None, FoundMap | None]:
    """Constants as stored, the sizes that the source states, and the map of its tokenizer."""
    if path == STDIN:
        return constants.of_file(params_file.read_file(path)), None, None
    if path.is_dir():
        sizes, own = sizes_of(path, profile)
        if sizes is None:
            hint = f"check source {path} --profile NAME judges the tensors alone"
            raise EngramctlError(str(path), "a config.json", "none", hint)
        stored = Stored(names={"layers": "engram_layer_ids", "rows": "engram_num_embeddings"})
        stored.names["compressed"] = profile.config_keys["compressed"][0]
        stored.constants = {"layers": list(sizes.layers), "rows": list(sizes.rows), "compressed": [sizes.compressed]}
        return stored, sizes, own
    if is_container(path):
        header = read_model(path, strict=False)
        dialect = recognise.recognise(header).best or DS4
        stored = constants.of_container(header, dialect)
        whole = container_sizes.of_container(header, dialect, stored.constants, profile)
        if whole != profile.sizes and dialect.config not in header.keys:
            stored.guess, whole = whole, None  # a file that says its own sizes proves little with them
        return stored, whole, None
    if (found_file := sidecars.recognise(path)) is not None and found_file.dialect is TENSORSHARP:
        return _of_tsd41(path), None, None
    return constants.of_file(params_file.read_file(path)), None, None


def _of_tsd41(path: Path) -> Stored:
    with ReadFile.open(path) as file:
        found = tsd41.read(file)
    stored = Stored(names={role: role for role in constants.ROLES})
    for role in ("compressed", "pad_token_id", "size", "heads", "width"):
        stored.constants[role] = [getattr(found, role)]
    for role in ("layers", "rows", "token_map", "multipliers", "moduli", "offsets"):
        stored.constants[role] = np.asarray(getattr(found, role)).reshape(-1).tolist()
    return stored


def _map_facts(stored: Stored, maps: list[FoundMap], result: Result) -> None:
    """What a file says about its token map, against the map it holds and the one it should have."""
    for name, said in stored.of_map.items():
        for each in maps:
            true = f"{each.ids.size}" if name == "vocabulary" else hash_params.digest(each.ids, "<u4")
            if said != true:
                result.add(CHECK, name, f"{true} as of {each.origin}", said)
                break


def sizes_of(path: Path, profile: Profile) -> tuple[Sizes | None, FoundMap | None]:
    """The sizes that a checkpoint or container states, and its tokenizer's or its own map."""
    if path.is_dir():
        _, config = checkpoint_config(path)
        sizes = None if config is None else configs.read(config, profile, str(path / "config.json"))[1]
        return sizes, tokenizer_map(path / "tokenizer.json")
    header = read_model(path, strict=False)
    dialect = recognise.recognise(header).best or DS4
    stored = constants.of_container(header, dialect)
    whole, ids = container_sizes.of_container(header, dialect, stored.constants, profile), _as_map(stored)
    return whole, None if ids is None else FoundMap(ids, str(path))


def tokenizer_map(path: Path) -> FoundMap | None:
    """The map that a tokenizer.json gives, derived a second way, if the file is there."""
    if not os.path.lexists(path):
        return None
    from engramctl.verify import second_map

    return second_map.derive(path)


def _as_map(stored: Stored) -> NDArray[np.uint32] | None:
    listed = stored.constants.get("token_map")
    if not listed or min(listed) < 0 or max(listed) >= 2**32:
        return None
    return np.array(listed, np.uint32)


def _fits(profile: Profile, sizes: Sizes) -> bool:
    """Is the profile's shipped map one for these sizes?"""
    own = profile.sizes
    return (sizes.vocabulary, sizes.compressed) == (own.vocabulary, own.compressed)
