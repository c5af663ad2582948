"""TSD41E01: hash constants in one binary file, beside a GGUF (TensorSharp's deepseek41.engram.bin).

    magic | 7 u32: ids, compressed, raw pad, layers, n-gram, heads, width | u64 fingerprint | i32, 4 u32 | sources
    | i32 map entry per id | each layer: i32 id, u64 rows, u64 multipliers, u32 primes, u64 offsets

Written by zhongkaifu/TensorSharp's preparation script. The file has exactly the length that its header gives.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.disk import ReadFile
from formats.errors import FormatError

MAGIC = b"TSD41E01"
HEAD = struct.Struct("<7IQi4I")
LAYER = struct.Struct("<iQ")
LIMITS = {"vocabulary": 1 << 24, "layers": 256, "size": 64, "heads": 1024, "sources": 1024}


@dataclass(frozen=True)
class Constants:
    """Everything the file says, by role."""

    vocabulary: int
    compressed: int
    pad_token_id: int  # raw
    size: int
    heads: int
    width: int
    fingerprint: int  # FNV-1a of the tokenizer's pieces
    token_map: NDArray[np.int64]  # [V], as stored: may be negative
    layers: tuple[int, ...]
    rows: tuple[int, ...]
    multipliers: NDArray[np.uint64]  # [L, N]
    moduli: NDArray[np.uint64]  # [L, C]
    offsets: NDArray[np.uint64]  # [L, C]

    def facts(self) -> dict[str, Any]:
        return {
            "vocabulary": self.vocabulary,
            "compressed": self.compressed,
            "pad_token_id": self.pad_token_id,
            "size": self.size,
            "heads": self.heads,
            "width": self.width,
            "layers": list(self.layers),
            "rows": list(self.rows),
            "tokenizer_fingerprint": f"{self.fingerprint:016x}",
        }


def read(file: ReadFile) -> Constants:
    """The file, bounded by its own size; counts that do not make that size raise `FormatError`."""
    head = file.read(len(MAGIC), HEAD.size, "the header")
    vocabulary, compressed, pad, layers, size, heads, width, print_, _, _, _, kv, index = HEAD.unpack(head)
    for name, value in (("vocabulary", vocabulary), ("layers", layers), ("size", size), ("heads", heads)):
        if not 1 <= value <= LIMITS[name]:
            raise FormatError(file.path, "the header", f"{name} from 1 to {LIMITS[name]}", f"{value}")
    if kv + index > LIMITS["sources"]:
        raise FormatError(file.path, "the header", f"at most {LIMITS['sources']} source layers", f"{kv + index}")
    columns = (size - 1) * heads
    each = LAYER.size + 8 * size + (4 + 8) * columns
    start = len(MAGIC) + HEAD.size + 4 * (kv + index)
    end = start + 4 * vocabulary + layers * each
    if end != file.size:
        raise FormatError(file.path, None, f"{end} bytes as its header says", f"{file.size}")
    ids = np.frombuffer(file.read(start, 4 * vocabulary, "the token map"), "<i4").astype(np.int64)
    at = start + 4 * vocabulary
    found: dict[str, list[Any]] = {"id": [], "rows": [], "multipliers": [], "moduli": [], "offsets": []}
    for _ in range(layers):
        raw = file.read(at, each, "a layer")
        layer, rows = LAYER.unpack_from(raw)
        found["id"].append(layer)
        found["rows"].append(rows)
        place = LAYER.size
        for name, dtype, count in (
            ("multipliers", "<u8", size),
            ("moduli", "<u4", columns),
            ("offsets", "<u8", columns),
        ):
            found[name].append(np.frombuffer(raw, dtype, count, place).astype(np.uint64))
            place += count * np.dtype(dtype).itemsize
        at += each
    arrays = [np.array(found[name], np.uint64) for name in ("multipliers", "moduli", "offsets")]
    return Constants(
        *(vocabulary, compressed, pad, size, heads, width, print_, ids),
        *(tuple(found["id"]), tuple(found["rows"])),
        *arrays,
    )
