"""The small tensors of a container: gate weights, and the projection, dequantised a band at a time."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl.repack_plan import Plan, Target
from engramctl.shapes import PROJECTION_BLOCK
from formats.disk import WriteFile
from formats.errors import FormatError
from formats.floats import exact_in_f16, from_bf16


class WeightWriter:
    """Writes weights into their places; values that the type cannot hold are counted."""

    def __init__(self, made: Plan, file: WriteFile) -> None:
        self.made, self.file = made, file

    def gate(self, target: Target) -> None:
        """A whole gate weight."""
        bits = self.made.source.array(target.layer, target.role, "<u2")
        self.file.write(target.start, from_bf16(bits).astype("<f4").data)

    def band(self, target: Target, row: int, last: int) -> int:
        """Rows row..last of the projection, which share their scales; how many values do not fit the type."""
        from engramctl.reference import dequantise

        source = self.made.source
        tensor = source.tensors[target.layer, "projection"]
        scale = source.tensors[target.layer, "projection_scale"]
        under = np.empty((1, scale.shape[1]), np.uint8)
        start = scale.start + row // PROJECTION_BLOCK * under.nbytes
        source.file(scale).read_into(under.data, start, scale.name)
        inputs, outputs = target.shape
        codes = np.empty((last - row, inputs), np.uint8)
        source.file(tensor).read_into(codes.data, tensor.start + row * inputs, tensor.name)
        band = dequantise(codes, under, f"{tensor.name} from row {row} on")
        values, inexact = self._converted(band)
        self.file.write(target.start + row * (target.size // outputs), np.ascontiguousarray(values).data)
        return inexact

    def refuse_inexact(self, target: Target, inexact: int) -> None:
        """Once all of a projection has been seen."""
        if inexact:
            tensor = self.made.source.tensors[target.layer, "projection"]
            want = f"values that {target.type} holds exactly (or --kv-type bf16)"
            raise FormatError(tensor.path, tensor.name, want, f"{inexact} that it does not")

    def let_go(self) -> None:
        """The weights will not be read again."""
        for (_, role), tensor in self.made.source.tensors.items():
            if role not in ("codes", "scales"):
                self.made.source.file(tensor).done_with(tensor.start, tensor.end)

    def _converted(self, band: NDArray[np.uint16]) -> tuple[NDArray[Any], int]:
        if self.made.kv_type == "bf16":
            return band.astype("<u2"), 0
        if self.made.kv_type == "f32":
            return from_bf16(band).astype("<f4"), 0
        values, exact = _in_f16()
        return values.take(band), band.size - int(np.count_nonzero(exact.take(band)))


@cache
def _in_f16() -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Every BF16 number's F16 bits, and whether they are the same number: a look-up is quicker than to convert."""
    numbers = from_bf16(np.arange(1 << 16, dtype=np.uint16))
    with np.errstate(over="ignore", invalid="ignore"):
        return numbers.astype("<f2"), exact_in_f16(numbers)
