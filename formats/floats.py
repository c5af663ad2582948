"""Small floats, bit by bit: E4M3 codes, E8M0 scales, BF16 and what F16 holds. Rounding is to nearest, ties to even.

E4M3   s eeee mmm          2**(e-7) * (1 + m/8);  e = 0: m/512;  0x7F and 0xFF are NaN; no infinity; largest 448
E8M0   eeeeeeee            2**(e-127);  0 is 2**-127;  255 is NaN
BF16   s eeeeeeee mmmmmmm  the upper half of an F32;  kept as uint16 everywhere in this project
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

E4M3_MAX = 448.0
E4M3_NAN = 0x7F  # with either sign
E8M0_BIAS = 127
E8M0_NAN = 255
BF16_INFINITY = 0x7F80
BF16_NAN = 0x7FC0


def _e4m3_value(code: int) -> float:
    sign, exponent, mantissa = -1.0 if code & 0x80 else 1.0, code >> 3 & 15, code & 7
    if code & 0x7F == E4M3_NAN:
        return float("nan")
    return sign * (2.0 ** (exponent - 7) * (1 + mantissa / 8) if exponent else mantissa / 512)


E4M3_VALUES = np.array([_e4m3_value(code) for code in range(256)], np.float32)
E8M0_VALUES = np.array([2.0 ** (byte - E8M0_BIAS) for byte in range(E8M0_NAN)] + [float("nan")], np.float32)
E4M3_VALUES.flags.writeable = E8M0_VALUES.flags.writeable = False


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """BF16 bits -> the same values in F32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """F32 -> BF16 bits, nearest even; too large becomes infinity, a NaN stays one (0x7FC0 and its sign)."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).reshape(np.shape(values))
    half = np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    rounded = (bits + half >> np.uint32(16)).astype(np.uint16)
    sign = (bits >> np.uint32(16)).astype(np.uint16) & np.uint16(0x8000)
    return np.where(bits & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000), sign | np.uint16(BF16_NAN), rounded)


def bf16_finite(bits: NDArray[np.uint16]) -> NDArray[np.bool_]:
    """True where BF16 bits are neither infinity nor NaN."""
    finite: NDArray[np.bool_] = bits & np.uint16(BF16_INFINITY) != np.uint16(BF16_INFINITY)
    return finite


def to_e4m3(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """F32 -> E4M3 codes, nearest even; beyond 448 (infinity too) becomes 448, NaN becomes 0x7F, each with its sign."""
    values = np.asarray(values, np.float32)
    nan = np.isnan(values)
    size = np.where(nan, np.float32(0), np.minimum(np.abs(values), np.float32(E4M3_MAX))).astype(np.float64)
    # Neighbours are 2**(exponent-3) apart, subnormals 2**-9; size / step is exact, and rint ties to even.
    step = np.ldexp(1.0, np.maximum(np.frexp(size)[1] - 1, -6) - 3)
    size = np.rint(size / step) * step
    exponent = np.maximum(np.frexp(size)[1] - 1, -6)
    eighths = np.ldexp(size, 3 - exponent).astype(np.int64)  # 8..15, or 0..7 below 2**-6
    code = np.where(nan, E4M3_NAN, np.where(eighths < 8, eighths, (exponent + 7) * 8 + eighths - 8))
    codes: NDArray[np.uint8] = (code | np.signbit(values) * 0x80).astype(np.uint8)
    return codes


def exact_in_bf16(values: NDArray[np.float16] | NDArray[np.float32]) -> NDArray[np.bool_]:
    """True where a finite value is the same in BF16."""
    with np.errstate(invalid="ignore"):  # a NaN on its way from F16
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32).reshape(np.shape(values))
    exact: NDArray[np.bool_] = (bits & np.uint32(0xFFFF) == 0) & bf16_finite((bits >> np.uint32(16)).astype(np.uint16))
    return exact


def exact_in_f16(values: NDArray[np.float32]) -> NDArray[np.bool_]:
    """True where a finite value is the same in F16."""
    with np.errstate(over="ignore", invalid="ignore"):
        halves = values.astype(np.float16)
    exact: NDArray[np.bool_] = np.isfinite(halves) & (halves.astype(np.float32) == values)
    return exact
