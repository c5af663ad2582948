"""Token map files: one compressed id per token id, and nothing else (spec: token_map.md).

u32   V x 4 bytes, little endian     (zLLM's engram_token_map.bin)
i64   V x 8 bytes, little endian     (ferrite's file of the same name)
npy   one NumPy array of integers
json  a list of integers, or an object whose "token_map" is one
"""

from __future__ import annotations

import io
import json
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from formats import npy, strict_json
from formats.errors import FormatError, shown

Form = Literal["u32", "i64", "npy", "json"]
U32_BYTES, I64_BYTES = 4, 8
NPY_MAGIC = npy.MAGIC
MOST_BYTES = 1 << 28  # a map of 2**24 ids written as JSON


def encode(token_map: NDArray[np.uint32], form: Form) -> bytes:
    """[V] compressed ids -> the file's bytes."""
    if form == "u32":
        return token_map.astype("<u4").tobytes()
    if form == "i64":
        return token_map.astype("<i8").tobytes()
    if form == "json":
        return (json.dumps(token_map.tolist(), separators=(",", ":")) + "\n").encode()
    file = io.BytesIO()
    np.save(file, token_map.astype("<u4"), allow_pickle=False)
    return file.getvalue()


def decode(data: bytes, path: str, vocabulary: int | None = None) -> tuple[Form, NDArray[np.uint32]]:
    """The file's bytes -> its form and [V] compressed ids; no map in any form raises `FormatError`.

    Raw u32 and i64 carry no header, but entry 0 is 0: that tells them from other files. From each other the
    vocabulary's size tells them, and without it zero upper words do.
    """
    if not data:
        raise FormatError(path, None, "a token map", "an empty file")
    if data.startswith(NPY_MAGIC):
        return "npy", _integers(npy.read(data, path), path)
    if data.lstrip()[:1] in (b"[", b"{"):  # no raw map: its first id would not be 0
        return "json", _json(data, path)
    if len(data) % U32_BYTES:
        raise FormatError(path, None, f"whole entries of {U32_BYTES} or {I64_BYTES} bytes", f"{len(data)} bytes")
    words = np.frombuffer(data, "<u4")
    if words[0]:
        raise FormatError(path, "entry 0", "0, as in every map that is numbered by first appearance", f"{words[0]}")
    if _is_i64(words, vocabulary):
        if len(data) % I64_BYTES:
            raise FormatError(path, None, f"whole entries of {I64_BYTES} bytes", f"{len(data)} bytes")
        return "i64", _integers(np.frombuffer(data, "<i8"), path)
    return "u32", words.astype(np.uint32)


def _is_i64(words: NDArray[np.uint32], vocabulary: int | None) -> bool:
    if vocabulary is not None and words.size in (vocabulary, 2 * vocabulary):
        return words.size == 2 * vocabulary
    return words.size > 1 and not words[1::2].any()


def _json(data: bytes, path: str) -> NDArray[np.uint32]:
    if data.lstrip()[:1] == b"{":
        ids = strict_json.read_object(path, data, 0).get("token_map")
    else:
        try:
            ids = json.loads(data.decode("utf-8"))
        except json.JSONDecodeError as error:
            raise FormatError(
                path, None, "a token map in JSON", f"text that is none from character {error.pos}"
            ) from None
        except (ValueError, RecursionError):
            raise FormatError(path, None, "a token map in JSON", "text that is none") from None
    if not isinstance(ids, list) or not ids:
        raise FormatError(path, None, "a list of compressed ids, or an object with one as token_map", shown(ids))
    for entry, value in enumerate(ids):
        if type(value) is not int or not 0 <= value < 2**32:
            raise FormatError(path, f"entry {entry}", "a compressed id below 2**32", f"{shown(value):.80}")
    return np.array(ids, np.uint32)


def _integers(array: NDArray[Any], path: str) -> NDArray[np.uint32]:
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iu":
        raise FormatError(path, None, "one row of integers", f"{array.dtype} {list(array.shape)}")
    outside = np.flatnonzero((array < 0) | (array >= 2**32))
    if outside.size:
        raise FormatError(path, f"entry {outside[0]}", "a compressed id below 2**32", f"{array[outside[0]]}")
    return array.astype(np.uint32)
