"""How far a long check is, in a file that a later run goes on from: what is compared, the point, what was found."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engramctl import identity, journal_file
from engramctl.errors import EngramctlError, Finding
from engramctl.journal import Leaves, packed, unpacked
from engramctl.table import Table
from engramctl.verify.result import Result
from formats import disk
from formats.disk import ReadFile

START_BYTES = 1 << 20  # of each file: its header lies there
HINT = "remove that file to check from the start"


@dataclass
class Progress:
    """What was compared so far, by layer and row; every row before the point is in the result."""

    path: Path | None  # None: it is kept nowhere
    plan: dict[str, Any]
    layer: int | None = None
    row: int = 0
    unread: int = 0
    leaves: Leaves = field(default_factory=dict)  # by layer

    def save(self, result: Result) -> None:
        """Whole or not at all, over what was there."""
        if self.path is None:
            return
        state = {
            "plan": self.plan,
            "point": [self.layer, self.row, self.unread],
            "findings": [[f.check, f.where, f.expected, f.found] for f in result.findings],
            "counts": [result.total, result.coverage.checked, result.coverage.of],
            "notes": result.notes,
            "leaves": list(packed(self.leaves)),
        }
        disk.write_whole(self.path, [journal_file.summed(state)], force=True)

    def forget(self) -> None:
        if self.path is not None:
            disk.remove(self.path)


def resume(path: Path | None, plan: dict[str, Any], result: Result) -> Progress:
    """The progress kept at `path`, its findings put into the result; from the start where there is none."""
    now = Progress(path, plan)
    if path is None:
        return now
    disk.require_place(path)
    if not path.exists():
        return now
    with ReadFile.open(path) as file:
        journal_file.require_size(file, "progress")
    try:
        (state,) = journal_file.head(path, 2)
        before = dict(state["plan"])
        now.layer, now.row, now.unread = state["point"]
        result.total, result.coverage.checked, result.coverage.of = state["counts"]
        result.findings += [Finding(*map(str, words)) for words in state["findings"]]
        result.notes += [str(note) for note in state["notes"]]
        for layer, block, digests in state["leaves"]:
            now.leaves[int(layer)] = dict(enumerate(unpacked(digests), int(block)))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        raise EngramctlError(str(path), "the progress of a check, as it was written", "something else", HINT) from None
    identity.require_same(path, before, plan, HINT)
    return now


def plan_of(tables: list[Table], asked: dict[str, Any]) -> dict[str, Any]:
    """What must not have changed: the files, and what was asked for."""
    found = dict(asked)
    for file in {part.file.path: part.file for table in tables for part in table.parts}.values():
        status = disk.system.status(file.path)
        found[f"size of {file.path}"] = status.st_size
        found[f"time of {file.path}"] = status.st_mtime_ns
        start = file.read(0, min(START_BYTES, file.size), "header")
        found[f"start of {file.path}"] = hashlib.sha256(start).hexdigest()
    return found
