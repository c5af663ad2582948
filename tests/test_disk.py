"""Reads are exact and holes are only holes, whatever the system does."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from faults import Faulty
from hypothesis import given, settings
from hypothesis import strategies as st

from formats import disk
from formats.disk import ReadFile, WriteFile
from formats.errors import FormatError

PAGE = os.sysconf("SC_PAGESIZE")
CONTENT = bytes(i % 251 for i in range(10_000))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


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
    said = f"{file} at byte {offset}: expected {count} bytes of rows, found {left}"
    assert str(refused.value) == f"{said} before the file ends at byte {file.stat().st_size}"


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
