"""Where an output goes: over none of its sources, into a folder with room for it, before anything is begun."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from engramctl.errors import EngramctlError
from formats import disk
from formats.errors import FormatError

SPARE_BYTES = 16 << 20  # left free on the disk for the file system's own needs


def files_of(path: Path) -> list[Path]:
    """A checkpoint's or a container's own files: all of a folder, or the one."""
    return sorted(path.iterdir()) if path.is_dir() else [path]


def refuse_sources(written: Iterable[Path], sources: Iterable[Path]) -> None:
    """Refuse to write what is read, by whichever name or link; a folder is all of its files."""
    there = [path for path in written if path.exists()]
    for source in sources if there else ():
        for file in files_of(source):
            for path in there:
                if file.exists() and path.samefile(file):
                    raise FormatError(path, None, "an output that is none of its own sources", file.name)


def require_name(path: Path) -> None:
    """Refuse what has no name that `.partial` could follow: `.`, `/` and nothing at all."""
    if not path.name:
        raise FormatError(path, None, "the name of an output", "a folder without one")


def require_folder(folder: Path) -> None:
    """Refuse what is no folder."""
    if not folder.is_dir():
        raise FormatError(folder, None, "a folder", "a file" if folder.exists() else "nothing there")


def require(folder: Path, needed: int, disk_of: Path | None = None) -> None:
    """Refuse a folder without room for so many bytes; `disk_of` where they go behind a link."""
    need, free = needed + SPARE_BYTES, disk.free_bytes(disk_of or folder)
    if free < need:
        raise EngramctlError(str(folder), f"{need} free bytes", f"{free}")
