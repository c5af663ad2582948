"""pack_valid: NumPy and Numba write equal bytes and refuse the same row in the same words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from engramctl.fast import pack
from formats import row264
from formats.row264 import Invalid

Rows = NDArray[np.uint8]
Pack = Callable[[Rows, Rows, Rows], Invalid | None]


@pytest.fixture(params=[row264.pack_valid, pack.pack_valid], ids=["numpy", "numba"])
def pack_valid(request: pytest.FixtureRequest) -> Pack:
    return request.param


def drawn(rows: int, seed: int = 0) -> tuple[Rows, Rows]:
    """Valid rows: no NaN code, ordinary scales."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (rows, 256), np.uint8)
    codes[codes & 0x7F == 0x7F] ^= 1
    return codes, rng.integers(100, 130, (rows, 8), np.uint8)


def packed(pack_valid: Pack, codes: Rows, scales: Rows) -> Rows:
    out = np.full((len(codes), 264), 0xEE, np.uint8)
    assert pack_valid(codes, scales, out) is None
    return out


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 33, 5000])
def test_a_row_is_its_codes_then_its_scales(pack_valid: Pack, rows: int) -> None:
    codes, scales = drawn(rows)
    assert packed(pack_valid, codes, scales).tobytes() == b"".join(
        codes[i].tobytes() + scales[i].tobytes() for i in range(rows)
    )


def test_arrays_that_are_not_aligned_or_not_whole_are_packed_all_the_same(pack_valid: Pack) -> None:
    codes, scales = drawn(50)
    room = np.zeros(50 * 256 + 3, np.uint8)
    odd = room[3:].reshape(50, 256)
    odd[:] = codes
    assert np.array_equal(packed(pack_valid, odd, scales), packed(pack_valid, codes, scales))
    wide = np.zeros((50, 300), np.uint8)
    out = wide[:, 20:284]
    assert pack_valid(codes, scales, out) is None
    assert np.array_equal(out, packed(pack_valid, codes, scales))


@pytest.mark.parametrize("byte", [0, 1, 100, 254, 255])
@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_a_nan_anywhere_is_found(pack_valid: Pack, byte: int, code: int) -> None:
    codes, scales = drawn(40)
    codes[17, byte] = code
    codes[30, 3] = 0x7F
    bad = pack_valid(codes, scales, np.empty((40, 264), np.uint8))
    assert bad == Invalid(17, byte, "an E4M3 number", f"{code:#04x} (NaN)")


@pytest.mark.parametrize("block", range(8))
def test_every_scale_byte_under_the_largest_and_the_smallest_code(pack_valid: Pack, block: int) -> None:
    """448 * 2**(s - 127) is finite up to s = 246, 1 * 2**(s - 127) up to s = 254, and 255 is NaN."""
    for scale in range(256):
        for code, largest in ((0x7E, 246), (0xFE, 246), (0x38, 254), (0x00, 254)):
            codes, scales = drawn(3)
            codes[1, block * 32 : block * 32 + 32] = code
            scales[1, block] = scale
            bad = pack_valid(codes, scales, np.empty((3, 264), np.uint8))
            if scale <= largest:
                assert bad is None, (scale, code)
            else:
                assert bad is not None
                assert (bad.row, bad.byte) == (1, 256 + block if scale == 255 else block * 32)


@pytest.mark.parametrize("seed", range(200))
def test_both_say_the_same_of_any_bytes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(0, 60))
    codes, scales = drawn(rows, seed)
    for array, count in ((codes, rng.integers(0, 3)), (scales, rng.integers(0, 3))):
        for at in rng.integers(0, max(array.size, 1), count if array.size else 0):
            array.reshape(-1)[at] = rng.choice([0x7F, 0xFF, 247, 250, 254, 255])
    outs = np.zeros((2, rows, 264), np.uint8)
    said = [one(codes, scales, outs[i]) for i, one in enumerate((row264.pack_valid, pack.pack_valid))]
    assert said[0] == said[1]
    if said[0] is None:
        assert np.array_equal(outs[0], outs[1])
