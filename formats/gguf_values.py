"""GGUF's typed values and tensor types, to and from little-endian bytes (spec: gguf_file.md).

scalar: its bytes     STRING: u64 length, UTF-8     ARRAY: u32 item type, u64 count, the items
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


class ValueType(IntEnum):
    """enum gguf_type in ggml-org/ggml docs/gguf.md."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


DTYPES: dict[ValueType, np.dtype[Any]] = {
    ValueType.UINT8: np.dtype("u1"),
    ValueType.INT8: np.dtype("i1"),
    ValueType.UINT16: np.dtype("<u2"),
    ValueType.INT16: np.dtype("<i2"),
    ValueType.UINT32: np.dtype("<u4"),
    ValueType.INT32: np.dtype("<i4"),
    ValueType.FLOAT32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("?"),
    ValueType.UINT64: np.dtype("<u8"),
    ValueType.INT64: np.dtype("<i8"),
    ValueType.FLOAT64: np.dtype("<f8"),
}
# NumPy's own letters differ: its L has 8 bytes, that of struct has 4
LETTERS = dict(zip(DTYPES, "BbHhIif?Qqd", strict=True))
COUNT_BYTES = 8  # every length and count is a u64
TYPE_BYTES = 4  # every type is a u32


class GgmlType(NamedTuple):
    """A tensor type: `block` elements of a row take `size` bytes."""

    name: str
    block: int
    size: int


# enum ggml_type and its block sizes: ggml-org/llama.cpp gguf-py/gguf/constants.py (a test compares)
GGML_TYPES = {
    number: GgmlType(name, block, size)
    for number, name, block, size in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (9, "Q8_1", 32, 40),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
        (40, "NVFP4", 64, 36),
        (41, "Q1_0", 128, 18),
    )
}


def tensor_bytes(type_id: int, shape: Iterable[int]) -> int | None:
    """Bytes of a tensor in ne order (the row's length first); None for an unknown type."""
    if type_id not in GGML_TYPES:
        return None
    kind = GGML_TYPES[type_id]
    count = 1
    for extent in shape:
        count *= extent
    return count // kind.block * kind.size


@dataclass(frozen=True, eq=False)
class Value:
    """What a key holds: a Python scalar, or an array as a NumPy array (numbers, bools) or a list (strings)."""

    type: ValueType
    value: Any
    item: ValueType | None = None  # of an array

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and (self.type, encode(self)) == (other.type, encode(other))


def encode(value: Value) -> bytes:
    """The bytes after a key's value type."""
    if value.type != ValueType.ARRAY:
        return _encode(value.type, value.value)
    if value.item is None or value.item == ValueType.ARRAY:
        raise ValueError(f"an array of {value.item} cannot be written")
    start = struct.pack("<IQ", value.item, len(value.value))
    if value.item == ValueType.STRING:
        return start + b"".join(_encode(ValueType.STRING, text) for text in value.value)
    return start + np.ascontiguousarray(value.value, DTYPES[value.item]).tobytes()


def _encode(kind: ValueType, value: bool | int | float | str) -> bytes:
    if isinstance(value, str):
        raw = value.encode()
        return len(raw).to_bytes(COUNT_BYTES, "little") + raw
    return struct.pack("<" + LETTERS[kind], value)


def scalar(kind: ValueType, value: bool | int | float) -> Value:
    """A number or bool as its type holds it: a FLOAT32 is rounded now, not when it is written."""
    if kind not in DTYPES:
        raise ValueError(f"{kind.name} is not a scalar type")
    if DTYPES[kind].kind in "iu" and int(value) != value:
        raise ValueError(f"{value} is no integer")
    try:
        raw = struct.pack("<" + LETTERS[kind], int(value) if DTYPES[kind].kind in "iu" else value)
    except (struct.error, OverflowError):
        raise ValueError(f"{value} does not fit {kind.name}") from None
    return Value(kind, struct.unpack("<" + LETTERS[kind], raw)[0])


def array(kind: ValueType, values: ArrayLike) -> Value:
    """An array of numbers, each of which its type can hold."""
    dtype = DTYPES[kind]
    if isinstance(values, np.ndarray):
        given: NDArray[Any] = values
    else:  # a list goes straight to its type: NumPy refuses what does not fit, and guesses no type on the way
        try:
            given = np.array(values, dtype)
        except OverflowError as error:
            raise ValueError(str(error)) from None
    if given.ndim != 1 or (dtype.kind in "iu" and given.size and given.dtype.kind not in "iu"):
        raise ValueError(f"expected one row of {kind.name}, found {given.dtype} {given.shape}")
    if dtype.kind in "iu" and given.size:
        low, high, limits = int(given.min()), int(given.max()), np.iinfo(dtype)
        if low < limits.min or high > limits.max:
            raise ValueError(f"{low}..{high} does not fit {kind.name}")
    return Value(ValueType.ARRAY, np.ascontiguousarray(given, dtype), kind)


def string(text: str) -> Value:
    return Value(ValueType.STRING, text)


def strings(texts: Iterable[str]) -> Value:
    return Value(ValueType.ARRAY, list(texts), ValueType.STRING)


def boolean(value: bool) -> Value:
    return scalar(ValueType.BOOL, bool(value))


def u8(value: int) -> Value:
    return scalar(ValueType.UINT8, value)


def u32(value: int) -> Value:
    return scalar(ValueType.UINT32, value)


def i32(value: int) -> Value:
    return scalar(ValueType.INT32, value)


def u64(value: int) -> Value:
    return scalar(ValueType.UINT64, value)


def f32(value: float) -> Value:
    return scalar(ValueType.FLOAT32, value)


def u32s(values: ArrayLike) -> Value:
    return array(ValueType.UINT32, values)


def i32s(values: ArrayLike) -> Value:
    return array(ValueType.INT32, values)


def u64s(values: ArrayLike) -> Value:
    return array(ValueType.UINT64, values)


def f32s(values: ArrayLike) -> Value:
    return array(ValueType.FLOAT32, values)
