"""Row layouts: how a table's row lies in its bytes, and what its values are.

    row264    256 codes, then 8 scales                                    block264  8 times a scale and its 32 codes
    split264  256 codes in one tensor, 8 scales in another                lloyd136  128 nibble pairs, 8 scale bytes
    ggml      the blocks of a tensor type, as the gguf library decodes it hlwq132   128 nibble pairs, 2 norms: refused

The first three hold the checkpoint's bytes and are read as codes then scales; the others are lossy and read as stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats import row264
from formats.dialect import FLOATS, QUANTS
from formats.gguf_values import GGML_TYPES

Bytes = NDArray[np.uint8]
Values = NDArray[np.float32]

LLOYD4_BYTES, LLOYD4_PAIRS = 136, 128
# antirez/ds4's port dongnh311/ds4-metal-qwen ds4_engram.c: magnitudes by code, and E5M3 scales of bias 16
LLOYD4_LEVELS = np.array([0.0, 0.095, 0.1901, 0.2944, 0.4126, 0.5586, 0.7484, 1.0], np.float32)
HLWQ_BYTES = 132


@dataclass(frozen=True)
class RowLayout:
    """`stored` bytes a row in the file; `arranged` turns them into what reading gives; `decode` gives the values."""

    name: str
    stored: int
    lossless: bool
    arranged: Callable[[Bytes], Bytes]
    decode: Callable[[Bytes], Values]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as reading gives it."""
        return row264.ROW_BYTES if self.lossless else self.stored


def _same(rows: Bytes) -> Bytes:
    return rows


def _from_blocks(rows: Bytes) -> Bytes:
    blocks = rows.reshape(*rows.shape[:-1], row264.SCALES, 1 + row264.BLOCK)
    codes = blocks[..., 1:].reshape(*rows.shape[:-1], row264.WIDTH)
    return np.concatenate([codes, blocks[..., 0]], axis=-1)


def to_blocks(rows: Bytes) -> Bytes:
    """row264 rows -> the same in blocks of a scale and its codes."""
    codes, scales = row264.split(rows)
    blocks = codes.reshape(*rows.shape[:-1], row264.SCALES, row264.BLOCK)
    return np.concatenate([scales[..., None], blocks], axis=-1).reshape(rows.shape)


def _lloyd4(rows: Bytes) -> Values:
    """Low nibble first; a nibble is a sign and a level, a scale byte e, m is (8 + m) / 16 * 2**(e - 16)."""
    pairs, scales = rows[..., :LLOYD4_PAIRS], rows[..., LLOYD4_PAIRS:]
    nibbles = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*rows.shape[:-1], row264.WIDTH)
    steps = np.ldexp((8 + (scales & 7)).astype(np.float32) / 16, (scales >> 3).astype(np.int32) - 16)
    values = LLOYD4_LEVELS[nibbles & 7] * np.repeat(steps.astype(np.float32), row264.BLOCK, axis=-1)
    signed: Values = np.where(nibbles & 8, -values, values).astype(np.float32)
    return signed


ROW264 = RowLayout("row264", row264.ROW_BYTES, True, _same, row264.decode)
BLOCK264 = RowLayout("block264", row264.ROW_BYTES, True, _from_blocks, row264.decode)
SPLIT264 = RowLayout("split264", row264.ROW_BYTES, True, _same, row264.decode)
LLOYD136 = RowLayout("lloyd136", LLOYD4_BYTES, False, _same, _lloyd4)
LAYOUTS = {layout.name: layout for layout in (ROW264, BLOCK264, SPLIT264, LLOYD136)}


def ggml(kind: str, width: int = row264.WIDTH) -> RowLayout | None:
    """The layout of a tensor type's rows of `width` values; None for a type that is not decoded."""
    known = next((number for number, known in GGML_TYPES.items() if known.name == kind), None)
    if known is None or kind not in QUANTS + FLOATS or width % GGML_TYPES[known].block:
        return None
    stored = width // GGML_TYPES[known].block * GGML_TYPES[known].size

    def decode(rows: Bytes) -> Values:
        from gguf import GGMLQuantizationType, quants

        flat = np.ascontiguousarray(rows.reshape(-1, stored))
        with np.errstate(all="ignore"):  # a scale that is no number gives values that are none: said by who reads them
            if kind in ("F32", "F16"):
                made: NDArray[Any] = flat.view("<f4" if kind == "F32" else "<f2").astype(np.float32)
            else:
                made = quants.dequantize(flat, GGMLQuantizationType[kind])
        return np.asarray(made, np.float32).reshape(*rows.shape[:-1], width)

    return RowLayout(kind, stored, False, _same, decode)


def plausible(rows: Bytes) -> str | None:
    """Which of the two layouts of 264 bytes [n, 264] rows are in, by where scale bytes can be; None if they do not say.

    Scales of one row lie close together, and far from the ends of their range; codes do neither.
    """
    rows = rows[rows.any(axis=1)]
    if not len(rows):
        return None
    fits = {}
    for name, scales in (("row264", rows[:, row264.WIDTH :]), ("block264", rows[:, :: 1 + row264.BLOCK])):
        low, high = scales.min(axis=1).astype(int), scales.max(axis=1).astype(int)
        fits[name] = float(((low >= SCALES_FROM) & (high <= SCALES_TO) & (high - low <= SCALES_APART)).mean())
    best, other = sorted(fits, key=lambda name: -fits[name])
    return best if fits[best] >= SURE and fits[other] <= 1 - SURE else None


# the release's looked-up rows have scale bytes 119 and 120 alone; these bounds leave room for other models
SCALES_FROM, SCALES_TO, SCALES_APART = 90, 160, 16
SURE = 0.9
