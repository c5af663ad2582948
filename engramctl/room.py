"""Where an output goes: a folder that is there, and room in it, before anything is begun."""

from __future__ import annotations

from pathlib import Path

from engramctl.errors import EngramctlError
from formats import disk
from formats.errors import FormatError

SPARE_BYTES = 16 << 20  # left free on the disk for the file system's own needs


def require_folder(folder: Path) -> None:
    """Refuse what is no folder."""
    if not folder.is_dir():
        raise FormatError(folder, None, "a folder", "a file" if folder.exists() else "nothing there")


def require(folder: Path, needed: int, disk_of: Path | None = None) -> None:
    """Refuse a folder without room for so many bytes; `disk_of` where they go behind a link."""
    need, free = needed + SPARE_BYTES, disk.free_bytes(disk_of or folder)
    if free < need:
        raise EngramctlError(str(folder), f"{need} free bytes", f"{free}")
