"""Token maps from wherever they are: a tokenizer, a map file in any form, a container, a checkpoint, the profile."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError
from engramctl.hash_params import digest
from engramctl.profiles import Profile
from engramctl.source import FoundMap, is_container, open_source
from formats import token_map
from formats.disk import ReadFile
from formats.errors import FormatError

STDIN = Path("-")


def expect_map(profile: Profile) -> None:
    """Refuse a model whose ids are hashed as they are."""
    if "token_map_u32" not in profile.digests:
        found = f"{profile.rule.id_space} ids" if profile.rule.id_space != "map" else "none that is published"
        raise EngramctlError(f"profile {profile.name}", "a token map", found)


def read(path: Path | None, profile: Profile) -> FoundMap:
    """The map that `path` holds or gives; without a path the profile's own."""
    if path is None:
        return FoundMap(profile.token_map(), f"profile {profile.name}")
    if path != STDIN and (path.is_dir() or is_container(path)):
        with open_source(path, profile.name) as source:
            found = source.token_map()
            return FoundMap(found.ids, f"{path}, from {found.origin}")
    data, name = _bytes(path), "standard input" if path == STDIN else str(path)
    if _is_tokenizer(data):
        from engramctl import vocabulary

        return FoundMap(vocabulary.build(vocabulary.parse(data, path), path), name)
    return FoundMap(token_map.decode(data, name, profile.sizes.vocabulary)[1], name)


def given(path: Path | None) -> FoundMap | None:
    """The map of `--token-map FILE`, or None."""
    if path is None:
        return None
    name = "standard input" if path == STDIN else str(path)
    return FoundMap(token_map.decode(_bytes(path), name)[1], name)


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
