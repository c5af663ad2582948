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
        else:
            yield from _lines(some, form, params, start)
        start += len(some)


def _lines(rows: NDArray[np.int64], form: str, params: HashParams, start: int) -> Iterator[bytes]:
    for position, by_layer in enumerate(rows.tolist(), start):
        for layer, columns in zip(params.layers, by_layer, strict=True):
            if form == "tsv":
                yield ("\t".join(map(str, (position, layer, *columns))) + "\n").encode()
            else:
                yield (json.dumps({"position": position, "layer": layer, "rows": columns}) + "\n").encode()


def sha256(rows: Iterator[NDArray[np.int64]]) -> str:
    """Of the rows as little-endian u64, token by token, layer by layer."""
    digest = hashlib.sha256()
    for some in rows:
        digest.update(some.astype("<u8").tobytes())
    return digest.hexdigest()
