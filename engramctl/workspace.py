"""The files beside an unfinished output: the shared `.partial`, and a journal and a lock for each slice.

A `.partial` starts with a mark of its own, which every journal repeats: one that was taken away and made anew is not
taken for the old one. The header replaces the mark as the very last bytes, so that no loader takes it for a container.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from engramctl import journal, locks, room, slices
from engramctl.errors import EngramctlError
from engramctl.identity import Identity
from engramctl.journal import Journal, Said
from engramctl.journal_file import BOTH_WAYS, CHANGED
from engramctl.profiles import Sizes
from engramctl.slices import Slice
from formats import disk
from formats.disk import ReadFile, WriteFile
from formats.errors import FormatError

MARK_BYTES = 64  # within one sector: a disk writes them all or none
MARK = "engramctl partial "
WHOLE_WAYS = "without --part, --layer, --rows and --merge: --resume finishes it, --force starts it again"


def partial_of(output: Path) -> Path:
    return output.with_name(output.name + ".partial")


def journal_of(output: Path, part: Slice) -> Path:
    return output.with_name(f"{output.name}{part.suffix}.journal")


def lock_of(output: Path, part: Slice) -> Path:
    return output.with_name(f"{output.name}{part.suffix}.lock")


def journals(output: Path, all_rows: Slice) -> dict[Slice, Path]:
    """Every journal beside the output, by its slice."""
    return _beside(output, all_rows, ".journal")


def _beside(output: Path, all_rows: Slice, ending: str) -> dict[Slice, Path]:
    found = {}
    for path in sorted(output.parent.glob(f"{_escaped(output.name)}*{ending}")):
        suffix = path.name[len(output.name) : -len(ending)]
        part = all_rows if suffix == "" else slices.of_suffix(suffix)
        if part is not None:
            found[part] = path
    return found


@contextlib.contextmanager
def only_one(output: Path, part: Slice, all_rows: Slice, break_lock: bool) -> Iterator[None]:
    """Hold the slice's lock, and see that nobody works on the same rows under another name."""
    room.require_folder(output.parent)
    with locks.hold(lock_of(output, part), break_lock):
        for other, path in _beside(output, all_rows, ".lock").items():
            if other != part and part.overlaps(other):
                locks.refuse_live(path, break_lock)
        yield


def refuse_others(output: Path, part: Slice, sizes: Sizes) -> None:
    """Refuse a slice that shares rows with one whose journal is there, done or not."""
    for other, path in journals(output, slices.whole(sizes)).items():
        if other != part and part.overlaps(other):
            found = "a conversion of all rows" if other.whole else f"a part with {other.words(sizes)}"
            hint = WHOLE_WAYS if other.whole else _ways_of_part(other, part.whole, sizes)
            raise EngramctlError(str(path), "no unfinished output that shares rows", found, hint)


def _ways_of_part(there: Slice, whole: bool, sizes: Sizes) -> str:
    """What works where a part is there that another one, or a conversion of all rows, shares rows with."""
    count = slices.count_of(there, sizes)
    more = f"--part i/{count} makes" if count else "--layer and --rows make"
    gives_up = "--force" if whole else "--force without --part, --layer and --rows"
    return f"{more} the other parts, --merge puts finished parts together; {gives_up} gives the parts up"


def refuse_other_plans(output: Path, part: Slice, every: Slice, plan: Identity) -> None:
    """Refuse a part of a plan that the other parts there do not have: they would never be merged."""
    for other, path in journals(output, every).items():
        said = None if other == part or other.whole else journal.begun(path)
        if said is not None:
            said.require_plan(plan, journal.PART_CHANGED)


def way_on(partial: Path) -> str:
    """How a `.partial` is finished: as the journals beside it say."""
    output = partial.with_name(partial.name.removesuffix(".partial"))
    parts = [path for part, path in _beside(output, Slice(0, 0, whole=True), ".journal").items() if not part.whole]
    if not parts:
        return "repack --resume finishes it"
    done = 0
    for path in parts:
        with contextlib.suppress(FormatError):
            said = journal.read(path)
            done += said is not None and said.finished
    if done == len(parts):
        return f"{done} {'part is' if done == 1 else 'parts are'} done; when all are, repack --merge finishes it"
    return "repack --resume finishes each part, --merge then puts them together"


def refuse_leftovers(output: Path, part: Slice, resume: bool) -> None:
    """An unfinished output is neither overwritten nor taken up without being asked, nor without its journal."""
    path, partial = journal_of(output, part), partial_of(output)
    left = partial if part.whole and partial.exists() else path
    if resume and left == partial:
        raise EngramctlError(str(path), "the journal of the unfinished output", "none with a plan", CHANGED)
    if not resume and left.exists():
        raise EngramctlError(str(left), "no unfinished output", "one", BOTH_WAYS)


def new_mark() -> str:
    return f"{MARK}{secrets.token_hex(16)}".ljust(MARK_BYTES - 1) + "\n"


def make_partial(output: Path, size: int, mark: str) -> None:
    """A `.partial` with that mark at its final size, there whole or not at all, unless there is one already."""
    partial = partial_of(output)
    made = partial.with_name(f"{partial.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with WriteFile.create(made) as file:
            file.write(0, mark.encode())
            file.resize(size)
            file.sync()
        with contextlib.suppress(FormatError):  # another slice was quicker: its mark counts
            disk.publish(made, partial, force=False)
    finally:
        disk.remove(made)


def begin(output: Path, part: Slice, every: Slice, size: int, plan: Identity) -> Journal:
    """A journal, and the `.partial` that it is about. What cannot be begun leaves nothing behind."""
    path = journal_of(output, part)
    with contextlib.ExitStack() as undo:
        undo.callback(remove_if_alone, output, every, part)
        undo.callback(remove, output, part)
        if part.whole:  # the journal first: a `.partial` alone is never from a crash of ours
            mark = new_mark()
            log = Journal.begin(path, plan, part, mark)
            undo.callback(log.close)
            make_partial(output, size, mark)
        else:
            mark = shared_partial(output, size)
            log = Journal.begin(path, plan, part, mark)
        undo.pop_all()
    return log


def shared_partial(output: Path, size: int) -> str:
    """The `.partial` that slices share, made by the first of them; its mark."""
    partial = partial_of(output)
    if not partial.exists():
        make_partial(output, size, new_mark())
    with ReadFile.open(partial) as file:
        if file.size != size:
            raise FormatError(partial, None, f"{size} bytes as the plan says", f"{file.size}")
        mark = file.read(0, min(MARK_BYTES, size), "mark")
    if not mark.startswith(MARK.encode()):
        raise EngramctlError(str(partial), "a mark, as an unfinished output has", "none", "--force starts again")
    return mark.decode("ascii", "replace")


def require_mark(output: Path, said: Said, size: int, header: bytes) -> None:
    """The `.partial` that the journal is about, at its size; its first bytes may already be the header's."""
    partial = partial_of(output)
    with ReadFile.open(partial) as file:
        if file.size != size:
            raise FormatError(partial, None, f"{size} bytes as the plan says", f"{file.size}")
        found = file.read(0, MARK_BYTES, "mark")
    mark = said.mark.encode()
    if not any(found == header[:cut] + mark[cut:] for cut in range(MARK_BYTES + 1)):
        raise EngramctlError(str(partial), f"the unfinished output that {said.path.name} is about", "another one")


def publish(output: Path, header: bytes, force: bool) -> None:
    """All else is durable: write the header, its first bytes last, and give the file its name."""
    partial = partial_of(output)
    with WriteFile.open(partial) as file:
        file.write(MARK_BYTES, header[MARK_BYTES:])
        file.sync()
        file.write(0, header[:MARK_BYTES])
        file.sync()
        require_own(output, file)
    disk.publish(partial, output, force)


def require_own(output: Path, file: WriteFile) -> None:
    """The name is still that of the file that was written: another run, after --break-lock, may have begun anew."""
    partial = partial_of(output)
    if not (partial.exists() and file.is_same(partial)):
        raise EngramctlError(str(partial), "the file that this run has written", "another one, or none")


def is_published(output: Path, size: int, header: bytes) -> bool:
    """Was a run stopped after the output got its name, and before what is beside it went?"""
    partial = partial_of(output)
    if not output.is_file() or (partial.exists() and not partial.samefile(output)):
        return False
    with ReadFile.open(output) as file:
        return file.size == size and file.read(0, len(header), "header") == header


def refuse_existing(output: Path, force: bool, resume: bool) -> None:
    """No file is overwritten without being asked; what is to be resumed is not to be overwritten at all."""
    if not resume or force:
        disk.refuse_existing(output, force)
        return
    disk.refuse_existing(output, force=True)
    if os.path.lexists(output):
        raise FormatError(output, None, "what this plan makes, finished, or no file there yet", "another file")


def remove(output: Path, part: Slice) -> None:
    """Forget a slice: its journal; of a whole conversion also `.partial` and what crashes left beside it."""
    gone = [journal_of(output, part)]
    if part.whole:
        partial = partial_of(output)
        gone = [partial, *gone, *partial.parent.glob(f"{_escaped(partial.name)}.*.tmp")]
    disk.remove(*gone)


def remove_if_alone(output: Path, every: Slice, part: Slice) -> None:
    """A slice was given up: `.partial` goes too if no other slice is in it or at work."""
    others = journals(output, every).keys() | _beside(output, every, ".lock").keys()
    if not others - {part}:
        remove(output, every)


def forget(output: Path, part: Slice, every: Slice) -> None:
    """Start again: a slice gives up its own rows, a whole conversion everything beside the output."""
    for other in [part, *(journals(output, every) if part.whole else ())]:
        remove(output, other)


def _escaped(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
