"""What the system says no to, in words that name what the user named: the one place where an OSError becomes them."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
FULL = (errno.ENOSPC, errno.EDQUOT)
TOO_MANY = (errno.EMFILE, errno.ENFILE)
TEMPORARY = ".tmp"  # ends the names of files that are to be renamed
WRITABLE_FOLDER = "a folder that can be written"


@contextlib.contextmanager
def made_for(output: str | os.PathLike[str]) -> Iterator[None]:
    """A file that cannot be made in the output's folder is the output that cannot: nobody knows the names of locks,
    journals and files that are to be renamed."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and _is_nobodys(error, Path(os.fsdecode(error.filename)), Path(output)):
            error.filename = os.fspath(output)
        raise


def _is_nobodys(error: OSError, path: Path, output: Path) -> bool:
    """Is it a file in the output's place that could not be made, or one that never keeps its name?"""
    place = output.absolute()
    if path.absolute().parent not in (place.parent, place):
        return False
    return path.suffix == TEMPORARY or (error.errno in DENIED and not os.path.lexists(path))


def words(error: OSError) -> tuple[str, str, str]:
    """Where, what was expected there, and what was found, as every other refusal has them."""
    if error.errno is None and error.strerror is None:  # no call's: a library that did not load says so at length
        said = (str(error) or type(error).__name__).partition(". ")[0].splitlines()[0]
        return "a library", "one that can be loaded, and the memory for it", said[:120]
    path = None if error.filename is None else os.fsdecode(error.filename)
    return path or "input or output", _expected(error, path), (error.strerror or str(error)).lower()


def _expected(error: OSError, path: str | None) -> str:
    if error.errno in FULL:
        return "room on the disk"
    if error.errno in TOO_MANY:
        return "fewer files open at once"
    if error.errno == errno.EIO:
        return "a disk without errors"
    if error.errno == errno.EROFS:
        return WRITABLE_FOLDER
    if error.errno not in DENIED or path is None:
        return "a working file"
    return _may(Path(path))


def _may(path: Path) -> str:
    """What one may not do with a path: the system does not say it."""
    if not os.access(path.parent, os.X_OK):
        return "a place that can be reached"
    if not os.path.lexists(path):
        return WRITABLE_FOLDER
    if path.is_dir():
        return WRITABLE_FOLDER if os.access(path, os.R_OK) else "a folder that can be read"
    if not os.access(path, os.R_OK):
        return "a file that can be read"
    return WRITABLE_FOLDER if os.access(path, os.W_OK) else "a file that can be written"
