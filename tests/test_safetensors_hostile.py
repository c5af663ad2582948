"""Hostile shards: one short line each, soon, and where the library agrees the same verdict."""

from __future__ import annotations

import json
import re
import time
import tracemalloc
from pathlib import Path

import pytest
import safetensors

from formats.errors import FormatError
from formats.safetensors_raw import header, read_header, read_shard


def shard(path: Path, text: str | bytes, data: bytes = b"", length: int | None = None) -> Path:
    """A file with exactly this header text."""
    raw = text if isinstance(text, bytes) else text.encode()
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + data)
    return path


def entry(dtype: str = '"U8"', shape: str = "[2]", offsets: str = "[0,2]") -> str:
    return '{"t":{"dtype":%s,"shape":%s,"data_offsets":%s}}' % (dtype, shape, offsets)  # noqa: UP031


def refusal(path: Path) -> tuple[int | str | None, str, str]:
    with pytest.raises(FormatError) as refused:
        read_shard(path)
    assert refused.value.path == str(path)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < len(str(path)) + 400
    return refused.value.at, refused.value.expected, refused.value.found


# hostile shards: ours refuses, and so does the library unless the line says why not

U64 = 2**64
SHORT = "integers of at most 64 bits"
WIDE = "a shape of unsigned 64-bit integers"
WHOLE = "a shape that makes whole bytes, counted in 64 bits"
ASCENDING = "data_offsets of two ascending unsigned integers"

HOSTILE = {
    "an empty header": (b"", 8, 'a header that starts with "{"', "b''"),
    "a list": (b"[]", 8, 'a header that starts with "{"', "b'[]'"),
    "a space first": (" " + entry(), 8, 'a header that starts with "{"', 'b\' {"t":{"\''),
    "a bom": (b"\xef\xbb\xbf{}", 8, 'a header that starts with "{"', r"b'\xef\xbb\xbf{}'"),
    "not json": (b"{nonsense", 9, "JSON", '"nonsense"'),
    "cut json": (b'{"t":', 13, "JSON", "the end of it"),
    "two objects": (b"{}{}", 10, "JSON", 'more after its end: "{}"'),
    "nul bytes behind": (b"{}\0\0", 10, "JSON", 'more after its end: "\\u0000\\u0000"'),
    "not utf-8": (b'{"t\xff":1}', 11, "UTF-8", "byte 0xff"),
    "utf-8 of half a surrogate pair": (b'{"\xed\xa0\x80":1}', 10, "UTF-8", "byte 0xed"),
    "half a surrogate pair": (b'{"\\ud800":{}}', 8, "names in Unicode", 'half a surrogate pair in "\\ud800"'),
    "nan": (entry(shape="[NaN]"), 8, "JSON", "NaN"),
    "infinity": (entry(shape="[-Infinity]"), 8, "JSON", "-Infinity"),
    "a name twice": ('{"t":{},"t":{}}', 8, "JSON with each name once", '"t" twice'),
    "a field twice": (
        entry().replace('"shape"', '"shape":[2],"shape"'),
        8,
        "JSON with each name once",
        '"shape" twice',
    ),
    "digits beyond python's limit": (entry(shape="[" + "9" * 5000 + "]"), 8, SHORT, "one of 5000 digits"),
    "a million digits": (entry(shape="[" + "9" * 1_000_000 + "]"), 8, SHORT, "one of 1000000 digits"),
    "lists without end": (entry(shape="[" * 100_000), 8, "JSON nested a few levels deep", "hundreds of levels"),
    "objects without end": ('{"a":' * 100_000, 8, "JSON nested a few levels deep", "hundreds of levels"),
    "no object": ('{"t":[]}', 'tensor "t"', "an object", "a list of 0"),
    "a null": ('{"t":null}', 'tensor "t"', "an object", "null"),
    "no dtype": ('{"t":{"shape":[2],"data_offsets":[0,2]}}', 'tensor "t"', "a dtype", "none"),
    "no shape": ('{"t":{"dtype":"U8","data_offsets":[0,2]}}', 'tensor "t"', "a shape", "none"),
    "no offsets": ('{"t":{"dtype":"U8","shape":[2]}}', 'tensor "t"', "a data_offsets", "none"),
    "a number for a dtype": (entry("8"), 'tensor "t"', "a dtype of safetensors", "8"),
    "a list for a dtype": (entry('["U8"]'), 'tensor "t"', "a dtype of safetensors", "a list of 1"),
    "a number for a shape": (entry(shape="2"), 'tensor "t"', WIDE, "2"),
    "a bool in a shape": (entry(shape="[true,2]"), 'tensor "t"', WIDE, "[true, 2]"),
    "a float in a shape": (entry(shape="[2.0]"), 'tensor "t"', WIDE, "[2.0]"),
    "a huge float in a shape": (entry(shape="[1e999]"), 'tensor "t"', WIDE, "[Infinity]"),
    "a text in a shape": (entry(shape='["2"]'), 'tensor "t"', WIDE, '["2"]'),
    "a negative extent": (entry(shape="[-2]"), 'tensor "t"', WIDE, "[-2]"),
    "an extent of 65 bits": (entry(shape=f"[{U64}]"), 'tensor "t"', WIDE, f"[{U64}]"),
    "a product of 65 bits": (entry(shape=f"[{2**32},{2**32}]"), 'tensor "t"', WHOLE, f"[{2**32}, {2**32}]"),
    "a product that wraps to 2": (entry(shape=f"[2,{2**63 + 1}]"), 'tensor "t"', WHOLE, f"[2, {2**63 + 1}]"),
    "bytes of 65 bits": (entry('"F64"', f"[{2**61}]"), 'tensor "t"', WHOLE, f"[{2**61}]"),
    "half a byte": (entry('"F4"', "[3]"), 'tensor "t"', WHOLE, "[3]"),
    "a product that a million extents hide": (
        entry(shape="[" + "2," * 999_999 + "2]"),
        'tensor "t"',
        WHOLE,
        "a list of 1000000",
    ),
    "one offset": (entry(offsets="[2]"), 'tensor "t"', ASCENDING, "[2]"),
    "three offsets": (entry(offsets="[0,1,2]"), 'tensor "t"', ASCENDING, "[0, 1, 2]"),
    "offsets backwards": (entry(offsets="[2,0]"), 'tensor "t"', ASCENDING, "[2, 0]"),
    "a negative offset": (entry(offsets="[-2,0]"), 'tensor "t"', ASCENDING, "[-2, 0]"),
    "bools for offsets": (entry(offsets="[false,true]"), 'tensor "t"', ASCENDING, "[false, true]"),
    "an object for offsets": (entry(offsets='{"0":0}'), 'tensor "t"', ASCENDING, "an object of 1"),
    "an offset of 65 bits": (entry(offsets=f"[0,{U64}]"), 'tensor "t"', ASCENDING, f"[0, {U64}]"),
    "metadata of numbers": ('{"__metadata__":{"a":1}}', "__metadata__", "an object of strings", "an object of 1"),
    "metadata as a text": ('{"__metadata__":"a"}', "__metadata__", "an object of strings", '"a"'),
}
STRICTER = {
    "a space first": "the format's README asks for the brace, the library does not look",
    "a name twice": "serde keeps one of the two",
    "half a surrogate pair": "refused by the library too, in the numbers of its own error",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_header_is_refused_in_one_short_line(tmp_path: Path, case: str) -> None:
    text, at, expected, found = HOSTILE[case]
    path = shard(tmp_path / "x", text, b"12")
    started = time.perf_counter()
    assert refusal(path) == (at, expected, found)
    assert time.perf_counter() - started < 5
    if case not in STRICTER:
        with pytest.raises(safetensors.SafetensorError):
            safetensors.deserialize(path.read_bytes())


END = "its bytes before the file's end at {end}"


def two(a: tuple[int, int, int], b: tuple[int, int, int]) -> str:
    """Two U8 tensors of (extent, start, end)."""
    return json.dumps(
        {name: {"dtype": "U8", "shape": [n], "data_offsets": [x, y]} for name, (n, x, y) in (("a", a), ("b", b))}
    )


SPANS = {
    "past the end": (entry(shape="[3]", offsets="[0,3]"), b"12", 'tensor "t"', END, "up to {end+1}"),
    "far past the end": (
        entry(shape=f"[{2**60}]", offsets=f"[0,{2**60}]"),
        b"12",
        'tensor "t"',
        END,
        f"up to {{end+{2**60 - 2}}}",
    ),
    "bytes left over": (entry(), b"123", "tensor bytes", "a file of {end-1} bytes", "{end}"),
    "a hole at the start": (
        entry(offsets="[1,3]"),
        b"123",
        'tensor "t"',
        "its bytes from {end-3} on",
        "from {end-2} on",
    ),
    "another size than the shape's": (entry(offsets="[0,3]"), b"123", 'tensor "t"', "2 bytes for U8 [2]", "3"),
    "no tensor but bytes": ("{}", b"123", "tensor bytes", "a file of {end-3} bytes", "{end}"),
    "an overlap": (two((2, 0, 2), (2, 1, 3)), b"123", 'tensor "b"', "its bytes from {end-1} on", "from {end-2} on"),
    "a hole between": (two((1, 0, 1), (1, 2, 3)), b"123", 'tensor "b"', "its bytes from {end-2} on", "from {end-1} on"),
    "the same bytes twice": (
        two((2, 0, 2), (2, 0, 2)),
        b"12",
        'tensor "b"',
        "its bytes from {end} on",
        "from {end-2} on",
    ),
}


@pytest.mark.parametrize("case", SPANS)
def test_spans_cover_the_file_once(tmp_path: Path, case: str) -> None:
    text, data, at, expected, found = SPANS[case]
    path = shard(tmp_path / "x", text, data)
    end = path.stat().st_size

    def filled(words: str) -> str:
        return re.sub(r"\{end([+-]\d+)?\}", lambda match: str(end + int(match[1] or 0)), words)

    expect = (at, filled(expected), filled(found))
    assert refusal(path) == expect
    assert expect in list(read_header(path).span_errors())
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(path.read_bytes())


def test_every_span_error_is_listed(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 3]},
            "b": {"dtype": "F16", "shape": [2], "data_offsets": [2, 6]},
            "c": {"dtype": "U8", "shape": [1], "data_offsets": [8, 9]},
        }
    )
    path = shard(tmp_path / "x", text, bytes(7))
    start = path.stat().st_size - 7
    assert list(read_header(path).span_errors()) == [
        ('tensor "a"', "2 bytes for U8 [2]", "3"),
        ('tensor "b"', f"its bytes from {start + 3} on", f"from {start + 2} on"),
        ('tensor "c"', f"its bytes from {start + 6} on", f"from {start + 8} on"),
        ('tensor "c"', f"its bytes before the file's end at {start + 7}", f"up to {start + 9}"),
    ]


def test_tensors_without_elements_lie_anywhere_between(tmp_path: Path) -> None:
    empty, full = {"dtype": "F32", "shape": [0, 7], "data_offsets": [2, 2]}, {"dtype": "U8", "shape": [2]}
    text = json.dumps({"b": {**full, "data_offsets": [2, 4]}, "e": empty, "a": {**full, "data_offsets": [0, 2]}})
    path = shard(tmp_path / "x", text, b"1234")
    assert {name: t.end - t.start for name, t in read_shard(path).items()} == {"b": 2, "e": 0, "a": 2}
    assert len(safetensors.deserialize(path.read_bytes())) == 3


@pytest.mark.parametrize(
    ("raw", "at", "expected", "found"),
    [
        (b"", 0, "8 bytes of the header's length", "0 before the file ends at byte 0"),
        (b"\x05\0\0\0\0\0\0", 0, "8 bytes of the header's length", "7 before the file ends at byte 7"),
        (b"\x05\0\0\0\0\0\0\0{}", 8, "5 bytes of header", "2 before the file ends at byte 10"),
        (b"\x00\xe1\xf5\x05\0\0\0\0{}", 8, "100000000 bytes of header", "2 before the file ends at byte 10"),
        (b"\x01\xe1\xf5\x05\0\0\0\0{}", 0, "a header of at most 100000000 bytes", "100000001"),
        (b"\xff" * 8 + b"{}", 0, "a header of at most 100000000 bytes", str(U64 - 1)),
    ],
)
def test_a_length_is_compared_before_it_is_believed(
    tmp_path: Path, raw: bytes, at: int, expected: str, found: str
) -> None:
    (tmp_path / "x").write_bytes(raw)
    tracemalloc.start()
    try:
        assert refusal(tmp_path / "x") == (at, expected, found)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_names_that_a_terminal_would_obey_are_escaped(tmp_path: Path) -> None:
    path = shard(tmp_path / "x", json.dumps({"\x1b[2J\n" + "x" * 500: None}))
    assert refusal(path)[0] == 'tensor "\\u001b[2J\\n' + "x" * 75 + '..."'


def test_what_cannot_be_a_shard_is_not_laid_out() -> None:
    for tensors in (
        [("a", "U8", (2,)), ("a", "U8", (2,))],
        [("__metadata__", "U8", (2,))],
        [("a", "F4", (3,))],
        [("a", "F64", (2**61,))],
    ):
        with pytest.raises(ValueError, match="cannot be written"):
            header(tensors)


def test_a_dtype_that_the_library_has_not_is_refused(tmp_path: Path) -> None:
    for dtype in ("F8", "I4", "f32", "", "F128", "U128"):
        path = shard(tmp_path / "x", entry(f'"{dtype}"'), b"12")
        assert refusal(path)[1:] == ("a dtype of safetensors", f'"{dtype}"')
        with pytest.raises(safetensors.SafetensorError):
            safetensors.deserialize(path.read_bytes())
