"""The forms in which `hash` writes rows, chunk by chunk: bounded memory for any length of sequence."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError
from engramctl.hash_params import HashParams
from engramctl.history import History
from formats import npy

CHUNK_TOKENS = 16384
SHORT = 8192  # below this the reference is done before a compiler has started


def chunks(
    tokens: NDArray[np.int64], params: HashParams, mask: NDArray[np.bool_] | None, history: Sequence[int]
) -> Iterator[NDArray[np.int64]]:
    """[T] token ids -> [up to CHUNK_TOKENS, L, C] rows at a time, as one sequence."""
    from engramctl import reference

    using = reference.hash_rows
    if tokens.size > SHORT:
        from engramctl import fast

        using = fast.hash_rows
    params.compress(tokens, mask)  # refuse a bad id before the first row is written
    past = History(params, tuple(params.past(history).tolist()))
    for start in range(0, tokens.size, CHUNK_TOKENS):
        some = slice(start, start + CHUNK_TOKENS)
        yield past.append(tokens[some], None if mask is None else mask[some], using)


def write(rows: Iterator[NDArray[np.int64]], form: str, params: HashParams, count: int) -> Iterator[bytes]:
    """The rows' bytes in one of the forms but sha256. Positions count from the first token given."""
    if form == "npy":
        yield npy.encode_header((count, len(params.layers), params.columns), np.dtype("<i8"))
    if form == "u32" and max(params.rows) > 2**32:
        raise EngramctlError("--to u32", "tables of at most 2**32 rows", f"{max(params.rows)}")
    start = 0
    for some in rows:
        if form == "npy":
            yield some.astype("<i8").tobytes()
        elif form == "u32":
            yield some.astype("<u4").tobytes()
        elif form == "tsv":
            yield _tsv(some, params, start)
        else:
            yield from _jsonl(some, params, start)
        start += len(some)


def _tsv(rows: NDArray[np.int64], params: HashParams, start: int) -> bytes:
    """A line for each position and layer: both, then the rows, between tabs."""
    T, L, C = rows.shape
    table, ends = np.empty((T, L, C + 2), np.int64), np.full((T, L, C + 2), ord("\t"), np.uint8)
    table[:, :, 0], table[:, :, 1], table[:, :, 2:] = np.arange(start, start + T)[:, None], params.layers, rows
    ends[:, :, -1] = ord("\n")
    return decimals(table.reshape(-1), ends.reshape(-1))


def decimals(numbers: NDArray[np.int64], ends: NDArray[np.uint8]) -> bytes:
    """[n] numbers in decimal digits, each before its byte of `ends`: digit by digit for all of them at once."""
    minus = numbers < 0
    left = np.abs(numbers).astype(np.uint64)  # of the least int64 too
    width = len(str(int(left.max(initial=0))))
    left = left.astype(np.uint32) if width < 10 else left
    text = np.empty((len(left), 1 + width + 1), np.uint8)
    kept = np.ones(text.shape, np.bool_)
    text[:, 0], kept[:, 0], text[:, -1] = ord("-"), minus, ends
    for place in range(width, 0, -1):
        kept[:, place] = (left != 0) | (place == width)
        more = left // left.dtype.type(10)
        text[:, place] = left - more * left.dtype.type(10) + ord("0")
        left = more
    return text[kept].tobytes()


def _jsonl(rows: NDArray[np.int64], params: HashParams, start: int) -> Iterator[bytes]:
    for position, by_layer in enumerate(rows.tolist(), start):
        for layer, columns in zip(params.layers, by_layer, strict=True):
            yield (json.dumps({"position": position, "layer": layer, "rows": columns}) + "\n").encode()


def sha256(rows: Iterator[NDArray[np.int64]]) -> str:
    """Of the rows as little-endian u64, token by token, layer by layer."""
    digest = hashlib.sha256()
    for some in rows:
        digest.update(some.astype("<u8").tobytes())
    return digest.hexdigest()
