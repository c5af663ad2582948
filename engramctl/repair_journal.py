"""The journal of an in-place repair: everything that is needed to finish it or to undo it, beside the file."""

from __future__ import annotations

from pathlib import Path


def journal_of(path: Path) -> Path:
    return path.with_name(path.name + ".repair")
