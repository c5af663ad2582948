"""repack: write what the plan says in one pass over the source, so that the final name holds all of it or nothing.

Tables go last, row by row; a row whose bytes all lie in holes is neither read nor written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import journal
from engramctl.errors import EngramctlError
from engramctl.extents import data_rows
from engramctl.repack_plan import Plan, Target, bands
from engramctl.shapes import PROJECTION_BLOCK
from engramctl.table import Table
from formats import disk, row264
from formats.disk import WriteFile
from formats.errors import FormatError
from formats.floats import exact_in_f16, from_bf16

CHUNK_ROWS = 16384
SYNC_BYTES = 512 << 20  # at most this much is repeated after an interruption
SPARE_BYTES = 16 << 20  # left free on the disk for the file system's own needs

Progress = Callable[[int], None]  # bytes done since the last call


def write(
    made: Plan, output: Path, resume: bool = False, force: bool = False, progress: Progress = lambda n: None
) -> None:
    """Write the plan to `output`: whole, or not at all.

    Bad content removes what was begun. An interruption, a full disk or an I/O error leaves NAME.partial and
    NAME.journal,
    which `resume` takes up.
    """
    disk.refuse_existing(output, force)
    partial = journal.partial_of(output)
    with contextlib.ExitStack() as opened:
        log, file = _open(made, output, resume, force, opened)
        try:
            file.resize(made.layout.file_size)
            file.write(0, made.layout.header)
            progress(len(made.layout.header))
            _Pass(made, file, log, progress).run()
            file.sync()
            opened.close()
            disk.publish(partial, output, force)
        except (FormatError, EngramctlError):
            opened.close()
            journal.remove(output)
            raise
    journal.remove(output)


def _open(
    made: Plan, output: Path, resume: bool, force: bool, opened: contextlib.ExitStack
) -> tuple[journal.Journal, WriteFile]:
    """The unfinished output and its journal: those of the run to be resumed, or new ones."""
    identity, partial = made.identity(), journal.partial_of(output)
    if resume and journal.begun(output):
        log = opened.enter_context(contextlib.closing(journal.Journal.resume(output, identity)))
        return log, opened.enter_context(WriteFile.open(partial))
    if force or resume:
        journal.remove(output)
    journal.refuse_leftovers(output)
    _require_room(made, output)
    file = opened.enter_context(WriteFile.create(partial))
    return opened.enter_context(contextlib.closing(journal.Journal.begin(output, identity))), file


def _require_room(made: Plan, output: Path) -> None:
    if not output.parent.is_dir():
        raise FormatError(output.parent, None, "a folder", "nothing there")
    free = disk.free_bytes(output.parent)
    if free < made.data_bytes + SPARE_BYTES:
        raise EngramctlError(str(output.parent), f"{made.data_bytes + SPARE_BYTES} free bytes", f"{free}")


class _Pass:
    """The one pass over the source, from the journal's point on."""

    def __init__(self, made: Plan, file: WriteFile, log: journal.Journal, progress: Progress) -> None:
        self.made, self.file, self.log, self.progress = made, file, log, progress
        self.unsynced = 0
        self.inexact = 0

    def run(self) -> None:
        first_tensor, first_row = self.log.point
        for number, target in enumerate(self.made.targets):
            if number < first_tensor:
                self.progress(target.size if target.role != "table" else 0)
                continue
            row = first_row if number == first_tensor else 0
            if target.role == "table":
                self.table(number, target, row)
            elif target.role == "projection":
                self.projection(target)
            else:
                bits = self.made.source.array(target.layer, target.role, "<u2")
                self.put(target.start, from_bf16(bits).astype("<f4"))

    def put(self, at: int, array: NDArray[Any]) -> None:
        self.file.write(at, np.ascontiguousarray(array).data.cast("B"))
        self.unsynced += array.nbytes
        self.progress(array.nbytes)

    def table(self, number: int, target: Target, first: int) -> None:
        table = self.made.source.table(target.layer)
        out = np.empty((CHUNK_ROWS, row264.ROW_BYTES), np.uint8)
        for start, end in data_rows(table, first):
            for row in range(start, end, CHUNK_ROWS):
                self.rows(table, target, row, min(row + CHUNK_ROWS, end), out)
                if self.unsynced >= SYNC_BYTES:
                    self.file.sync()
                    self.log.note((number, min(row + CHUNK_ROWS, end)))
                    self.unsynced = 0

    def rows(self, table: Table, target: Target, first: int, last: int, out: NDArray[np.uint8]) -> None:
        """Rows first..last: read both parts, refuse invalid ones, interleave, write."""
        parts = []
        for part in table.parts:
            piece = np.empty((last - first, part.stride), np.uint8)
            start = part.start + first * part.stride
            part.file.read_into(piece.data.cast("B"), start, f"rows {first} to {last} of layer {target.layer}")
            part.file.done_with(start, start + piece.nbytes)
            parts.append(piece)
        codes, scales = parts
        bad = row264.first_invalid(codes, scales)
        if bad is not None:
            at = f"layer {target.layer} row {first + bad.row} byte {bad.byte}"
            raise FormatError(table.parts[0].file.path, at, bad.expected, bad.found)
        self.put(target.start + first * row264.ROW_BYTES, row264.pack(codes, scales, out[: last - first]))

    def projection(self, target: Target) -> None:
        """Dequantise a band of rows at a time; a value that the type cannot hold is counted, then refused."""
        from engramctl.reference import dequantise

        source = self.made.source
        tensor = source.tensors[target.layer, "projection"]
        scales = source.array(target.layer, "projection_scale")
        inputs, outputs = target.shape
        file, self.inexact = source.file(tensor), 0
        bytes_a_row = target.size // outputs
        for row, count in bands(source, target.layer):
            codes = np.frombuffer(file.read(tensor.start + row * inputs, count * inputs, tensor.name), np.uint8)
            under = scales[row // PROJECTION_BLOCK :][:1]
            band = dequantise(codes.reshape(count, inputs), under, f"{tensor.name} from row {row} on")
            self.put(target.start + row * bytes_a_row, self.converted(band))
        if self.inexact:
            raise FormatError(
                tensor.path,
                tensor.name,
                f"values that {target.type} holds exactly (or --kv-type bf16)",
                f"{self.inexact} that it does not",
            )

    def converted(self, band: NDArray[np.uint16]) -> NDArray[Any]:
        if self.made.kv_type == "bf16":
            return band.astype("<u2")
        values = from_bf16(band)
        if self.made.kv_type == "f32":
            return values.astype("<f4")
        exact = exact_in_f16(values)
        self.inexact += int(exact.size - np.count_nonzero(exact))
        with np.errstate(over="ignore"):
            return values.astype("<f2")
