"""check map: a token map against the map that a tokenizer gives, and against the published digest."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engramctl import kinds, known_files, maps
from engramctl.arrays import STDIN, open_data
from engramctl.errors import EngramctlError
from engramctl.mistakes import map_sources
from engramctl.profiles import Profile
from engramctl.source import FoundMap, is_container
from engramctl.verify import name_map, params
from engramctl.verify.result import Coverage, Result
from formats.errors import FormatError
from formats.token_map import MOST_BYTES, decode

CHECK = "map"
PUBLISHED = "SHA-256 of the map as u32"
Map = NDArray[np.uint32]


def check(
    found: FoundMap,
    derived: FoundMap | None,
    profile: Profile,
    sizes: tuple[int, int] | None = None,
    published: bool = True,
    tokenizer: Path | None = None,
) -> Result:
    """Compare `found` with the map a tokenizer gives and, where `published`, with the profile's.

    `sizes` are the token ids and compressed ids that the source itself states, if it does. What differs is held against
    the known mistakes, with the help of `tokenizer` where their maps are not shipped.
    """
    result = Result(Coverage("token ids", 0, found.ids.size))
    if sizes is not None:
        _counts(found.ids, sizes, "the source's config", result)
    if derived is not None:
        _entries(found.ids, derived.ids, derived.origin, result)
    if published:
        _published(found.ids, profile, derived is None, result)
    elif derived is None:
        _numbering(found.ids, result)
        result.notes.append("no tokenizer and another model's sizes: only counts and numbering were checked")
    if derived is not None and [finding.where for finding in result.findings] == [PUBLISHED]:
        result.notes.append("its entries are the tokenizer's: --allow-mismatch does not ask for the published map")
    result.extra["found"] = facts(found)
    if derived is not None:
        result.extra["derived"] = facts(derived)
    if published:
        result.extra["published"] = {
            "entries": profile.sizes.vocabulary,
            "compressed": profile.sizes.compressed,
            "sha256": profile.digests["token_map_u32"],
        }
    if not result.ok and (derived is not None or published):
        truth = profile.token_map() if derived is None else derived.ids
        result.diagnosis = name_map.diagnose(found.ids, truth, map_sources.for_map(truth, profile, tokenizer))
        if result.diagnosis is None:
            result.structure = name_map.facts(found.ids, truth)
    return result


def check_file(path: Path, profile: Profile, tokenizer: Path | None = None, published: bool = True) -> Result:
    """The map that `path` holds (a map file, a container) or gives (a checkpoint's tokenizer).

    Sizes that the source's own config states, and that are not the profile's, make it another model: then the published
    digest does not count.
    """
    derived = None if tokenizer is None else params.tokenizer_map(tokenizer)
    if tokenizer is not None and derived is None:
        raise FormatError(tokenizer, None, "a tokenizer.json", "nothing there")
    if path != STDIN and path.is_file() and (inside := maps.inside(path)) is not None:
        whole = params.sizes_of(path, profile)[0] if is_container(path) else None
        said = None if whole is None else (whole.vocabulary, whole.compressed)
        published = published and said in (None, (profile.sizes.vocabulary, profile.sizes.compressed))
        result = check(inside, derived, profile, said, published, tokenizer)
        return _told(result, str(path), derived is not None or published)
    if path == STDIN or not path.is_dir():
        data = open_data(path)
        if data.size > MOST_BYTES:
            raise FormatError(data.where, None, f"a token map of at most {MOST_BYTES} bytes", f"{data.size}")
        raw = data.read(0, data.size, "token map").tobytes()
        if kinds.is_tokenizer(raw[: kinds.HEAD]):
            hint = f"engramctl map {data.where} -o MAP makes its map; check map MAP --tokenizer {data.where}"
            raise EngramctlError(data.where, "a token map, a container or a checkpoint", "a tokenizer", hint)
        known_files.refuse_no_map(raw, data.where)
        count = profile.sizes.vocabulary if derived is None else derived.ids.size
        found = FoundMap(decode(raw, data.where, count)[1], data.where)
        result = check(found, derived, profile, None, published, tokenizer)
        return _told(result, data.where, derived is not None or published)
    sizes, own = params.sizes_of(path, profile)
    if own is not None and path.is_dir():  # the map that a conversion would use, against the second derivation
        derived, own = derived or own, _built(path / "tokenizer.json")
    if own is None:
        raise FormatError(path, None, "a tokenizer.json", "none")
    stated = None if sizes is None else (sizes.vocabulary or own.ids.size, sizes.compressed)  # an adapter says one
    ours = (profile.sizes.vocabulary, profile.sizes.compressed)
    home = path / "tokenizer.json" if path.is_dir() else tokenizer
    published = published and stated in (None, ours)
    result = check(own, derived, profile, stated, published, home)
    return _told(result, str(path), derived is not None or published)


def _told(result: Result, where: str, compared: bool) -> Result:
    """The result, if entries were compared with anything or something is wrong all the same."""
    if result.ok and not compared:
        expected = "a tokenizer, or the profile's published map, to compare with"
        raise EngramctlError(where, expected, "neither for this model", "give --tokenizer FILE")
    return result


def _built(tokenizer: Path) -> FoundMap:
    from engramctl import vocabulary

    return FoundMap(vocabulary.build(vocabulary.load_tokenizer(tokenizer), tokenizer), str(tokenizer))


def facts(found: FoundMap) -> dict[str, object]:
    ids = found.ids
    return {"origin": found.origin, "entries": int(ids.size), "compressed": classes(ids), "sha256": sha256(ids)}


def classes(ids: Map) -> int:
    """Compressed ids that the map uses, if it leaves no gap."""
    return int(ids.max(initial=0)) + 1


def sha256(ids: Map) -> str:
    """Of the map's entries as little-endian u32, which is what is published."""
    return hashlib.sha256(ids.astype("<u4").tobytes()).hexdigest()


def _numbering(ids: Map, result: Result) -> None:
    """Classes are numbered by first appearance, so an entry is at most one above all before it."""
    most = np.maximum.accumulate(ids.astype(np.int64))
    before = np.concatenate([[-1], most[:-1]])
    wrong = np.flatnonzero(ids > before + 1)
    if wrong.size:
        first = int(wrong[0])
        expected = f"a compressed id of at most {before[first] + 1}, numbered by first appearance"
        result.add(CHECK, f"token id {first}", expected, f"{ids[first]}")


def _counts(ids: Map, sizes: tuple[int, int], origin: str, result: Result) -> None:
    for what, expected, found in (("token ids", sizes[0], ids.size), ("compressed ids", sizes[1], classes(ids))):
        if expected != found:
            result.add(CHECK, f"number of {what}", f"{expected} as in {origin}", f"{found}")


def _entries(ids: Map, expected: Map, origin: str, result: Result) -> None:
    """Each entry that is not the expected one; counts first."""
    _counts(ids, (expected.size, classes(expected)), origin, result)
    both = min(ids.size, expected.size)
    result.coverage.checked = max(result.coverage.checked, both)
    different = np.flatnonzero(ids[:both] != expected[:both])
    result.extra["differing"] = int(different.size)
    for token in different.tolist():
        result.add(CHECK, f"token id {token}", f"{expected[token]} as in {origin}", f"{ids[token]}")


def _published(ids: Map, profile: Profile, entries: bool, result: Result) -> None:
    """The digest decides; entries are named from the profile's shipped map, whose digest is checked first."""
    expected, shipped = profile.digests["token_map_u32"], profile.token_map()
    found = sha256(ids)
    if entries and sha256(shipped) == expected:
        _entries(ids, shipped, f"profile {profile.name}", result)
    if found != expected:
        result.add(CHECK, PUBLISHED, f"{expected} as published", found)
