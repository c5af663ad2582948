"""Token map files in four forms, and files that are none of them."""

from __future__ import annotations

import io
import json
import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from published import fixture, sha256, shipped_map
from specs import number, table

from formats import npy, token_map
from formats.errors import FormatError
from formats.token_map import decode, encode

FORMS: list[token_map.Form] = ["u32", "i64", "npy", "json"]
SMALL = np.array([0, 1, 1, 2, 3, 0, 4], np.uint32)


def npy_bytes(array: object, **options: bool) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(array), **options)
    return file.getvalue()


def npy_of(header: str, body: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """An npy file whose header says whatever it likes."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2 if version[0] == 1 else 4, "little") + text + body


@pytest.mark.parametrize("form", FORMS)
def test_the_release_map_goes_through_every_form(form: token_map.Form) -> None:
    ids = shipped_map()
    for vocabulary in (None, ids.size, 384):
        found, again = decode(encode(ids, form), "x", vocabulary)
        assert (found, again.dtype) == (form, np.uint32)
        np.testing.assert_array_equal(again, ids)


def test_raw_forms_have_the_published_digests_and_the_specs_sizes() -> None:
    published = fixture("token_map")
    for form, key in (("u32", "sha256_u32le"), ("i64", "sha256_i64le")):
        assert sha256(np.frombuffer(encode(shipped_map(), form), np.uint8), "u1") == published[key]
    sizes = {row[0]: row[2] for row in table("token_map.md", "form")}
    assert {form: number(sizes[form]) for form in ("u32", "i64", "npy")} == {
        form: len(encode(shipped_map(), form)) for form in ("u32", "i64", "npy")
    }


def test_the_specs_example() -> None:
    ids = np.array([0, 1, 1, 2], np.uint32)
    assert encode(ids, "u32") == bytes.fromhex("00000000 01000000 01000000 02000000")
    assert encode(ids, "i64") == bytes.fromhex("0000000000000000 0100000000000000 0100000000000000 0200000000000000")


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40))
@example([0])
@example([2**32 - 1])
@example([0x5B])  # begins as a JSON list would
def test_any_ids_go_through_every_form(ids: list[int]) -> None:
    made = np.array(ids, np.uint32)
    for form in ("npy", "json"):
        assert decode(encode(made, form), "x")[1].tolist() == ids
    first_appearance = np.array([0, *ids], np.uint32)  # what every map begins with
    for form in ("u32", "i64"):
        found, again = decode(encode(first_appearance, form), "x", first_appearance.size)
        assert (found, again.tolist()) == (form, [0, *ids])


def test_numpy_and_json_read_what_is_written() -> None:
    loaded = np.load(io.BytesIO(encode(SMALL, "npy")), allow_pickle=False)
    assert (loaded.dtype, loaded.tolist()) == (np.dtype("<u4"), SMALL.tolist())
    assert json.loads(encode(SMALL, "json")) == SMALL.tolist()


@pytest.mark.parametrize("kind", ["u1", "i1", "<i2", ">u2", "<i4", ">i4", "<u4", "<i8", ">i8", "<u8"])
def test_npy_of_every_integer_type(kind: str) -> None:
    form, ids = decode(npy_bytes(SMALL.astype(kind)), "x")
    assert (form, ids.dtype, ids.tolist()) == ("npy", np.uint32, SMALL.tolist())


def test_npy_of_the_second_version() -> None:
    header = "{'descr': '<u4', 'fortran_order': False, 'shape': (7,), }"
    assert decode(npy_of(header, SMALL.tobytes(), b"\x02\x00"), "x")[1].tolist() == SMALL.tolist()


def test_json_objects_and_blanks() -> None:
    for text in ('{"token_map": [0, 1, 1]}', '{"a": {"b": [1.5]}, "token_map":[0,1,1]}', " \n[0,\t1, 1]\n"):
        assert decode(text.encode(), "x")[1].tolist() == [0, 1, 1]


def test_without_a_vocabulary_zero_upper_words_say_i64() -> None:
    assert decode(encode(np.array([0, 0, 1, 2], np.uint32), "u32"), "x")[0] == "u32"
    assert decode(encode(np.array([0, 1, 1, 2], np.uint32), "i64"), "x")[0] == "i64"
    ambiguous = encode(np.array([0, 0], np.uint32), "u32")
    assert decode(ambiguous, "x")[1].tolist() == [0]
    assert decode(ambiguous, "x", 2)[1].tolist() == [0, 0]


# Files that were cut, and files that lie.


def read(data: bytes, vocabulary: int | None = None) -> tuple[str, list[int]] | None:
    """Form and ids; None for a clean refusal."""
    try:
        form, ids = decode(data, "x", vocabulary)
    except FormatError as error:
        text = str(error)
        clean = "\n" not in text and len(text) < 250 and text.startswith("x") and ": expected " in text
        if not clean:
            raise
        return None
    assert (ids.dtype, ids.ndim) == (np.uint32, 1)
    assert ids.size
    return form, ids.tolist()


@pytest.mark.parametrize("form", FORMS)
def test_a_cut_file_is_refused_or_is_a_shorter_raw_map(form: token_map.Form) -> None:
    data, entry = encode(SMALL, form), {"u32": 4, "i64": 8}.get(form, 0)
    for length in range(len(data)):
        found = read(data[:length])
        if form == "json" and length == len(data) - 1:  # without its newline
            assert found == ("json", SMALL.tolist())
        elif form == "i64" and length == 4:  # nothing tells one cut entry of 8 bytes from one of 4
            assert found == ("u32", [0])
        elif entry and length and length % entry == 0:
            assert found == (form, SMALL[: length // entry].tolist())
        else:
            assert found is None, length


@pytest.mark.parametrize("form", FORMS)
def test_appended_bytes_are_refused_or_one_more_entry(form: token_map.Form) -> None:
    data = encode(SMALL, form)
    for extra in (b"\x01", b"\x01\x02\x03", b"\x01\x00\x00\x00"):
        if form == "u32" and len(extra) == 4:
            assert decode(data + extra, "x")[1].tolist() == [*SMALL.tolist(), 1]
            continue
        with pytest.raises(FormatError):
            decode(data + extra, "x")


NPY = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }"
HOSTILE: list[tuple[Any, str]] = [
    (b"", "x: expected a token map, found an empty file"),
    (b"\x00", "x: expected whole entries of 4 or 8 bytes, found 1 bytes"),
    (b"\x00" * 5, "whole entries of 4 or 8 bytes"),
    (b"PK\x03\x04", "x at entry 0: expected 0, as in every map that is numbered by first appearance, found 67324752"),
    (np.arange(1, 9, dtype="<u4").tobytes(), "x at entry 0: .* found 1"),
    (b"[", "a token map in JSON"),
    (b"[]", "a list of compressed ids, or an object with one as token_map, found a list of 0"),
    (b"{}", "a list of compressed ids, or an object with one as token_map, found null"),
    (b'{"token_map": 5}', "a list of compressed ids, or an object with one as token_map, found 5"),
    (b'{"token_map": {"a": 1}}', "found an object of 1"),
    (b'{"token_map": [1], "token_map": [0]}', '"token_map" twice'),
    (b"[0, -1]", "x at entry 1: expected a compressed id below 2\\*\\*32, found -1"),
    (b"[0, 4294967296]", "x at entry 1: expected a compressed id below 2\\*\\*32, found 4294967296"),
    (b"[0, 1.0]", "x at entry 1: .* found 1.0"),
    (b"[0, true]", "x at entry 1: .* found true"),
    (b"[0, null]", "x at entry 1: .* found null"),
    (b'[0, "1"]', 'x at entry 1: .* found "1"'),
    (b"[0, [1]]", "x at entry 1: .* found a list of 1"),
    (b"[[0, 1]]", "x at entry 0: .* found a list of 2"),
    (b"[0, NaN]", "x at entry 1: .* found NaN"),
    (b"[0, " + b"9" * 4000 + b"]", "x at entry 1: .* found 9{80}$"),
    (b"[0, " + b"9" * 9000 + b"]", "a token map in JSON"),
    (b"[" * 100_000, "a token map in JSON"),
    (b"[0]" + b"[" * 100_001, "a token map in JSON"),
    (b'{"token_map":' * 50_000, "JSON nested a few levels deep"),
    (b"[0, 1]]", "a token map in JSON"),
    (b"[0, 1] x", "a token map in JSON"),
    (b"[0, \xff]", "a token map in JSON"),
    (b"[\x00\x00\x00", "a token map in JSON"),
    (npy_bytes([0, -1]), "x at entry 1: expected a compressed id below 2\\*\\*32, found -1"),
    (npy_bytes(np.array([0, 2**32])), "x at entry 1: .* found 4294967296"),
    (npy_bytes(np.array([0, 2**63], np.uint64)), f"x at entry 1: .* found {2**63}"),
    (npy_bytes([0.0, 1.0]), r"one row of integers, found float64 \[2\]"),
    (npy_bytes([False, True]), r"one row of integers, found bool \[2\]"),
    (npy_bytes([[0, 1]]), r"one row of integers, found int64 \[1, 2\]"),
    (npy_bytes(5), r"one row of integers, found int64 \[\]"),
    (npy_bytes(np.empty(0, np.int64)), r"one row of integers, found int64 \[0\]"),
    (npy_bytes(np.array(["a"])), "an array of numbers"),
    (npy_bytes(np.array([1j])), "an array of numbers"),
    (npy_bytes(np.array([1], "m8[s]")), "an array of numbers"),
    (npy_bytes(np.zeros(2, [("a", "i4")])), "an array of numbers"),
    (npy_bytes(np.array([{"a": 1}], object), allow_pickle=True), "an array of numbers, found pickled objects"),
    (npy_of(NPY % ("|O", "(1,)"), pickle.dumps([1])), "pickled objects"),
    (npy_of(NPY % ("<u4", "(1000000000000,)"), b"\0" * 8), "4000000000000 bytes for uint32 .*, found 8"),
    (npy_of(NPY % ("<u4", "(2,)"), b"\0" * 7), r"x at byte \d+: expected 8 bytes for uint32 \[2\], found 7"),
    (npy_of(NPY % ("<u4", "(2,)"), b"\0" * 9), "expected 8 bytes .*, found 9"),
    (npy_of(NPY % ("<u4", "(-1,)")), "a shape of up to 8 sizes"),
    (npy_of(NPY % ("<u4", "(True,)"), b"\0" * 4), "npy header|shape"),
    (npy_of(NPY % ("<u4", f"({2**40}, {2**40})")), "a shape of up to 8 sizes"),
    (npy_of(NPY % ("<u4", f"(0, {2**62})")), "a shape of up to 8 sizes"),
    (npy_of(NPY % ("<u4", f"({'1, ' * 40})"), b"\0" * 4), "a shape of up to 8 sizes"),
    (npy_of(NPY % ("|V0", "(5,)")), "an array of numbers"),
    (npy_of(NPY % ("<u4", "(2L,)"), b"\0" * 8), "an npy header"),
    (npy_of(NPY % ("nonsense", "(2,)"), b"\0" * 8), "an npy header"),
    (npy_of("{'descr': '<u4', 'shape': (2,), }", b"\0" * 8), "an npy header"),
    (npy_of("[1, 2]", b"\0" * 8), "an npy header"),
    (npy_of("(" * 5000), "an npy header"),
    (npy_of("[" * 3000 + "]" * 3000), "an npy header"),
    (npy_of("{'descr': __import__('os'), 'fortran_order': False, 'shape': (1,), }"), "an npy header"),
    (npy_of("x" * 60_000), "an npy header"),
    (npy_of(NPY % ("<u4", "(1,)"), b"\0" * 4, b"\x03\x00"), "npy version 1 or 2, found version 3.0"),
    (npy_of(NPY % ("<u4", "(1,)"), b"\0" * 4, b"\x63\x07"), "npy version 1 or 2, found version 99.7"),
    (b"\x93NUMPY", "an npy header"),
    (b"\x93NUMPY\x01\x00\xff", "an npy header"),
    (b"\x93NUMPY\x01\x00\xff\xff", "an npy header"),
    (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "an npy header"),
]


@pytest.mark.parametrize(("data", "message"), HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_map_is_refused_in_one_line(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decode(data, "x")
    assert read(data) is None


def test_a_negative_i64_is_refused_by_its_entry() -> None:
    with pytest.raises(FormatError, match=r"^x at entry 1: expected a compressed id below 2\*\*32, found -1$"):
        decode(np.array([0, -1], "<i8").tobytes(), "x", 2)


def test_a_header_that_lies_costs_no_memory() -> None:
    data = npy_of(NPY % ("<u4", "(1000000000,)"), b"\0" * 8)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            decode(data, "x")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=80), st.sampled_from([b"", b"[", b"{", b"\x93NUMPY\x01\x00", b"PK\x03\x04"]))
def test_any_bytes_are_a_map_or_one_clean_error(data: bytes, start: bytes) -> None:
    read(start + data)


def test_any_flipped_bit_of_an_npy_header_is_a_map_or_one_clean_error() -> None:
    data = encode(SMALL, "npy")
    for bit in range(8 * (len(data) - SMALL.nbytes)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        read(bytes(flipped))


@pytest.mark.parametrize(
    "array", [np.arange(6).reshape(2, 3), np.arange(24.0).reshape(2, 3, 4), np.array(5), np.empty((0, 3))]
)
def test_npy_in_both_orders_is_what_numpy_reads(array: np.ndarray) -> None:
    for made in (array, np.asfortranarray(array)):
        np.testing.assert_array_equal(npy.read(npy_bytes(made), "x"), array)
