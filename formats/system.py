"""The operating system, thin: what `formats.disk` asks of it, and what tests put a misbehaving one in place of."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from pathlib import Path

PathLike = str | os.PathLike[str]
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


class System:
    """One method a call, nothing retried, nothing checked. What a system lacks is left out or done the nearest way."""

    def open(self, path: PathLike, flags: int, mode: int = 0o666) -> int:
        return os.open(path, flags, mode)

    def close(self, fd: int) -> None:
        os.close(fd)

    def status(self, path: PathLike) -> os.stat_result:
        return Path(path).stat()

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def pread_into(self, fd: int, view: memoryview, offset: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(fd, [view], offset)
        data = os.pread(fd, len(view), offset)
        view[: len(data)] = data
        return len(data)

    def pwrite(self, fd: int, view: memoryview, offset: int) -> int:
        return os.pwrite(fd, view, offset)

    def lseek(self, fd: int, offset: int, whence: int) -> int:
        return os.lseek(fd, offset, whence)

    def ftruncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def fallocate(self, fd: int, start: int, size: int) -> None:
        """Blocks for a range of a file, its length kept; nothing in memory, where it would be the work of writing.

        Not the C library's posix_fallocate: that writes where the file system cannot.
        """
        if _fallocate is not None and not _in_memory(fd) and _fallocate(fd, _KEEP_SIZE, start, size) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def fsync(self, fd: int) -> None:
        """Down to the medium: macOS's fsync stops at the drive's cache."""
        if _FULL_SYNC is not None:
            try:
                fcntl.fcntl(fd, _FULL_SYNC)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
            else:
                return
        os.fsync(fd)

    def fdatasync(self, fd: int) -> None:
        """As fsync, without the times that nobody reads."""
        if hasattr(os, "fdatasync"):
            os.fdatasync(fd)
        else:
            self.fsync(fd)

    def lock(self, fd: int) -> None:
        """Take the file for this process until it ends; BlockingIOError if another has it."""
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def link(self, source: PathLike, target: PathLike) -> None:
        os.link(source, target)

    def replace(self, source: PathLike, target: PathLike) -> None:
        Path(source).replace(target)

    def unlink(self, path: PathLike) -> None:
        Path(path).unlink()

    def free_bytes(self, path: PathLike) -> int:
        room = os.statvfs(path)
        return room.f_bavail * room.f_frsize

    def done_with(self, fd: int, start: int, end: int) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_DONTNEED)


_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE in linux/falloc.h
_fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)  # glibc and musl; nothing elsewhere
if _fallocate is not None:
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_fstatfs = getattr(ctypes.CDLL(None, use_errno=True), "fstatfs", None)
_IN_MEMORY = (0x01021994, 0x858458F6)  # TMPFS_MAGIC and RAMFS_MAGIC in linux/magic.h


def _in_memory(fd: int) -> bool:
    """Is the file on a tmpfs? The type is the first word of Linux's struct statfs."""
    room = (ctypes.c_long * 32)()
    return _fstatfs is not None and _fstatfs(fd, room) == 0 and room[0] in _IN_MEMORY
