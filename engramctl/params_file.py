"""params.json and params.npz: a model's hash constants in a file that any language reads.

The token map itself is another file (`map`); its digest is here, so that the two are not mixed up.
"""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError
from engramctl.hash_params import HashParams, digest
from formats.errors import FormatError

SCHEMA = "engramctl/params/1"
ARRAYS = ("multipliers", "moduli", "offsets")
NUMBERS = ("heads", "compressed", "pad_id", "vocabulary")
LISTS = ("layers", "rows")
MOST_BYTES = 16 << 20


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
    }


def to_npz(params: HashParams) -> bytes:
    """The same, and the token map too, as an uncompressed npz. Equal constants give equal bytes."""
    entries: dict[str, Any] = to_dict(params) | {name: getattr(params, name) for name in ARRAYS}
    entries["token_map"] = params.token_map
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, value in entries.items():
            member = io.BytesIO()
            np.save(member, np.asarray(value), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), member.getvalue())
    return file.getvalue()


def read(data: bytes, path: str) -> dict[str, Any]:
    """A params file's constants by name: tuples, integers, uint64 arrays, and `token_map_sha256` or None; all but
    the meaning checked."""
    if len(data) > MOST_BYTES:
        raise FormatError(path, None, f"at most {MOST_BYTES} bytes", f"{len(data)}")
    raw = _npz(data, path) if data.startswith(b"PK") else _json(data, path)
    found: dict[str, Any] = {}
    for name in LISTS:
        found[name] = tuple(int(x) for x in _integers(raw, name, path, 1))
    for name in ARRAYS:
        found[name] = _integers(raw, name, path, 2)
    for name in NUMBERS:
        found[name] = int(_integers(raw, name, path, 0))
    map_digest = raw.get("token_map_sha256")
    found["token_map_sha256"] = None if map_digest is None else str(map_digest)
    found["token_map"] = _integers(raw, "token_map", path, 1).astype(np.uint32) if "token_map" in raw else None
    return found


def with_map(found: dict[str, Any], token_map: NDArray[np.uint32], path: str) -> HashParams:
    """The constants together with a token map, which must be the one they were made with; checked."""
    if token_map.size != found["vocabulary"]:
        raise EngramctlError(
            path, f"a token map of {found['vocabulary']} ids", f"{token_map.size}", "give --token-map FILE"
        )
    if found["token_map_sha256"] not in (None, digest(token_map, "<u4")):
        raise EngramctlError(
            path,
            f"the token map with SHA-256 {found['token_map_sha256']}",
            digest(token_map, "<u4"),
            "give --token-map FILE",
        )
    sizes = (found["layers"], found["rows"], found["heads"], found["compressed"], found["pad_id"])
    return HashParams(*sizes, token_map, *(found[name] for name in ARRAYS)).check(path)


def _json(data: bytes, path: str) -> dict[str, Any]:
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError):
        raise FormatError(path, None, "params as JSON or npz", "neither") from None
    if not isinstance(raw, dict):
        raise FormatError(path, None, "a JSON object", type(raw).__name__)
    return raw


def _npz(data: bytes, path: str) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(info.file_size for info in archive.infolist()) > 4 * MOST_BYTES:
                raise FormatError(path, None, f"at most {4 * MOST_BYTES} bytes unpacked", "more")
            loaded = np.load(io.BytesIO(data), allow_pickle=False)
            return {name: loaded[name] for name in loaded.files}
    except (ValueError, OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise FormatError(path, None, "a readable npz", (str(error).splitlines() or ["no npz"])[0]) from None


def _integers(raw: dict[str, Any], name: str, path: str, dimensions: int) -> NDArray[np.uint64]:
    if name not in raw:
        raise FormatError(path, name, "a constant", "no such name")
    try:
        array = np.array(raw[name])
        if array.dtype == object or not (np.issubdtype(array.dtype, np.integer) and array.size):
            raise ValueError
    except (ValueError, OverflowError):
        raise FormatError(path, name, "integers", f"{raw[name]!r:.40}") from None
    if array.ndim != dimensions or int(array.min()) < 0:
        raise FormatError(
            path,
            name,
            f"non-negative integers in {dimensions} dimensions",
            f"{array.ndim} dimensions from {array.min()}",
        )
    return array.astype(np.uint64)
