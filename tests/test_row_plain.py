"""Plain rows against ml_dtypes on every bit pattern, and the page's own numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import specs

from formats import row_plain
from formats.row_plain import PlainRows


def test_the_page_says_what_the_code_does() -> None:
    sizes = {row[0]: specs.number(row[1]) for row in specs.table("row_plain.md", "dtype")}
    assert sizes == row_plain.SIZES
    assert PlainRows("BF16", 160).row_bytes == 320
    assert PlainRows("F8_E4M3", 160).row_bytes == 160
    bf16, fp8 = (np.frombuffer(bytes.fromhex(text), np.uint8) for text in ("803f00c0", "40c8"))
    assert PlainRows("BF16", 2).decode(bf16).tolist() == [1, -2]
    assert PlainRows("F8_E4M3", 2, np.float32(0.5)).decode(fp8).tolist() == [1, -2]


@pytest.mark.parametrize("scale", [0x3951, 0x3F80, 0x0180, 0x7E00])
def test_every_e4m3_under_a_scale_is_rounded_once(scale: int) -> None:
    factor = np.array([scale], np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)[0]
    codes = np.arange(256, dtype=np.uint8)
    with np.errstate(over="ignore"):
        want = (codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * float(factor)).astype(np.float32)
        rounded = want.astype(ml_dtypes.bfloat16)
    layout = PlainRows("F8_E4M3", 256, factor)
    np.testing.assert_array_equal(layout.decode(codes), want)
    kept = ~np.isnan(want)
    np.testing.assert_array_equal(layout.decode_bf16(codes)[kept], rounded.view(np.uint16)[kept])
    bad = layout.first_invalid(codes[None])
    assert bad is not None
    assert bad.byte == int(np.flatnonzero(~np.isfinite(rounded.astype(np.float32)))[0])


def test_every_half_and_every_bf16_decodes_exactly_or_is_named() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    for dtype, kind in (("BF16", ml_dtypes.bfloat16), ("F16", np.float16)):
        layout, raw = PlainRows(dtype, 1), bits.view(np.uint8).reshape(-1, 2)
        with np.errstate(invalid="ignore"):
            want = bits.view(kind).astype(np.float32)
        np.testing.assert_array_equal(layout.decode(raw)[:, 0], want)
        for row in (0, 0x7F7F, int(np.flatnonzero(~np.isfinite(want))[0])):
            bad = layout.first_invalid(raw[row : row + 1])
            assert (bad is None) == bool(np.isfinite(want[row]))


def test_the_first_bad_number_is_named_by_row_and_byte() -> None:
    rows = np.zeros((9000, 4), np.float32)
    rows[8500, 2] = np.inf
    bad = PlainRows("F32", 4).first_invalid(rows.view(np.uint8))
    assert bad is not None
    assert (bad.row, bad.byte, bad.found) == (8500, 8, "F32 0x7f800000 (inf)")
