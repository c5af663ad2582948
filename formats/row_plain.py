"""row_plain: one row of numbers and nothing else, as Qwen's, LongCat's and the demo's tables have it (spec:
row_plain.md).

    0         1              width-1
    | number | number | ... | number |     BF16 or F16 2 bytes, F32 4, E4M3 1 (times one scale for the whole table)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formats import row_q8_0
from formats.floats import E4M3_NAN, E4M3_VALUES, from_bf16, to_bf16
from formats.row264 import Invalid

SIZES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1}  # bytes of a number
ONE = np.float32(1)
_CHUNK = 4096  # rows looked at together


@dataclass(frozen=True)
class PlainRows:
    """The layout of a table's rows. `scale` multiplies every E4M3 number and is 1 for the other dtypes."""

    dtype: str
    width: int
    scale: np.float32 = ONE

    @property
    def row_bytes(self) -> int:
        if self.dtype == "Q8_0":
            return self.width // row_q8_0.BLOCK * row_q8_0.BLOCK_BYTES
        return self.width * SIZES[self.dtype]

    def decode(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        """[..., row_bytes] rows -> [..., width] values: exact, but that a scaled E4M3 is rounded once to F32."""
        rows = np.ascontiguousarray(rows)
        if self.dtype == "Q8_0":
            return row_q8_0.decode(rows)
        if self.dtype == "F8_E4M3":
            with np.errstate(over="ignore"):
                return E4M3_VALUES[rows] * self.scale
        if self.dtype == "BF16":
            return from_bf16(rows.view("<u2"))
        with np.errstate(invalid="ignore"):
            return rows.view("<f2" if self.dtype == "F16" else "<f4").astype(np.float32)

    def decode_bf16(self, rows: NDArray[np.uint8]) -> NDArray[np.uint16]:
        """[..., row_bytes] rows -> [..., width] BF16 bits, rounded once."""
        return np.ascontiguousarray(rows).view("<u2") if self.dtype == "BF16" else to_bf16(self.decode(rows))

    def is_bf16(self) -> bool:
        """Is BF16 what the model looks up in such rows? F32 and F16 tables are used as they are."""
        return self.dtype in ("BF16", "F8_E4M3")

    def first_invalid(self, rows: NDArray[np.uint8]) -> Invalid | None:
        """The first number of [n, row_bytes] rows that is none, or beyond F32 or (an E4M3) BF16; None if all are."""
        for start in range(0, len(rows), _CHUNK):
            some = np.ascontiguousarray(rows[start : start + _CHUNK])
            bad = ~np.isfinite(self.decode(some))
            if self.dtype == "F8_E4M3":
                bad |= ~np.isfinite(from_bf16(self.decode_bf16(some)))
            if bad.any():
                row, element = (int(i) for i in np.argwhere(bad)[0])
                if self.dtype == "Q8_0":
                    at = element // row_q8_0.BLOCK * row_q8_0.BLOCK_BYTES
                    return Invalid(start + row, at, "a finite scale", f"{self.decode(some[row])[element]}")
                size = SIZES[self.dtype]
                raw = some[row, element * size : (element + 1) * size]
                number = f"{self.dtype} {int.from_bytes(raw.tobytes(), 'little'):#0{2 + 2 * size}x}"
                nan = self.dtype == "F8_E4M3" and raw[0] & 0x7F == E4M3_NAN
                found = f"{number} (NaN)" if nan else f"{number} ({self.decode(some[row])[element]})"
                return Invalid(start + row, element * size, "a finite number", found)
        return None


def encode(values: NDArray[np.float32], dtype: str) -> NDArray[np.uint8]:
    """[n, width] values -> [n, row_bytes] rows, rounded to the dtype; whether that is exact is the caller's affair."""
    if dtype == "Q8_0":
        return row_q8_0.encode(values)
    if dtype == "BF16":
        return np.ascontiguousarray(to_bf16(values).astype("<u2")).view(np.uint8)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values.astype("<f2" if dtype == "F16" else "<f4")).view(np.uint8)
