"""Folders that appear whole: what a second run, a kill, a full disk or damage in between may and may not do to them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import dialect_files as files
import pytest
from checks import passes
from cli_helpers import Cli
from dialect_files import Model
from test_repair import KilledError, Killing

from engramctl import profiles, room, unfinished, unpack
from engramctl.siblings import synth
from engramctl.siblings import unpack as sibling_unpack
from formats import disk
from formats.disk import WriteFile

FIRST, LAST = "engram-layer-01.safetensors", "engram-layer-14.safetensors"


@pytest.fixture(scope="module")
def model(tiny: Path, container: Path) -> Model:
    return files.read_model(tiny, container)


class FullAt(disk.System):
    """The disk is full when a file of that name is opened."""

    def __init__(self, name: str) -> None:
        self.name = name

    def open(self, path: disk.PathLike, flags: int, mode: int = 0o666) -> int:
        if Path(path).name == self.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))
        return super().open(path, flags, mode)


class Stopping(disk.System):
    """Killed where one call on one name is made."""

    def __init__(self, call: str, name: str, also: Callable[[], object] = lambda: None) -> None:
        self.call, self.name, self.also, self.dead = call, name, also, False

    def strike(self, call: str, path: disk.PathLike) -> None:
        if self.dead or (call == self.call and Path(path).name == self.name):
            self.dead = True
            raise KilledError

    def unlink(self, path: disk.PathLike) -> None:
        self.strike("unlink", path)
        super().unlink(path)

    def replace(self, source: disk.PathLike, target: disk.PathLike) -> None:
        self.strike("replace", target)
        super().replace(source, target)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def begun(cli: Cli, words: tuple[object, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first shard is finished, the second is not."""
    with monkeypatch.context() as patch:
        patch.setattr(disk, "system", FullAt(f"{LAST}.partial"))
        assert cli(*words).code == 2


def test_a_second_run_or_a_refused_one_leaves_the_first_ones_shards(
    cli: Cli, container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, partial = ("unpack", container, "-o", tmp_path / "back"), tmp_path / "back.partial"
    begun(cli, words, monkeypatch)
    inode = (partial / FIRST).stat().st_ino
    with WriteFile.create(tmp_path / "back.lock") as other:
        other.lock()
        for more in ((), ("--resume",), ("--force",)):
            assert cli.refused(tmp_path, *words, *more).where.endswith("back.lock")
    (tmp_path / "back.lock").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(disk, "free_bytes", lambda path: 0)
        assert "free bytes" in cli.refused(tmp_path, *words, "--resume").expected
    with WriteFile.create(partial / f"{LAST}.partial") as other:
        other.lock()
        assert cli.refused(tmp_path, *words, "--resume").found == "one that writes it"
    (partial / f"{LAST}.partial").unlink()
    cli.ok(*words, "--resume")
    assert (tmp_path / "back" / FIRST).stat().st_ino == inode
    assert [path.name for path in tmp_path.iterdir()] == ["back"]


def test_a_full_disk_is_known_before_a_folder_is_begun(
    cli: Cli, container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda path: room.SPARE_BYTES)
    assert "free bytes" in cli.refused_twice(tmp_path, "unpack", container, "-o", tmp_path / "back").expected
    assert list(tmp_path.iterdir()) == []


def test_a_shard_that_is_not_whole_is_written_again(
    cli: Cli, container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.ok("unpack", container, "-o", tmp_path / "whole")
    words, shard = ("unpack", container, "-o", tmp_path / "back"), tmp_path / "back.partial" / FIRST
    begun(cli, words, monkeypatch)
    good = shard.read_bytes()
    for bad in (b"", good[:-1], b"x" * len(good)):
        shard.write_bytes(bad)
        cli.ok(*words, "--resume")
        assert bytes_of(tmp_path / "back") == bytes_of(tmp_path / "whole")
        for path in (tmp_path / "back").iterdir():
            path.unlink()
        begun(cli, words, monkeypatch)


@pytest.mark.parametrize("way", ["--resume", "--force"])
@pytest.mark.parametrize("call", [("replace", "back"), ("unlink", unfinished.JOURNAL)])
def test_a_kill_around_the_folders_name_is_no_dead_end(
    cli: Cli, container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, call: tuple[str, str]
) -> None:
    words = ("unpack", container, "-o", tmp_path / "back")
    with monkeypatch.context() as patch:
        patch.setattr(disk, "system", Stopping(*call))
        with pytest.raises(KilledError):
            cli(*words)
    assert cli(*words).code == 2  # it finds the lock of a run that is gone
    assert "--resume" in cli.refused(tmp_path, *words).hint
    cli.ok(*words, way)
    assert [path.name for path in tmp_path.iterdir()] == ["back"]
    assert {FIRST, LAST} < set(bytes_of(tmp_path / "back"))
    assert unfinished.JOURNAL not in bytes_of(tmp_path / "back")


def test_a_kill_at_any_change_resumes_to_the_same_bytes(
    cli: Cli, container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.ok("unpack", container, "-o", tmp_path / "whole")
    for at in range(1, 400, 3):
        words = ("unpack", container, "-o", tmp_path / str(at))
        with monkeypatch.context() as patch:
            patch.setattr(disk, "system", Killing(at, torn=bool(at % 2)))
            try:
                cli.ok(*words)
                break
            except KilledError:
                pass
        folder = tmp_path / str(at)
        if not folder.exists() or (folder / unfinished.JOURNAL).exists():  # else it is finished
            cli.ok(*words, "--resume")
        assert bytes_of(folder) == bytes_of(tmp_path / "whole"), at
        for path in (tmp_path / str(at)).iterdir():
            path.unlink()
    assert at > 10
    assert list(tmp_path.glob("*.partial")) == []


def test_a_journal_of_any_size_or_content_is_one_line(
    cli: Cli, container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, journal = ("unpack", container, "-o", tmp_path / "back"), tmp_path / "back.partial" / unfinished.JOURNAL
    begun(cli, words, monkeypatch)
    for text in ("", "[" * 300, "1", "{}"):
        journal.write_text(text)
        assert cli.refused(tmp_path, *words, "--resume").found == "another"
    os.truncate(journal, 1 << 42)  # a hole that no memory holds
    assert cli.refused(tmp_path, *words, "--resume").found == "another"
    cli.ok(*words, "--force")


def test_another_profile_does_not_go_on(
    cli: Cli, container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("unpack", container, "-o", tmp_path / "back")
    begun(cli, words, monkeypatch)
    identity = unpack._identity
    monkeypatch.setattr(unpack, "_identity", lambda *given: identity(*given) | {"profile": ["other", ""]})
    assert "same profile" in cli.refused(tmp_path, *words, "--resume").expected


@pytest.mark.parametrize("profile", ["engram-27b", "qwen3.8-flash-next"])
@pytest.mark.parametrize("name", ["row264-bare", "split-i8"])
def test_a_profile_without_codes_and_scales_is_refused_before_anything_is_begun(
    cli: Cli, tiny: Path, tmp_path: Path, profile: str, name: str
) -> None:
    cli.ok("repack", tiny, "-o", tmp_path / "rows", "--dialect", name)
    words = ("unpack", tmp_path / "rows", "-o", tmp_path / "back", "--profile", profile)
    assert "codes and scales" in cli.refused_twice(tmp_path, *words).expected
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


def test_bare_rows_of_another_checkpoint_are_not_taken_up(
    cli: Cli, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Path(shutil.copytree(tiny, tmp_path / "other"))
    out = tmp_path / "rows"
    words = ("-o", out, "--dialect", "row264-bare")
    with monkeypatch.context() as patch:
        patch.setattr(disk, "system", FullAt("engram-l14-packed.bin.partial"))
        assert cli("repack", tiny, *words).code == 2
    assert "--resume" in cli.refused(tmp_path, "repack", tiny, *words).hint
    for path in other.glob("*.safetensors"):
        os.utime(path, (1, 1))
    assert "time of" in cli.refused(tmp_path, "repack", other, *words, "--resume").where
    with WriteFile.create(out / "row264-bare.lock") as held:
        held.lock()
        for more in ((), ("--resume",), ("--force",)):
            assert cli.refused(tmp_path, "repack", tiny, *words, *more).where.endswith("row264-bare.lock")
    inode = (out / "engram-l1-packed.bin").stat().st_ino
    free = room.SPARE_BYTES + (out / "engram-l1-packed.bin").stat().st_size * 5 // 2  # one layer's room, not two
    monkeypatch.setattr(disk, "free_bytes", lambda path: free)
    cli.ok("repack", tiny, *words, "--resume")
    assert (out / "engram-l1-packed.bin").stat().st_ino == inode
    passes(cli, "packing", tiny, out)
    assert len(bytes_of(out)) == 4


def test_bare_rows_killed_at_any_change_resume_to_the_same_bytes(
    cli: Cli, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("repack", tiny, "--dialect", "row264-bare", "-o")
    cli.ok(*words, tmp_path / "whole")
    whole = bytes_of(tmp_path / "whole")
    for at in range(1, 400, 2):
        out = tmp_path / str(at)
        with monkeypatch.context() as patch:
            patch.setattr(disk, "system", Killing(at, torn=bool(at % 4 == 1)))
            try:
                cli.ok(*words, out)
                break
            except KilledError:
                pass
        if (out / "row264-bare.journal").exists() or not set(bytes_of(out)) >= set(whole):
            cli.ok(*words, out, "--resume")
        left = bytes_of(out)
        left.pop("row264-bare.lock", None)  # of a run that was killed when all was done
        assert left == whole, (at, left.keys())
        shutil.rmtree(out)
    assert at > 10


def test_bare_rows_that_are_there_without_a_plan_are_not_vouched_for(
    cli: Cli, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, out = ("repack", tiny, "--dialect", "row264-bare", "-o", tmp_path / "rows"), tmp_path / "rows"
    cli.ok(*words)
    good = bytes_of(out)
    (out / "engram-l14-packed.bin.json").unlink()
    for name in ("engram-l1-packed.bin", "engram-l14-packed.bin"):
        (out / name).write_bytes(b"x" * len(good[name]))
    for more in ((), ("--resume",)):
        assert cli.refused(tmp_path, *words, *more).found == "an existing file"
    with monkeypatch.context() as patch:
        patch.setattr(disk, "system", FullAt("engram-l14-packed.bin.partial"))
        assert cli(*words, "--force").code == 2
    cli.ok(*words, "--resume")  # the old rows of layer 14 are none of this plan's
    assert bytes_of(out) == good


@pytest.mark.parametrize("killed", [("replace", "back"), ("unlink", unfinished.JOURNAL), ("replace", "index")])
def test_a_killed_way_back_to_a_checkpoint_is_begun_again_with_force(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: tuple[str, str]
) -> None:
    name = "qwen3.8-flash-next"
    synth.make(tmp_path / "ckpt", profiles.load(name), 7, real_tokens=False, full_size=False)
    cli.ok("repack", tmp_path / "ckpt", "-o", tmp_path / "x.gguf")
    words = ("repack", tmp_path / "x.gguf", "--dialect", "hf", "-o", tmp_path / "back")
    with monkeypatch.context() as patch:
        if killed[1] == "index":  # as by SIGKILL: nothing cleans up
            patch.setattr(unfinished, "remove", lambda partial: None)
            patch.setattr(sibling_unpack, "_write", stopped)
            assert cli(*words).code == 130
        else:
            patch.setattr(disk, "system", Stopping(*killed))
            with pytest.raises(KilledError):
                cli(*words)
    assert cli(*words).code == 2  # it finds the lock of a run that is gone
    assert "--force" in cli.refused(tmp_path, *words).hint
    with WriteFile.create(tmp_path / "back.lock") as other:
        other.lock()
        assert cli.refused(tmp_path, *words, "--force").where.endswith("back.lock")
    cli.ok(*words, "--force")
    assert {path.name for path in tmp_path.iterdir()} == {"ckpt", "x.gguf", "back"}
    assert unfinished.JOURNAL not in bytes_of(tmp_path / "back")
    (tmp_path / "other.partial").mkdir()
    (tmp_path / "other.partial" / "x").write_text("x")
    assert cli.refused(tmp_path, *words[:-1], tmp_path / "other", "--force").found == "something else"


def stopped(*given: object) -> None:
    raise KeyboardInterrupt
