"""The generators that the published lookup, projection and gate cases are defined by."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from formats.floats import to_bf16

CHUNK = 1 << 15  # numbers made together: they stay in the cache


def chunks(seed: int, count: int, start: int = 0) -> Iterator[NDArray[np.uint64]]:
    """splitmix64 as a counter: number i is a function of seed and i alone, so any stretch can be had by itself."""
    for first in range(start, start + count, CHUNK):
        z = np.arange(first + 1, min(first + CHUNK, start + count) + 1, dtype=np.uint64)
        z *= np.uint64(0x9E3779B97F4A7C15)
        z += np.uint64(seed)
        z ^= z >> np.uint64(30)
        z *= np.uint64(0xBF58476D1CE4E5B9)
        z ^= z >> np.uint64(27)
        z *= np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        yield z


def numbers(seed: int, count: int) -> NDArray[np.uint64]:
    return np.concatenate(list(chunks(seed, count)))


def codes(seed: int, *shape: int, start: int = 0) -> NDArray[np.uint8]:
    """E4M3 codes, none of them NaN; from number `start` on."""
    made = np.empty(int(np.prod(shape)), np.uint8)
    for i, z in enumerate(chunks(seed, made.size, start)):
        made[i * CHUNK : i * CHUNK + z.size] = z >> np.uint64(56)
    made ^= (made & 0x7F == 0x7F).view(np.uint8)
    return made.reshape(shape)


def scales(seed: int, low: int, high: int, *shape: int) -> NDArray[np.uint8]:
    z = numbers(seed, int(np.prod(shape)))
    return (low + (z >> np.uint64(32)) % np.uint64(high - low + 1)).astype(np.uint8).reshape(shape)


def uniform(seed: int, amplitude: float, *shape: int) -> NDArray[np.uint16]:
    """BF16 bits of numbers between -amplitude and amplitude."""
    z = numbers(seed, int(np.prod(shape)))
    unit = (z >> np.uint64(40)).astype(np.float64) / 2**24 - 0.5
    return to_bf16((unit * 2 * amplitude).astype(np.float32)).reshape(shape)
