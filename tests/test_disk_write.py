"""A file is there whole or not at all, whatever the system does."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from faults import Faulty

from formats import disk
from formats.disk import ReadFile, WriteFile, fsync_folder, write_whole
from formats.errors import FormatError

CONTENT = bytes(i % 251 for i in range(10_000))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("system", [Faulty(), Faulty(piece=7), Faulty(3, interrupted=True)])
def test_a_file_is_written_whole_and_alone(tmp_path: Path, system: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "system", system)
    write_whole(tmp_path / "out", [CONTENT[:100], bytearray(CONTENT[100:500]), memoryview(CONTENT)[500:], b""])
    assert (tmp_path / "out").read_bytes() == CONTENT
    assert names(tmp_path) == ["out"]


def test_arrays_are_their_bytes_empty_ones_too(tmp_path: Path) -> None:
    words = np.arange(24, dtype=np.uint16).reshape(4, 6)
    write_whole(tmp_path / "out", [memoryview(words), memoryview(np.empty((0, 8), np.uint8))])
    assert (tmp_path / "out").read_bytes() == words.tobytes()
    back = np.zeros((2, 6), np.uint16)
    with ReadFile.open(tmp_path / "out") as opened:
        opened.read_into(memoryview(back), 12, "rows")
        opened.read_into(memoryview(back[:0]), 48, "no rows")
    assert np.array_equal(back, words[1:3])


def test_words_count_as_their_bytes(tmp_path: Path) -> None:
    words = memoryview(bytes(range(16))).cast("I")
    write_whole(tmp_path / "out", [words, b"end"])
    assert (tmp_path / "out").read_bytes() == bytes(range(16)) + b"end"


@pytest.mark.parametrize("force", [False, True])
def test_the_bytes_last_before_the_name_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool) -> None:
    system = Faulty()
    monkeypatch.setattr(disk, "system", system)
    write_whole(tmp_path / "out", [b"x"], force)
    assert [name for name, _ in system.calls] == ["write", "fsync", "replace" if force else "link", "fsync"]


def test_the_longest_name_there_is_can_be_written(tmp_path: Path) -> None:
    for name in ("x" * 255, "\u00fc" * 127):
        write_whole(tmp_path / name, [b"x"])
        assert (tmp_path / name).read_bytes() == b"x"


def test_an_existing_file_is_replaced_only_with_force(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")
    with pytest.raises(FormatError) as refused:
        write_whole(path, [b"new"])
    assert str(refused.value) == f"{path}: expected no file there yet (or --force), found an existing file"
    assert path.read_bytes() == b"old"
    write_whole(path, [b"new"], force=True)
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["out"]


def test_a_link_that_leads_nowhere_is_an_existing_file(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FormatError, match="an existing file"):
        write_whole(tmp_path / "out", [b"new"])


@pytest.mark.parametrize(("target", "found"), [("folder", "a folder"), ("/dev/null", "a device or a pipe")])
def test_a_link_is_replaced_only_if_it_leads_to_a_file(tmp_path: Path, target: str, found: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "out").symlink_to(target)
    with pytest.raises(FormatError, match=found):
        write_whole(tmp_path / "out", [b"new"], force=True)
    assert (tmp_path / "out").is_symlink()


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_comes_up_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def rival() -> Iterator[bytes]:
        yield b"ours"
        (tmp_path / "out").write_bytes(b"theirs")

    if not links:
        monkeypatch.setattr(disk.system, "link", no_links)
    with pytest.raises(FormatError, match="an existing file"):
        write_whole(tmp_path / "out", rival())
    assert (tmp_path / "out").read_bytes() == b"theirs"
    assert names(tmp_path) == ["out"]


def test_a_rival_between_the_look_and_the_name_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Rival(disk.System):
        def link(self, source: disk.PathLike, target: disk.PathLike) -> None:
            Path(target).write_bytes(b"theirs")
            super().link(source, target)

    monkeypatch.setattr(disk, "system", Rival())
    with pytest.raises(FormatError, match="an existing file"):
        write_whole(tmp_path / "out", [b"ours"])
    assert (tmp_path / "out").read_bytes() == b"theirs"
    assert names(tmp_path) == ["out"]


def no_links(*_: object) -> None:
    raise OSError(errno.EPERM, "no hard links here")


def test_a_file_system_without_links_gets_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk.system, "link", no_links)
    write_whole(tmp_path / "out", [b"new"])
    assert (tmp_path / "out").read_bytes() == b"new"
    assert names(tmp_path) == ["out"]


def test_only_files_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for path, found in [(tmp_path / "folder", "a folder"), (tmp_path / "pipe", "a device or a pipe")]:
        with pytest.raises(FormatError, match=found):
            write_whole(path, [b"new"], force=True)
    with pytest.raises(FormatError, match="a device or a pipe"):
        write_whole(os.devnull, [b"new"], force=True)


def test_the_folder_of_a_new_file_must_be_there(tmp_path: Path, file: Path) -> None:
    for folder, found in [(tmp_path / "none", "nothing there"), (file, "a file")]:
        with pytest.raises(FormatError) as refused:
            write_whole(folder / "out", [b"new"])
        assert str(refused.value) == f"{folder}: expected a folder, found {found}"


@pytest.mark.parametrize("force", [False, True])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool
) -> None:
    monkeypatch.setattr(disk, "system", Faulty(room=1000))
    if force:
        (tmp_path / "out").write_bytes(b"old")
    with pytest.raises(OSError, match="No space left on device") as full:
        write_whole(tmp_path / "out", [CONTENT], force)
    assert str(full.value.filename).startswith(str(tmp_path / "out"))
    assert names(tmp_path) == (["out"] if force else [])
    assert not force or (tmp_path / "out").read_bytes() == b"old"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ValueError, SystemExit])
def test_whatever_stops_the_writing_leaves_nothing(tmp_path: Path, stop: type[BaseException]) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"first"
        raise stop

    with pytest.raises(stop):
        write_whole(tmp_path / "out", chunks())
    assert names(tmp_path) == []


def test_a_write_that_moves_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "system", Faulty(piece=0))
    with pytest.raises(OSError, match="no byte could be written"):
        write_whole(tmp_path / "out", [b"new"])
    assert names(tmp_path) == []


def test_the_leftover_of_a_killed_run_is_in_nobodys_way(tmp_path: Path) -> None:
    leftover = tmp_path / f"out.{os.getpid()}.0.tmp"
    leftover.write_bytes(b"half")
    write_whole(tmp_path / "out", [b"new"])
    assert (tmp_path / "out").read_bytes() == b"new"
    assert leftover.read_bytes() == b"half"


def test_a_new_file_does_not_take_a_name_and_an_old_one_keeps_its_bytes(tmp_path: Path) -> None:
    with WriteFile.create(tmp_path / "out") as made:
        made.write(3, b"abc")
    with pytest.raises(FileExistsError):
        WriteFile.create(tmp_path / "out")
    with WriteFile.open(tmp_path / "out") as opened:
        opened.write(1, b"X")
        opened.resize(5)
        opened.sync()
    assert (tmp_path / "out").read_bytes() == b"\0X\0ab"


def test_bytes_lie_right_beyond_four_and_eight_gigabytes(tmp_path: Path) -> None:
    places = [2**31 - 1, 2**32 - 1, 2**33 + 1]
    with WriteFile.create(tmp_path / "far") as made:
        for place in places:
            made.write(place, b"%d" % place)
    with ReadFile.open(tmp_path / "far") as opened:
        assert [opened.read(place, len(b"%d" % place), "row") for place in places] == [b"%d" % p for p in places]


@pytest.mark.parametrize(("number", "fails"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_a_folder_that_cannot_be_synced_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, fails: bool
) -> None:
    def refuse(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(disk.system, "fsync", refuse)
    if fails:
        with pytest.raises(OSError, match="Input/output error") as error:
            fsync_folder(tmp_path)
        assert error.value.filename == str(tmp_path)
    else:
        fsync_folder(tmp_path)


def test_free_bytes_are_those_of_the_place_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(disk.system, "free_bytes", lambda path: asked.append(path) or 12_345)
    assert disk.free_bytes(tmp_path / "not" / "yet" / "there.gguf") == 12_345
    assert asked == [tmp_path]
    monkeypatch.undo()
    assert 0 < disk.free_bytes(tmp_path) < 2**63
