"""Bytes moved without being read: ranges put into a file, taken out of it, or shared and copied between two files.

Linux alone can put a range in (fallocate with FALLOC_FL_INSERT_RANGE, ext4 and XFS; fallocate(2)). Where a call is not
there, or the file system has no such thing, the caller hears `OSError` and takes the next way.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from formats import disk
from formats.disk import ReadFile, WriteFile

COLLAPSE_RANGE, INSERT_RANGE = 0x08, 0x20  # include/uapi/linux/falloc.h
FICLONERANGE = 0x4020940D  # _IOW(0x94, 13, struct file_clone_range), include/uapi/linux/fs.h
BLOCK = 4096  # the least that file systems clone or insert by
PIECE = 64 << 20
PLAIN = 8 << 20

Progress = Callable[[int], None]


class Calls:
    """The system's own calls, thin; tests put others in their place."""

    def fallocate(self, fd: int, mode: int, offset: int, length: int) -> None:
        if sys.platform != "linux":
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        call = ctypes.CDLL(None, use_errno=True).fallocate64
        call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        if call(fd, mode, offset, length):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def clone(self, target: int, source: int, source_offset: int, length: int, target_offset: int) -> None:
        if sys.platform != "linux":
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        import fcntl
        import struct

        fcntl.ioctl(target, FICLONERANGE, struct.pack("<qQQQ", source, source_offset, length, target_offset))

    def copy(self, source: int, target: int, count: int, source_offset: int, target_offset: int) -> int:
        if not hasattr(os, "copy_file_range"):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        return os.copy_file_range(source, target, count, source_offset, target_offset)


calls: Calls = Calls()


def block_of(path: Path) -> int:
    """The unit that ranges are put in and taken out by."""
    return max(BLOCK, os.statvfs(path).f_bsize)


def insert(path: Path, length: int) -> None:
    """Zeros before a file's first byte; everything else is `length` bytes further on, and was not touched."""
    _fallocate(path, INSERT_RANGE, length)


def collapse(path: Path, length: int) -> None:
    """Take the first `length` bytes away."""
    _fallocate(path, COLLAPSE_RANGE, length)


def _fallocate(path: Path, mode: int, length: int) -> None:
    fd = disk.system.open(path, os.O_RDWR)
    try:
        calls.fallocate(fd, mode, 0, length)
        disk.system.fsync(fd)
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    finally:
        disk.system.close(fd)


def copy(
    source: ReadFile, extent: tuple[int, int], target: WriteFile, at: int, progress: Progress = lambda n: None
) -> str:
    """An extent of `source`, from its start to its end, to `at` of `target`, holes kept; the way that it went."""
    start, end = extent
    if start >= end:
        return "nothing"
    came, goes = disk.system.open(source.path, os.O_RDONLY), disk.system.open(target.path, os.O_RDWR)
    try:
        under = start % BLOCK
        whole = end == source.size or end % BLOCK == 0
        if at % BLOCK == under and whole:  # whole blocks of both: a file system with reflinks shares them
            with contextlib.suppress(OSError):
                calls.clone(goes, came, start - under, 0 if end == source.size else end - start + under, at - under)
                progress(end - start)
                return "reflink"
        way = "copy_file_range"
        for first, last in source.data(start, end):
            moved = 0
            if way == "copy_file_range":
                moved = _copied(came, goes, (first, last), at + first - start, progress)
                way = way if moved == last - first else "plain copy"
            _plain(source, (first + moved, last), target, at + first + moved - start, progress)
        return way
    finally:
        disk.system.close(came)
        disk.system.close(goes)


def inserts(folder: Path) -> bool:
    """Can ranges be put into files there? Found by trying with one."""
    with tempfile.TemporaryFile(dir=folder) as trial:
        trial.write(bytes(BLOCK))
        trial.flush()
        try:
            calls.fallocate(trial.fileno(), INSERT_RANGE, 0, block_of(folder))
        except OSError:
            return False
    return True


def shares(path: Path, folder: Path) -> bool:
    """Does the file system there share blocks of the file with another? Found by trying with one."""
    if folder.stat().st_dev != path.stat().st_dev:
        return False
    with tempfile.TemporaryFile(dir=folder) as trial:
        came = disk.system.open(path, os.O_RDONLY)
        try:
            calls.clone(trial.fileno(), came, 0, BLOCK, 0)
        except OSError:
            return False
        finally:
            disk.system.close(came)
    return True


def _copied(came: int, goes: int, extent: tuple[int, int], at: int, progress: Progress) -> int:
    """How many bytes of the extent the system moved by itself."""
    start, end = extent
    done = 0
    while done < end - start:
        try:
            moved = calls.copy(came, goes, min(PIECE, end - start - done), start + done, at + done)
        except InterruptedError:
            continue
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG):
                raise
            return done
        if not moved:
            return done
        done += moved
        progress(moved)
    return done


def _plain(source: ReadFile, extent: tuple[int, int], target: WriteFile, at: int, progress: Progress) -> None:
    start, end = extent
    for place in range(start, end, PLAIN):
        count = min(PLAIN, end - place)
        target.write(at + place - start, source.read(place, count, "the file's body"))
        progress(count)
