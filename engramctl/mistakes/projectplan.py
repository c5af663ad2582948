"""The projection with every choice in the open, in float64, for some outputs of a few tokens.

K inputs, N = (S + 1) * D outputs, S streams, D hidden width; outputs are numbered as the dump has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from engramctl.mistakes.rowplan import ScaleAs
from formats.floats import E4M3_VALUES, E8M0_VALUES, from_bf16
from formats.row264 import BLOCK

Outputs = NDArray[np.int64]
Order = Literal["keys first", "value first", "one on", "interleaved"]


@dataclass(frozen=True)
class ProjectPlan:
    """The choices; every default is the right one. Scales can be varied only where the weights come with them."""

    quantised: bool = True
    block: int = BLOCK
    scale: ScaleAs = "power of two"
    scale_transposed: bool = False
    transposed: bool = False
    order: Order = "keys first"


@dataclass(frozen=True)
class Projection:
    """A layer's weights: codes [N, K] under scales [N / 32, K / 32], or BF16 bits [N, K]."""

    streams: int
    codes: NDArray[np.uint8] | None
    scales: NDArray[np.uint8] | None
    bits: NDArray[np.uint16] | None

    @property
    def shape(self) -> tuple[int, int]:
        held = self.codes if self.codes is not None else self.bits
        assert held is not None
        return held.shape[0], held.shape[1]

    def weights(self, plan: ProjectPlan, outputs: Outputs) -> NDArray[np.float64]:
        """[n, K] weights behind the dump's outputs."""
        K = self.shape[1]
        wanted = self.places(plan, outputs)
        if self.codes is None or self.scales is None:
            assert self.bits is not None
            return np.asarray(from_bf16(_rows(self.bits, wanted, plan.transposed)), np.float64)
        weights = np.asarray(E4M3_VALUES[_rows(self.codes, wanted, plan.transposed)], np.float64)
        if plan.scale == "nothing":
            return weights
        down, along = self.scales.shape
        scales = self.scales.reshape(along, down).T if plan.scale_transposed else self.scales
        under = scales[wanted // plan.block][:, np.arange(K) // plan.block]
        factors = under if plan.scale == "number" else E8M0_VALUES[under]
        return np.asarray(weights * factors, np.float64)

    def places(self, plan: ProjectPlan, outputs: Outputs) -> Outputs:
        """Which right output a plan puts at each of the dump's."""
        N, _ = self.shape
        D = N // (self.streams + 1)
        if plan.order == "value first":
            return (outputs + self.streams * D) % N
        if plan.order == "one on":
            return (outputs + D) % N
        if plan.order == "interleaved":
            return np.asarray(outputs % (self.streams + 1) * D + outputs // (self.streams + 1))
        return outputs


def _rows(held: NDArray[Any], wanted: Outputs, transposed: bool) -> NDArray[Any]:
    if not transposed:
        return held[wanted]
    N, K = held.shape
    return np.ascontiguousarray(held.reshape(K, N)[:, wanted].T)
