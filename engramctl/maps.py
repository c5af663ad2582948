"""Token maps from wherever they are: a tokenizer, a map file in any form, a container, a checkpoint, the profile."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import known_files, stored
from engramctl.arrays import STDIN
from engramctl.errors import EngramctlError
from engramctl.hash_params import digest
from engramctl.profiles import Profile
from engramctl.source import FoundMap, is_container, open_source
from formats import recognise, token_map, tsd41
from formats.disk import ReadFile
from formats.errors import FormatError
from formats.gguf_split import read_model


def expect_map(profile: Profile) -> None:
    """Refuse a model whose ids are hashed as they are."""
    if "token_map_u32" not in profile.digests:
        found = f"{profile.rule.id_space} ids" if profile.rule.id_space != "map" else "none that is published"
        raise EngramctlError(f"profile {profile.name}", "a token map", found)


def read(path: Path | None, profile: Profile) -> FoundMap:
    """The map that `path` holds or gives; without a path the profile's own."""
    if path is None:
        return FoundMap(profile.token_map(), f"profile {profile.name}")
    if path != STDIN and path.is_dir():
        with open_source(path, profile.name) as source:
            found = source.token_map()
            return FoundMap(found.ids, f"{path}, from {found.origin}")
    if path != STDIN and (other := inside(path)) is not None:
        return other
    return _alone(path, profile.sizes.vocabulary)


def _alone(path: Path, entries: int | None = None) -> FoundMap:
    """Of a tokenizer, or of a file that is a map and nothing else."""
    data, name = _bytes(path), "standard input" if path == STDIN else str(path)
    known_files.refuse_no_map(data, name)
    if _is_tokenizer(data):
        from engramctl import vocabulary

        return FoundMap(vocabulary.build(vocabulary.parse(data, Path(name)), Path(name)), name)
    return FoundMap(token_map.decode(data, name, entries)[1], name)


def given(path: Path | None) -> FoundMap | None:
    """The map of `--token-map FILE`, which may be a tokenizer, or None."""
    if path is None:
        return None
    if path != STDIN and path.is_file() and (other := inside(path)) is not None:
        return other
    return _alone(path)


def read_file(path: Path, profile: Profile) -> tuple[str, NDArray[np.uint32]]:
    """The form of a map file, and the map."""
    return token_map.decode(_bytes(path), str(path), profile.sizes.vocabulary)


def looks_like_one(path: Path) -> bool:
    """Is the file a token map by itself, in whatever form?"""
    try:
        if path.stat().st_size > token_map.MOST_BYTES or _is_tokenizer(data := _bytes(path)):
            return False
        return len(token_map.decode(data, str(path))[1]) > 1
    except FormatError:
        return False


def inside(path: Path) -> FoundMap | None:
    """The map that a container's constants or a TSD41E01 file hold; None where the file is neither."""
    if is_container(path):
        return _of_container(path)
    with ReadFile.open(path) as file:
        if file.size < len(tsd41.MAGIC) or file.read(0, len(tsd41.MAGIC), "magic") != tsd41.MAGIC:
            return None
        return FoundMap(_checked(tsd41.read(file).token_map, path), f"{path}, a TSD41E01 file")


def _of_container(path: Path) -> FoundMap:
    """A GGUF's array or tensor of the map, whatever integers it is of, under whichever dialect's name."""
    header = read_model(path, strict=False)
    dialect = recognise.recognise(header).best
    listed = None if dialect is None else stored.of_container(header, dialect).constants.get("token_map")
    if listed is None:
        raise FormatError(path, None, "a token map among its keys and tensors", "none")
    return FoundMap(_checked(np.array(listed, np.int64), path), f"{path}, from the container")


def _checked(ids: NDArray[np.int64], path: Path) -> NDArray[np.uint32]:
    outside = np.flatnonzero((ids < 0) | (ids >= 2**32))
    if outside.size or not ids.size:
        where = f"entry {outside[0]}" if outside.size else None
        found = f"{ids[outside[0]]}" if outside.size else "no entry"
        raise FormatError(path, where, "compressed ids below 2**32", found)
    return ids.astype(np.uint32)


def _bytes(path: Path) -> bytes:
    """A whole file, or standard input, both bounded."""
    name, limit = ("standard input" if path == STDIN else path), token_map.MOST_BYTES
    if path == STDIN:
        data = sys.stdin.buffer.read(limit + 1)
        if len(data) > limit:
            raise FormatError(name, None, f"at most {limit} bytes", "more")
        return data
    with ReadFile.open(path) as file:
        if file.size > limit:
            raise FormatError(path, None, f"at most {limit} bytes", f"{file.size}")
        return file.read(0, file.size, "token map")


def is_tokenizer(path: Path) -> bool:
    """Does the file say that it is one?"""
    return not is_container(path) and path.stat().st_size <= token_map.MOST_BYTES and _is_tokenizer(_bytes(path))


def _is_tokenizer(data: bytes) -> bool:
    """A JSON object that is no map: tokenizers say for themselves what is wrong with them."""
    if data.lstrip()[:1] != b"{":
        return False
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError):
        return True
    return isinstance(parsed, dict) and "token_map" not in parsed


def describe(ids: NDArray[np.uint32], profile: Profile) -> dict[str, Any]:
    """Counts and digest of a map beside those of the profile."""
    entries, compressed, sha256 = int(ids.size), int(ids.max()) + 1, digest(ids, "<u4")
    sizes, published = profile.sizes, profile.digests["token_map_u32"]
    return {
        "same": sha256 == published,
        "found": _facts(entries, compressed, sha256),
        "expected": _facts(sizes.vocabulary, sizes.compressed, published),
    }


def _facts(entries: int, compressed: int, sha256: str) -> dict[str, Any]:
    summary = f"{compressed} compressed ids of {entries} tokens with SHA-256 {sha256}"
    return {"entries": entries, "compressed": compressed, "sha256": sha256, "summary": summary}
