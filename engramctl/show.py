"""show: what a file or folder is, from headers alone. Broken files are described, not refused, as far as they parse."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engramctl import config as configs
from engramctl import kinds, profiles
from engramctl.checkpoint import DIALECT, read_config
from engramctl.container import describe as describe_type
from engramctl.hash_params import digest
from engramctl.profiles import Profile, Sizes
from engramctl.shapes import describe as describe_shape
from engramctl.source import is_container
from formats import safetensors_raw
from formats.dialects import DIALECTS, Dialect
from formats.errors import FormatError
from formats.gguf_file import GGML_TYPES, GgufHeader, TensorInfo, read_header

LISTED = 8  # items of a long array that are shown


def describe(path: Path, profile_name: str | None = None, header: GgufHeader | None = None) -> dict[str, Any]:
    """Everything that headers say; what is no container and no checkpoint raises `FormatError`."""
    profile = profiles.load(profile_name or profiles.DEFAULT)
    kinds.refuse_other(path, kinds.SOURCES, (kinds.GGUF, kinds.UNFINISHED))
    if kinds.name(path) == kinds.UNFINISHED:
        nothing: dict[str, Any] = {"missing": [], "wrong": [], "tensors": [], "constants": {}, "loaders": {}}
        more = {"token_map": {"origin": None}, **dict.fromkeys(("dialect", "nearest", "config_problem"))}
        return {"path": str(path), "kind": "file", "unfinished": True, **nothing, **more, **_model(None, profile, None)}
    if path.is_dir() or not is_container(path):
        return _checkpoint(path, profile)
    return _container(path, profile, read_header(path, strict=False) if header is None else header)


def _checkpoint(path: Path, profile: Profile) -> dict[str, Any]:
    config, problem = _folder_config(path)
    sizes, size_problem = _sizes(config, profile, str(path / safetensors_raw.CONFIG_NAME))
    layers = profile.sizes.layers if sizes is None else sizes.layers
    names = {tensor.of(layer): layer for layer in layers for tensor in profile.tensors.values()}
    found = safetensors_raw.read_checkpoint(path, lambda name: name in names, strict=False)
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
    return {
        "path": str(path),
        "kind": "checkpoint",
        "dialect": DIALECT if not absent else None,
        "nearest": DIALECT,
        "missing": absent,
        "wrong": [{"where": where, "expected": expected, "found": seen} for where, expected, seen in found.problems],
        "missing_shards": sorted({shard for name, shard in found.missing.items() if name in names}),
        "shards": sorted(shard.name for shard in found.shards),
        "tensors": tensors,
        "constants": {},
        "loaders": {},
        "config_problem": problem or size_problem,
        **_model(sizes, profile, config),
        "token_map": _map_origin(path, sizes, profile),
    }


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
    dialect = max(DIALECTS, key=lambda each: sum(key.name in header.keys for key in each.keys.values()))
    layers = _layers(header, dialect)
    tables = [t for t in header.tensors if t.name.endswith(".engram_embd.weight")]
    missing, wrong = _against(header, dialect, layers)
    config, problem = _own_config(header, dialect)
    sizes, size_problem = _sizes(config, profile, f"{path} at key {dialect.config}")
    known = bool(tables) or any(".engram." in name for name in header.keys)
    return {
        "path": str(path),
        "kind": "container",
        "unfinished": kinds.unfinished(path) is not None,
        "dialect": dialect.name if not missing and not wrong else None,
        "nearest": dialect.name if known else None,
        "missing": missing if known else [],
        "wrong": wrong if known else [],
        "architecture": _scalar(header, "general.architecture"),
        "version": header.version,
        "alignment": header.alignment,
        "file_bytes": header.file_size,
        "tensors": [_tensor(t) for t in header.tensors if ".engram_" in t.name],
        "other_tensors": sum(".engram_" not in t.name for t in header.tensors),
        "constants": _constants(header),
        "loaders": _loaders(header, profile),
        "config_problem": problem or size_problem,
        **_model(sizes, profile, config),
        "token_map": _token_map(header, dialect),
    }


def _layers(header: GgufHeader, dialect: Dialect) -> list[int]:
    value = header.keys.get(dialect.keys["layers"].name)
    if value is None or not isinstance(value.value, np.ndarray) or not np.issubdtype(value.value.dtype, np.integer):
        return []
    return [int(layer) for layer in value.value] if value.value.size <= configs.MOST["layers"] else []


def _against(header: GgufHeader, dialect: Dialect, layers: list[int]) -> tuple[list[str], list[dict[str, str]]]:
    """Keys and tensors of the dialect that are not there, and those of another type."""
    missing, wrong = [], []
    for key in dialect.keys.values():
        value = header.keys.get(key.name)
        if value is None:
            missing.append(key.name)
        elif (found := describe_type(value.type, value.item)) != key.type:
            wrong.append({"where": key.name, "expected": key.type, "found": found})
    there = {tensor.name: tensor for tensor in header.tensors}
    for layer in layers:
        missing += [
            name for role in dialect.tensors if (name := dialect.tensors[role].format(layer=layer)) not in there
        ]
        table = there.get(dialect.tensors["table"].format(layer=layer))
        if table is not None and (_type(table) != "I8" or table.shape[:1] != (dialect.row_bytes,)):
            wrong.append(
                {
                    "where": table.name,
                    "expected": f"I8 [{dialect.row_bytes}, rows]",
                    "found": describe_shape(_type(table), table.shape),
                }
            )
    return missing, wrong


def _loaders(header: GgufHeader, profile: Profile) -> dict[str, Any]:
    """Which loaders take the file, and for one that does not, the rules it breaks in the loader's terms."""
    from engramctl.verify.container import refusals
    from engramctl.verify.loader_rules import LOADERS

    why = {loader: refusals(header, profile, loader) for loader in LOADERS}
    return {loader: {"accepts": not reasons, "why": reasons} for loader, reasons in why.items()}


def _own_config(header: GgufHeader, dialect: Dialect) -> tuple[dict[str, Any] | None, str | None]:
    from engramctl import container

    try:
        return container.read_config(header, dialect), None
    except FormatError as error:
        return None, str(error)


def _sizes(config: dict[str, Any] | None, profile: Profile, where: str) -> tuple[Sizes | None, str | None]:
    if config is None:
        return None, None
    try:
        return configs.read_sizes(config, profile, where), None
    except FormatError as error:
        return None, str(error)


def _model(sizes: Sizes | None, profile: Profile, config: Mapping[str, Any] | None) -> dict[str, Any]:
    differs = {} if sizes is None else sizes.differences(profile.sizes)
    return {
        "profile": profile.name,
        "sizes": None if sizes is None else vars(sizes),
        "synthetic": bool(config and config.get(configs.SYNTHETIC)),
        "differs_from_profile": {name: {"here": here, "profile": there} for name, (here, there) in differs.items()},
    }


def _token_map(header: GgufHeader, dialect: Dialect) -> dict[str, Any]:
    value = header.keys.get(dialect.keys["token_map"].name)
    if (
        value is None
        or not isinstance(value.value, np.ndarray)
        or not value.value.size
        or value.value.dtype.kind not in "ui"
    ):
        return {"origin": None}
    ids = value.value.astype(np.int64)
    facts = {"origin": "the container", "entries": int(ids.size), "compressed": int(ids.max()) + 1}
    return facts | ({"sha256": digest(ids, "<u4")} if int(ids.min()) >= 0 and int(ids.max()) < 2**32 else {})


def _constants(header: GgufHeader) -> dict[str, Any]:
    """Each Engram key as it stands: type, count, and the value or the beginning of it."""
    found = {}
    for name, value in header.keys.items():
        if ".engram" not in name:
            continue
        entry: dict[str, Any] = {"type": describe_type(value.type, value.item)}
        if value.item is None:
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
        "type": _type(tensor),
        "shape": list(tensor.shape),
        "start": tensor.start,
        "bytes": tensor.size,
    }


def _type(tensor: TensorInfo) -> str:
    return GGML_TYPES[tensor.type].name if tensor.type in GGML_TYPES else f"type {tensor.type}"


def _scalar(header: GgufHeader, name: str) -> Any:  # noqa: ANN401  (whatever the key holds)
    return header.keys[name].value if name in header.keys and header.keys[name].item is None else None


def lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    """The same for people: names and values."""
    pairs = [(found["kind"], found["path"]), ("dialect", found["dialect"] or f"none; nearest is {found['nearest']}")]
    if found.get("unfinished"):
        pairs.append(("unfinished", "repack has not finished it; --resume does"))
    pairs += [("missing", name) for name in found["missing"]]
    pairs += [("missing shard", name) for name in found.get("missing_shards", [])]
    pairs += [("wrong", f"{w['where']}: expected {w['expected']}, found {w['found']}") for w in found["wrong"]]
    if found["config_problem"]:
        pairs.append(("config", found["config_problem"]))
    for name, loader in found["loaders"].items():
        said = loader.get("said", "accepts it" if loader["accepts"] else "refuses it")
        pairs.append((f"loader {name}", said))
        pairs += [("", f"{why['where']}: expected {why['expected']}, found {why['found']}") for why in loader["why"]]
    if "file_bytes" in found:
        pairs.append(
            (
                "format",
                f"GGUF version {found['version']}, alignment {found['alignment']}, {found['file_bytes']:,} bytes",
            )
        )
    if found["sizes"]:
        sizes = (f"{name}{_meaning(name)} {_listed(value)}" for name, value in found["sizes"].items())
        pairs.append(("sizes", ", ".join(sizes)))
    pairs += [
        ("differs", f"{name}: {_listed(d['here'])}, profile {found['profile']} has {_listed(d['profile'])}")
        for name, d in found["differs_from_profile"].items()
    ]
    pairs += [("note", note) for note in found.get("notes", [])]
    pairs.append(("token map", ", ".join(f"{value}" for value in found["token_map"].values())))
    stored = found["constants"].items()
    pairs += [("constant", f"{name}: {c['type']} {_short(c)}{_meaning(name)}") for name, c in stored]
    pairs += [
        (
            "tensor",
            f"{t['name']}: {t.get('type') or t.get('dtype')} {t['shape']} at {t['start']:,}, {t['bytes'] or 0:,} bytes",
        )
        for t in found["tensors"]
    ]
    return pairs


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _meaning(name: str) -> str:
    if name == "pad_token_id":
        return " (raw)"
    return " (compressed: what the token map has for the raw pad)" if name.endswith(".pad_id") else ""


def _short(constant: dict[str, Any]) -> str:
    value = constant.get("value", constant.get("begins"))
    if isinstance(value, list):
        more = ", ..." if constant["count"] > LISTED else ""
        return f"[{', '.join(map(str, value[:LISTED]))}{more}] of {constant['count']}"
    return str(value)
