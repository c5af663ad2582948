"""Mistaken token maps as differences from the right one, so that eighteen of them ship in 150 KB.

A map that is numbered by first appearance is told by the first token of each token's class. A difference lists the
tokens whose class begins elsewhere, and where:

    one line of JSON: {"entries": ..., "maps": [{"name", "entries", "changed"}, ...]}
    per map: changed x u32, steps between the tokens; changed x u32, how far before the token its class begins
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from functools import cache
from importlib import resources
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from engramctl.profiles import Profile

Map = NDArray[np.uint32]
First = NDArray[np.int64]  # [V] the first token of each token's class


def first_of(ids: Map | NDArray[np.int64]) -> First:
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    return np.asarray(first.astype(np.int64)[inverse])


def numbered(first: First) -> Map:
    """Compressed ids by first appearance."""
    begins = first == np.arange(first.size)
    return (np.cumsum(begins) - 1).astype(np.uint32)[first]


def encode(truth: Map, maps: Iterable[tuple[str, Map]]) -> bytes:
    """The file's bytes, not yet compressed."""
    right, entries, parts = first_of(truth), [], []
    for name, ids in maps:
        first = first_of(ids)
        changed = np.flatnonzero(first != right[: first.size])
        entries.append({"name": name, "entries": int(ids.size), "changed": int(changed.size)})
        parts += [np.diff(changed, prepend=0), changed - first[changed]]
    line = json.dumps({"entries": int(truth.size), "maps": entries}) + "\n"
    return line.encode() + b"".join(part.astype("<u4").tobytes() for part in parts)


def decode(data: bytes, truth: Map) -> dict[str, Map]:
    """The maps of a file, by name."""
    line, _, packed = data.partition(b"\n")
    numbers, right, maps = np.frombuffer(packed, "<u4").astype(np.int64), first_of(truth), {}
    entries = json.loads(line)["maps"]
    starts = np.cumsum([0, *(2 * entry["changed"] for entry in entries)])
    for entry, (start, stop) in zip(entries, pairwise(starts.tolist()), strict=True):
        steps, back = np.split(numbers[start:stop], 2)
        first, changed = right[: entry["entries"]].copy(), np.cumsum(steps)
        first[changed] = changed - back
        maps[entry["name"]] = numbered(first)
    return maps


def merged(one: Map, other: Map, truth: Map) -> Map:
    """Both maps' differences from the truth at once; where they touch the same class, the second one's."""
    count = min(one.size, other.size)
    first, second, right = first_of(one[:count]), first_of(other[:count]), first_of(truth[:count])
    joined = np.where(second != right, second, first)
    while not np.array_equal(joined, joined[joined]):  # a class that begins at a token of another class joins that one
        joined = joined[joined]
    return numbered(joined)


def file_name(profile: Profile) -> str:
    return f"{profile.name}.mistaken_maps.gz"


@cache
def shipped(name: str) -> dict[str, Map]:
    """The mistaken maps that come with a profile, by the mistake's name; none where it has no file."""
    from engramctl import profiles

    profile = profiles.load(name)
    file = resources.files("engramctl").joinpath(f"data/{file_name(profile)}")
    if not file.is_file():
        return {}
    return decode(gzip.decompress(file.read_bytes()), profile.token_map())
