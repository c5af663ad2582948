"""formats.floats against ml_dtypes: every pattern of bits where there are few, every boundary where there are many."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from formats import floats

EVERY_BYTE = np.arange(256, dtype=np.uint8)
UPPER = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)


def near_every_bf16() -> np.ndarray:
    """F32 numbers on, just off, and half way between all BF16 numbers, infinities and NaNs among them."""
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return (UPPER[:, None] | lower).ravel().view(np.float32)


def test_every_e4m3_code_has_the_value_ml_dtypes_gives_it() -> None:
    np.testing.assert_array_equal(floats.E4M3_VALUES, EVERY_BYTE.view(ml_dtypes.float8_e4m3fn).astype(np.float32))


def test_every_e8m0_byte_has_the_value_ml_dtypes_gives_it() -> None:
    np.testing.assert_array_equal(floats.E8M0_VALUES, EVERY_BYTE.view(ml_dtypes.float8_e8m0fnu).astype(np.float32))


def test_rounding_to_bf16_agrees_with_ml_dtypes_around_every_bf16_number() -> None:
    values = near_every_bf16()
    with np.errstate(invalid="ignore"):
        want = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(floats.to_bf16(values), want)


def test_a_bf16_number_widened_and_rounded_is_itself() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    number = ~np.isnan(floats.from_bf16(bits))
    np.testing.assert_array_equal(floats.to_bf16(floats.from_bf16(bits))[number], bits[number])
    np.testing.assert_array_equal(
        floats.bf16_finite(bits), np.isfinite(bits.view(ml_dtypes.bfloat16).astype(np.float32))
    )


def test_shape_and_order_survive_rounding() -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1)
    assert floats.to_bf16(values).shape == (4, 2, 3)
    np.testing.assert_array_equal(floats.from_bf16(floats.to_bf16(values)), values)


def test_rounding_to_e4m3_agrees_with_ml_dtypes_and_saturates() -> None:
    values = near_every_bf16()
    with np.errstate(invalid="ignore"):
        want = np.clip(values, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    np.testing.assert_array_equal(floats.to_e4m3(values), want)
    assert floats.to_e4m3(np.array([np.inf, -np.inf, 1e30], np.float32)).tolist() == [0x7E, 0xFE, 0x7E]


def test_what_bf16_holds_exactly() -> None:
    values = near_every_bf16()
    with np.errstate(invalid="ignore"):
        back = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(floats.exact_in_bf16(values), np.isfinite(values) & (back == values))


def test_what_f16_holds_exactly() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    with np.errstate(invalid="ignore"):
        widened = halves.astype(np.float32)
    np.testing.assert_array_equal(floats.exact_in_f16(widened), np.isfinite(halves))
    beside = np.nextafter(widened[np.isfinite(widened)], np.float32(np.inf))
    assert not floats.exact_in_f16(beside).any()
    assert not floats.exact_in_f16(np.array([65536, 2.0**-25, np.inf, np.nan], np.float32)).any()
    # an F16 number is exact in BF16 if at most 8 significant bits are left after its zeros
    assert floats.exact_in_bf16(np.array([255, 257, 65504], np.float16)).tolist() == [True, False, False]
