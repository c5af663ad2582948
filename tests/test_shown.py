"""What a file says is quoted into a message so that it stays one short line and obeys nobody."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats.errors import FormatError, shown


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("a name", '"a name"'),
        ("\x1b[2J\n\x7f", '"\\u001b[2J\\n\\u007f"'),
        ("\ud800", '"\\ud800"'),
        ("x" * 80, '"' + "x" * 80 + '"'),
        ("x" * 81, '"' + "x" * 80 + '..."'),
        ("\0" * 81, '"' + "\\u0000" * 20 + '..."'),
        ([1, 2], "a list of 2"),
        ({"a": 1}, "an object of 1"),
        (None, "null"),
        (True, "true"),
        (2**64, "18446744073709551616"),
        (0.5, "0.5"),
        ("", '""'),
    ],
)
def test_a_value_is_quoted_escaped_and_cut(value: object, line: str) -> None:
    assert shown(value) == line


@given(st.text(st.characters(exclude_categories=[])))
def test_any_text_stays_on_one_short_printable_line(text: str) -> None:
    line = shown(text)
    assert line.isascii()
    assert line.isprintable()
    assert len(line) <= 165


@pytest.mark.parametrize(
    ("at", "where"), [(None, "x.gguf"), (125, "x.gguf at byte 125"), ("layer 1 row 39", "x.gguf at layer 1 row 39")]
)
def test_an_error_says_where_expected_and_found(at: int | str | None, where: str) -> None:
    assert str(FormatError("x.gguf", at, "4 bytes", "2")) == f"{where}: expected 4 bytes, found 2"
