"""row264: one Engram table row in 264 bytes (spec: row264.md).

    0                                  256          264
    | 256 x E4M3 code, one per element | 8 x E8M0   |

Element j is code[j] * 2**(scale[j // 32] - 127).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formats.floats import BF16_NAN, E4M3_NAN, E4M3_VALUES, E8M0_NAN, E8M0_VALUES, to_bf16

WIDTH = 256  # elements in a row
BLOCK = 32  # elements that share one scale
SCALES = WIDTH // BLOCK
ROW_BYTES = WIDTH + SCALES

with np.errstate(over="ignore"):
    _VALID = np.isfinite(np.multiply.outer(E8M0_VALUES, E4M3_VALUES))  # [scale byte, code]: the whole rule
SURE_BELOW = int(
    np.flatnonzero(~_VALID[:, E4M3_NAN - 1])[0]
)  # from this scale byte on, some code that is a number has no value
_CHUNK = 4096  # rows looked at together: 1 MB, stays in the cache


@dataclass(frozen=True)
class Invalid:
    """The first byte of the first row that has no finite value."""

    row: int
    byte: int  # 0..ROW_BYTES-1
    expected: str
    found: str


def pack(
    codes: NDArray[np.uint8], scales: NDArray[np.uint8], out: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """[n, WIDTH] codes and [n, SCALES] scales -> [n, ROW_BYTES] rows. Ask `first_invalid` before."""
    rows = np.empty((len(codes), ROW_BYTES), np.uint8) if out is None else out
    rows[:, :WIDTH] = codes
    rows[:, WIDTH:] = scales
    return rows


def pack_valid(codes: NDArray[np.uint8], scales: NDArray[np.uint8], out: NDArray[np.uint8]) -> Invalid | None:
    """Check and `pack` in one go; where a row is invalid, `out` is not to be used."""
    bad = first_invalid(codes, scales)
    if bad is None:
        pack(codes, scales, out)
    return bad


def split(rows: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """[..., ROW_BYTES] rows -> views of their codes [..., WIDTH] and scales [..., SCALES]."""
    return rows[..., :WIDTH], rows[..., WIDTH:]


def decode(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """[..., ROW_BYTES] rows -> [..., WIDTH] exact values, before any BF16 rounding."""
    codes, scales = split(rows)
    with np.errstate(over="ignore"):
        return E4M3_VALUES[codes] * np.repeat(E8M0_VALUES[scales], BLOCK, axis=-1)


def decode_bf16(rows: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """[..., ROW_BYTES] rows -> [..., WIDTH] BF16 bits: the exact value, rounded once. A NaN is always 0x7FC0."""
    values = decode(rows)
    return np.where(np.isnan(values), np.uint16(BF16_NAN), to_bf16(values))


def first_invalid(codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> Invalid | None:
    """The first byte without a value in [n, WIDTH] codes and [n, SCALES] scales, or None if all rows are valid."""
    for start in range(0, len(codes), _CHUNK):
        some, theirs = codes[start : start + _CHUNK], scales[start : start + _CHUNK]
        if (some & 0x7F).max() == E4M3_NAN or theirs.max() >= SURE_BELOW:
            bad = ~_VALID[np.repeat(theirs, BLOCK, axis=1), some]
            no_scale = theirs == E8M0_NAN
            bad &= ~np.repeat(no_scale, BLOCK, axis=1) | (
                some & 0x7F == E4M3_NAN
            )  # a NaN scale is its own byte's fault
            wrong = np.concatenate([bad, no_scale], axis=1)
            if wrong.any():
                row, byte = (int(i) for i in np.argwhere(wrong)[0])
                return _describe(start + row, byte, some[row], theirs[row])
    return None


def _describe(row: int, byte: int, codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> Invalid:
    if byte >= WIDTH:
        return Invalid(row, byte, "an E8M0 scale below 255", f"{E8M0_NAN} (NaN)")
    code = int(codes[byte])
    if code & 0x7F == E4M3_NAN:
        return Invalid(row, byte, "an E4M3 number", f"{code:#04x} (NaN)")
    scale = int(scales[byte // BLOCK])
    return Invalid(
        row, byte, "a value below 2**128", f"{E4M3_VALUES[code]:g} * 2**{scale - 127} (code {code:#04x}, scale {scale})"
    )
