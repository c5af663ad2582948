"""A layer's projection weight where it lies: read some rows at a time, kept as it is, or made BF16 as a whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Projection:
    """N outputs of K inputs. `rows(first, last)` are [n, K] E4M3 codes where there are scales, else BF16 bits.

    `scales` are [ceil(N / BLOCK), ceil(K / BLOCK)]. Weights that BF16 cannot hold, and bytes that are no numbers, are
    refused: BF16 bits by `rows`, codes and scales by `bits`.
    """

    shape: tuple[int, int]
    rows: Callable[[int, int], NDArray[Any]]
    scales: NDArray[np.uint8] | None = None

    def bits(self) -> NDArray[np.uint16]:
        """[N, K] BF16 bits."""
        from engramctl.reference import dequantise

        whole = self.rows(0, self.shape[0])
        return whole if self.scales is None else dequantise(whole, self.scales)


def held(bits: NDArray[np.uint16]) -> Projection:
    """BF16 bits [N, K] that are in memory already."""
    N, K = bits.shape
    return Projection((N, K), lambda first, last: bits[first:last])
