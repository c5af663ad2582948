"""Q8_0 rows, as ggml keeps them: blocks of 32 numbers under one F16 scale.

    0       2                34      36
    | scale | 32 x signed byte | scale | ...      number = scale * byte

The nearest byte, halves away from zero, of number / (largest magnitude / 127): ggml's own quantisation.
Source: ggml-org/llama.cpp ggml/src/ggml-quants.c (quantize_row_q8_0_ref).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLOCK, BLOCK_BYTES = 32, 34
LEVELS = np.float32(127)


def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """[n, width] finite values -> [n, row_bytes]; width is a multiple of BLOCK."""
    blocks = values.reshape(len(values), -1, BLOCK)
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / LEVELS
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
        scaled = blocks * inverse
        numbers = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).astype(np.int8)
        made = np.empty((*blocks.shape[:2], BLOCK_BYTES), np.uint8)
        made[..., :2] = scale.astype("<f2").view(np.uint8)
    made[..., 2:] = numbers.view(np.uint8)
    return made.reshape(len(values), -1)


def decode(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """[..., row_bytes] -> [..., width] values, exact in F32."""
    blocks = np.ascontiguousarray(rows).reshape(*rows.shape[:-1], -1, BLOCK_BYTES)
    scale = np.ascontiguousarray(blocks[..., :2]).view("<f2").astype(np.float32)
    values = scale * blocks[..., 2:].view(np.int8).astype(np.float32)
    return np.asarray(values.reshape(*rows.shape[:-1], -1))
