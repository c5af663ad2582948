"""params.json and params.npz: a model's hash constants in a file that any language reads.

The token map itself is another file (`map`); its digest is here, so that the two are not mixed up.
"""

from __future__ import annotations

import io
import json
import re
import sys
import zipfile
import zlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import kinds, rules
from engramctl.arrays import STDIN
from engramctl.errors import EngramctlError
from engramctl.hash_params import MOST_COMPRESSED, HashParams, digest
from engramctl.rules import V41_RULE
from formats import npy, strict_json
from formats.disk import ReadFile
from formats.errors import FormatError, shown

SCHEMA = "engramctl/params/1"
ARRAYS = ("multipliers", "moduli", "offsets")
NUMBERS = ("heads", "compressed", "pad_id", "vocabulary")
LISTS = ("layers", "rows")
MOST_BYTES = 16 << 20
MAP_HINT = "give --token-map FILE, or params --to npz, which holds the map too"
MOST_MEMBERS = 100  # of an npz
ZIP_MAGIC = b"PK"


def to_dict(params: HashParams) -> dict[str, Any]:
    """The constants under their names here; arrays by layer."""
    return {
        "layers": list(params.layers),
        "rows": list(params.rows),
        "size": params.size,
        "heads": params.heads,
        "vocabulary": int(params.token_map.size),
        "compressed": params.compressed,
        "pad_id": params.pad_id,
        "multipliers": params.multipliers.tolist(),
        "moduli": params.moduli.tolist(),
        "offsets": params.offsets.tolist(),
        "token_map_sha256": digest(params.token_map, "<u4"),
        **_rule(params),
    }


def _rule(params: HashParams) -> dict[str, Any]:
    """What is not V4.1's way: nothing for V4.1 itself."""
    if params.rule == V41_RULE:
        return {}
    rule = asdict(params.rule) | {"boundary": list(params.rule.boundary)}
    return {"rule": rule, "smallest": params.smallest} | ({} if params.eos is None else {"eos": params.eos})


def to_npz(params: HashParams) -> bytes:
    """The same, and the token map too, as an uncompressed npz. Equal constants give equal bytes."""
    entries: dict[str, Any] = to_dict(params) | {name: getattr(params, name) for name in ARRAYS}
    entries["token_map"] = params.token_map
    if "rule" in entries:
        entries["rule"] = json.dumps(entries["rule"])
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, value in entries.items():
            member = io.BytesIO()
            np.save(member, np.asarray(value), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), member.getvalue())
    return file.getvalue()


def read_file(path: Path) -> dict[str, Any]:
    """As `read`, of a file or standard input; one that is surely something else is called what it is."""
    if path == STDIN:
        return read(sys.stdin.buffer.read(MOST_BYTES + 1), "standard input")
    kind = kinds.name(path)
    if kind not in (None, kinds.JSON, kinds.ZIP):
        hint = f"--profile {path} takes a profile" if path.suffix == ".toml" else None
        raise EngramctlError(str(path), "params.json or params.npz, a checkpoint or a container", str(kind), hint)
    with ReadFile.open(path) as file:
        return read(file.read(0, min(file.size, MOST_BYTES + 1), "params"), str(path))


def read(data: bytes, path: str) -> dict[str, Any]:
    """A params file's constants by name: tuples, integers, uint64 arrays, and `token_map_sha256` or None; all but
    the meaning checked."""
    if len(data) > MOST_BYTES:
        raise FormatError(path, None, f"at most {MOST_BYTES} bytes", "more")
    raw = _npz(data, path) if data.startswith(ZIP_MAGIC) else _json(data, path)
    if not {*ARRAYS, *NUMBERS, *LISTS} & raw.keys():
        raise FormatError(path, None, f"params: {', '.join((*LISTS, *ARRAYS))} and more", "none of these names")
    found: dict[str, Any] = _read_rule(raw, path)
    for name in LISTS:
        found[name] = _input_layer(raw) if name == "layers" and "rule" in raw else None
        found[name] = found[name] or tuple(int(x) for x in _integers(raw, name, path, 1))
    for name in ARRAYS:
        own = name == "multipliers" and found["rule"].mix_scope == "column"
        found[name] = _integers(raw, name, path, 2 + own)
    for name in NUMBERS:
        found[name] = int(_integers(raw, name, path, 0))
    if "size" in raw and (size := int(_integers(raw, "size", path, 0))) != found["multipliers"].shape[-1]:
        raise FormatError(path, "size", f"{found['multipliers'].shape[-1]}, as each layer has multipliers", f"{size}")
    if raw.get("schema", SCHEMA) != SCHEMA:
        raise FormatError(path, "schema", SCHEMA, shown(raw["schema"]))
    found["token_map_sha256"] = _digest(raw, path)
    found["token_map"] = None
    if "token_map" in raw:
        ids = _integers(raw, "token_map", path, 1)
        if int(ids.max()) >= MOST_COMPRESSED:
            raise FormatError(path, "token_map", f"compressed ids below {MOST_COMPRESSED}", f"{ids.max()}")
        found["token_map"] = ids.astype(np.uint32)
    return found


def _input_layer(raw: dict[str, Any]) -> tuple[int, ...] | None:
    """(-1,) where that is what `layers` says: a table at the input embedding."""
    value = raw.get("layers")
    listed = value.tolist() if isinstance(value, np.ndarray) else value
    return (-1,) if listed == [-1] else None


def _read_rule(raw: dict[str, Any], path: str) -> dict[str, Any]:
    """The rule, and the EOS and smallest order that belong to it; V4.1's where the file says nothing."""
    rule = raw.get("rule")
    if rule is None:
        return {"rule": V41_RULE, "smallest": 2, "eos": None}
    if isinstance(rule, np.ndarray):
        rule = strict_json.read_object(path, str(rule).encode(), 0)
    if not isinstance(rule, dict):
        raise FormatError(path, "rule", "an object", shown(rule)[:40])
    numbers = {
        name: int(_integers(raw, name, path, 0)) if name in raw else default
        for name, default in (("smallest", 2), ("eos", None))
    }
    return {"rule": rules.read(rule, path), **numbers}


def with_map(found: dict[str, Any], token_map: NDArray[np.uint32], path: str) -> HashParams:
    """The constants together with a token map, which must be the one they were made with; checked."""
    if token_map.size != found["vocabulary"]:
        raise EngramctlError(path, f"a token map of {found['vocabulary']} ids", f"{token_map.size}", MAP_HINT)
    if found["token_map_sha256"] not in (None, digest(token_map, "<u4")):
        raise EngramctlError(
            path,
            f"the token map with SHA-256 {found['token_map_sha256']}",
            digest(token_map, "<u4"),
            MAP_HINT,
        )
    sizes = (found["layers"], found["rows"], found["heads"], found["compressed"], found["pad_id"])
    arrays = (found[name] for name in ARRAYS)
    made = HashParams(*sizes, token_map, *arrays)
    return replace(made, rule=found["rule"], eos=found["eos"], smallest=found["smallest"]).check(path)


def _json(data: bytes, path: str) -> dict[str, Any]:
    if data.lstrip()[:1] != b"{":
        raise FormatError(path, None, "params as a JSON object or npz", "neither")
    return strict_json.read_object(path, data, 0)


def _npz(data: bytes, path: str) -> dict[str, Any]:
    """The arrays by name; texts as NumPy keeps them, one item of kind U."""
    raw: dict[str, Any] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if len(members) > MOST_MEMBERS or sum(member.file_size for member in members) > 4 * MOST_BYTES:
                raise FormatError(path, None, f"up to {MOST_MEMBERS} arrays of {4 * MOST_BYTES} bytes", "more")
            for member in members:
                name = member.filename.removesuffix(".npy")
                if name in raw or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise FormatError(path, f"array {shown(name)}", "each once, stored or deflated", "another")
                raw[name] = npy.read(archive.read(member), path, f"array {shown(name)}", npy.NUMBERS + "U")
    except (ValueError, OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise FormatError(path, None, "a readable npz", shown((str(error).splitlines() or ["no npz"])[0])) from None
    return raw


def _digest(raw: dict[str, Any], path: str) -> str | None:
    found = raw.get("token_map_sha256")
    if isinstance(found, np.ndarray) and found.shape == ():
        found = found.item()
    if found is None or (isinstance(found, str) and re.fullmatch("[0-9a-f]{64}", found)):
        return found
    raise FormatError(path, "token_map_sha256", "64 lower-case hex digits", f"{found!r:.40}")


def _integers(raw: dict[str, Any], name: str, path: str, dimensions: int) -> NDArray[np.uint64]:
    if name not in raw:
        raise FormatError(path, name, "a constant", "no such name")
    value = raw[name]
    array = value if isinstance(value, np.ndarray) else _array(value, dimensions)
    if array is None or array.ndim != dimensions or array.dtype.kind not in "iu" or not array.size or array.min() < 0:
        lists = "lists of non-negative integers"
        what = ("one non-negative integer", "a list of non-negative integers", lists, f"lists of {lists}")
        found = f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else shown(value)
        raise FormatError(path, name, f"{what[dimensions]} below 2**64", f"{found:.80}")
    return array.astype(np.uint64)


def _array(value: object, dimensions: int) -> NDArray[np.uint64] | None:
    """An integer, a list of them, or lists of one length of them, each below 2**64; None for anything else."""
    if dimensions >= 2:
        parts = [_array(item, dimensions - 1) for item in value] if isinstance(value, list) else []
        lists = [part for part in parts if part is not None]
        same = len(lists) == len(parts) and len({part.shape for part in lists}) == 1
        return np.array(lists, np.uint64) if same else None
    items = value if dimensions and isinstance(value, list) else [value]
    if not all(type(item) is int and 0 <= item < 2**64 for item in items):
        return None
    return np.array(value, np.uint64)
