"""The journal of an in-place repair: everything that is needed to finish it or to undo it, in one file beside it.

    NAME.repair    one line of JSON: sizes, places, digests | the head as it was | the head as it will be

It appears whole before the first byte of NAME changes, and goes when the last one is durable.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from engramctl import journal_file
from engramctl.errors import EngramctlError
from formats import disk, strict_json
from formats.disk import ReadFile
from formats.errors import FormatError, shown

SCHEMA = "engramctl/repair-journal/2"
BODY_SAMPLE = 1 << 16  # bytes at the start of the tensor data that tell this file from another
MOST_LINE = 1 << 16
MOST_HEADS = 1 << 29  # bytes of both headers
LARGEST = 2**63 - 1  # of a file


@dataclass(frozen=True)
class Journal:
    """A repair that was begun."""

    schema: str
    size: int  # of the file before
    old_end: int  # where the tensor data began, or the file ended
    new_end: int  # where it will begin
    inserted: int  # bytes put in at the start
    tail: int  # bytes written behind its end
    grown: bool  # the tail is being written still: only undoing is possible
    body_sha256: str  # of the first bytes of the tensor data
    sha256: str = ""  # of everything else here, and both heads

    def digest(self, heads: bytes) -> str:
        return hashlib.sha256(replace(self, sha256="").line() + heads).hexdigest()

    def line(self) -> bytes:
        return journal_file.line(asdict(self))


def journal_of(path: Path) -> Path:
    """Beside the file itself, whichever link leads to it."""
    try:
        real = path.resolve()
        return real.with_name(real.name + ".repair")
    except RuntimeError:
        raise FormatError(path, None, "a file", "a loop of links") from None
    except ValueError:
        raise FormatError(path, None, "a file", "a folder") from None


def sample(file: ReadFile, start: int, count: int) -> str:
    """A digest of the first of `count` tensor bytes."""
    return hashlib.sha256(file.read(start, max(0, min(BODY_SAMPLE, count)), "tensor data")).hexdigest()


def begin(
    path: Path,
    old: bytes,
    new: bytes,
    inserted: int,
    size: int,
    body: str,
    tail: int = 0,
    grown: bool = False,
    force: bool = False,
) -> Journal:
    """Write the journal, whole and durable."""
    if len(old) + len(new) > MOST_HEADS:
        what = f"a header that is at most {MOST_HEADS // 2} bytes long"
        raise FormatError(path, None, what, f"{max(len(old), len(new))} bytes")
    made = Journal(SCHEMA, size, len(old), len(new), inserted, tail, grown, body)
    made = replace(made, sha256=made.digest(old + new))
    disk.write_whole(journal_of(path), [made.line(), old, new], force)
    return made


def read(path: Path) -> tuple[Journal, bytes, bytes]:
    """The journal beside a file, and the two heads; anything else raises `FormatError`."""
    place = journal_of(path)
    if not os.path.lexists(place):
        raise FormatError(place, None, "the journal of an interrupted repair", "none: nothing was interrupted")
    with ReadFile.open(place) as file:
        journal_file.require_size(file, most=MOST_LINE + MOST_HEADS)
        line, _, _ = file.read(0, min(MOST_LINE, file.size), "journal").partition(b"\n")
        made = _journal(place, strict_json.read_object(place, line, 0))
        length = len(line) + 1 + made.old_end + made.new_end
        if file.size != length:
            raise FormatError(place, None, f"both heads as they were written, {length} bytes in all", f"{file.size}")
        heads = file.read(len(line) + 1, made.old_end + made.new_end, "both heads")
    if made.digest(heads) != made.sha256:
        raise FormatError(place, None, "sizes and both heads as they were written", "others")
    return made, heads[: made.old_end], heads[made.old_end :]


def _journal(place: Path, found: dict[str, object]) -> Journal:
    if found.get("schema") != SCHEMA or set(found) != {field.name for field in fields(Journal)}:
        what = f"a journal of schema {SCHEMA}"
        raise FormatError(place, None, what, shown(found.get("schema")) if "schema" in found else "another file")
    made = Journal(**found)  # type: ignore[arg-type]
    numbers = (made.size, made.old_end, made.new_end, made.inserted, made.tail)
    if any(type(number) is not int or not 0 <= number <= LARGEST for number in numbers) or sum(numbers) > LARGEST:
        raise FormatError(place, None, "sizes of a file", f"{numbers}")
    if type(made.grown) is not bool or made.old_end > made.size:
        raise FormatError(place, None, "a journal of a repair", "a contradiction")
    return made


def left(path: Path) -> tuple[str, str] | None:
    """What was interrupted beside a file, if anything was, and the way on from it."""
    if not journal_of(path).exists():
        return None
    try:
        grown = read(path)[0].grown
    except FormatError as error:
        return "a journal that says nothing", f"{error}; move it away if it is not this file's"
    if grown:
        return "an append that was writing its tail", f"engramctl repair {path} --undo"
    return "a repair", f"engramctl repair {path} --resume finishes it, --undo takes it back"


def refuse_open(path: Path) -> None:
    """Nothing else is done with a file whose repair or append was interrupted."""
    there = left(path)
    if there is not None:
        raise EngramctlError(str(path), "no interrupted repair or append", *there)


def remove(path: Path) -> None:
    disk.system.unlink(journal_of(path))
    disk.fsync_folder(journal_of(path).parent)
