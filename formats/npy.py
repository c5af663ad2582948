"""npy: one NumPy array (NumPy's numpy.lib.format), from bytes that anyone may have written.

    0        6         8                 8 + 2 or 4
    | magic  | version | header length   | header: a dict of dtype, order, shape | the array |

What the header announces is compared with the bytes that are there before any memory is asked for; pickles are refused.
"""

from __future__ import annotations

import io
import math
import warnings
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.errors import FormatError, shown

MAGIC = b"\x93NUMPY"
NUMBERS = "biuf"  # dtype kinds: boolean, signed, unsigned, floating
PARSERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
MOST_ITEMS = 1 << 56
MOST_HEADER = 1 << 16  # bytes: a longer one is no plain array's


def header(
    head: bytes, path: str | PathLike[str], at: str | None = None, kinds: str = NUMBERS
) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """Dtype, shape, whether columns come first, and where the array starts."""
    stream = io.BytesIO(head[:MOST_HEADER])
    try:
        version = np.lib.format.read_magic(stream)
    except ValueError:
        raise FormatError(path, at, "an npy header", shown(head[:8].hex(" "))) from None
    if version not in PARSERS:
        raise FormatError(path, at, "npy version 1 or 2", f"version {version[0]}.{version[1]}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # headers of Python 2, which NumPy repairs
            shape, by_column, dtype = PARSERS[version](stream)
    except Exception as error:  # of many kinds: NumPy hands the text to Python's own parser and tokenizer
        raise FormatError(path, at, "an npy header", shown((str(error).splitlines() or ["none"])[0])) from None
    if dtype.hasobject or dtype.kind not in kinds or dtype.itemsize == 0:
        raise FormatError(path, at, "an array of numbers", "pickled objects" if dtype.hasobject else shown(str(dtype)))
    sizes = [size for size in shape if type(size) is int and size >= 0]
    if len(sizes) != len(shape) or len(shape) > 8 or math.prod(max(1, size) for size in sizes) >= MOST_ITEMS:
        raise FormatError(path, at, f"a shape of up to 8 sizes and {MOST_ITEMS} items", shown(str(shape)))
    return dtype, shape, by_column, stream.tell()


def read(data: bytes, path: str | PathLike[str], at: str | None = None, kinds: str = NUMBERS) -> NDArray[Any]:
    """The file's array, read-only; cuts, additions, and headers that lie raise `FormatError`."""
    dtype, shape, by_column, start = header(data, path, at, kinds)
    count = math.prod(shape)
    if count * dtype.itemsize != len(data) - start:
        size = f"{count * dtype.itemsize} bytes for {dtype} {list(shape)}"
        raise FormatError(path, start if at is None else at, size, f"{len(data) - start}")
    array = np.frombuffer(data, dtype, count, start) if count else np.empty(0, dtype)
    return array.reshape(shape, order="F" if by_column else "C")


def encode_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """What stands before an array's bytes in row order."""
    file = io.BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, fields)
    return file.getvalue()
