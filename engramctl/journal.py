"""The journal of a conversion or of one slice of it: which plan it belongs to, and how far it surely is on disk.

    NAME.partial          the output so far, at its final size
    NAME.journal          one JSON object a line:
                          {"plan": {...}, "slice": [first, last], "mark": the .partial's own}
                          {"done": [tensor, row], "leaves": [[tensor, first leaf, "hex hex*3"], ...]} after each sync
                          {"finished": true} when all of the slice is durable
    NAME.part-A-B.journal the same, of rows A to B

Each line ends with a digest of itself (`journal_file.summed`). It is synced before the next is begun: a crash can tear
the last one only, cut short, or with zeros where the disk had nothing yet. The journal is only ever appended to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, repeat
from pathlib import Path
from typing import Any, TypeGuard

from engramctl import identity, journal_file
from engramctl.identity import Identity
from engramctl.journal_file import CHANGED
from engramctl.slices import Slice
from formats import disk
from formats.disk import ReadFile, WriteFile
from formats.errors import FormatError
from formats.tree_digest import DIGEST_BYTES

Point = tuple[int, int]  # tensor number, row of it: everything of the slice before is durable
START: Point = (0, 0)
MOST_LEAVES = 1 << 22  # in one file: digests of 4.5 TB of rows; a count of more is none of ours
PART_CHANGED = "bring back what changed, or write each part again with --part i/n --force"
Leaves = dict[int, dict[int, bytes]]  # by tensor number and block


class Journal:
    """An open journal. `note` says that everything before a point is durable."""

    def __init__(self, file: WriteFile, end: int, point: Point, leaves: Leaves, finished: bool) -> None:
        self._file, self._end, self._torn = file, end, False
        self.point, self.leaves, self.finished = point, leaves, finished

    @classmethod
    def begin(cls, path: Path, plan: Identity, part: Slice, mark: str) -> Journal:
        """A new journal; one that a crash left without a plan is written over."""
        try:
            file = WriteFile.create(path)
        except FileExistsError:
            file = WriteFile.open(path)
            file.resize(0)
        journal = cls(file, 0, START, {}, False)
        try:
            journal._append({"plan": plan, "slice": [part.first, part.last], "mark": mark})
            disk.fsync_folder(path.parent)
        except BaseException:
            file.close()
            raise
        return journal

    @classmethod
    def resume(cls, path: Path, said: Said) -> Journal:
        """The journal that `read` read, to go on with."""
        file = WriteFile.open(path)
        try:
            file.resize(said.end)
        except BaseException:
            file.close()
            raise
        return cls(file, said.end, said.point, said.leaves, said.finished)

    def note(self, point: Point, leaves: Leaves) -> None:
        """Everything before `point` has been synced; the leaves since the last note are these."""
        line: dict[str, Any] = {"done": list(point)}
        if leaves:
            line["leaves"] = list(packed(leaves))
        self._append(line)
        self.point = point

    def finish(self) -> None:
        """All of the slice is durable."""
        if not self.finished:
            self._append({"finished": True})
            self.finished = True

    def _append(self, line: dict[str, Any]) -> None:
        data = journal_file.summed(line)
        if self._torn:
            self._file.resize(self._end)
        self._torn = True
        self._file.write(self._end, data)
        self._file.sync()
        self._torn = False
        self._end += len(data)

    def close(self) -> None:
        self._file.close()


class Said:
    """What a journal says: its plan, and how far its slice is."""

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        plan, rows, mark = head.get("plan"), head.get("slice"), head.get("mark")
        if not (isinstance(plan, dict) and isinstance(mark, str) and _is_pair(rows)):
            raise FormatError(path, "line 1", "a plan, a slice and a mark", f"{list(head)!r:.60}")
        self.path, self.plan, self.mark = path, plan, mark
        self.first, self.last = rows
        self.point, self.finished, self.end = START, False, 0
        self.leaves: Leaves = {}
        self._room = MOST_LEAVES

    def require_plan(self, now: Identity, hint: str = CHANGED) -> None:
        identity.require_same(f"{self.path}: the journal's plan", self.plan, now, hint)

    def require_points(self, rows: Sequence[int]) -> None:
        """The last point lies in the plan's tensors, which have these rows."""
        tensor, row = self.point
        if tensor >= len(rows):
            raise FormatError(self.path, "done", f"a tensor in 0..{len(rows) - 1}", f"{tensor}")
        if row > rows[tensor]:
            raise FormatError(self.path, "done", f"at most the {rows[tensor]} rows of tensor {tensor}", f"{row}")

    def require_end(self, left: int) -> None:
        """Where the journal says that its slice is finished, no bytes of it are left to write."""
        if self.finished and left:
            expected = "finished only after the last row of the slice is done"
            raise FormatError(self.path, "finished", expected, f"{left} bytes to write after {list(self.point)}")

    def add(self, line: Mapping[str, Any], where: str) -> None:
        if line.get("finished") is True:
            self.finished = True
            return
        done = line.get("done")
        if not _is_pair(done):
            raise FormatError(self.path, where, "a point of two integers", f"{done!r:.40}")
        if (done[0], done[1]) < self.point:
            raise FormatError(self.path, where, f"a point from {list(self.point)} on", f"{done}")
        self.point = (done[0], done[1])
        try:
            for tensor, block, digests in line.get("leaves", []):
                known = self.leaves.setdefault(_natural(tensor), {})
                for number, digest in enumerate(unpacked(digests, self._room), _natural(block)):
                    known[number] = digest
                    self._room -= 1
        except (TypeError, ValueError, AttributeError):
            raise FormatError(self.path, where, "leaves of a digest", "something else") from None


def begun(path: Path) -> Said | None:
    """What the journal's first line says, and not how far its slice is; None where there is none, or none whole."""
    head = journal_file.head(path) if path.exists() else []
    return Said(path, head[0]) if head else None


def read(path: Path) -> Said | None:
    """What the journal says; None where there is none, or a crash left none of its lines whole."""
    try:
        file = ReadFile.open(path)
    except FormatError:
        if path.exists():
            raise
        return None
    said: Said | None = None
    with file:
        for number, (line, end) in enumerate(journal_file.records(file), 1):
            if said is None:
                said = Said(path, line)
            else:
                said.add(line, f"line {number}")
            said.end = end
    return said


def _is_pair(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and len(value) == 2 and all(type(x) is int and x >= 0 for x in value)


def _natural(value: object) -> int:
    """A number of a tensor, a layer or a block: nothing that merely becomes one."""
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def packed(leaves: Leaves) -> Iterable[list[Any]]:
    """Runs of neighbouring blocks; equal digests in a row, such as those of holes, are written once."""
    for tensor, known in leaves.items():
        blocks = sorted(known)
        for _, run in groupby(enumerate(blocks), lambda pair: pair[1] - pair[0]):
            members = [block for _, block in run]
            words = []
            for digest, same in groupby(members, known.__getitem__):
                count = len(list(same))
                words.append(digest.hex() + (f"*{count}" if count > 1 else ""))
            yield [tensor, members[0], " ".join(words)]


def unpacked(digests: str, most: int = MOST_LEAVES) -> Iterable[bytes]:
    """`packed`'s words; `ValueError` before more than `most` of them have come."""
    for word in digests.split():
        digest, star, times = word.partition("*")
        raw, count = bytes.fromhex(digest), int(times) if star else 1
        if len(raw) != DIGEST_BYTES or not 1 <= count <= most:
            raise ValueError(word)
        most -= count
        yield from repeat(raw, count)
