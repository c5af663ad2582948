"""Journals out of files that anyone may have written: whole lines, within bounds, or one line that says why not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engramctl import identity, journal_file
from engramctl.errors import EngramctlError
from formats.disk import ReadFile
from formats.errors import FormatError


def said(path: Path, data: bytes) -> list[tuple[journal_file.Record, int]]:
    path.write_bytes(data)
    with ReadFile.open(path) as file:
        return list(journal_file.records(file))


@pytest.mark.parametrize("torn", [b"", b"{", b'{"b":2}', b"\0" * 20, b"[1]\n", b"[" * 9999 + b"\n", b'{"b":\xff}\n'])
def test_a_torn_last_line_is_none_and_one_before_it_is_refused(tmp_path: Path, torn: bytes) -> None:
    whole = journal_file.summed({"a": 1})
    assert said(tmp_path / "j", whole + torn) == [({"a": 1}, len(whole))]
    if torn.endswith(b"\n"):
        with pytest.raises(FormatError, match="j at line 2: expected a line as it was written"):
            said(tmp_path / "j", whole + torn + whole)
        assert journal_file.head(tmp_path / "j") == [{"a": 1}]
        assert journal_file.head(tmp_path / "j", 2) == []


def test_a_line_with_another_digit_is_none(tmp_path: Path) -> None:
    whole = journal_file.summed({"done": [6, 900], "leaves": [[0, 0, "ab" * 32]]})
    for i, byte in enumerate(whole[:-1]):
        for other in {byte ^ 1, ord("7"), ord(" ")} - {byte}:
            assert said(tmp_path / "j", whole[:i] + bytes([other]) + whole[i + 1 :]) == []
    assert [end for _, end in said(tmp_path / "j", whole * 2)] == [len(whole), 2 * len(whole)]


def test_a_flood_of_lines_is_left_at_the_first_that_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(journal_file.summed({"a": 1}) + b"\n" * (1 << 24))
    assert journal_file.head(tmp_path / "j") == [{"a": 1}]
    assert journal_file.head(tmp_path / "j", 2) == []


def test_one_that_is_larger_than_ours_get_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(journal_file.summed({"a": 1}))
    os.truncate(tmp_path / "j", 1 << 42)  # a hole that no memory holds
    assert journal_file.head(tmp_path / "j") == []
    with ReadFile.open(tmp_path / "j") as file, pytest.raises(FormatError, match=f"at most {256 << 20} bytes"):
        list(journal_file.records(file))


def test_what_was_begun_for_something_else_is_refused_by_all_its_names() -> None:
    now: identity.Identity = {"version": "1", "model": [1, 2], "header": "a"}
    identity.require_begun(Path("j"), dict(now), now, "others", "x")
    for before, names in (
        ({"version": "1", "model": [1, 3], "header": "b"}, "model, header"),
        ({}, "input"),
        (now | {"more": 1}, "input"),
    ):
        with pytest.raises(EngramctlError, match=f"j: expected the same {names} as when it was begun, found others"):
            identity.require_begun(Path("j"), before, now, "others", "x")
