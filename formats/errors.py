"""The one error for bad bytes: where it is, what was expected there, what was found."""

from __future__ import annotations

import json
from os import PathLike, fspath

NOTHING = "nothing there"  # found where a file was expected


class FormatError(Exception):
    """A file's bytes are not what they must be; nothing was guessed and nothing was repaired.

    `at` is a byte offset (int), a place in the file's own terms ("layer 1 row 39 byte 260"), or None: the whole file.
    """

    def __init__(self, path: str | PathLike[str], at: int | str | None, expected: str, found: str) -> None:
        self.path, self.at, self.expected, self.found = fspath(path), at, expected, found
        super().__init__(f"{self.where}: expected {expected}, found {found}")

    @property
    def where(self) -> str:
        if self.at is None:
            return self.path
        return f"{self.path} at byte {self.at}" if isinstance(self.at, int) else f"{self.path} at {self.at}"


class ShortFileError(FormatError):
    """Bytes that were there when the file was opened are gone: it was cut while it was read, or its disk fails."""


def before_end(what: object, size: int) -> str:
    """That something stops, or would have to, where a file of `size` bytes does: it may have been cut."""
    return f"{what} before the file ends at byte {size}"


def shown(value: object, longest: int = 80) -> str:
    """A value out of a file, fit for one line of a message: quoted, escaped, cut; lists and objects by their count."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    if not isinstance(value, str):
        return json.dumps(value)
    kept = value[:longest]
    while len(line := json.dumps(kept).replace("\x7f", "\\u007f")) > 2 * longest:
        kept = kept[: len(kept) // 2]
    return line if kept == value else line[:-1] + '..."'
