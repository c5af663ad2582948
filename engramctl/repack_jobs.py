"""The work of a conversion or of one slice, in the order of the output, from any point of it on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engramctl.extents import data_rows
from engramctl.journal import START, Point
from engramctl.repack_plan import Plan, Target
from engramctl.row_blocks import Span, spans
from engramctl.slices import Slice
from engramctl.tensor_pieces import bands
from formats.disk import WriteFile
from formats.row264 import ROW_BYTES

RESERVE_BYTES = 1 << 20  # ranges of data shorter than this are not worth a call to reserve them


@dataclass(frozen=True)
class Job:
    """Rows first..last of a tensor of the output; `span` for a table's, also where it is a hole."""

    number: int  # of the tensor, in the plan's order
    target: Target
    first: int
    last: int
    span: Span | None = None


def _begun(made: Plan, part: Slice, point: Point) -> Iterator[tuple[int, Target, int, int]]:
    """(number, tensor, first row, row after the last) of what the slice has to write from the point on."""
    ranges = {layer: (first, last) for layer, first, last in part.tables(made.source.sizes)}
    for number, target in enumerate(made.targets):
        if target.layer not in ranges or number < point[0]:
            continue
        row = point[1] if number == point[0] else 0
        first, last = ranges[target.layer]
        if target.role == "table":
            yield number, target, max(first, row), last
        elif first == 0:
            yield number, target, row, target.shape[1] if target.role == "projection" else 1


def jobs(made: Plan, part: Slice, point: Point = START) -> Iterator[Job]:
    for number, target, first, last in _begun(made, part, point):
        if target.role == "table":
            data = data_rows(made.source.table(target.layer), first, last)
            for span in spans(data, first, last):
                yield Job(number, target, span.first, span.last, span)
        elif target.role == "projection":
            for row, count in bands(made.source, target.layer):
                if row >= first:
                    yield Job(number, target, row, row + count)
        elif first < last:
            yield Job(number, target, first, last)


def places(job: Job) -> list[tuple[int, int]]:
    """Where in the file the job writes."""
    start = job.target.start
    if job.span is not None:
        return [(start + first * ROW_BYTES, start + last * ROW_BYTES) for first, last in job.span.data]
    row_bytes = job.target.size // job.target.shape[1] if job.target.role == "projection" else job.target.size
    return [(start + job.first * row_bytes, start + job.last * row_bytes)]


def _places(made: Plan, part: Slice, point: Point) -> Iterator[tuple[int, int]]:
    """Where in the file the slice still writes, tables by their ranges of data."""
    for _, target, first, last in _begun(made, part, point):
        if target.role == "table":
            for start, end in data_rows(made.source.table(target.layer), first, last):
                yield target.start + start * ROW_BYTES, target.start + end * ROW_BYTES
        elif target.role == "projection":
            row_bytes = target.size // target.shape[1]
            for row, count in bands(made.source, target.layer):
                if row >= first:
                    yield target.start + row * row_bytes, target.start + (row + count) * row_bytes
        elif first < last:
            yield target.start, target.start + target.size


def remaining_bytes(made: Plan, part: Slice, point: Point = START) -> int:
    """How much the slice still has to write."""
    return sum(end - start for start, end in _places(made, part, point))


def reserve(made: Plan, part: Slice, point: Point, file: WriteFile) -> None:
    """Blocks for what will be written, and for no hole."""
    if not file.reserves():  # then nobody needs to look for the holes
        return
    for start, end in _places(made, part, point):
        if end - start >= RESERVE_BYTES:
            file.reserve(start, end)
