"""What `show` says of files that are neither checkpoint nor GGUF: rows, constants, token maps, parts of files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from engramctl import maps, repair_journal
from engramctl.profiles import Profile
from engramctl.sidecars import Sidecar
from formats.errors import FormatError


def refuse_part(path: Path) -> None:
    """A later part of a file that was cut into parts has no header of its own, and says so by its name alone."""
    if re.fullmatch(r".*\.part[2-9]\d*", path.name) and path.is_file():
        first = re.sub(r"\d+$", "1", path.name)
        raise FormatError(
            path, None, f"a header: it is in {first}; cat {first} {path.name} makes the file", "a later part"
        )
    if path.is_file():
        repair_journal.refuse_open(path)  # the header may not be there yet


def sidecar(found: Sidecar, profile: Profile) -> dict[str, Any]:
    """A file of rows or constants that is no GGUF."""
    return {
        "path": str(found.path),
        "kind": "sidecar",
        "dialect": None if found.problems else found.dialect.name,
        "nearest": found.dialect.name,
        "sure": _sure(found),
        "written_by": found.dialect.title,
        "missing": [],
        "wrong": [{"where": where, "expected": want, "found": seen} for where, want, seen in found.problems],
        "notes": list(found.notes),
        "facts": found.facts,
        "layers": list(found.layers),
        "tensors": [],
        "constants": {},
        "loaders": {},
        "config_problem": None,
        **_no_model(profile),
        "token_map": {"origin": None},
    }


def _sure(found: Sidecar) -> str:
    if found.by_rows:
        return "by its size, and by where the scale bytes of its rows are"
    return "by its first bytes" if found.dialect.magic else "by its name, its manifest and its size"


def folder(path: Path, every: tuple[Sidecar, ...], profile: Profile) -> dict[str, Any]:
    """Files of rows in one folder: the first one's words, all of their facts."""
    made = [sidecar(found, profile) for found in every]
    names = {each["nearest"] for each in made}
    whole = len(names) == 1 and all(each["dialect"] is not None for each in made)
    wrong = [each | {"where": f"{m['path']}: {each['where']}"} for m in made for each in m["wrong"]]
    return made[0] | {
        "path": str(path),
        "dialect": made[0]["nearest"] if whole else None,
        "wrong": wrong,
        "notes": [f"{found.path.name}: {note}" for found in every for note in found.notes],
        "facts": {found.path.name: found.facts for found in every},
        "layers": sorted({layer for found in every for layer in found.layers}),
    }


def map_file(path: Path, profile: Profile) -> dict[str, Any]:
    """A token map by itself: u32 and i64 have one name in the wild, and no header."""
    form, ids = maps.read_file(path, profile)
    facts = maps.describe(ids, profile)
    return {
        "path": str(path),
        "kind": "map",
        "dialect": f"map-{form}",
        "nearest": f"map-{form}",
        "sure": "by its size" if form in ("u32", "i64") else "by its form",
        "written_by": None,
        "missing": [],
        "wrong": [],
        "notes": [] if facts["same"] else ["not the published map"],
        "tensors": [],
        "constants": {},
        "loaders": {},
        "config_problem": None,
        **_no_model(profile),
        "token_map": {"origin": "the file", **facts["found"]},
    }


def left(path: Path) -> dict[str, Any]:
    """Whether a repack has left the file unfinished, and then how it is finished."""
    from engramctl import kinds, workspace

    there = kinds.unfinished(path) is not None
    return {"unfinished": there, **({"way_on": workspace.way_on(path)} if there else {})}


def unfinished(path: Path, profile: Profile) -> dict[str, Any]:
    """A repack's output before it has a header."""
    nothing: dict[str, Any] = {"missing": [], "wrong": [], "notes": [], "tensors": [], "constants": {}, "loaders": {}}
    more = {"token_map": {"origin": None}, **dict.fromkeys(("dialect", "nearest", "config_problem"))}
    return {"path": str(path), "kind": "file", **left(path), **nothing, **more, **_no_model(profile)}


def _no_model(profile: Profile) -> dict[str, Any]:
    return {"profile": profile.name, "sizes": None, "synthetic": False, "differs_from_profile": {}}
