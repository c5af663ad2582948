"""Rows from each placement, warm and cold, beside NumPy, torch and serial reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import fast
from engramctl.bench import cold, peers
from engramctl.bench.measure import Line, compare
from engramctl.errors import EngramctlError
from engramctl.extents import data_rows
from engramctl.placement.place import Io
from engramctl.table import Table
from formats import page_cache
from formats.row264 import ROW_BYTES

WARM: tuple[Io, ...] = ("mmap", "ram", "pread", "direct")
COLD: tuple[Io, ...] = ("pread", "mmap", "direct")
MOST_RANGES = 1 << 16
SEED = 7


def pick(table: Table, count: int) -> NDArray[np.int64]:
    """Up to `count` different rows that hold data, at random but the same each time: rows of holes cost no disk."""
    ranges = np.array([found for found, _ in zip(data_rows(table), range(MOST_RANGES), strict=False)], np.int64)
    if not ranges.size:
        raise EngramctlError(f"{table.parts[0].file.path}: layer {table.layer}", "rows that hold data", "holes only")
    ends = np.cumsum(ranges[:, 1] - ranges[:, 0])
    drawn = np.random.default_rng(SEED).choice(int(ends[-1]), min(count, int(ends[-1]) // 2 + 1), replace=False)
    place = np.searchsorted(ends, drawn, side="right")
    rows: NDArray[np.int64] = ranges[place, 1] - (ends[place] - drawn)
    return rows


def serial(table: Table, rows: list[int]) -> Callable[[], None]:
    """One positioned read after another, as a program does that was not written for this."""
    spans = [(part.file.fd, part.start, part.stride) for part in table.parts]

    def run() -> None:
        for row in rows:
            for fd, start, stride in spans:
                os.pread(fd, stride, start + row * stride)

    return run


def warm(table: Table, count: int, rounds: int) -> Iterator[Line]:
    """Everything in memory: what a row costs from each placement, raw and decoded."""
    rows = pick(table, count)
    _touch(table, rows)
    with ExitStack() as stack:
        placed = {io: stack.enter_context(place) for io in WARM if (place := _placed(table, io)) is not None}
        for place in placed.values():
            place.read(rows)
        raw = {f"--io {io}": _reader(place, rows) for io, place in placed.items()}
        decoded = {f"--io {io}": _decoder(place, rows) for io, place in placed.items()}
        with page_cache.Mapping(*_only_part(table)) as mapped:
            whole = mapped.bytes.reshape(-1, table.parts[0].stride)
            raw["NumPy take"] = lambda: np.take(whole, rows, axis=0)
            t = peers.torch()
            if t is not None:
                tensor, index = peers.shared(t, whole), t.from_numpy(rows)
                raw["torch index_select"] = lambda: tensor.index_select(0, index)
                if whole.shape[1] == ROW_BYTES:
                    decoded["torch index_select, decode"] = lambda: peers.torch_decode(t, tensor.index_select(0, index))
            decoded["NumPy take, decode"] = lambda: _numpy_decode(whole, rows)
            raw["serial pread"] = serial(table, rows.tolist())
            yield from compare("lookup", "warm rows", rows.size, "rows", raw, "NumPy take", rounds)
            peer = next((name for name in decoded if "torch" in name), "NumPy take, decode")
            if whole.shape[1] == ROW_BYTES:
                yield from compare("lookup", "warm rows, decoded", rows.size, "rows", decoded, peer, rounds)


def cold_rows(table: Table, count: int, rounds: int, case: str = "cold rows") -> Iterator[Line]:
    """Nothing in memory: the table is dropped, and seen to be gone, before every single measurement."""
    rows = pick(table, count)
    candidates: dict[str, Callable[[], Any]] = {"serial pread": serial(table, rows.tolist())}
    for io in COLD:
        candidates[f"--io {io}"] = _cold_reader(table, rows, io)
    warm_up = pick(table, 2)
    for work in (_cold_reader(table, warm_up, io) for io in COLD):
        work()  # compiled code is loaded before anything is timed
    unit = "rows" if case == "cold rows" else "tokens"
    amount = rows.size if unit == "rows" else 1
    yield from compare(
        "lookup", case, amount, unit, candidates, "serial pread", rounds, lambda: cold.make_cold(table, rows)
    )


def _cold_reader(table: Table, rows: NDArray[np.int64], io: Io) -> Callable[[], None]:
    def run() -> None:
        with table.placed(io) as place:
            place.read(rows)

    return run


def _placed(table: Table, io: Io) -> Table | None:
    """None where the table does not fit there, or the file system has no such reads."""
    try:
        return table.placed(io)
    except EngramctlError:
        return None


def _reader(place: Table, rows: NDArray[np.int64]) -> Callable[[], Any]:
    return lambda: place.read(rows)


def _decoder(place: Table, rows: NDArray[np.int64]) -> Callable[[], Any]:
    return lambda: place.values(rows, fast)


def _numpy_decode(whole: NDArray[np.uint8], rows: NDArray[np.int64]) -> NDArray[np.uint16]:
    from formats.row264 import decode_bf16

    return decode_bf16(np.take(whole, rows, axis=0))


def _only_part(table: Table) -> tuple[Any, int, int]:
    part = table.parts[0]
    return part.file, part.start, part.start + table.rows * part.stride


def _touch(table: Table, rows: NDArray[np.int64]) -> None:
    with table.placed("pread") as place:
        place.read(rows)
