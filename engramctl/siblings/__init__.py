"""The hashed memories beside V4.1: their configs, tensors, tables and modules. V4.1's own path is not in here."""

from __future__ import annotations

from pathlib import Path

from engramctl import profiles
from engramctl.checkpoint import read_config
from engramctl.profiles import Profile
from engramctl.source import V41_ROWS, is_container, is_ple

PLE_PROFILE = "qwen3.8-flash-next"  # of containers that do not say whose they are


def profile_of(path: Path, name: str | None) -> Profile | None:
    """The sibling that a checkpoint belongs to, by the name that was asked for or by its config; None for V4.1."""
    known = profiles.load(name or profiles.DEFAULT)
    if not path.is_dir() and is_container(path):
        from formats.gguf_file import read_header

        return profiles.load(name or PLE_PROFILE) if is_ple(read_header(path, strict=False)) else None
    if path.is_dir() or path.suffix == ".safetensors":
        known = profiles.fitting(name, read_config(path)[1] if path.is_dir() else None)
    elif known.storage.encoding != V41_ROWS:
        return None  # a params file, which says for itself what it is
    return None if known.storage.encoding == V41_ROWS else known
