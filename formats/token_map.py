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

from formats.errors import FormatError

Form = Literal["u32", "i64", "npy", "json"]
U32_BYTES, I64_BYTES = 4, 8
NPY_MAGIC = b"\x93NUMPY"
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

    Raw u32 and i64 carry no header: the vocabulary's size tells them apart, and without it zero upper words do.
    """
    if not data:
        raise FormatError(path, None, "a token map", "an empty file")
    if data.startswith(NPY_MAGIC):
        return "npy", _integers(_npy(data, path), path)
    if data.lstrip()[:1] in (b"[", b"{"):
        parsed = _json(data, path)
        if parsed is not None:
            return "json", parsed
    if len(data) % U32_BYTES:
        raise FormatError(path, None, f"whole entries of {U32_BYTES} or {I64_BYTES} bytes", f"{len(data)} bytes")
    words = np.frombuffer(data, "<u4")
    if _is_i64(words, vocabulary):
        return "i64", _integers(np.frombuffer(data, "<i8"), path)
    return "u32", words.astype(np.uint32)


def _is_i64(words: NDArray[np.uint32], vocabulary: int | None) -> bool:
    if words.size % 2:
        return False
    if vocabulary is not None and words.size in (vocabulary, 2 * vocabulary):
        return words.size == 2 * vocabulary
    return not words[1::2].any()


def _npy(data: bytes, path: str) -> NDArray[Any]:
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise FormatError(path, None, "a readable npy file", str(error).splitlines()[0]) from None
    if not isinstance(array, np.ndarray):
        raise FormatError(path, None, "one npy array", type(array).__name__)
    return array


def _json(data: bytes, path: str) -> NDArray[np.uint32] | None:
    """The ids of a JSON map; None where the bytes are no JSON after all (a raw map may begin with a bracket)."""
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError):
        return None
    ids = parsed.get("token_map") if isinstance(parsed, dict) else parsed
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < 2**32 for i in ids):
        raise FormatError(
            path, None, "a list of compressed ids, or an object with one as token_map", type(ids).__name__
        )
    return _integers(np.array(ids, np.int64), path)


def _integers(array: NDArray[Any], path: str) -> NDArray[np.uint32]:
    if array.ndim != 1 or not array.size or not np.issubdtype(array.dtype, np.integer):
        raise FormatError(path, None, "one row of integers", f"{array.dtype} {list(array.shape)}")
    least, most = int(array.min()), int(array.max())
    if least < 0 or most >= 2**32:
        raise FormatError(
            path,
            f"entry {int(array.argmin() if least < 0 else array.argmax())}",
            "a compressed id below 2**32",
            f"{least if least < 0 else most}",
        )
    return array.astype(np.uint32)
