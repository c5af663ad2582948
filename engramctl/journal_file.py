"""What all journals share: JSON a line at a time, read within bounds, and the words for an output that is there half.

                 is                           of what                         a crash can tear
journal          appended to, line by line    a conversion or a slice of it   its last line, which then is none
pieces           written over, two lines      a file of pieces                its last line
unfinished       one line, there whole        a folder                        nothing
repack_bare      one line, replaced whole     a folder of rows                nothing
progress         one line, replaced whole     a check                         nothing
repair_journal   a line and bytes, whole      a change in place               nothing
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from formats.disk import ReadFile
from formats.errors import FormatError

MOST_BYTES = 256 << 20  # a journal larger than this is not one of ours
CHANGED = "start again with --force, or bring back what changed"
DIGEST = "sha256"  # of all else in a line
BOTH_WAYS = "--resume finishes it, --force starts again"

Record = dict[str, Any]


def line(record: Mapping[str, Any]) -> bytes:
    """A record as a line of JSON."""
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def digest(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(line(record)).hexdigest()


def summed(record: Mapping[str, Any]) -> bytes:
    """A record as it stands in a journal, with a digest: a point that a disk or an editor changed would be rows that
    nobody writes."""
    return line(dict(record) | {DIGEST: digest(record)})


def require_size(file: ReadFile, what: str = "a journal", most: int = MOST_BYTES) -> None:
    """Refuse what is larger than ours get before anything of it is read."""
    if file.size > most:
        raise FormatError(file.path, None, f"{what} of at most {most} bytes", f"{file.size}")


def read(file: ReadFile, what: str = "a journal") -> bytes:
    """All of it."""
    require_size(file, what)
    return file.read(0, file.size, what)


def records(file: ReadFile) -> Iterator[tuple[Record, int]]:
    """Each line's object and where it ends. A last line that is torn, or not as it was written, is none; one before it
    raises `FormatError`."""
    data, end = read(file), 0
    for number, raw in enumerate(io.BytesIO(data), 1):
        end += len(raw)
        record = _object(raw)
        if record is not None:
            yield record, end
        elif end < len(data):
            raise FormatError(file.path, f"line {number}", "a line as it was written", f"{raw[:40]!r}")


def head(path: Path, count: int = 1) -> list[Record]:
    """The first records; none where the file is no journal of ours."""
    with ReadFile.open(path) as file, contextlib.suppress(FormatError):
        return [record for record, _ in islice(records(file), count)]
    return []


def _object(raw: bytes) -> Record | None:
    """The object of a whole line whose digest is right; None for anything else."""
    try:
        record = json.loads(raw) if raw.endswith(b"\n") else None
        return record if isinstance(record, dict) and record.pop(DIGEST, "") == digest(record) else None
    except (ValueError, RecursionError):
        return None
