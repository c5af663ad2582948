"""project in Numba: tiles of TILE outputs, a block's weights turned so that an instruction serves many outputs.

An output's sums keep their order (`arithmetic.md`); outputs share nothing, so vectors, tiles, threads and the batch
leave its bits alone. A multiplication and an addition stay two instructions: no fastmath, nothing is fused.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from engramctl import operands
from engramctl.fast.bits import narrow, widen
from engramctl.fast.cache import in_parts, kernel, reads, writes
from formats.floats import from_bf16
from formats.row264 import BLOCK

TILE = 32  # outputs whose sums stay in registers together
LEAST_PRODUCTS = 1 << 20  # a thread for fewer costs more than it saves


def project(values: NDArray[np.uint16], weight: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """As `reference.project`: values [T, K] and weight [N, K] -> [T, N]."""
    operands.expect_projection(values, weight)
    (T, K), N = values.shape, len(weight)
    kv = np.empty((T, N), np.uint16)
    inputs = np.zeros((T, -(-K // BLOCK) * BLOCK), np.float32)
    inputs[:, :K] = from_bf16(values)
    least = LEAST_PRODUCTS // max(1, T * K * TILE)
    in_parts(_project, -(-N // TILE) if T else 0, least, inputs, np.require(weight, requirements=("C", "A")), kv)
    operands.expect_finite_projection(kv)
    return kv


@kernel(reads(types.float32, 2), reads(types.uint16, 2), writes(types.uint16, 2))
def _project(
    first: int, last: int, inputs: NDArray[np.float32], weight: NDArray[np.uint16], kv: NDArray[np.uint16]
) -> None:
    T, (N, K) = len(inputs), weight.shape
    turned = np.zeros((BLOCK, TILE), np.float32)  # [input, output] of one block; what the weight lacks is 0
    totals = np.empty((T, TILE), np.float32)
    for tile in range(first, last):
        start = tile * TILE
        outputs = min(TILE, N - start)
        totals[:] = 0
        for block in range(0, K, BLOCK):
            if block + BLOCK > K or outputs < TILE:
                turned[:] = 0
            for n in range(outputs):
                for j in range(min(BLOCK, K - block)):
                    turned[j, n] = widen(weight[start + n, block + j])
            for t in range(T):
                for n in range(TILE):
                    even = odd = np.float32(0)
                    for j in range(0, BLOCK, 2):
                        even += inputs[t, block + j] * turned[j, n]
                        odd += inputs[t, block + j + 1] * turned[j + 1, n]
                    totals[t, n] += even + odd
        for t in range(T):
            for n in range(outputs):
                kv[t, start + n] = narrow(totals[t, n])
