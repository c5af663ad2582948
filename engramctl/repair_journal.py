"""The journal of an in-place repair: everything that is needed to finish it or to undo it, in one file beside it.

    NAME.repair    one line of JSON: sizes, places, digests | the head as it was | the head as it will be

It appears whole before the first byte of NAME changes, and goes when the last one is durable.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from formats import disk, strict_json
from formats.disk import ReadFile
from formats.errors import FormatError

SCHEMA = "engramctl/repair-journal/1"
BODY_SAMPLE = 1 << 16  # bytes at the start of the tensor data that tell this file from another
MOST_LINE = 1 << 16


@dataclass(frozen=True)
class Journal:
    """A repair that was begun."""

    schema: str
    size: int  # of the file before
    old_end: int  # where the tensor data began
    new_end: int  # where it will begin
    inserted: int  # bytes put in at the start
    body_sha256: str  # of the first bytes of the tensor data
    heads_sha256: str
    grown: bool = False  # a tail is being written behind it: only undoing is possible


def journal_of(path: Path) -> Path:
    """Beside the file itself, whichever link leads to it."""
    real = path.resolve()
    return real.with_name(real.name + ".repair")


def sample(file: ReadFile, start: int) -> str:
    """A digest of the first tensor bytes."""
    count = max(0, min(BODY_SAMPLE, file.size - start))
    return hashlib.sha256(file.read(start, count, "tensor data")).hexdigest()


def begin(
    path: Path,
    old: bytes,
    new: bytes,
    inserted: int,
    size: int,
    body: str,
    grown: bool = False,
    force: bool = False,
) -> Journal:
    """Write the journal, whole and durable."""
    digest = hashlib.sha256(old + new).hexdigest()
    made = Journal(SCHEMA, size, len(old), len(new), inserted, body, digest, grown)
    line = (json.dumps(asdict(made), separators=(",", ":")) + "\n").encode()
    disk.write_whole(journal_of(path), [line, old, new], force)
    return made


def read(path: Path) -> tuple[Journal, bytes, bytes]:
    """The journal beside a file, and the two heads; anything else raises `FormatError`."""
    place = journal_of(path)
    with ReadFile.open(place) as file:
        data = file.read(0, file.size, "journal")
    line, _, heads = data.partition(b"\n")
    found = strict_json.read_object(place, line[:MOST_LINE], 0)
    try:
        made = Journal(**found)  # type: ignore[arg-type]
    except TypeError:
        raise FormatError(place, None, "a journal of a repair", "another file") from None
    numbers = (made.size, made.old_end, made.new_end, made.inserted)
    if made.schema != SCHEMA or any(type(number) is not int or number < 0 for number in numbers):
        raise FormatError(place, None, f"a journal of schema {SCHEMA}", f"{made.schema!r:.60}")
    old, new = heads[: made.old_end], heads[made.old_end :]
    if len(new) != made.new_end or hashlib.sha256(heads).hexdigest() != made.heads_sha256:
        raise FormatError(place, None, "both heads as they were written", "others")
    return made, old, new


def remove(path: Path) -> None:
    disk.system.unlink(journal_of(path))
    disk.fsync_folder(journal_of(path).parent)
