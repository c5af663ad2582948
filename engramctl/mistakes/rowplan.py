"""Decoding a row with every choice in the open. A plan of defaults gives the exact values that `row264.decode` gives.

n rows of ROW_BYTES bytes; values are F32, and become BF16 afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from formats.floats import E4M3_VALUES
from formats.row264 import BLOCK, ROW_BYTES, SCALES, WIDTH

Raw = NDArray[np.uint8]  # [n, ROW_BYTES]
Layout = Literal["codes then scales", "interleaved", "scales first", "from interleaved"]
ScaleAs = Literal["power of two", "number", "nothing"]
CodeAs = Literal["e4m3", "e4m3fnuz", "e5m2", "signed", "unsigned"]


@dataclass(frozen=True)
class RowPlan:
    """The choices; every default is the right one."""

    layout: Layout = "codes then scales"
    scale: ScaleAs = "power of two"
    bias: int = 127
    tiled: bool = False  # scale j serves elements j, j + 8, ... instead of block j
    zero_is_zero: bool = False  # a scale byte of 0 is the number 0
    code: CodeAs = "e4m3"
    row_step: int = 0  # this many rows on
    other_table: bool = False  # in another layer's table
    wrapped: bool = False  # at its byte offset modulo 2**32


def _e5m2() -> NDArray[np.float32]:
    """E5M2 is the upper half of F16."""
    halves = (np.arange(256, dtype=np.uint16) << np.uint16(8)).view(np.float16)
    return halves.astype(np.float32)


def _fnuz() -> NDArray[np.float32]:
    """Bias 8 for 7, so half of E4M3; the one NaN is -0's code, and 0x7F and 0xFF are 240."""
    half = (E4M3_VALUES / 2).astype(np.float32)
    half[[0x7F, 0xFF, 0x80]] = 240, -240, np.nan
    return half


CODES: dict[CodeAs, NDArray[np.float32]] = {
    "e4m3": E4M3_VALUES,
    "e4m3fnuz": _fnuz(),
    "e5m2": _e5m2(),
    "signed": np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float32),
    "unsigned": np.arange(256, dtype=np.float32),
}


def split(raw: Raw, layout: Layout) -> tuple[Raw, Raw]:
    """[n, ROW_BYTES] -> codes [n, WIDTH] and scales [n, SCALES], as a layout has them."""
    if layout == "interleaved":
        blocks = raw.reshape(len(raw), SCALES, 1 + BLOCK)
        return blocks[:, :, 1:].reshape(len(raw), WIDTH), np.ascontiguousarray(blocks[:, :, 0])
    if layout == "scales first":
        return raw[:, SCALES:], raw[:, :SCALES]
    if layout == "from interleaved":
        raw = interleave(raw)
    return raw[:, :WIDTH], raw[:, WIDTH:]


def interleave(raw: Raw) -> Raw:
    """Rows of codes then scales -> blocks of one scale and its codes."""
    codes, scales = raw[:, :WIDTH].reshape(len(raw), SCALES, BLOCK), raw[:, WIDTH:, None]
    return np.concatenate([scales, codes], axis=2).reshape(len(raw), ROW_BYTES)


def relaid(plan: RowPlan, raw: Raw) -> Raw:
    """The bytes of a row as the plan's layout makes them, for dumps of raw rows."""
    codes, scales = split(raw, plan.layout)
    return np.concatenate([codes, scales], axis=1)


def values(plan: RowPlan, raw: Raw) -> NDArray[np.float32]:
    """[n, ROW_BYTES] -> [n, WIDTH]."""
    codes, scales = split(raw, plan.layout)
    if plan.scale == "nothing":
        factors = np.ones(scales.shape, np.float32)
    elif plan.scale == "number":
        factors = scales.astype(np.float32)
    else:
        powers = np.ldexp(1.0, np.arange(256) - plan.bias)
        powers[255] = np.nan
        factors = powers.astype(np.float32)[scales]
        if plan.zero_is_zero:
            factors[scales == 0] = 0
    spread = np.tile(factors, WIDTH // SCALES) if plan.tiled else np.repeat(factors, BLOCK, axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(CODES[plan.code][codes] * spread, np.float32)
