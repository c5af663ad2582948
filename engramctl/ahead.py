"""Work ahead of its use: one sequence's reads and projections, done in the background, chunk by chunk, layer by layer.

A reader fills each layer's queue of looked-up values, a projector turns them into keys and values; both stop when what
they made is not used up, so memory is bounded however long the sequence. Whoever waits for a layer has that one next.

    tokens -> rows of every layer -> [reader] READ_AHEAD chunks -> [projector] PROJECT_AHEAD chunks -> gate
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

READ_AHEAD = 3  # chunks of values that wait for the projector; 6 MB each at the release's sizes
PROJECT_AHEAD = 2  # chunks of keys and values that wait for the gate; 26 MB each
Bits = NDArray[np.uint16]


@dataclass
class Times:
    """Seconds a stage was busy, wherever it ran, and how long the caller stood waiting for it."""

    load: float = 0.0  # kernels and weights, once for any number of sequences
    hash: float = 0.0
    read: float = 0.0
    project: float = 0.0
    gate: float = 0.0
    wait: float = 0.0  # the exposed part: gate's caller waiting for reads or projections
    total: float = 0.0

    def hidden(self) -> float:
        """The share of the background's work that nobody waited for."""
        behind = self.read + self.project
        return max(0.0, 1 - self.wait / behind) if behind else 0.0

    def as_dict(self) -> dict[str, float]:
        return {**vars(self), "hidden_share": self.hidden()}

    def lines(self, tokens: int) -> list[str]:
        """For people: each stage, then what of it was waited for."""
        stages = ", ".join(f"{name} {getattr(self, name) * 1e3:,.1f}" for name in ("hash", "read", "project", "gate"))
        waited = f"of {self.total * 1e3:,.1f} ms {self.wait * 1e3:,.1f} were spent waiting for reads and projections"
        begun = f"after {self.load * 1e3:,.0f} to load kernels and weights"
        return [
            f"milliseconds for {tokens:,} tokens: {stages}, {begun}",
            f"{waited}, {self.hidden():.0%} of which were hidden",
        ]


@dataclass
class Lane:
    """One layer's way through the stages."""

    count: int  # chunks
    read: Callable[[int], Bits]  # chunk -> its values
    project: Callable[[Bits], Bits]
    begun_reads: int = 0
    values: deque[Bits] = field(default_factory=deque)
    begun: int = 0  # projections
    ready: deque[Bits] = field(default_factory=deque)
    projecting: int = 0
    wanted: bool = False  # somebody waits for it

    def may_read(self) -> bool:
        return self.begun_reads < self.count and self.begun_reads - self.begun < READ_AHEAD

    def may_project(self) -> bool:
        return bool(self.values) and len(self.ready) + self.projecting < PROJECT_AHEAD


class Ahead:
    """The lanes of one sequence and the two workers that serve them."""

    def __init__(self, lanes: dict[int, Lane], reader: Executor, projector: Executor, times: Times) -> None:
        self._lanes, self.times = lanes, times
        self._turn = threading.Condition()
        self._error: BaseException | None = None
        self._closed = False
        self._reader = _Worker(reader, self._read_one)
        self._projector = _Worker(projector, self._project_one)
        self._reader.wake()

    def take(self, layer: int) -> Bits:
        """The layer's next chunk of keys and values; waits for it, and raises what its making raised."""
        lane = self._lanes[layer]
        start = time.perf_counter()
        with self._turn:
            lane.wanted = True
            while not lane.ready and self._error is None:
                self._turn.wait()
            lane.wanted = False
            self.times.wait += time.perf_counter() - start
            if self._error is not None:
                raise self._error
            chunk = lane.ready.popleft()
        self._projector.wake()
        self._reader.wake()
        return chunk

    def close(self) -> None:
        """Nothing more is begun; what is under way ends."""
        with self._turn:
            self._closed = True
        self._reader.stop()
        self._projector.stop()

    def _next(self, may: Callable[[Lane], bool]) -> Lane | None:
        """The lane somebody waits for, else the first that has room: layers are needed in order."""
        if self._closed or self._error is not None:
            return None
        open_lanes = [lane for lane in self._lanes.values() if may(lane)]
        return next((lane for lane in open_lanes if lane.wanted), open_lanes[0] if open_lanes else None)

    def _read_one(self) -> bool:
        with self._turn:
            lane = self._next(Lane.may_read)
            if lane is None:
                return False
            chunk, lane.begun_reads = lane.begun_reads, lane.begun_reads + 1
        start = time.perf_counter()
        made = self._guarded(lambda: lane.read(chunk))
        with self._turn:
            self.times.read += time.perf_counter() - start
            if made is not None:
                lane.values.append(made)
        self._projector.wake()
        return True

    def _project_one(self) -> bool:
        with self._turn:
            lane = self._next(Lane.may_project)
            if lane is None:
                return False
            values = lane.values.popleft()
            lane.begun, lane.projecting = lane.begun + 1, 1
        self._reader.wake()
        start = time.perf_counter()
        made = self._guarded(lambda: lane.project(values))
        with self._turn:
            self.times.project += time.perf_counter() - start
            lane.projecting = 0
            if made is not None:
                lane.ready.append(made)
            self._turn.notify_all()
        return True

    def _guarded(self, work: Callable[[], Bits]) -> Bits | None:
        try:
            return work()
        except BaseException as error:
            with self._turn:
                self._error = self._error or error
                self._turn.notify_all()
            return None


class _Worker:
    """Calls `step` on an executor's thread until it has nothing to do; woken, it looks again. No thread stands idle."""

    def __init__(self, executor: Executor, step: Callable[[], bool]) -> None:
        self._executor, self._step = executor, step
        self._lock = threading.Lock()
        self._running = self._again = self._stopped = False
        self._last: Any = None

    def wake(self) -> None:
        with self._lock:
            self._again = True
            if not self._running and not self._stopped:
                self._running = True
                self._last = self._executor.submit(self._run)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
        if self._last is not None:
            self._last.result()

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._stopped or not self._again:
                    self._running = False
                    return
                self._again = False
            while self._step():
                pass


def pieces(take: Callable[[], Bits], held: deque[Bits], count: int) -> Iterator[Bits]:
    """The next `count` tokens' keys and values, in pieces; what is left of a chunk stays in `held`."""
    while count:
        chunk = held.popleft() if held else take()
        if len(chunk) > count:
            held.append(chunk[count:])
            chunk = chunk[:count]
        count -= len(chunk)
        yield chunk
