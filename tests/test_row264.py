"""row264 against ml_dtypes, published digests and its own spec: every code under every scale, in both tiers."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest
from specs import example, number, table
from tiers import TIERS, bits

from formats import row264
from formats.floats import (
    E4M3_NAN,
    E4M3_VALUES,
    E8M0_NAN,
    E8M0_VALUES,
    exact_in_bf16,
    exact_in_f16,
    from_bf16,
    to_bf16,
)

PUBLISHED = json.loads((Path(__file__).parent.parent / "fixtures" / "decode.json").read_text())
CODES, SCALES = (grid.ravel().astype(np.uint8) for grid in np.mgrid[:256, :256])  # index code * 256 + scale


def every_pair() -> np.ndarray:
    """65,536 rows: all elements of a row are one code under one scale."""
    return row264.pack(np.repeat(CODES[:, None], row264.WIDTH, 1), np.repeat(SCALES[:, None], row264.SCALES, 1))


def digest(array: np.ndarray, kind: str) -> str:
    return hashlib.sha256(array.astype(kind).tobytes()).hexdigest()


def valid() -> np.ndarray:
    codes, scales = np.repeat(CODES[:, None], row264.WIDTH, 1), np.repeat(SCALES[:, None], row264.SCALES, 1)
    return np.array([row264.first_invalid(codes[i : i + 1], scales[i : i + 1]) is None for i in range(len(codes))])


@pytest.mark.parametrize("tier", TIERS)
def test_every_code_under_every_scale_decodes_to_the_published_bits(tier: ModuleType) -> None:
    values = tier.lookup(every_pair())
    assert (values == values[:, :1]).all()  # wherever in the row it stands
    got = values[:, 0]
    assert digest(got, "<u2") == PUBLISHED["sha256_u16le"]
    kinds = Counter(np.select([np.isnan(from_bf16(got)), np.isinf(from_bf16(got))], ["nan", "inf"], "finite").tolist())
    assert kinds == PUBLISHED["counts"]
    assert {(p["code"], p["scale"]): int(got[p["code"] * 256 + p["scale"]]) for p in PUBLISHED["special_points"]} == {
        (p["code"], p["scale"]): p["bf16"] for p in PUBLISHED["special_points"]
    }


@pytest.mark.parametrize("tier", TIERS)
def test_every_code_under_every_scale_decodes_as_ml_dtypes_does(tier: ModuleType) -> None:
    codes = CODES.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    with np.errstate(over="ignore"):
        product = codes * SCALES.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    with np.errstate(invalid="ignore"):
        want = product.astype(ml_dtypes.bfloat16).view(np.uint16)
    want[np.isnan(product)] = 0x7FC0
    np.testing.assert_array_equal(tier.lookup(every_pair())[:, 0], want)


def test_the_published_31_values_of_two_rows() -> None:
    codes = np.stack([np.arange(256), (37 * np.arange(256) + 11) % 256]).astype(np.uint8)
    codes[codes & 0x7F == 0x7F] = 0x7E
    published = PUBLISHED["published"]
    values = row264.decode(row264.pack(codes, np.array(published["row_scales"], np.uint8)))
    found = [[row, j, int(bits(values)[row, j])] for row, j, _ in published["values"]]
    assert found == published["values"]


def test_products_are_exact_and_only_the_smallest_scales_need_rounding() -> None:
    values = row264.decode(every_pair())[:, 0]
    finite = np.isfinite(values)
    exact = np.ldexp(E4M3_VALUES[CODES].astype(np.float64), SCALES.astype(int) - 127)
    np.testing.assert_array_equal(values[finite], exact[finite])
    inexact = finite & ~exact_in_bf16(values)
    published = PUBLISHED["exactness"]
    assert int(inexact.sum()) == published["bf16_inexact_elements"]
    assert sorted(set(SCALES[inexact].tolist())) == published["bf16_inexact_scale_bytes"]
    good = [s for s in range(256) if exact_in_f16(values[(s == SCALES) & (CODES & 0x7F != 0x7F)]).all()]
    assert [good[0], good[-1]] == published["f16_exact_for_scale_bytes"]
    assert good == list(range(good[0], good[-1] + 1))


def test_two_known_ways_to_get_the_scale_wrong_would_show() -> None:
    shifted = (SCALES.astype(np.uint32) << np.uint32(23)).view(np.float32)
    patched = np.where(SCALES == 0, np.float32(2.0**-127), shifted)
    with np.errstate(over="ignore", invalid="ignore"):
        found = [E4M3_VALUES[CODES] * scale for scale in (shifted, patched)]
    right = row264.decode_bf16(every_pair())[:, 0]
    for values, mistake in zip(found, PUBLISHED["mistakes"].values(), strict=True):
        wrong = np.where(np.isnan(values), 0x7FC0, to_bf16(values))
        assert digest(wrong, "<u2") == mistake["sha256_u16le"]
        assert int((wrong != right).sum()) == mistake["differing"]


def test_a_row_is_valid_exactly_where_it_has_a_finite_value() -> None:
    ok = valid()
    assert digest(ok, "u1") == PUBLISHED["sha256_valid_u8"]
    kept = np.where(ok, row264.decode_bf16(every_pair())[:, 0], 0)
    assert digest(kept, "<u2") == PUBLISHED["sha256_u16le_nonfinite_zeroed"]
    assert int(SCALES[~ok & (CODES & 0x7F != 0x7F)].min()) == PUBLISHED["exactness"]["overflow_starts_at_scale_byte"]


def good_rows(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.full((count, row264.WIDTH), 0x38, np.uint8), np.full((count, row264.SCALES), 120, np.uint8)


@pytest.mark.parametrize(
    ("row", "byte", "code", "scale", "expected", "found"),
    [
        (5, 77, 0xFF, 120, "an E4M3 number", "0xff (NaN)"),
        (5, 0, 0x7F, 255, "an E4M3 number", "0x7f (NaN)"),
        (5000, 256 + 7, 0x38, 255, "an E8M0 scale below 255", "255 (NaN)"),
        (8191, 255, 0x7E, 247, "a value below 2**128", "448 * 2**120 (code 0x7e, scale 247)"),
        (4096, 32, 0xFE, 254, "a value below 2**128", "-448 * 2**127 (code 0xfe, scale 254)"),
    ],
)
def test_the_first_invalid_byte_is_named(row: int, byte: int, code: int, scale: int, expected: str, found: str) -> None:
    codes, scales = good_rows(8192)
    if byte < row264.WIDTH:
        codes[row, byte] = code
        codes[row, byte // row264.BLOCK * row264.BLOCK : byte] = 0  # has a value under any scale
        scales[row, byte // row264.BLOCK] = scale
    else:
        scales[row, byte - row264.WIDTH] = scale
    scales[row + 1 :] = 255  # later rows do not matter
    assert row264.first_invalid(codes, scales) == row264.Invalid(row, byte, expected, found)


def test_the_byte_comes_before_the_kind() -> None:
    codes, scales = good_rows(1)
    scales[0, 0], codes[0, 200] = 255, 0x7F
    invalid = row264.first_invalid(codes, scales)
    assert invalid is not None
    assert invalid.byte == 200  # the code at 200, not the scale at 256


def test_valid_rows_pass_in_any_number_and_from_a_view() -> None:
    codes, scales = good_rows(5000)
    scales[:, 3], codes[:, 3 * 32 : 4 * 32] = 254, 0x00
    codes[:, 3 * 32] = 0x38  # 1.0 * 2**127 is finite
    assert row264.first_invalid(codes, scales) is None
    assert row264.first_invalid(codes[:0], scales[:0]) is None
    assert row264.first_invalid(*row264.split(row264.pack(codes, scales))) is None


def test_packing_puts_codes_before_scales_and_splitting_gives_views() -> None:
    random = np.random.default_rng(1)
    codes, scales = (random.integers(0, 256, (7, n), dtype=np.uint8) for n in (row264.WIDTH, row264.SCALES))
    rows = np.zeros((7, row264.ROW_BYTES), np.uint8)
    assert row264.pack(codes, scales, rows) is rows
    assert rows[3].tobytes() == codes[3].tobytes() + scales[3].tobytes()
    np.testing.assert_array_equal(row264.pack(codes, scales), rows)
    back = row264.split(rows)
    np.testing.assert_array_equal(back[0], codes)
    np.testing.assert_array_equal(back[1], scales)
    assert all(np.shares_memory(part, rows) for part in back)


def test_the_spec_has_the_modules_numbers() -> None:
    parts = {part: (number(at), number(size)) for part, at, size, _ in table("row264.md", "part")}
    assert parts == {
        "codes": (0, row264.WIDTH),
        "scales": (row264.WIDTH, row264.SCALES),
        "row": (0, row264.ROW_BYTES),
    }
    assert row264.SCALES * row264.BLOCK == row264.WIDTH
    nan = {kind: cell.split(";")[0] for kind, _, _, cell in table("row264.md", "number")}
    assert nan == {"E4M3": f"0x{E4M3_NAN:02X} and 0x{E4M3_NAN | 0x80:02X}", "E8M0": f"{E8M0_NAN}"}
    exact = {kind: under for under, kind in table("row264.md", "under scale bytes")}
    bf16, f16 = (
        " to ".join(map(str, PUBLISHED["exactness"][f"{kind}_exact_for_scale_bytes"])) for kind in ("bf16", "f16")
    )
    assert (exact["BF16"], exact["F16"]) == (bf16, f16)


def test_the_specs_example_decodes_as_it_says() -> None:
    row = np.frombuffer(example("row264.md"), np.uint8)
    assert row.size == row264.ROW_BYTES
    values = row264.decode_bf16(row)
    assert values[:3].tolist() == [0x3C00, 0x3780, 0xBC00]
    assert not values[3:].any()


def test_tables_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        E8M0_VALUES[0] = 0
