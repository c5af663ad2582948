"""show, for a sibling's checkpoint: what it is, from headers and the few constants that it stores as tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from engramctl import config as v41_configs
from engramctl import profiles, siblings
from engramctl.checkpoint import read_config
from engramctl.errors import EngramctlError
from engramctl.profiles import Profile, Sizes
from engramctl.siblings import checkpoint, tensors
from engramctl.source import V41_ROWS, is_container, is_ple, named
from formats import safetensors_raw
from formats.errors import FormatError
from formats.gguf_file import GgufHeader
from formats.gguf_split import read_model
from formats.recognise import describe as describe_type

LISTED = 24  # tensors that are listed: a table of 128 shards is one line


def describe_any(path: Path, profile_name: str | None) -> dict[str, Any]:
    """What `show` says of any file or folder: a sibling's here, V4.1's and everything else there."""
    from engramctl import show

    if path.is_dir() or path.suffix == ".safetensors":
        try:
            profile = profiles.fitting(profile_name, read_config(path)[1])
        except FormatError:  # a config that is none is described too
            profile = profiles.load(profile_name or profiles.DEFAULT)
        if profile.storage.encoding != V41_ROWS:
            return describe(path, profile, profile_name is not None)
    elif path.is_file() and is_container(path):
        header = read_model(path, strict=False, any_text=True)
        if is_ple(header):
            return describe_container(path, profile_name, header)
        return show.describe(path, profile_name, header)
    return show.describe(path, profile_name)


def describe(path: Path, profile: Profile, named: bool) -> dict[str, Any]:
    """Everything that headers say; what is no checkpoint raises `FormatError`."""
    config_text, config = read_config(path)
    problem, sizes = None, None
    try:
        profile, sizes = checkpoint.read_sizes(path, profile, config, named)
    except (FormatError, EngramctlError) as error:
        problem = str(error)
    layers = () if sizes is None else sizes.layers
    wanted: dict[tensors.Key, tensors.Wanted] = {}
    for layer in layers:
        assert sizes is not None
        wanted |= tensors.wanted(profile, sizes, layer)
    names = {want.name: want for want in wanted.values()}
    found = safetensors_raw.read_checkpoint(path, lambda name: name in names, strict=False)
    absent = [want.name for want in wanted.values() if want.name not in found.tensors and not want.optional]
    wrong = [{"where": where, "expected": expected, "found": seen} for where, expected, seen in found.problems]
    for tensor in found.tensors.values():
        try:
            tensors.check(tensor, names[tensor.name])
        except FormatError as error:
            wrong.append({"where": tensor.name, "expected": error.expected, "found": error.found})
    whole = not (absent or wrong or problem)
    differs = {} if sizes is None else sizes.differences(profile.sizes)
    return {
        "path": str(path),
        "kind": "checkpoint",
        "dialect": checkpoint.DIALECT if whole else None,
        "nearest": checkpoint.DIALECT,
        "missing": absent,
        "wrong": wrong,
        "missing_shards": sorted({shard for name, shard in found.missing.items() if name in names}),
        "shards": [shard.name for shard in found.shards],
        "tensors": _tensors(found, wanted),
        "constants": _constants(path, profile, config_text, config) if whole else {},
        "loaders": {},
        "config_problem": problem,
        "profile": profile.name,
        "sizes": None if sizes is None else vars(sizes),
        "synthetic": v41_configs.is_synthetic(config),
        "differs_from_profile": {name: {"here": here, "profile": there} for name, (here, there) in differs.items()},
        "token_map": _map_origin(path, profile, sizes),
    }


def _tensors(found: safetensors_raw.Checkpoint, wanted: dict[tensors.Key, tensors.Wanted]) -> list[dict[str, Any]]:
    """Each tensor, or of a long row of pieces the first and the last."""
    listed = []
    for (layer, role, number), want in wanted.items():
        pieces = sum(key[:2] == (layer, role) for key in wanted)
        tensor = found.tensors.get(want.name)
        if tensor is None or (pieces > LISTED and number not in (0, pieces - 1)):
            continue
        listed.append(
            {
                "name": tensor.name,
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "file": tensor.path.name,
                "start": tensor.start,
                "bytes": tensor.end - tensor.start,
            }
        )
    return listed


def _constants(path: Path, profile: Profile, config_text: str | None, config: dict[str, Any] | None) -> dict[str, Any]:
    """What the checkpoint stores as tensors."""
    with checkpoint.open_checkpoint(path, profile, config_text, config) as source:
        return {
            f"{name} of layer {layer}": {"type": "I64", "count": int(array.size), "value": array.tolist()}
            for name, layers in source.stored().items()
            for layer, array in layers.items()
        }


def _map_origin(path: Path, profile: Profile, sizes: Sizes | None) -> dict[str, Any]:
    if profile.rule.id_space != "map":
        return {"origin": f"none: {profile.rule.id_space} ids are hashed as they are"}
    if path.is_dir() and (path / "tokenizer.json").exists():
        return {"origin": "the checkpoint's tokenizer.json"}
    same = sizes is not None and sizes.compressed == profile.sizes.compressed
    return {"origin": f"profile {profile.name}" if same else None}


def describe_container(path: Path, profile_name: str | None, header: GgufHeader) -> dict[str, Any]:
    """A GGUF whose architecture is one of Qwen3.8's: what headers say, and whom it would suit."""
    from engramctl.siblings import container, loader
    from formats.ple_gguf import DIALECTS

    dialect = container.dialect_of(header)
    meant = dialect or next(each for each in DIALECTS if each.architecture == named(header))
    broken = loader.reasons(header, meant)
    missing = [where for where, _, seen in broken if seen in ("no such key", "none")]
    odd = [*header.text_errors, *(each for each in broken if each[2] not in ("no such key", "none"))]
    wrong = [{"where": where, "expected": expected, "found": seen} for where, expected, seen in odd]
    problem, sizes, profile = None, None, profiles.load(profile_name or siblings.PLE_PROFILE)
    try:
        with container.open_named(path, profile_name, header) as opened:
            sizes, profile = opened.sizes, opened.profile
    except (FormatError, EngramctlError) as error:
        problem = str(error)
    differs = {} if sizes is None else sizes.differences(profile.sizes)
    return {
        "path": str(path),
        "kind": "container",
        "dialect": meant.name if not broken and dialect else None,
        "nearest": meant.name if dialect else None,
        "missing": missing,
        "wrong": wrong,
        "architecture": meant.architecture,
        "version": header.version,
        "alignment": header.alignment,
        "file_bytes": header.file_size,
        "tensors": [
            {"name": t.name, "type": container.type_of(t), "shape": list(t.shape), "start": t.start, "bytes": t.size}
            for t in header.tensors
            if "ple_" in t.name or t.name == meant.tensors["table"]
        ],
        "constants": _key_constants(header),
        "loaders": {loader.LOADERS[meant.name]: loader.verdict(header, meant, broken)},
        "config_problem": problem,
        "profile": profile.name,
        "sizes": None if sizes is None else vars(sizes),
        "synthetic": False,
        "differs_from_profile": {name: {"here": here, "profile": there} for name, (here, there) in differs.items()},
        "token_map": {"origin": "none: raw ids are hashed as they are"},
        "notes": [] if dialect is None else loader.notes(header, dialect),
    }


def _key_constants(header: GgufHeader) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in header.keys.items():
        if ".ple." not in name:
            continue
        entry: dict[str, Any] = {"type": describe_type(value)}
        if value.item is None:
            entry["value"] = value.value
        else:
            items = value.value.tolist() if isinstance(value.value, np.ndarray) else value.value
            entry |= {"count": len(items), "value" if len(items) <= LISTED else "begins": items[:LISTED]}
        found[name] = entry
    return found
