"""Reads are exact, holes are only holes, and a file is there whole or not at all, whatever the system does."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import Faulty
from hypothesis import given, settings
from hypothesis import strategies as st

from formats import disk
from formats.disk import ReadFile, WriteFile, fsync_folder, write_whole
from formats.errors import FormatError

PAGE = os.sysconf("SC_PAGESIZE")
CONTENT = bytes(i % 251 for i in range(10_000))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# reading


@pytest.mark.parametrize("system", [Faulty(), Faulty(piece=7), Faulty(interrupted=True), Faulty(3, interrupted=True)])
def test_a_read_is_exact_however_short_or_interrupted_the_calls(
    file: Path, system: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "system", system)
    with ReadFile.open(file) as opened:
        assert opened.size == len(CONTENT)
        assert opened.read(1234, 321, "rows") == CONTENT[1234 : 1234 + 321]
        assert opened.read(len(CONTENT), 0, "nothing") == b""
        buffer = bytearray(50)
        opened.read_into(memoryview(buffer)[10:20], 77, "rows")
        assert buffer == bytes(10) + CONTENT[77:87] + bytes(30)


def test_no_call_moves_more_than_a_piece(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = Faulty()
    monkeypatch.setattr(disk, "system", system)
    monkeypatch.setattr(disk, "PIECE", 100)
    with ReadFile.open(file) as opened, WriteFile.create(tmp_path / "copy") as copy:
        copy.write(0, opened.read(0, 1050, "rows"))
    assert max(size for name, size in system.calls if name in ("read", "write")) == 100
    assert (tmp_path / "copy").read_bytes() == CONTENT[:1050]


def test_a_system_without_preadv_and_advice_reads_the_same(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("preadv", "posix_fadvise", "POSIX_FADV_DONTNEED"):
        monkeypatch.delattr(os, name, raising=False)
    with ReadFile.open(file) as opened:
        assert opened.read(5, 9_000, "rows") == CONTENT[5:9_005]
        opened.done_with(0, 5000)


def test_refused_advice_is_no_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "no advice here")

    monkeypatch.setattr(disk.system, "done_with", refuse)
    with ReadFile.open(file) as opened:
        opened.done_with(0, 5000)


@pytest.mark.parametrize(
    ("offset", "count", "left"), [(9_990, 11, 10), (10_000, 1, 0), (20_000, 5, 0), (0, 2**62, 10_000), (-1, 5, 10_001)]
)
def test_bytes_past_the_end_are_refused_before_memory_is_asked_for(
    file: Path, offset: int, count: int, left: int
) -> None:
    with ReadFile.open(file) as opened, pytest.raises(FormatError) as refused:
        opened.read(offset, count, "rows")
    assert str(refused.value) == f"{file} at byte {offset}: expected {count} bytes of rows, found {left}"


def test_a_file_that_was_cut_after_it_was_opened_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "system", Faulty(piece=64, ends_at=500))
    with (
        ReadFile.open(file) as opened,
        pytest.raises(FormatError, match="byte 400: expected 300 bytes of rows, found 100"),
    ):
        opened.read(400, 300, "rows")


def test_an_unreadable_sector_names_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "system", Faulty(broken_at=700))
    with ReadFile.open(file) as opened, pytest.raises(OSError, match="Input/output error") as error:
        opened.read(600, 200, "rows")
    assert error.value.filename == str(file)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path, file: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    for path, found in [
        (tmp_path, "a folder"),
        (tmp_path / "none", "nothing there"),
        (file / "inside", "nothing there"),
        (tmp_path / "pipe", "a device or a pipe"),
        (Path(os.devnull), "a device or a pipe"),
    ]:
        with pytest.raises(FormatError) as refused:
            ReadFile.open(path)
        assert (refused.value.path, refused.value.at) == (str(path), None)
        assert (refused.value.expected, refused.value.found) == ("a file", found)


def test_closing_twice_closes_once(file: Path) -> None:
    opened = ReadFile.open(file)
    opened.close()
    reused = os.open(file, os.O_RDONLY)
    opened.close()
    os.fstat(reused)
    os.close(reused)


# holes


class Extents(disk.System):
    """A file whose data extents are known, asked on Linux or on macOS."""

    def __init__(self, extents: list[tuple[int, int]], size: int, mac: bool = False) -> None:
        self.extents, self.length, self.mac = extents, size, mac

    def size(self, fd: int) -> int:
        return self.length

    def lseek(self, fd: int, offset: int, whence: int) -> int:
        if offset >= self.length:
            raise OSError(errno.ENXIO, "past the end")
        inside = [end for start, end in self.extents if start <= offset < end]
        if whence == os.SEEK_HOLE:
            return inside[0] if inside else offset
        assert whence == os.SEEK_DATA
        if inside and not self.mac:
            return offset
        later = [start for start, _ in self.extents if start > offset]
        if not later:
            raise OSError(errno.ENXIO, "no more data")
        return min(later)


KNOWN = [(0, 10), (20, 30), (90, 100)]


@pytest.mark.parametrize("mac", [False, True])
@pytest.mark.parametrize(
    ("extents", "span", "expected"),
    [
        (KNOWN, (0, 100), KNOWN),
        (KNOWN, (5, 25), [(5, 10), (20, 25)]),
        (KNOWN, (10, 20), []),
        (KNOWN, (11, 20), []),
        (KNOWN, (29, 91), [(29, 30), (90, 91)]),
        (KNOWN, (7, 7), []),
        ([(20, 30)], (0, 100), [(20, 30)]),
        ([], (3, 100), []),
        ([(0, 100)], (3, 97), [(3, 97)]),
    ],
)
def test_extents_are_found_from_any_offset_on_linux_and_on_macos(
    file: Path, monkeypatch: pytest.MonkeyPatch, mac: bool, extents: list, span: tuple[int, int], expected: list
) -> None:
    monkeypatch.setattr(disk, "system", Extents(extents, 100, mac))
    with ReadFile.open(file) as opened:
        assert list(opened.data(*span)) == expected


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_a_system_that_cannot_say_has_one_extent(file: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(disk.system, "lseek", refuse)
    with ReadFile.open(file) as opened:
        assert list(opened.data(17, 9_000)) == [(17, 9_000)]


def test_a_system_that_answers_without_sense_has_one_extent(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk.system, "lseek", lambda fd, offset, whence: offset)
    with ReadFile.open(file) as opened:
        assert list(opened.data(17, 9_000)) == [(17, 9_000)]


def test_a_system_without_the_question_has_one_extent(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "SEEK_HOLE", raising=False)
    with ReadFile.open(file) as opened:
        assert list(opened.data(17, 9_000)) == [(17, 9_000)]


def test_the_missing_end_of_a_cut_file_is_no_hole(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ReadFile.open(file) as opened:
        os.truncate(file, 4_000)
        assert [end for _, end in opened.data(0, 10_000)][-1] == 10_000
        assert list(opened.data(5_000, 10_000)) == [(5_000, 10_000)]
        with pytest.raises(FormatError, match="expected 6000 bytes of rows, found 0"):
            opened.read(4_000, 6_000, "rows")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60 * PAGE), st.integers(1, 3 * PAGE)), max_size=6), st.data())
def test_what_lies_outside_the_extents_is_zero(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, int]], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("holes") / "sparse"
    size = 64 * PAGE
    expected = bytearray(size)
    with WriteFile.create(path) as made:
        made.resize(size)
        for offset, count in writes:
            made.write(offset, b"\xaa" * count)
            expected[offset : offset + count] = b"\xaa" * count
    start = data.draw(st.integers(0, size))
    end = data.draw(st.integers(start, size))
    with ReadFile.open(path) as opened:
        extents = list(opened.data(start, end))
    flat = [edge for extent in extents for edge in extent]
    assert flat == sorted(flat)
    assert all(start <= a < b <= end for a, b in extents)
    for a, b in extents:
        expected[a:b] = bytes(b - a)
    assert not any(expected[start:end])


def test_a_hole_is_found_where_the_file_system_keeps_holes(tmp_path: Path) -> None:
    with WriteFile.create(tmp_path / "sparse") as made:
        made.resize(1 << 40)
        made.write(1 << 39, b"a row")
    if (tmp_path / "sparse").stat().st_blocks * 512 > 1 << 30:
        pytest.skip("this file system keeps no holes")
    with ReadFile.open(tmp_path / "sparse") as opened:
        ((start, end),) = opened.data(0, 1 << 40)
        assert start <= 1 << 39 < end
        assert end - start <= 1 << 20
        assert opened.read(1 << 39, 5, "rows") == b"a row"


# writing


@pytest.mark.parametrize("system", [Faulty(), Faulty(piece=7), Faulty(3, interrupted=True)])
def test_a_file_is_written_whole_and_alone(tmp_path: Path, system: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "system", system)
    write_whole(tmp_path / "out", [CONTENT[:100], bytearray(CONTENT[100:500]), memoryview(CONTENT)[500:], b""])
    assert (tmp_path / "out").read_bytes() == CONTENT
    assert names(tmp_path) == ["out"]


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
