"""Checkpoints as large as a benchmark needs: the synthetic ones with other primes, quick numbers, the real width."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engramctl import profiles, synth
from formats import row264

COLUMNS, LAYERS = 24, 2
BASE, HIDDEN = 20_000, 5120  # of `wide`: half a million rows a layer, the release's hidden width
BLOCK = (32 << 20) + 8191  # numbers drawn once and laid down again and again, never at the same place of a row


def make(folder: Path, gib: float) -> int:
    """A checkpoint whose two tables hold about so many GiB, every byte data; how many rows they have together."""
    base = int(gib * 2**30 / row264.ROW_BYTES / COLUMNS / LAYERS)
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, BLOCK, np.uint8)
    codes[codes & 0x7F == 0x7F] ^= 1
    scales = rng.integers(118, 122, BLOCK, np.uint8)
    slow = synth._bytes

    def quick(role: str, stream: int, start: int, count: int) -> NDArray[np.uint8]:
        if role not in ("codes", "scales"):
            return slow(role, stream, start, count)
        source = codes if role == "codes" else scales
        begin = (start + stream) % BLOCK
        return np.concatenate([source[begin:], np.tile(source, -(-count // BLOCK))])[:count]

    synth._bytes = quick
    try:
        made = synth.make(folder, profiles.load(), 0, real_tokens=True, full_size=False, base=base)
    finally:
        synth._bytes = slow
    return sum(made.sizes.rows)


def wide(folder: Path) -> None:
    """A checkpoint whose projections have the release's size, with tables that are quickly written."""
    synth.make(folder, profiles.load(), 1, real_tokens=True, full_size=False, base=BASE, hidden=HIDDEN)
