"""A file written piece by piece, each at its place: whole at the end or not at all, and taken up where it stopped.

NAME.partial    the output so far, at its final size
NAME.journal    one JSON object a line: what is being made, then {"done": pieces} after each sync
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from engramctl import __version__, journal_file, room
from engramctl import identity as identities
from engramctl.errors import EngramctlError
from engramctl.journal_file import BOTH_WAYS, CHANGED
from formats import disk, ranges
from formats.disk import ReadFile, WriteFile
from formats.errors import FormatError
from formats.gguf_file import GgufHeader

COPIED = 4 << 30  # of another file's bytes in one piece

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Piece:
    """Some bytes of the output, written by `fill`; doing it twice does no harm."""

    name: str
    fill: Callable[[WriteFile, Progress], None]


def of_file(header: GgufHeader, begin: int, at: int, ways: list[str]) -> list[Piece]:
    """A GGUF's bytes from `begin` on, at `at` of the output, holes kept; `ways` hears how they went."""

    def piece(start: int, end: int) -> Piece:
        def fill(file: WriteFile, progress: Progress) -> None:
            with ReadFile.open(header.path) as source:
                if source.size != header.file_size:
                    raise FormatError(header.path, None, f"{header.file_size} bytes, as before", f"{source.size}")
                ways.append(ranges.copy(source, (start, end), file, at + start - begin, progress))

        return Piece(f"tensors from byte {start} on", fill)

    first = (begin // COPIED + 1) * COPIED  # whole blocks, which can be shared
    edges = [begin, *range(first, header.file_size, COPIED), header.file_size]
    return [piece(*each) for each in pairwise(edges)]


def bytes_of(header: GgufHeader, output: Path) -> int:
    """How much room a copy of a GGUF takes: what is no hole, unless the file system shares blocks."""
    with ReadFile.open(header.path) as source:
        held = sum(last - first for first, last in source.data(header.data_start, source.size))
    return header.data_start if held and ranges.shares(header.path, output.parent) else held + header.data_start


def identity(header: GgufHeader, head: bytes) -> dict[str, Any]:
    """What an interrupted copy must find unchanged to go on."""
    status = disk.system.status(header.path)
    who = [header.path.name, status.st_size, status.st_mtime_ns]
    return {"version": __version__, "model": who, "header": hashlib.sha256(head).hexdigest()}


def write(
    output: Path,
    size: int,
    needed: int,
    pieces: Sequence[Piece],
    identity: Callable[[], dict[str, Any]],
    sources: Iterable[Path] = (),
    resume: bool = False,
    force: bool = False,
    progress: Progress = lambda n: None,
) -> None:
    """Every piece into `output` of `size` bytes, of which `needed` are no hole; bad content leaves nothing behind.

    The `sources` are what the pieces are made of: none of them is written over. `identity` says what they are, and once
    more when all is written: what changed while it was read is refused.
    """
    who = identity()
    room.require_name(output)
    partial, journal = (output.with_name(output.name + ending) for ending in (".partial", ".journal"))
    room.refuse_sources((output, partial, journal), sources)
    disk.refuse_existing(output, force)
    if partial.exists():
        with WriteFile.open(partial) as left:
            _take(left, partial)
    done = _done(partial, journal, who, resume, force)
    if done and not (done <= len(pieces) and disk.system.status(partial).st_size == size):
        what = f"at most {len(pieces)} pieces done, in a file of {size} bytes"
        found = f"{done}, in {disk.system.status(partial).st_size}"
        raise EngramctlError(str(journal), what, found, "start again with --force")
    if done is None:
        room.require_folder(output.parent)
        room.require(output.parent, needed)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(WriteFile.create(partial) if done is None else WriteFile.open(partial))
        _take(file, partial)
        _require_own(file, partial)
        try:
            made = WriteFile.create(journal) if done is None else WriteFile.open(journal)
            log = _Log(stack.enter_context(made), who, done)
            file.resize(size)
            for number, piece in enumerate(pieces):
                if number >= (done or 0):
                    piece.fill(file, progress)
                    file.sync()
                    log.note(number + 1)
            identities.require_same(output, who, identity(), identities.UNCHANGED)
            _require_own(file, partial)
        except (FormatError, EngramctlError):
            if _is_own(file, partial):  # else what is there is another run's
                disk.remove(partial, journal)
            raise
        disk.publish(partial, output, force)
        disk.remove(journal)


def _take(file: WriteFile, partial: Path) -> None:
    """One run at a time, where the file system has locks."""
    try:
        file.lock()
    except BlockingIOError:
        hint = "wait for it, or stop it"
        raise EngramctlError(str(partial), "no other run on this output", "one that writes it", hint) from None
    except OSError:
        pass


def _is_own(file: WriteFile, partial: Path) -> bool:
    return partial.exists() and file.is_same(partial)


def _require_own(file: WriteFile, partial: Path) -> None:
    """The name is still that of the file that is written: another run with --force may have begun anew."""
    if not _is_own(file, partial):
        raise EngramctlError(str(partial), "the file that this run writes", "another run's, or none")


class _Log:
    def __init__(self, file: WriteFile, identity: dict[str, Any], done: int | None) -> None:
        self.file, self.identity = file, identity
        self.note(done or 0)

    def note(self, done: int) -> None:
        """So many pieces are durable. The file is written anew: it has two lines."""
        data = journal_file.summed(self.identity) + journal_file.summed({"done": done})
        self.file.write(0, data)
        self.file.resize(len(data))
        self.file.sync()


def _done(partial: Path, journal: Path, identity: dict[str, Any], resume: bool, force: bool) -> int | None:
    """Pieces that are done already; None to begin anew. What is left over is not touched without being asked."""
    begun = partial.exists() or journal.exists()
    if force and not resume:
        disk.remove(partial, journal)
        return None
    if not begun:
        return None
    if not resume:
        raise EngramctlError(str(partial), "no unfinished output", "one", BOTH_WAYS)
    lines = journal_file.head(journal, 2) if journal.exists() else []
    if lines:
        identities.require_begun(journal, lines[0], identity, "others", CHANGED)
    elif not _is_torn(partial, journal, identity):
        raise EngramctlError(str(journal), "the journal of the unfinished output", "none that says what it is", CHANGED)
    done = lines[1].get("done") if len(lines) > 1 else None
    if type(done) is not int or done < 0 or not partial.exists():
        disk.remove(partial, journal)  # it ended before its journal was whole: nothing was done yet
        return None
    return done


def _is_torn(partial: Path, journal: Path, identity: dict[str, Any]) -> bool:
    """Did a run end before its first line was whole? Then `.partial` is empty, and what there is begins that line."""
    if partial.exists() and disk.system.status(partial).st_size:
        return False
    if not journal.exists():
        return True
    line = journal_file.summed(identity)
    with ReadFile.open(journal) as file:
        return file.size <= len(line) << 1 and line.startswith(file.read(0, file.size, "journal").rstrip(b"\0"))
