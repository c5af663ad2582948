"""The journal beside a `.partial`: which plan it belongs to, and the last point that is surely on disk.

    NAME.partial    the output so far, at its final size
    NAME.journal    one JSON object a line: the plan, then {"done": [tensor, row]} after each sync

A line is written whole or torn by a crash; a torn last line is no line. The journal is only ever appended to.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from engramctl.errors import EngramctlError
from formats import disk
from formats.disk import ReadFile, WriteFile
from formats.errors import FormatError

MOST_BYTES = 64 << 20  # a journal larger than this is not one of ours

HINT = "start again with --force, or bring back what changed"

Point = tuple[int, int]  # tensor number, row of it: everything before is durable
START: Point = (0, 0)


def partial_of(output: Path) -> Path:
    return output.with_name(output.name + ".partial")


def journal_of(output: Path) -> Path:
    return output.with_name(output.name + ".journal")


class Journal:
    """An open journal. `note` says that everything before a point is durable."""

    def __init__(self, file: WriteFile, end: int, point: Point) -> None:
        self._file, self._end, self.point = file, end, point

    @classmethod
    def begin(cls, output: Path, plan: dict[str, Any]) -> Journal:
        file = WriteFile.create(journal_of(output))
        journal = cls(file, 0, START)
        try:
            journal._append(plan)
        except BaseException:
            journal.close()
            raise
        return journal

    @classmethod
    def resume(cls, output: Path, plan: dict[str, Any]) -> Journal:
        """The journal of an interrupted run, if its plan is this one; else `EngramctlError` naming what changed."""
        path = journal_of(output)
        if not path.exists():
            raise EngramctlError(str(path), "the journal of the unfinished output", "nothing there", HINT)
        lines, end = _lines(path)
        if not lines:
            raise FormatError(path, None, "a journal with a plan", "none")
        for name in [*plan, *(name for name in lines[0] if name not in plan)]:
            if lines[0].get(name) != plan.get(name):
                raise EngramctlError(f"{path}: {name}", f"{lines[0].get(name)}", f"{plan.get(name)}", HINT)
        point = START
        for line in lines[1:]:
            done = line.get("done")
            if not (isinstance(done, list) and len(done) == 2 and all(type(x) is int and x >= 0 for x in done)):
                raise FormatError(path, None, "points of two integers", f"{done!r:.40}")
            point = (done[0], done[1])
        file = WriteFile.open(path)
        file.resize(end)
        return cls(file, end, point)

    def note(self, point: Point) -> None:
        """Everything before `point` has been synced."""
        self._append({"done": list(point)})
        self.point = point

    def _append(self, line: dict[str, Any]) -> None:
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        self._file.write(self._end, data)
        self._file.sync()
        self._end += len(data)

    def close(self) -> None:
        self._file.close()


def remove(output: Path) -> None:
    """Forget an unfinished output: its bytes, then its journal."""
    for path in (partial_of(output), journal_of(output)):
        with contextlib.suppress(FileNotFoundError):
            disk.system.unlink(path)


def begun(output: Path) -> bool:
    """Is there anything to go on with? An empty output is from a run that ended before its plan was on disk."""
    partial = partial_of(output)
    return partial.exists() and disk.system.status(partial).st_size > 0


def refuse_leftovers(output: Path) -> None:
    """An unfinished output is neither overwritten nor taken up without being asked."""
    partial = partial_of(output)
    if partial.exists() or journal_of(output).exists():
        raise EngramctlError(str(partial), "no unfinished output", "one", "--resume finishes it, --force starts again")


def _lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Whole lines, parsed, and the byte where they end."""
    with ReadFile.open(path) as file:
        if file.size > MOST_BYTES:
            raise FormatError(path, None, f"a journal of at most {MOST_BYTES} bytes", f"{file.size}")
        data = file.read(0, file.size, "journal")
    end = data.rfind(b"\n") + 1
    lines = []
    for number, raw in enumerate(data[:end].splitlines(), 1):
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict):
            raise FormatError(path, f"line {number}", "a JSON object", f"{raw[:40]!r}")
        lines.append(line)
    return lines, end
