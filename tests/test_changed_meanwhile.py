"""What changes while a conversion reads or writes it, its sources and its own working file, never becomes an output."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import dialect_files as files
import pytest
from cli_helpers import Cli, parse
from test_append import small

from engramctl import append, pieces, profiles
from engramctl.siblings import synth, unpack
from formats.disk import WriteFile

Words = tuple[object, ...]


def later(path: Path) -> None:
    """As after a write of the same size."""
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))


@pytest.fixture
def checkpoint(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "ckpt"))


@pytest.fixture
def model(tiny: Path, container: Path, tmp_path: Path) -> Path:
    """A container without constants, for `repair`."""
    whole = files.read_model(tiny, container)
    keys = files.llamacpp_keys(whole, "deepseek41.engram.")
    del keys["deepseek41.engram.pad_id"]
    return files.write(tmp_path / "model.gguf", keys, files.quantised(whole))


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A model of one tensor, for `--append-to`."""
    return small(tmp_path / "plain.gguf")


def jobs(checkpoint: Path, model: Path, plain: Path, output: Path) -> dict[str, tuple[Words, Path]]:
    """Commands, and the source that somebody writes to meanwhile."""
    shard = sorted(checkpoint.glob("*.safetensors"))[0]
    return {
        "split-i8": (("repack", checkpoint, "--dialect", "split-i8", "-o", output), shard),
        "append": (("repack", checkpoint, "--append-to", plain, "-o", output), shard),
        "appended model": (("repack", checkpoint, "--append-to", plain, "-o", output), plain),
        "repair": (("repair", model, "--from", checkpoint, "-o", output), model),
    }


@pytest.mark.parametrize("job", ["split-i8", "append", "appended model", "repair"])
def test_a_source_that_changes_while_it_is_copied_is_refused(
    cli: Cli, checkpoint: Path, model: Path, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    words, source = jobs(checkpoint, model, plain, tmp_path / "out.gguf")[job]
    note = pieces._Log.note

    def noted(self: pieces._Log, done: int) -> None:
        note(self, done)
        if done == 1:
            later(source)

    with monkeypatch.context() as patch:
        patch.setattr(pieces._Log, "note", noted)
        outcome = cli(*words)
    assert outcome.code == 2
    assert parse(outcome.err).hint == "do not change it while it is read"
    assert [path.name for path in tmp_path.glob("out.gguf*")] == []
    cli.ok(*words)


def test_a_checkpoint_that_changes_while_it_is_appended_leaves_the_model_as_it_was(
    cli: Cli, checkpoint: Path, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, write = plain.read_bytes(), append._write_tail

    def changed(*all_of_it: object) -> None:
        write(*all_of_it)  # type: ignore[arg-type]
        later(sorted(checkpoint.glob("*.safetensors"))[0])

    with monkeypatch.context() as patch:
        patch.setattr(append, "_write_tail", changed)
        patch.setattr(append.ranges, "block_of", lambda path: 1)
        patch.setattr(append.ranges, "inserts", lambda path: True)
        outcome = cli("repack", checkpoint, "--append-to", plain, "--in-place")
    assert (outcome.code, parse(outcome.err).hint) == (2, "do not change it while it is read")
    assert plain.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt", "plain.gguf"]


def test_a_container_that_changes_while_it_is_unpacked_is_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "qwen3.8-flash-next"
    synth.make(tmp_path / "ckpt", profiles.load(name), 7, real_tokens=False, full_size=False)
    cli.ok("repack", tmp_path / "ckpt", "-o", tmp_path / "x.gguf")
    write = unpack._write

    def changed(*all_of_it: object) -> None:
        write(*all_of_it)  # type: ignore[arg-type]
        later(tmp_path / "x.gguf")

    with monkeypatch.context() as patch:
        patch.setattr(unpack, "_write", changed)
        outcome = cli("repack", tmp_path / "x.gguf", "-o", tmp_path / "back", "--dialect", "hf")
    assert (outcome.code, parse(outcome.err).hint) == (2, "do not change it while it is read")
    assert not list(tmp_path.glob("back*"))


@pytest.mark.parametrize("moment", ["before the first piece", "after the last"])
def test_another_runs_working_file_gets_no_name_from_this_one(
    cli: Cli, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Another run with --force takes NAME.partial away and begins its own, between two looks of this one."""
    partial, output = tmp_path / "out.gguf.partial", tmp_path / "out.gguf"

    def other() -> None:
        partial.unlink()
        partial.write_bytes(b"half of another run's")

    def wrapped(act: Callable[..., None]) -> Callable[..., None]:
        def acting(self: WriteFile, *rest: int) -> None:
            act(self, *rest)
            if not struck and Path(str(self.path)) == partial:
                struck.append(True)
                other()

        return acting

    struck: list[bool] = []
    name = "lock" if moment == "before the first piece" else "sync"
    with monkeypatch.context() as patch:
        patch.setattr(WriteFile, name, wrapped(getattr(WriteFile, name)))
        outcome = cli("repack", checkpoint, "--dialect", "split-i8", "-o", output)
    assert outcome.code == 2
    assert parse(outcome.err).expected == "the file that this run writes"
    assert not output.exists()
    assert partial.read_bytes() == b"half of another run's"
