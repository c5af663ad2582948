"""repair: write a header with the right constants before tables that do not move: to a new file, or in place.

In place the file system makes room at the start (Linux, ext4 and XFS), and the new header is written into it. Killed at
any step, the journal finishes or undoes it. Power loss in the middle of the insertion itself is not promised.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from engramctl import pieces, repair_journal
from engramctl.errors import EngramctlError
from engramctl.repair_plan import RepairPlan
from formats import disk, gguf_split, os_errors, ranges
from formats.disk import ReadFile, WriteFile
from formats.errors import FormatError

Progress = Callable[[int], None]


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """While the block runs no other run changes the file in place."""
    with os_errors.made_for(path), WriteFile.open(path) as file:
        try:
            file.lock()
        except BlockingIOError:
            what, hint = "a file that no other run is changing", "wait for it, or stop it"
            raise EngramctlError(str(path), what, "one that is being changed", hint) from None
        except OSError:
            pass  # a file system without locks
        yield


def to_file(
    made: RepairPlan,
    output: Path,
    resume: bool = False,
    force: bool = False,
    progress: Progress = lambda n: None,
) -> str:
    """The repaired file under another name, whole or not at all; the way that the tables went."""
    _require_name(made, output)
    header, ways = made.header, ["nothing"]
    size = made.data_start + header.file_size - made.old_end
    every = pieces.of_file(header, made.old_end, made.data_start, ways)
    every.append(pieces.Piece("header", lambda file, advance: file.write(0, made.head)))
    needed = pieces.bytes_of(header, output)
    origin = Path(made.truth.origin)  # of a profile there is no such file
    sources = [header.path, *gguf_split.beside(header.path), *gguf_split.beside(origin), origin]
    who = partial(pieces.identity, header, made.head)
    pieces.write(output, size, needed, every, who, sources, resume, force, progress)
    return ways[-1]


def _require_name(made: RepairPlan, output: Path) -> None:
    """A shard is found by the end of its name."""
    ending = gguf_split.ENDING.search(made.header.path.name)
    if gguf_split.position(made.header)[1] > 1 and ending is not None and not output.name.endswith(ending[0]):
        raise EngramctlError("--output", f"a name that ends in {ending[0]}, so that its shards are found", output.name)


def in_place(made: RepairPlan) -> None:
    """The repaired header in the file itself; the journal is there until it is done."""
    path = made.header.path
    repair_journal.refuse_open(path)
    inserted = made.moved
    if inserted < 0 or inserted % ranges.block_of(path):
        raise no_whole_blocks(path, inserted, "the same command with -o NEW for --in-place writes a repaired copy")
    with ReadFile.open(path) as file:
        old = file.read(0, made.old_end, "the header")
        size = file.size
        body = repair_journal.sample(file, made.old_end, size - made.old_end)
    repair_journal.begin(path, old, made.head, inserted, size, body)
    with said(path, "--resume or --undo"):
        write_over(path, made.head, inserted, size)


def write_over(path: Path, head: bytes, inserted: int, size: int, tail: int = 0) -> None:
    """Make room at the start of a file of `size` bytes and a tail, and write the head; its journal is there, and goes.

    Where no room can be made the tail goes as well.
    """
    try:
        if inserted:
            ranges.insert(path, inserted)
    except OSError as error:
        if disk.system.status(path).st_size != size + tail:
            raise  # it was put in, and then something broke: the journal knows
        _cut(path, size)
        repair_journal.remove(path)
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOTTY):
            raise no_room(path) from None
        raise
    _write_head(path, head)
    repair_journal.remove(path)


def no_whole_blocks(path: Path, inserted: int, hint: str) -> EngramctlError:
    """File systems put in nothing else."""
    block = ranges.block_of(path)
    what = f"room to be made before the tables in whole blocks of {block} bytes, as file systems can"
    return EngramctlError(str(path), what, f"{inserted} bytes that they have to move", hint)


def no_room(path: Path) -> EngramctlError:
    """Only a copy can be made there."""
    what = "a file system that puts ranges into files (Linux: ext4, XFS)"
    return EngramctlError(str(path), what, "one that does not", "-o FILE writes a copy")


@contextlib.contextmanager
def said(path: Path, way: str) -> Iterator[None]:
    """What breaks while a journal is there is said with the way on from it."""
    try:
        yield
    except OSError as error:
        if not repair_journal.journal_of(path).exists():
            raise
        hint = f"the journal is there: engramctl repair {path} {way}"
        where, expected, found = os_errors.words(error)
        raise EngramctlError(where if error.filename else str(path), expected, found, hint) from None


def resume(path: Path) -> str:
    """Finish an interrupted repair in place."""
    found, old, new = repair_journal.read(path)
    if found.grown:
        hint = "--undo takes it back; then repack --append-to again"
        raise EngramctlError(str(path), "a repair that can be finished", "an append that was writing its tail", hint)
    if _state(path, found, old, whole=True) == "before" and found.inserted:
        _write_head(path, old)  # an undo may have been interrupted
        ranges.insert(path, found.inserted)
    _write_head(path, new)
    repair_journal.remove(path)
    return "finished"


def undo(path: Path) -> str:
    """Take an interrupted repair back, and the tail of an interrupted append."""
    found, old, _ = repair_journal.read(path)
    if _state(path, found, old) == "after" and found.inserted:
        ranges.collapse(path, found.inserted)
    _write_head(path, old)
    _cut(path, found.size)
    repair_journal.remove(path)
    return "undone"


def _state(path: Path, found: repair_journal.Journal, old: bytes, whole: bool = False) -> str:
    """Was the room made? By the file's size, and by the first tensor bytes being where they then are.

    The tail may be missing, unless the file has to be `whole`: it is not begun, or an undo has cut it off.
    """
    full = found.size + found.tail
    sizes = [full, *([] if found.grown or not found.inserted else [full + found.inserted])]
    if not whole and found.tail:
        sizes.insert(0, found.size)
    with ReadFile.open(path) as file:
        if file.size not in sizes:
            what = f"{' or '.join(map(str, sizes))} bytes, as its journal says"
            raise FormatError(path, None, what, f"{file.size}")
        after = file.size == full + found.inserted and found.inserted > 0
        place = found.old_end + (found.inserted if after else 0)
        if repair_journal.sample(file, place, found.size - found.old_end) != found.body_sha256:
            raise FormatError(path, place, "the tensor data that its journal is about", "other bytes")
        if found.grown and file.read(0, found.old_end, "the header") != old:
            raise FormatError(path, 0, "the header that its journal is about", "another")
    return "after" if after else "before"


def _cut(path: Path, size: int) -> None:
    """The file without its tail."""
    with WriteFile.open(path) as file:
        if file.size != size:
            file.resize(size)
            file.sync()


def _write_head(path: Path, head: bytes) -> None:
    with WriteFile.open(path) as file:
        file.write(0, head)
        file.sync()
