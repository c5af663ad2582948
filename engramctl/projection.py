"""A layer's projection weight where it lies: read some rows at a time, kept as it is, or made BF16 as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError
from formats.row264 import BLOCK


@dataclass(frozen=True)
class Projection:
    """N outputs of K inputs. `rows(first, last)` are [n, K] E4M3 codes where there are scales, else BF16 bits.

    `scales` are [ceil(N / BLOCK), ceil(K / BLOCK)]. Weights that BF16 cannot hold, and bytes that are no numbers, are
    refused: BF16 bits by `rows`, codes and scales by `bits` and `bands`.
    """

    shape: tuple[int, int]
    rows: Callable[[int, int], NDArray[Any]]
    scales: NDArray[np.uint8] | None = None

    def bits(self) -> NDArray[np.uint16]:
        """[N, K] BF16 bits."""
        from engramctl.reference import dequantise

        whole = self.rows(0, self.shape[0])
        return whole if self.scales is None else dequantise(whole, self.scales)

    def bands(self, count: int) -> Iterator[tuple[int, NDArray[np.uint16]]]:
        """The first row's number and [n, K] BF16 bits, `count` blocks of rows at a time, so that the whole is never
        expanded; refused as `bits` refuses it."""
        from engramctl.reference import dequantise

        N, step = self.shape[0], count * BLOCK
        for first in range(0, N, step):
            rows = self.rows(first, min(first + step, N))
            if self.scales is None:
                yield first, rows
                continue
            try:
                band = dequantise(rows, self.scales[first // BLOCK :][:count])
            except EngramctlError:
                self.bits()  # names the place, and counts, within the whole weight
                raise
            yield first, band


def held(bits: NDArray[np.uint16]) -> Projection:
    """BF16 bits [N, K] that are in memory already."""
    N, K = bits.shape
    return Projection((N, K), lambda first, last: bits[first:last])
