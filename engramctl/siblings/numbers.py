"""Numbers for synthetic checkpoints, any part of a tensor alone: counters and a seed through SplitMix64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engramctl.synth import NUMBER_NAN, random_u64

LEAST, OCTAVES = 121, 4  # exponents, biased, of made numbers: 1/64 up to 1/4


def made(dtype: str, stream: int, first: int, count: int) -> NDArray[np.uint8]:
    """Numbers first .. first + count of a tensor, as bytes; all finite, either sign."""
    drawn = random_u64(stream, first, count)
    if dtype == "F8_E4M3":
        codes = (drawn >> np.uint64(24)).astype(np.uint8)
        codes[codes & NUMBER_NAN == NUMBER_NAN] ^= 1
        return codes
    sign, exponent = drawn >> np.uint64(63), np.uint64(LEAST) + (drawn >> np.uint64(40)) % np.uint64(OCTAVES)
    if dtype == "BF16":
        fraction = drawn & np.uint64(0x7F)
        return _bytes(sign << np.uint64(15) | exponent << np.uint64(7) | fraction, "<u2")
    fraction = drawn & np.uint64(0x7FFFFF)
    return _bytes(sign << np.uint64(31) | exponent << np.uint64(23) | fraction, "<u4")


def _bytes(numbers: NDArray[np.uint64], dtype: str) -> NDArray[np.uint8]:
    return numbers.astype(dtype).view(np.uint8)


def near_one(dtype: str, zero: bool, stream: int, first: int, count: int) -> NDArray[np.uint8]:
    """Weights of a norm: about 1, or about 0 where 1 is added to them; exact in BF16."""
    eighths = (random_u64(stream, first, count) >> np.uint64(60)).astype(np.float32) - np.float32(8)
    values = eighths / np.float32(16) + np.float32(0 if zero else 1)
    if dtype == "F32":
        return values.astype("<f4").view(np.uint8)
    return (values.view(np.uint32) >> np.uint32(16)).astype("<u2").view(np.uint8)
