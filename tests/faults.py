"""Systems that misbehave: what a disk, a signal or another process may do to reads and writes."""

from __future__ import annotations

import errno
import os

from formats import disk


class Faulty(disk.System):
    """Reads and writes at most `piece` bytes a call, is interrupted every other call, and ends where it is told to."""

    def __init__(
        self,
        piece: int = 1 << 30,
        interrupted: bool = False,
        room: int | None = None,  # bytes until the disk is full
        broken_at: int | None = None,  # reading this byte is an I/O error
        ends_at: int | None = None,  # the file was cut here after it was opened
    ) -> None:
        self.piece, self.interrupted, self.room = piece, interrupted, room
        self.broken_at, self.ends_at = broken_at, ends_at
        self.calls: list[tuple[str, int]] = []

    def _interrupt(self, name: str, size: int) -> None:
        self.calls.append((name, size))
        if self.interrupted and len(self.calls) % 2:
            raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))

    def pread_into(self, fd: int, view: memoryview, offset: int) -> int:
        self._interrupt("read", len(view))
        view = view[: self.piece]
        if self.broken_at is not None and offset <= self.broken_at < offset + len(view):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.ends_at is not None:
            view = view[: max(self.ends_at - offset, 0)]
        return super().pread_into(fd, view, offset) if len(view) else 0

    def pwrite(self, fd: int, view: memoryview, offset: int) -> int:
        self._interrupt("write", len(view))
        view = view[: self.piece]
        if self.room is not None:
            if self.room == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            view = view[: self.room]
            self.room -= len(view)
        return super().pwrite(fd, view, offset)

    def fsync(self, fd: int) -> None:
        self.calls.append(("fsync", fd))
        super().fsync(fd)

    def link(self, source: disk.PathLike, target: disk.PathLike) -> None:
        self.calls.append(("link", 0))
        super().link(source, target)

    def replace(self, source: disk.PathLike, target: disk.PathLike) -> None:
        self.calls.append(("replace", 0))
        super().replace(source, target)
