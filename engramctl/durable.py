"""Down to the disk behind the writer's back: sync what is complete, note it in the journal, let the page cache go.

written   ################################
syncing                   ########            at most one window at a time,
durable   ################                    and the writer waits before it begins a second
"""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor

from engramctl.journal import Journal, Leaves, Point
from formats.disk import WriteFile

SYNC_BYTES = 128 << 20  # a window; at most two of them are repeated after an interruption


class Durable:
    """Takes note of what is written, in order; `flush` and `close` make all of it last."""

    def __init__(self, file: WriteFile, log: Journal) -> None:
        self.file, self.log = file, log
        self.point, self.bytes = log.point, 0
        self.leaves: Leaves = {}
        self.places: list[tuple[int, int]] = []  # of the file, written since the last window
        self.pool = ThreadPoolExecutor(1, "engramctl-sync")
        self.window: Future[None] | None = None
        self.failed = False  # a sync: what it left unwritten, the system may have forgotten

    def reached(self, point: Point, places: list[tuple[int, int]], leaves: Leaves) -> None:
        """Everything before `point` is written, these places and leaves since the last call."""
        self.point = point
        self.bytes += sum(end - start for start, end in places)
        for start, end in places:
            if self.places and self.places[-1][1] == start:
                start, _ = self.places.pop()
            self.places.append((start, end))
        for tensor, known in leaves.items():
            self.leaves.setdefault(tensor, {}).update(known)
        if self.bytes >= SYNC_BYTES:
            self._begin()

    def _begin(self) -> None:
        self._wait()
        work = self.point, self.places, self.leaves
        self.bytes, self.places, self.leaves = 0, [], {}
        self.window = self.pool.submit(self._sync, *work)

    def _sync(self, point: Point, places: list[tuple[int, int]], leaves: Leaves) -> None:
        self.file.sync_data()
        self.log.note(point, leaves)
        for start, end in places:
            self.file.done_with(start, end)

    def _wait(self) -> None:
        if self.window is not None:
            try:
                self.window.result()
            except OSError:
                self.failed = True
                raise
            self.window = None

    def flush(self) -> None:
        """Make all that was reached durable."""
        self._wait()
        if self.point != self.log.point or self.leaves:
            self._begin()
            self._wait()

    def close(self) -> None:
        """Save what can be saved, then stop: the failure that led here is what counts.

        After a sync that failed, another one may succeed without the bytes: nothing is noted any more.
        """
        try:
            if not self.failed:
                with contextlib.suppress(OSError):
                    self.flush()
        finally:
            self.pool.shutdown()
