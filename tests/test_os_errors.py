"""What the system refuses is said of the name that the user gave, in words that say what to change."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_helpers import Cli, snapshot
from faults import Faulty

from formats import disk, os_errors

DENIED = [(errno.EACCES, "permission denied"), (errno.EROFS, "read-only file system")]


class Closed(disk.System):
    """A folder in which nobody may make a file."""

    def __init__(self, code: int) -> None:
        self.code = code

    def open(self, path: disk.PathLike, flags: int, mode: int = 0o666) -> int:
        if flags & os.O_CREAT:
            raise OSError(self.code, os.strerror(self.code), os.fspath(path))
        return super().open(path, flags, mode)


@pytest.mark.parametrize(("code", "found"), DENIED)
@pytest.mark.parametrize(
    "words",
    [
        ("hash", "--ids", "5", "--to", "npy"),
        ("params",),
        ("repack", "CKPT"),
        ("repack", "CKPT", "--part", "1/2"),
        ("repack", "CKPT", "--dialect", "split-i8"),
        ("unpack", "FILE"),
        ("repair", "FILE", "--from", "CKPT"),
    ],
    ids=" ".join,
)
def test_an_output_that_cannot_be_made_is_named_and_no_file_beside_it(
    cli: Cli,
    tiny: Path,
    container: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    code: int,
    found: str,
) -> None:
    if words[0] == "repair":  # whose file has to lack something
        raw = container.read_bytes().replace(b"engram.pad_id", b"engram.pad_no")
        (tmp_path / "m.gguf").write_bytes(raw)
        container = tmp_path / "m.gguf"
    given = [{"CKPT": tiny, "FILE": container}.get(word, word) for word in words]
    monkeypatch.setattr(disk, "system", Closed(code))
    out = tmp_path / "x"
    refusal = cli.refused(tmp_path, *given, "-o", out)
    assert (refusal.where, refusal.expected, refusal.found) == (str(out), "a folder that can be written", found)


def test_progress_that_could_not_be_kept_is_refused_before_the_check(
    cli: Cli, tiny: Path, container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(tmp_path)
    passed = cli.ok("check", "packing", tiny, container, "--resume", tmp_path / "p")
    assert (b": ok" in passed.out, snapshot(tmp_path)) == (True, before)
    monkeypatch.setattr(disk, "system", Closed(errno.EACCES))
    refusal = cli.refused(tmp_path, "check", "packing", tiny, container, "--resume", tmp_path / "p")
    assert (refusal.where, refusal.expected) == (str(tmp_path / "p"), "a folder that can be written")


def test_a_full_disk_and_an_unreadable_file_are_called_that(
    cli: Cli, tiny: Path, container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(disk, "system", Faulty(room=100))
        refusal = cli.refused(tmp_path, "params", "-o", tmp_path / "p.npz")
        assert refusal.where == str(tmp_path / "p.npz")
        assert (refusal.expected, refusal.found) == ("room on the disk", "no space left on device")
    monkeypatch.setattr(disk, "system", Faulty(broken_at=3))
    refusal = cli.refused(tmp_path, "show", container)
    assert (refusal.where, refusal.expected) == (str(container), "a disk without errors")


def may(*modes: int) -> Callable[[os.PathLike[str], int], bool]:
    return lambda path, mode: mode in modes


@pytest.mark.parametrize(
    ("name", "allowed", "expected"),
    [
        ("file", (os.X_OK, os.W_OK), "a file that can be read"),
        ("file", (os.X_OK, os.R_OK), "a file that can be written"),
        ("file", (os.X_OK, os.R_OK, os.W_OK), os_errors.WRITABLE_FOLDER),
        ("folder", (os.X_OK,), "a folder that can be read"),
        ("folder", (os.X_OK, os.R_OK), os_errors.WRITABLE_FOLDER),
        ("none", (os.X_OK,), os_errors.WRITABLE_FOLDER),
        ("none", (), "a place that can be reached"),
    ],
)
def test_what_one_may_not_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, allowed: tuple[int, ...], expected: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(os, "access", may(*allowed))
    error = PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path / name))
    assert os_errors.words(error) == (str(tmp_path / name), expected, "permission denied")


def test_only_what_could_not_be_made_beside_an_output_gets_its_name(tmp_path: Path) -> None:
    (tmp_path / "input").touch()
    for name, code, kept in (
        ("x.123.0.tmp", errno.EACCES, "x"),
        ("input", errno.EACCES, "input"),
        ("x.123.0.tmp", errno.ENOSPC, "x"),
        ("x.partial", errno.ENOSPC, "x.partial"),
        ("elsewhere/y", errno.EACCES, "elsewhere/y"),
    ):
        with pytest.raises(OSError) as raised, os_errors.made_for(tmp_path / "x"):
            raise OSError(code, os.strerror(code), str(tmp_path / name))
        assert raised.value.filename == str(tmp_path / kept)


def test_a_library_that_does_not_load_is_one_line() -> None:
    """llvmlite's words where there is no memory for it; they go on for a paragraph, and no call made them."""
    error = OSError("Could not find/load shared object file 'libllvmlite.so' from 'llvmlite.binding'. This could\nmean")
    where, expected, found = os_errors.words(error)
    assert (where, expected) == ("a library", "one that can be loaded, and the memory for it")
    assert found == "Could not find/load shared object file 'libllvmlite.so' from 'llvmlite.binding'"
    assert os_errors.words(OSError())[2]
