"""Do a checkpoint's tensors hold numbers? Rows by sample or all, weights whole; and which scale bytes there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from engramctl.extents import CHUNK_ROWS, chunks, data_rows
from engramctl.profiles import Profile, Sizes
from engramctl.table import Table
from engramctl.verify import confidence
from engramctl.verify.packing import Rows, seeded_rows
from engramctl.verify.result import MOST_FINDINGS, Result
from engramctl.verify.sides import Weight, bands
from formats import row264
from formats.disk import ReadFile
from formats.floats import exact_in_bf16
from formats.safetensors_raw import Tensor

CHECK = "source"
PIECE = 1 << 22
LISTED = 6  # scale bytes that are named; the others are counted

Progress = Callable[[int], None]


def rows(
    table: Table,
    layer: int,
    profile: Profile,
    sizes: Sizes | None,
    sample: tuple[int, int] | None,
    result: Result,
    progress: Progress = lambda n: None,
) -> None:
    """Invalid rows are findings, scale bytes a note. `sample` is a number of rows and a seed; None: every row."""
    if sum(part.stride for part in table.parts) != row264.ROW_BYTES:
        width = sum(part.stride for part in table.parts) * row264.WIDTH // row264.ROW_BYTES
        result.add(CHECK, f"layer {layer}", f"rows of {row264.WIDTH} values, which can be used", f"of {width}")
        result.coverage.of += table.rows
        return
    counts, read, before = np.zeros(256, np.int64), 0, result.total
    picked = None if sample is None else seeded_rows(profile, sizes, layer, table.rows, *sample)
    for numbers, some in _every(table) if picked is None else _picked(table, picked):
        counts += _look(layer, numbers, some, result)
        read += len(numbers)
        progress(some.nbytes)
    result.coverage.of += table.rows
    result.coverage.checked += table.rows if picked is None else read
    _statistics(layer, counts, result)
    if picked is not None and sample is not None and picked.size < table.rows:
        confidence.say(layer, table.rows, min(sample[0], table.rows), result.total - before, "are invalid", result)
    if picked is None and read < table.rows:
        result.notes.append(f"layer {layer}: {table.rows - read} rows lie in holes and count as zeros read")


Piece = tuple[NDArray[np.int64], NDArray[np.uint8]]  # [n] row numbers, [n, 264] rows


def _picked(table: Table, picked: NDArray[np.int64]) -> Iterator[Piece]:
    for first, last in chunks(0, picked.size):
        yield picked[first:last], table.read(picked[first:last])


def _every(table: Table) -> Iterator[Piece]:
    buffer = np.empty((CHUNK_ROWS, row264.ROW_BYTES), np.uint8)
    for first, last in data_rows(table):
        for start, stop in chunks(first, last):
            yield np.arange(start, stop), read_range(table, start, stop, buffer)


def _look(layer: int, numbers: NDArray[np.int64], some: NDArray[np.uint8], result: Result) -> NDArray[np.int64]:
    """Each invalid row is a finding; returns how often each scale byte stands in the rows."""
    codes, scales = row264.split(some)
    if row264.first_invalid(codes, scales) is not None:
        wrong = np.flatnonzero(~np.isfinite(row264.decode(some)).all(axis=1))
        named = wrong[: max(0, MOST_FINDINGS - len(result.findings))]
        for at in named.tolist():
            if (bad := row264.first_invalid(codes[at : at + 1], scales[at : at + 1])) is not None:
                result.add(CHECK, f"layer {layer} row {numbers[at]} byte {bad.byte}", bad.expected, bad.found)
        result.total += int(wrong.size - named.size)
    return np.bincount(scales.reshape(-1), minlength=256)


def _statistics(layer: int, counts: NDArray[np.int64], result: Result) -> None:
    used, total = np.flatnonzero(counts).tolist(), int(counts.sum())
    if not total:
        return
    often = sorted(sorted(used, key=lambda byte: -int(counts[byte]))[:LISTED])
    listed = ", ".join(f"{byte} ({counts[byte] / total:.1%})" for byte in often)
    more = f" and {len(used) - len(often)} others" if len(used) > len(often) else ""
    result.notes.append(f"layer {layer} scale bytes: {listed}{more}; the published rows use 119 and 120")
    result.extra.setdefault("scale_bytes", {})[str(layer)] = {str(byte): int(counts[byte]) for byte in used}


def projection(codes: Weight, layer: int, result: Result) -> None:
    """Every product of code and scale is a number that BF16 holds, as whoever uses the projection needs it."""
    wrong, first = 0, ("", "")
    for start, count in bands(codes.shape[0]):
        values = codes.band(start, count)
        if values is None:
            continue
        with np.errstate(over="ignore"):
            single = values.astype(np.float32)
        bad = ~np.isnan(values) & ~((single == values) & exact_in_bf16(single))
        if bad.any():
            row, column = (int(i) for i in np.argwhere(bad)[0])
            if not wrong:
                first = f"row {start + row} column {column}", f"{values[row, column]:.9g}"
            wrong += int(np.count_nonzero(bad))
    if wrong:
        where = f"layer {layer} tensor {codes.name} {first[0]}"
        result.add(CHECK, where, "a product with its scale that BF16 holds", f"{first[1]}, {wrong} in all")


def _no_code(raw: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return np.asarray(raw & 0x7F == 0x7F)


def _no_scale(raw: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return np.asarray(raw == 0xFF)


def _no_bf16(raw: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return np.asarray(raw.view("<u2") & 0x7F80 == 0x7F80)


Bad = Callable[[NDArray[np.uint8]], NDArray[np.bool_]]
WEIGHTS: Mapping[str, tuple[Bad, str, int]] = {  # by role: what is no number, what was expected, bytes of each
    "projection": (_no_code, "an E4M3 number", 1),
    "projection_scale": (_no_scale, "an E8M0 scale below 255", 1),
    "q_weight": (_no_bf16, "a finite BF16 number", 2),
    "k_weight": (_no_bf16, "a finite BF16 number", 2),
}


def tensor(file: ReadFile, found: Tensor, layer: int, role: str, result: Result) -> None:
    """Every number of a weight, a piece at a time; holes are zeros, which are numbers. Tables are for `rows`."""
    if role not in WEIGHTS:
        return
    bad, expected, size = WEIGHTS[role]
    for first, last in file.data(found.start, found.end):
        first, last = first - (first - found.start) % size, last + (found.start - last) % size
        for start in range(first, last, PIECE):
            raw = np.frombuffer(file.read(start, min(PIECE, last - start), found.name), np.uint8)
            wrong = np.flatnonzero(bad(raw))
            named = wrong[: max(0, MOST_FINDINGS - len(result.findings))]
            for index in named.tolist():
                row, column = divmod((start - found.start) // size + index, found.shape[1])
                number = raw[index * size : (index + 1) * size][::-1].tobytes().hex()
                where = f"layer {layer} tensor {found.name} row {row} column {column}"
                result.add(CHECK, where, expected, f"0x{number}")
            result.total += int(wrong.size - named.size)


def read_range(table: Table, first: int, last: int, buffer: Rows) -> Rows:
    """Rows first..last, their parts side by side, in `buffer`."""
    rows, column = buffer[: last - first], 0
    for part in table.parts:
        start, size = part.start + first * part.stride, (last - first) * part.stride
        whole = part.stride == row264.ROW_BYTES
        piece = rows if whole else np.empty((last - first, part.stride), np.uint8)
        part.file.read_into(piece.data, start, f"rows {first} to {last} of layer {table.layer}")
        part.file.done_with(start, start + size)
        if not whole:
            rows[:, column : column + part.stride] = piece
        column += part.stride
    return rows
