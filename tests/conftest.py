"""What many tests start from: the command line in this process, and checkpoints that nobody changes."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from cli_helpers import Cli, Copy

from engramctl import profiles, repack, repack_plan, synth
from engramctl.checkpoint import open_checkpoint

os.environ.pop("PYTHONUNBUFFERED", None)  # as in a shell: what is written late, fails late
signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal, where CI started us with it ignored


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(capfdbinary, monkeypatch)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny synthetic checkpoint; its map moves the pad."""
    folder = tmp_path_factory.mktemp("tiny") / "ckpt"
    synth.make(folder, profiles.load(), 7, real_tokens=False, full_size=False)
    return folder


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The full-size synthetic checkpoint: real sizes, sparse, marked rows."""
    folder = tmp_path_factory.mktemp("full") / "ckpt"
    synth.make(folder, profiles.load(), 7, real_tokens=True, full_size=True)
    return folder


@pytest.fixture(scope="session")
def container(tiny: Path) -> Path:
    return _repacked(tiny)


@pytest.fixture(scope="session")
def full_container(full: Path) -> Path:
    return _repacked(full)


def _repacked(checkpoint: Path) -> Path:
    path = checkpoint.with_name("engram.gguf")
    with open_checkpoint(checkpoint) as source:
        repack.write(repack_plan.plan(source), path)
    return path


@pytest.fixture
def copied(tmp_path: Path) -> Copy:
    """A copy of a checkpoint to break: its files are links, so replace them or `rewrite` them."""

    def copy(checkpoint: Path) -> Path:
        return Path(shutil.copytree(checkpoint, tmp_path / "ckpt", copy_function=os.link))

    return copy
