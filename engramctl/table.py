"""Table: the rows of one layer by number, whatever file and layout they lie in.

A row is the concatenation of its parts' bytes: (codes, scales) in a checkpoint, one part in a container's tail.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError
from formats import row264
from formats.disk import ReadFile
from formats.errors import FormatError


@dataclass(frozen=True)
class Part:
    """Where one part of every row lies: `stride` bytes a row, from `start` on."""

    file: ReadFile
    start: int
    stride: int


@dataclass(frozen=True)
class Table:
    """All rows of one layer. Opened by `engramctl.source`; closing the source ends it."""

    layer: int
    rows: int
    parts: tuple[Part, ...]

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """[...] row numbers -> [..., 264] raw bytes, codes then scales; rows outside the table are refused.

        Each distinct row is read once, in file order.
        """
        wanted, place = np.unique(rows.astype(np.int64), return_inverse=True)
        if wanted.size and not (wanted[0] >= 0 and wanted[-1] < self.rows):
            outside = wanted[0] if wanted[0] < 0 else wanted[-1]
            raise EngramctlError("row numbers", f"rows in 0..{self.rows - 1} of layer {self.layer}", f"{outside}")
        raw = np.empty((wanted.size, sum(part.stride for part in self.parts)), np.uint8)
        column = 0
        for part in self.parts:
            for i, row in enumerate(wanted.tolist()):
                part.file.read_into(
                    raw[i, column : column + part.stride].data,
                    part.start + row * part.stride,
                    f"layer {self.layer} row {row}",
                )
            column += part.stride
        return raw[place.reshape(rows.shape)]

    def check(self, rows: NDArray[np.int64], raw: NDArray[np.uint8]) -> None:
        """Refuse the first invalid row of `read`'s answer, naming layer, row and byte."""
        flat = raw.reshape(-1, raw.shape[-1])
        bad = row264.first_invalid(*row264.split(flat))
        if bad is not None:
            row = int(rows.reshape(-1)[bad.row])
            raise FormatError(
                self.parts[0].file.path, f"layer {self.layer} row {row} byte {bad.byte}", bad.expected, bad.found
            )

    def read_valid(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """As `read`, and an invalid row raises `FormatError`."""
        raw = self.read(rows)
        self.check(rows, raw)
        return raw
