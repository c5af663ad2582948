"""Rows where addressing bugs show: the ends, head boundaries, the converter's chunk edges, and every 2**31 and 2**32
line."""

from __future__ import annotations

from itertools import accumulate

from engramctl.hash_params import unused_primes
from engramctl.profiles import Profile, Sizes
from formats import row264

DS4_CHUNK_ROWS = 16384  # rows that ds4's converter moves at a time (gguf-tools/deepseek41_quantize.py)


def heads(profile: Profile, sizes: Sizes, number: int) -> list[int]:
    """First row of each column of the number-th layer, from the published moduli where the sizes are the profile's."""
    if sizes.base == profile.sizes.base and sizes.columns == profile.sizes.columns and number < len(profile.offsets):
        return [int(offset) for offset in profile.offsets[number]]
    primes = unused_primes(sizes.base, sizes.columns * (number + 1))[-sizes.columns :]
    return [0, *accumulate(primes)][:-1]


def rows(count: int, boundaries: list[int]) -> list[int]:
    """Telling rows of a table of `count` rows, ascending: each edge and the row before it."""
    strides = (row264.ROW_BYTES, row264.WIDTH)
    lines = [line // stride + 1 for line in (2**31, 2**32, 2**33) for stride in strides]
    edges = [0, 1, 2, count, DS4_CHUNK_ROWS, *lines, *boundaries]
    return sorted({row for edge in edges for row in (edge - 1, edge) if 0 <= row < count})


def plain_rows(count: int, boundaries: list[int], row_bytes: int) -> list[int]:
    """The same for rows of another layout: its ends, its columns' and shards' edges, and the 2**31 and 2**32 lines."""
    lines = [line // row_bytes + 1 for line in (2**31, 2**32, 2**33)]
    edges = [0, 1, 2, count, *lines, *boundaries]
    return sorted({row for edge in edges for row in (edge - 1, edge) if 0 <= row < count})
