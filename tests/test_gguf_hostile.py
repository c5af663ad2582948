"""Hostile GGUF headers: one short line each, and no memory for what is not there."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest
from hostile_gguf import HOSTILE, items, key, start, tensor

from formats import gguf_scan
from formats.errors import FormatError
from formats.gguf_file import encode_header, read_header, string, strings, u32, u32s


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_header_is_refused_in_one_short_line(tmp_path: Path, case: str) -> None:
    raw, at, *words = HOSTILE[case]
    expected, found = (word.replace("SIZE", f"{len(raw)}") for word in words)
    (tmp_path / "x").write_bytes(raw)
    started = time.perf_counter()
    tracemalloc.start()
    try:
        with pytest.raises(FormatError) as refused:
            read_header(tmp_path / "x")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (refused.value.at, refused.value.expected, refused.value.found) == (at, expected, found)
    assert refused.value.path == str(tmp_path / "x")
    assert "\n" not in str(refused.value)
    assert peak < 4 << 20
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("kind", [0, 4, 8, 12])
def test_a_sparse_terabyte_of_header_is_not_read(tmp_path: Path, kind: int) -> None:
    """An array that claims 2**37 items has them all, as a hole; the limit on headers is what refuses it."""
    with open(tmp_path / "x", "wb") as file:
        file.write(start(keys=1) + key(9, items(kind, 2**37)))
        file.truncate(1 << 41)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"at byte 41: expected at most \d+ items of \"k\", found 137438953472"):
            read_header(tmp_path / "x")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_header_longer_than_the_limit_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = encode_header([("a", string("x" * 300)), ("b", u32s(range(100)))], [])
    (tmp_path / "x").write_bytes(layout.header)
    monkeypatch.setattr(gguf_scan, "HEADER_LIMIT", 100)
    with pytest.raises(FormatError, match='at byte 45: expected a header of at most 100 bytes, found more, in "a"'):
        read_header(tmp_path / "x")
    monkeypatch.undo()
    assert len(read_header(tmp_path / "x").keys) == 2


def test_where_a_cut_file_ends_is_said(tmp_path: Path) -> None:
    """A download that stopped inside of the header: in a count, in an array and in the tensors."""
    whole = encode_header([("a", u32s(range(100)))], [("t", 0, (8,), 32)]).header
    for size in (20, 60, whole.rindex(b"t") + 4):
        (tmp_path / "x").write_bytes(whole[:size])
        with pytest.raises(FormatError, match=f"before the file ends at byte {size}"):
            read_header(tmp_path / "x")


def test_every_span_error_is_listed_and_only_strict_reading_refuses(tmp_path: Path) -> None:
    raw = start(tensors=4)
    raw += tensor((40,), name="a") + tensor((8,), offset=32, name="b") + tensor((2,), offset=72, name="c")
    raw += tensor((64,), kind=77, offset=4096, name="d")
    (tmp_path / "x").write_bytes(raw + bytes(60))
    with pytest.raises(FormatError, match='after "a"'):
        read_header(tmp_path / "x")
    header = read_header(tmp_path / "x", strict=False)
    assert (header.data_start, header.file_size) == (160, len(raw) + 60)
    assert [tensor.size for tensor in header.tensors] == [40, 8, 2, None]
    assert header.span_errors() == [
        ("b", 'its bytes from 200 on, after "a"', "from 192 on"),
        ("c", f"its bytes before the file's end at {header.file_size}", "up to 234"),
        ("c", "an offset that 32 divides", "72"),
        ("d", f"its bytes before the file's end at {header.file_size}", "up to 4256"),
    ]


def test_gaps_and_any_order_are_no_errors(tmp_path: Path) -> None:
    raw = start(tensors=3) + tensor((32,), offset=64, name="a") + tensor((32,), offset=0, name="b")
    raw += tensor((0, 7), offset=64, name="empty")
    (tmp_path / "x").write_bytes(raw + bytes(-len(raw) % 32 + 96))
    assert read_header(tmp_path / "x").span_errors() == []


def test_a_tensor_inside_a_long_one_is_seen_behind_a_short_one(tmp_path: Path) -> None:
    raw = start(tensors=3) + tensor((96,), name="a") + tensor((2,), offset=32, name="b")
    raw += tensor((2,), offset=64, name="c")
    (tmp_path / "x").write_bytes(raw + bytes(-len(raw) % 32 + 96))
    header = read_header(tmp_path / "x", strict=False)
    assert [name for name, _, _ in header.span_errors()] == ["b", "c"]


def test_names_that_a_terminal_would_obey_are_escaped(tmp_path: Path) -> None:
    keys = [("\x1b[2J\n" + "x" * 500, strings(["a"])), ("b", u32(1))]
    raw = encode_header(keys, []).header
    (tmp_path / "x").write_bytes(raw[:550])
    with pytest.raises(FormatError) as refused:
        read_header(tmp_path / "x")
    assert '"\\u001b[2J\\n' + "x" * 75 + '..."' in str(refused.value)
    assert "\x1b" not in str(refused.value)
