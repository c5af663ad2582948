"""A folder that appears whole, under a lock, and what an ended run has left of it.

NAME.lock             who works on it, for as long as the run lasts
NAME.partial/         what is written; unpack.journal in it marks the folder as ours and says what is being made
NAME/unpack.journal   the run ended after the folder got its name: all else in it was finished
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from engramctl import identity, journal_file, locks
from engramctl.errors import EngramctlError
from engramctl.identity import Identity
from engramctl.journal_file import BOTH_WAYS
from formats import disk
from formats.errors import FormatError

JOURNAL = "unpack.journal"
ONLY_UNFINISHED = "name another, or remove it: --resume and --force are for an unfinished output, DIR.partial"
CHANGED = "start again with --force, or bring it back"


@contextlib.contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Hold a lock that no option breaks; before anything of what it guards is looked at or removed."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locks.hold(lock))
        except EngramctlError as error:
            if error.hint is not None and "--break-lock" in error.hint:
                error.hint = "wait for it, or remove this lock, if that run is surely dead"
            raise
        yield


def partial_of(output: Path) -> Path:
    return output.with_name(output.name + ".partial")


def lock_of(output: Path) -> Path:
    return output.with_name(output.name + ".lock")


def require(output: Path, who: Identity, resume: bool, force: bool, ways: str = BOTH_WAYS) -> Path | None:
    """The folder that an ended run has left and this one may take; None where there is none. Nothing is touched."""
    partial = partial_of(output)
    named = (output / JOURNAL).is_file() and not partial.exists()
    if output.exists() and not named and (not output.is_dir() or any(output.iterdir())):
        found = "files in it" if output.is_dir() else "a file"
        raise EngramctlError(str(output), "a new or empty folder", found, ONLY_UNFINISHED)
    left = output if named else partial
    if not (named or partial.exists()):
        return None
    if not _is_ours(left):
        raise EngramctlError(str(left), "no such folder, or an unfinished output", "something else")
    if not (resume or force):
        raise EngramctlError(str(left), "no unfinished output", "one", ways)
    begun = left / JOURNAL
    if resume and begun.is_file():
        before = next(iter(journal_file.head(begun)), {})
        identity.require_begun(begun, before, who, "another", CHANGED)
    return left


def begin(output: Path, who: Identity, resume: bool, left: Path | None) -> Path:
    """`.partial`, new, or what `require` found, taken up again."""
    partial = partial_of(output)
    if left == output:
        disk.system.replace(output, partial)
        disk.fsync_folder(partial.parent)
    if left is not None and not resume:
        remove(partial)
    partial.mkdir(exist_ok=True)
    for torn in partial.glob("*.tmp"):  # of a run that was killed while it wrote a small file
        disk.system.unlink(torn)
    if not (partial / JOURNAL).is_file():
        disk.write_whole(partial / JOURNAL, [journal_file.summed(who)])
    return partial


def finish(output: Path) -> None:
    """All in it is durable: its name, and only then the journal goes, so that a kill in between can be told."""
    partial = partial_of(output)
    disk.fsync_folder(partial)
    if (output.is_dir() and any(output.iterdir())) or output.is_file():
        raise FormatError(output, None, "a new or empty folder", "one that came up meanwhile")
    disk.system.replace(partial, output)
    disk.fsync_folder(output.parent)
    disk.system.unlink(output / JOURNAL)
    disk.fsync_folder(output)


def remove(partial: Path) -> None:
    """The journal last: a kill leaves a folder that is still known as ours."""
    for each in partial.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        elif each.name != JOURNAL:
            disk.system.unlink(each)
    disk.remove(partial / JOURNAL)
    partial.rmdir()


def _is_ours(left: Path) -> bool:
    """Marked, or killed before the mark was there."""
    if not left.is_dir() or left.is_symlink():
        return False
    if (left / JOURNAL).is_file():
        return True
    return all(each.name.startswith(f"{JOURNAL}.") and each.suffix == ".tmp" for each in left.iterdir())
