"""repack beside cp, and what the machine's own copying does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from engramctl.bench.measure import Line, Work, compare
from engramctl.errors import EngramctlError
from formats import page_cache
from formats.disk import ReadFile

COPIED = 256 << 20


def repacking(checkpoint: Path, folder: Path, rounds: int) -> Iterator[Line]:
    """A whole conversion, from a cold source to a synced file, and copies of as many bytes, cold and synced too."""
    target, copy = folder / "repacked.gguf", folder / "copy"
    command = [sys.executable, "-m", "engramctl", "repack", str(checkpoint), "-o", str(target), "--quiet", "--force"]
    _convert(command)
    size = target.stat().st_size
    shutil.copyfile(target, folder / "original")

    def forget() -> None:
        copy.unlink(missing_ok=True)
        for path in (*checkpoint.glob("*.safetensors"), folder / "original"):
            with ReadFile.open(path) as file:
                page_cache.drop(file, 0, file.size)

    def cp() -> None:
        subprocess.run(["cp", "--sparse=never", str(folder / "original"), str(copy)], check=True)
        fd = os.open(copy, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    candidates: dict[str, Work] = {"engramctl repack": lambda: _convert(command)}
    if shutil.which("cp") and sys.platform == "linux":
        candidates["cp, fsync"] = cp
    peer = list(candidates)[-1]
    yield from compare("repack", f"{size / 1e6:,.0f} MB", size, "bytes", candidates, peer, rounds, forget)


def _convert(command: list[str]) -> None:
    """Its words are not the bench's: an interruption strikes both, and the folder that it speaks of goes."""
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        found = next(iter(done.stderr.splitlines()), f"exit code {done.returncode}")
        raise EngramctlError("engramctl repack", "a conversion that ends", found.removeprefix("engramctl: "))


def copying(rounds: int) -> Iterator[Line]:
    """What memory allows on one thread: the ceiling of every gather."""
    source = np.ones(COPIED, np.uint8)
    target = np.zeros(COPIED, np.uint8)
    work = {"memcpy": lambda: np.copyto(target, source)}
    yield from compare("memory", f"{COPIED >> 20} MiB", COPIED, "bytes", work, "memcpy", rounds)
