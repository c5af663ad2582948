"""show: what a file or folder is, from headers alone. Broken files are described, not refused, as far as they parse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from engramctl import config as configs
from engramctl import container_sizes, kinds, known_files, maps, mendable, profiles, shapes, show_files, sidecars
from engramctl import stored as stores
from engramctl.checkpoint import DIALECT, read_config
from engramctl.hash_params import digest
from engramctl.profiles import Profile, Sizes
from engramctl.source import is_container
from formats import checkpoint_forms, safetensors_raw
from formats.dialects import DS4, Dialect
from formats.errors import FormatError
from formats.gguf_file import GgufHeader, TensorInfo
from formats.gguf_split import read_model
from formats.recognise import describe as describe_type
from formats.recognise import recognise, type_of

ENGRAM_DOT = ".engram."  # in the name of every tensor of a checkpoint's Engram
ENGRAM = ".engram_"  # in the name of nearly every Engram tensor
LISTED = 8  # items of a long array that are shown
MOST_WHY = 100  # broken rules of a loader that are listed; all are counted
MOST_LISTED = 1000  # tensors and constants
MOST_TEXT = 1000  # characters of a text


def describe(path: Path, profile_name: str | None = None, header: GgufHeader | None = None) -> dict[str, Any]:
    """Everything that headers say; what is no container and no checkpoint raises `FormatError`."""
    profile = profiles.load(profile_name or profiles.DEFAULT)
    if kinds.name(path) == kinds.UNFINISHED:
        return show_files.unfinished(path, profile)
    if path.is_dir() and (every := sidecars.of_folder(path)):
        return show_files.folder(path, every, profile)
    if path.is_dir() or path.suffix == ".safetensors":
        return _checkpoint(path, profile)
    if is_container(path):
        return _container(path, profile, read_model(path, strict=False, any_text=True) if header is None else header)
    show_files.refuse_part(path)
    found = sidecars.recognise(path)
    if found is not None:
        return show_files.sidecar(found, profile)
    if maps.looks_like_one(path):
        return show_files.map_file(path, profile)
    known_files.refuse(path)
    return _checkpoint(path, profile)


def _checkpoint(path: Path, profile: Profile) -> dict[str, Any]:
    config, problem = _folder_config(path)
    sizes, size_problem = _sizes(config, profile, str(path / safetensors_raw.CONFIG_NAME))
    layers = profile.sizes.layers if sizes is None else sizes.layers
    names = {tensor.of(layer): (layer, role) for layer in layers for role, tensor in profile.tensors.items()}
    found = safetensors_raw.read_checkpoint(path, lambda name: name in names or ENGRAM_DOT in name, strict=False)
    form, whose = checkpoint_forms.recognise(found.tensors)
    tensors = [
        {
            "name": t.name,
            "dtype": t.dtype,
            "shape": list(t.shape),
            "file": t.path.name,
            "start": t.start,
            "bytes": t.end - t.start,
        }
        for t in found.tensors.values()
    ]
    absent = [name for name in names if name not in found.tensors]
    wrong = list(found.problems)
    if sizes is not None and (form is None or form.name == DIALECT):
        wrong += _odd_tensors(found.tensors, names, sizes, profile)
    return {
        "path": str(path),
        "kind": "checkpoint",
        "dialect": form.name if form is not None and form.name != DIALECT else None if absent or wrong else DIALECT,
        "nearest": DIALECT if form is None else form.name,
        "notes": [] if whose is None else [f"the published tensors under the names of {whose}"],
        "missing": absent,
        "wrong": [{"where": where, "expected": expected, "found": seen} for where, expected, seen in wrong],
        "missing_shards": sorted({shard for name, shard in found.missing.items() if name in names}),
        "shards": sorted(shard.name for shard in found.shards),
        "tensors": tensors,
        "constants": {},
        "loaders": {},
        "config_problem": problem or size_problem,
        **model(sizes, profile, config),
        "token_map": _map_origin(path, sizes, profile),
    }


def _odd_tensors(
    tensors: Mapping[str, safetensors_raw.Tensor],
    names: Mapping[str, tuple[int, str]],
    sizes: Sizes,
    profile: Profile,
) -> Iterator[tuple[str, str, str]]:
    """What has another dtype or shape than it is published with; other commands refuse it."""
    for name, (layer, role) in names.items():
        if name in tensors:
            try:
                shapes.check(tensors[name], role, sizes, layer, profile)
            except FormatError as error:
                yield name, error.expected, error.found


def _folder_config(path: Path) -> tuple[dict[str, Any] | None, str | None]:
    try:
        return read_config(path)[1], None
    except FormatError as error:
        return None, str(error)


def _map_origin(path: Path, sizes: Sizes | None, profile: Profile) -> dict[str, Any]:
    if path.is_dir() and (path / "tokenizer.json").exists():
        return {"origin": "the checkpoint's tokenizer.json"}
    fits = sizes is None or (sizes.vocabulary, sizes.compressed) == (profile.sizes.vocabulary, profile.sizes.compressed)
    return {"origin": f"profile {profile.name}" if fits else None}


def _container(path: Path, profile: Profile, header: GgufHeader) -> dict[str, Any]:
    seen = recognise(header)
    nearest = seen.best
    dialect = nearest or DS4
    stored = stores.of_container(header, dialect)
    config, problem = _own_config(header, dialect)
    sizes, size_problem = _container_sizes(header, dialect, stored.constants, profile)
    tables = {dialect.tensors[role].format(layer=layer) for layer in seen.layers for role in dialect.tensors}
    own = [t for t in header.tensors if ENGRAM in t.name or t.name in tables or t.name.startswith("engram_")]
    loaders = _loaders(header, profile)
    broken = [] if nearest is None else [why["where"] for why in loaders.get(nearest.name, {"why": []})["why"]]
    mend = mendable.note(path, header, seen, [*broken, *(where for where, _, _ in seen.wrong)])
    return {
        "path": str(path),
        "kind": "container",
        **show_files.left(path),
        "dialect": None if seen.dialect is None else seen.dialect.name,
        "nearest": None if nearest is None else nearest.name,
        "sure": seen.sure,
        "written_by": None if nearest is None else nearest.title,
        "missing": list(seen.missing),
        "wrong": [
            {"where": where, "expected": want, "found": found}
            for where, want, found in (*header.text_errors, *seen.wrong)
        ],
        "notes": [*seen.notes, *_tail_notes(header), *_repair_note(path), *([mend] if mend else [])],
        "architecture": _scalar(header, "general.architecture"),
        "version": header.version,
        "alignment": header.alignment,
        "file_bytes": header.file_size,
        "tensors": [_tensor(t) for t in own[:MOST_LISTED]],
        "tensors_total": len(own),
        "other_tensors": len(header.tensors) - len(own),
        "constants": _constants(header),
        "loaders": loaders,
        "config_problem": problem or size_problem,
        **model(sizes, profile, config),
        "token_map": _token_map(stored.constants.get("token_map")),
    }


def _tail_notes(header: GgufHeader) -> list[str]:
    """A file that ends before its tensors do: the first part of several, or a download that was cut."""
    header = header.alone
    end = max((tensor.start + (tensor.size or 0) for tensor in header.tensors), default=0)
    if end <= header.file_size:
        return []
    name = header.path.name
    if name.endswith(".part1"):
        return [
            f"the first of two or more parts: {end - header.file_size} bytes follow in {name[:-1]}2; join them with cat"
        ]
    return [f"{end - header.file_size} bytes are missing at its end: a part alone, or cut short"]


def _repair_note(path: Path) -> list[str]:
    from engramctl import repair_journal

    there = repair_journal.left(path)
    return [] if there is None else [f"interrupted: {there[0]}; {there[1]}"]


def _container_sizes(
    header: GgufHeader, dialect: Dialect, stored: Mapping[str, list[int]], profile: Profile
) -> tuple[Sizes | None, str | None]:
    try:
        return container_sizes.of_container(header, dialect, stored, profile), None
    except FormatError as error:
        return None, str(error)


def _loaders(header: GgufHeader, profile: Profile) -> dict[str, Any]:
    """Which loaders take the file, and for one that does not, the rules it breaks in the loader's terms."""
    from engramctl.verify.container import refusals
    from engramctl.verify.loader_rules import LOADERS

    made: dict[str, Any] = {}
    for loader in LOADERS:
        broken = refusals(header, profile, loader)
        why = list(islice(broken, MOST_WHY))
        total = len(why) + sum(1 for _ in broken)
        made[loader] = {"accepts": not why, "why": why, "why_total": total}
    return made


def _own_config(header: GgufHeader, dialect: Dialect) -> tuple[dict[str, Any] | None, str | None]:
    try:
        return container_sizes.read_config(header, dialect), None
    except FormatError as error:
        return None, str(error)


def _sizes(config: dict[str, Any] | None, profile: Profile, where: str) -> tuple[Sizes | None, str | None]:
    if config is None:
        return None, None
    try:
        return configs.read_sizes(config, profile, where), None
    except FormatError as error:
        return None, str(error)


def model(sizes: Sizes | None, profile: Profile, config: Mapping[str, Any] | None) -> dict[str, Any]:
    differs = {} if sizes is None else sizes.differences(profile.sizes)
    return {
        "profile": profile.name,
        "sizes": None if sizes is None else vars(sizes),
        "synthetic": configs.is_synthetic(config),
        "differs_from_profile": {name: {"here": here, "profile": there} for name, (here, there) in differs.items()},
    }


def _token_map(listed: list[int] | None) -> dict[str, Any]:
    if not listed:
        return {"origin": None}
    ids = np.array(listed, np.int64)
    facts: dict[str, Any] = {"origin": "the container", "entries": int(ids.size), "compressed": int(ids.max()) + 1}
    said = f"{facts['compressed']} compressed ids of {facts['entries']} tokens"
    if int(ids.min()) < 0 or int(ids.max()) >= 2**32:
        return facts | {"summary": f"{said}, some of them no ids at all"}
    facts["sha256"] = digest(ids, "<u4")
    return facts | {"summary": f"{said} with SHA-256 {facts['sha256']}"}


def _constants(header: GgufHeader) -> dict[str, Any]:
    """Each Engram key as it stands: type, count, and the value or the beginning of it."""
    found = {}
    for name in islice((name for name in header.keys if ".engram" in name), MOST_LISTED):
        value = header.keys[name]
        entry: dict[str, Any] = {"type": describe_type(value)}
        if isinstance(value.value, str) and len(value.value) > MOST_TEXT:
            entry |= {"count": len(value.value), "begins": value.value[:MOST_TEXT]}
        elif value.item is None:
            entry["value"] = value.value
        else:
            items = value.value.tolist() if isinstance(value.value, np.ndarray) else value.value
            entry |= {
                "count": len(items),
                "value" if len(items) <= LISTED * LISTED else "begins": items
                if len(items) <= LISTED * LISTED
                else items[:LISTED],
            }
        found[name] = entry
    return found


def _tensor(tensor: TensorInfo) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "type": type_of(tensor),
        "shape": list(tensor.shape),
        "start": tensor.start,
        "bytes": tensor.size,
        **({} if tensor.shard is None else {"file": tensor.shard.name}),
    }


def _scalar(header: GgufHeader, name: str) -> Any:  # noqa: ANN401  (whatever the key holds)
    return header.keys[name].value if name in header.keys and header.keys[name].item is None else None
