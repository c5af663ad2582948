"""GGUF values and layouts: what a type cannot hold is no value, what would be no GGUF is not laid out."""

from __future__ import annotations

import numpy as np
import pytest

from formats import gguf_file
from formats.gguf_file import (
    Value,
    ValueType,
    boolean,
    encode_header,
    f32,
    i32,
    i32s,
    scalar,
    string,
    tensor_bytes,
    u8,
    u32,
    u32s,
    u64,
    u64s,
)


def test_values_are_equal_when_their_bytes_and_types_are() -> None:
    assert u32s([1, 2]) == u32s(np.array([1, 2], np.int64))
    assert u32s([1, 2]) != i32s([1, 2])
    assert u32s([1, 2]) != u32s([1, 3])
    assert u32(1) != u64(1)
    assert u8(1) != boolean(True)
    assert f32(float("nan")) == f32(float("nan"))
    assert f32(0.0) != f32(-0.0)
    assert f32(0.1).value == float(np.float32(0.1))
    assert Value(ValueType.STRING, "a") == string("a")


@pytest.mark.parametrize(
    "make",
    [
        lambda: u32(-1),
        lambda: u32(2**32),
        lambda: u32(1.5),
        lambda: i32(2**31),
        lambda: u64(2**64),
        lambda: f32(1e39),
        lambda: scalar(ValueType.STRING, 1),
        lambda: u32s([-1]),
        lambda: u32s([2**32]),
        lambda: u32s(np.array([-1])),
        lambda: u32s(np.array([2**32])),
        lambda: i32s(np.array([2**31], np.uint32)),
        lambda: u64s(np.array([-1])),
        lambda: u64s([2**64]),
        lambda: u32s(np.array([1.0])),
        lambda: u32s([[1, 2], [3, 4]]),
        lambda: gguf_file.encode(Value(ValueType.ARRAY, [], ValueType.ARRAY)),
    ],
)
def test_a_value_that_its_type_cannot_hold_is_no_value(make: object) -> None:
    with pytest.raises(ValueError, match=r".+"):
        make()


@pytest.mark.parametrize(
    ("keys", "tensors", "alignment", "why"),
    [
        ([("a", u32(1)), ("a", u32(1))], [], 32, "twice"),
        ([], [("t", 24, (2,), 2), ("t", 24, (2,), 2)], 32, "twice"),
        ([], [], 48, "no power of two"),
        ([], [], 0, "no power of two"),
        ([("general.alignment", u32(64))], [], 32, "contradicts"),
        ([("general.alignment", u64(64))], [], 64, "contradicts"),
        ([], [("t", 24, (264, 2), 527)], 32, "takes 528 bytes, not 527"),
    ],
)
def test_what_would_be_no_gguf_is_not_laid_out(keys: list, tensors: list, alignment: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        encode_header(keys, tensors, alignment)


def test_the_alignment_key_comes_second_unless_it_is_given() -> None:
    def order(keys: list) -> list[str]:
        raw = encode_header(keys, [], 64).header
        return sorted(
            range(3), key=[raw.index(b"first"), raw.index(b"general.alignment"), raw.index(b"last")].__getitem__
        )

    assert order([("first", u8(1)), ("last", u8(2))]) == [0, 1, 2]
    assert order([("first", u8(1)), ("last", u8(2)), ("general.alignment", u32(64))]) == [0, 2, 1]


def test_the_tables_of_the_release_are_counted_beyond_32_bits() -> None:
    rows = 384_006_168
    layout = encode_header([], [("a", 24, (264, rows), 264 * rows), ("b", 24, (264, rows), 264 * rows)], 16384)
    assert tensor_bytes(24, (264, rows)) == 101_377_628_352
    assert layout.starts == {"a": 16384, "b": 16384 + 101_377_638_400}
    assert layout.file_size == 16384 + 2 * 101_377_638_400
