"""Pieces of an output that come out of a checkpoint: rows, codes and scales, gate weights, the projection."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from engramctl.checkpoint import CheckpointSource
from engramctl.errors import EngramctlError
from engramctl.extents import chunks, data_rows
from engramctl.pieces import Piece, Progress
from engramctl.shapes import PROJECTION_BLOCK
from engramctl.table import Table
from formats import row264
from formats.disk import WriteFile
from formats.errors import FormatError
from formats.floats import exact_in_f16, from_bf16

KV_TYPES = {"f16": "F16", "bf16": "BF16", "f32": "F32"}

KvType = Literal["f16", "bf16", "f32"]


def rows(table: Table) -> Iterator[tuple[int, NDArray[np.uint8], NDArray[np.uint8]]]:
    """(first row, codes, scales) of every part of a table that is no hole; an invalid row raises `FormatError`."""
    for start, end in data_rows(table):
        for first, last in chunks(start, end):
            parts = []
            for part in table.parts:
                piece = np.empty((last - first, part.stride), np.uint8)
                at = part.start + first * part.stride
                part.file.read_into(piece.data, at, f"rows {first} to {last} of layer {table.layer}")
                part.file.done_with(at, at + piece.nbytes)
                parts.append(piece)
            codes, scales = parts
            bad = row264.first_invalid(codes, scales)
            if bad is not None:
                at_row = f"layer {table.layer} row {first + bad.row} byte {bad.byte}"
                raise FormatError(table.parts[0].file.path, at_row, bad.expected, bad.found)
            yield first, codes, scales


def row264_piece(table: Table, start: int) -> Piece:
    """A table as rows of 264 bytes."""

    def fill(file: WriteFile, progress: Progress) -> None:
        for first, codes, scales in rows(table):
            file.write(start + first * row264.ROW_BYTES, row264.pack(codes, scales).data)
            progress(len(codes) * row264.ROW_BYTES)

    return Piece(f"table of layer {table.layer}", fill)


def split_piece(table: Table, codes_at: int, scales_at: int) -> Piece:
    """A table as two tensors, the checkpoint's bytes as they are."""

    def fill(file: WriteFile, progress: Progress) -> None:
        for first, codes, scales in rows(table):
            file.write(codes_at + first * row264.WIDTH, codes.data)
            file.write(scales_at + first * row264.SCALES, scales.data)
            progress(len(codes) * row264.ROW_BYTES)

    return Piece(f"table of layer {table.layer}", fill)


def gate_piece(source: CheckpointSource, layer: int, role: str, start: int) -> Piece:
    """A gate weight as F32."""

    def fill(file: WriteFile, progress: Progress) -> None:
        values = from_bf16(source.array(layer, role, "<u2")).astype("<f4")
        file.write(start, np.ascontiguousarray(values).data)
        progress(values.nbytes)

    return Piece(f"{role} of layer {layer}", fill)


def bands(source: CheckpointSource, layer: int) -> Iterator[tuple[int, int]]:
    """(first row, rows) of each band of the projection that shares scales; one in a hole is zeros, and stays a hole."""
    tensor = source.tensors[layer, "projection"]
    file, (outputs, inputs) = source.file(tensor), tensor.shape
    for row in range(0, outputs, PROJECTION_BLOCK):
        count = min(PROJECTION_BLOCK, outputs - row)
        start = tensor.start + row * inputs
        if any(True for _ in file.data(start, start + count * inputs)):
            yield row, count


@dataclass(frozen=True)
class Projection:
    """A projection dequantised a band at a time; values that the type does not hold exactly are refused."""

    source: CheckpointSource
    layer: int
    kind: KvType

    def piece(self, start: int) -> Piece:
        return Piece(f"projection of layer {self.layer}", lambda file, progress: self._fill(start, file, progress))

    def _fill(self, start: int, file: WriteFile, progress: Progress) -> None:
        tensor = self.source.tensors[self.layer, "projection"]
        for row, count in bands(self.source, self.layer):
            values = self._converted(self._band(row, count), row)
            file.write(start + row * tensor.shape[1] * values.itemsize, np.ascontiguousarray(values).data)
            progress(values.nbytes)

    def _band(self, row: int, count: int) -> NDArray[np.uint16]:
        from engramctl.reference import dequantise

        tensor, scale = (self.source.tensors[self.layer, role] for role in ("projection", "projection_scale"))
        inputs, blocks = tensor.shape[1], scale.shape[1]
        raw = self.source.file(tensor).read(tensor.start + row * inputs, count * inputs, tensor.name)
        under = self.source.file(scale).read(scale.start + row // PROJECTION_BLOCK * blocks, blocks, scale.name)
        codes = np.frombuffer(raw, np.uint8).reshape(count, inputs)
        return dequantise(codes, np.frombuffer(under, np.uint8)[None], f"{tensor.name} from row {row} on")

    def _converted(self, band: NDArray[np.uint16], row: int) -> NDArray[Any]:
        if self.kind == "bf16":
            return band.astype("<u2")
        values = from_bf16(band)
        if self.kind == "f32":
            return values.astype("<f4")
        exact = exact_in_f16(values)
        if not exact.all():
            tensor = self.source.tensors[self.layer, "projection"]
            found = f"{int(exact.size - np.count_nonzero(exact))} that it does not from row {row} on"
            raise FormatError(tensor.path, tensor.name, "values that F16 holds exactly (or --kv-type bf16)", found)
        return values.astype("<f2")


def require_width(source: CheckpointSource, name: str) -> None:
    """What has rows of 264 bytes has 256 values in them, and one row for each bucket."""
    sizes, params = source.sizes, source.params()
    if sizes.width != row264.WIDTH:
        raise EngramctlError(str(source.path), f"rows of {row264.WIDTH} values for dialect {name}", f"{sizes.width}")
    for layer, count, moduli in zip(sizes.layers, sizes.rows, params.moduli, strict=True):
        if int(moduli.sum()) != count:
            what = f"{int(moduli.sum())} rows in layer {layer}, the sum of its primes"
            raise EngramctlError(str(source.path), what, f"{count}")


def data_bytes(source: CheckpointSource) -> int:
    """Bytes of tables and weights that are no hole, about."""
    tables = sum(last - first for layer in source.sizes.layers for first, last in data_rows(source.table(layer)))
    sizes = source.sizes
    weights = len(sizes.layers) * (sizes.outputs * sizes.inputs * 4 + 2 * sizes.hidden * sizes.streams * 4)
    return tables * row264.ROW_BYTES + weights
