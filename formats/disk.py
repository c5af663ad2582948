"""The only door to the bytes of checkpoints and containers: positioned reads, holes, and files that appear whole.

Every call to the system goes through `system`, a module global; tests put one in its place that reads short, is
interrupted, or runs out of space. What is missing on a system is found out when it is needed.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from formats.closing import Closing
from formats.errors import NOTHING, FormatError, ShortFileError, before_end
from formats.os_errors import made_for
from formats.system import PathLike, System

MOST_NAME = 255  # bytes, on every file system in use
PIECE = 1 << 30  # no single call moves more: macOS answers EINVAL from 2**31 on

system: System = System()


@contextlib.contextmanager
def _named(path: PathLike) -> Iterator[None]:
    """Calls on a descriptor do not know the file's name; whoever reads the message needs it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise


def _bytes_of(view: memoryview) -> memoryview:
    """An array's bytes; Python casts no view that has a zero in its shape."""
    return view.cast("B") if view.nbytes else memoryview(b"")


class _Open(Closing):
    """A path and its descriptor, closed once."""

    def __init__(self, path: PathLike, fd: int) -> None:
        self.path, self.fd = Path(path), fd

    def close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            with _named(self.path):
                system.close(fd)


class ReadFile(_Open):
    """A file opened for positioned reads: the asked bytes exactly, or an error that says where."""

    size = 0  # when it was opened

    @classmethod
    def open(cls, path: PathLike, flags: int = 0) -> ReadFile:
        try:
            mode = system.status(path).st_mode
            if stat.S_ISDIR(mode):
                raise FormatError(path, None, "a file", "a folder")
            if not stat.S_ISREG(mode):
                raise FormatError(path, None, "a file", "a device or a pipe")
            fd = system.open(path, os.O_RDONLY | flags)
        except (FileNotFoundError, NotADirectoryError):
            raise FormatError(path, None, "a file", NOTHING) from None
        file = cls(path, fd)
        file.size = system.size(fd)
        return file

    def read(self, offset: int, count: int, what: str) -> bytes:
        """`count` bytes at `offset`; the file's end is looked at before memory is asked for."""
        if offset < 0 or count < 0 or offset + count > self.size:
            left = max(self.size - offset, 0)
            raise FormatError(self.path, offset, f"{count} bytes of {what}", before_end(left, self.size))
        data = bytearray(count)
        self.read_into(memoryview(data), offset, what)
        return bytes(data)

    def read_into(self, view: memoryview, offset: int, what: str) -> None:
        view, done = _bytes_of(view), 0
        with _named(self.path):
            while done < len(view):
                try:
                    got = system.pread_into(self.fd, view[done : done + PIECE], offset + done)
                except InterruptedError:
                    continue
                if got == 0:
                    raise ShortFileError(self.path, offset, f"{len(view)} bytes of {what}", f"{done}")
                done += got

    def data(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of start..end that are not holes, ascending; all of it where the system cannot say.

        The hole is asked for first: Linux and macOS agree on SEEK_HOLE, but from inside data macOS's SEEK_DATA
        answers with the next data after a hole (gnulib, lib/lseek.c).
        """
        hole_, data_ = getattr(os, "SEEK_HOLE", None), getattr(os, "SEEK_DATA", None)
        while start < end:
            try:
                if hole_ is None or data_ is None:
                    raise OSError(errno.EINVAL, "holes cannot be asked for")
                hole = min(system.lseek(self.fd, start, hole_), end)
                if hole > start:
                    yield start, hole
                    start = hole
                    continue
                after = system.lseek(self.fd, start, data_)
            except OSError as error:
                # ENXIO: nothing but a hole up to the end of the file, unless the file has become shorter than it was
                if error.errno != errno.ENXIO or system.size(self.fd) < end:
                    yield start, end
                return
            if after <= start:  # neither in data nor in a hole: a system that cannot say
                yield start, end
                return
            start = after

    def done_with(self, start: int, end: int) -> None:
        """These bytes will not be read again: the page cache may drop them. Advice, so nothing depends on it."""
        with contextlib.suppress(OSError):
            system.done_with(self.fd, start, end)


class WriteFile(_Open):
    """A file opened for positioned writes: every byte, or an error with the file's name in it."""

    @classmethod
    def create(cls, path: PathLike) -> WriteFile:
        """A new file; FileExistsError if the name is taken."""
        return cls(path, system.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))

    @classmethod
    def open(cls, path: PathLike) -> WriteFile:
        """An existing file, its bytes kept. A pipe that nobody reads would be waited for."""
        mode = system.status(path).st_mode
        if not stat.S_ISREG(mode):
            raise FormatError(path, None, "a file", "a folder" if stat.S_ISDIR(mode) else "a device or a pipe")
        return cls(path, system.open(path, os.O_WRONLY | os.O_NONBLOCK))

    @property
    def size(self) -> int:
        with _named(self.path):
            return system.size(self.fd)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        view, done = _bytes_of(memoryview(data)), 0
        with _named(self.path):
            while done < len(view):
                try:
                    put = system.pwrite(self.fd, view[done : done + PIECE], offset + done)
                except InterruptedError:
                    continue
                if put == 0:
                    raise OSError(errno.EIO, "no byte could be written")
                done += put

    def resize(self, size: int) -> None:
        """To `size` bytes; what is added is a hole."""
        with _named(self.path):
            system.ftruncate(self.fd, size)

    def reserves(self) -> bool:
        """Whether there is anything to be reserved: not in memory, where it would be the work of writing."""
        return system.reserves(self.fd)

    def reserve(self, start: int, end: int) -> None:
        """Blocks for these bytes, where the file system can: a full disk is known before the work, not after it."""
        with _named(self.path):
            try:
                system.fallocate(self.fd, start, end - start)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EINTR):
                    raise

    def sync(self) -> None:
        with _named(self.path):
            system.fsync(self.fd)

    def sync_data(self) -> None:
        """As `sync`, for bytes inside the size that the file had at the last `sync`."""
        with _named(self.path):
            system.fdatasync(self.fd)

    def lock(self) -> None:
        """Take the file until it is closed; BlockingIOError if another process has it, OSError where none can."""
        with _named(self.path):
            system.lock(self.fd)

    def is_same(self, path: PathLike) -> bool:
        """Does `path` still name this file?"""
        return os.path.samestat(os.fstat(self.fd), system.status(path))

    def done_with(self, start: int, end: int) -> None:
        """Bytes that were synced and will not be read: the page cache may drop them. Advice."""
        with contextlib.suppress(OSError):
            system.done_with(self.fd, start, end)


def refuse_existing(path: PathLike, force: bool) -> None:
    """Before any work: nothing is overwritten without being asked, and only a file is ever replaced."""
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode) and Path(path).exists():  # else it leads nowhere: only the link is lost
            mode = Path(path).stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISDIR(mode):
        raise FormatError(path, None, "a file", "a folder")
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        raise FormatError(path, None, "a file", "a device or a pipe")
    if not force:
        raise FormatError(path, None, "no file there yet (or --force)", "an existing file")


def write_whole(path: PathLike, chunks: Iterable[bytes | bytearray | memoryview], force: bool = False) -> None:
    """A file that is there whole or not at all: a sibling, fsync, then the name. No failure leaves the sibling."""
    path = Path(path)
    refuse_existing(path, force)
    if not path.parent.is_dir():
        raise FormatError(path.parent, None, "a folder", "a file" if path.parent.exists() else "nothing there")
    with made_for(path):
        file = _sibling(path)
        try:
            with file:
                offset = 0
                for chunk in chunks:
                    file.write(offset, chunk)
                    offset += memoryview(chunk).nbytes
                file.sync()
            publish(file.path, path, force)
        except BaseException:
            remove(file.path)
            raise


def require_place(path: PathLike) -> None:
    """Before long work: `write_whole` may make its file there. Nothing is left."""
    with made_for(path), _sibling(Path(path)) as file:
        remove(file.path)


def remove(*paths: PathLike) -> None:
    """Take away what may be there."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            system.unlink(path)


def _sibling(path: Path) -> WriteFile:
    for number in itertools.count():
        with contextlib.suppress(FileExistsError):
            ending = f".{os.getpid()}.{number}.tmp"
            begin = os.fsencode(path.name)[: MOST_NAME - len(ending)].decode(errors="ignore")
            return WriteFile.create(path.with_name(f"{begin}{ending}"))
    raise AssertionError("a count ends")


def publish(made: PathLike, path: PathLike, force: bool) -> None:
    """Give a finished, synced file its name. Without `force` a file that came up meanwhile is not replaced."""
    refuse_existing(path, force)
    if force:
        system.replace(made, path)
    else:
        try:
            system.link(made, path)  # fails if the name is taken; rename would replace
        except FileExistsError:
            raise FormatError(path, None, "no file there yet (or --force)", "an existing file") from None
        except OSError:  # a file system without links
            system.replace(made, path)
        else:
            system.unlink(made)
    fsync_folder(Path(path).parent)


def fsync_folder(path: PathLike) -> None:
    """Make names in a folder last. Some file systems cannot; that is no failure."""
    fd = system.open(path, os.O_RDONLY)
    try:
        system.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            error.filename = os.fspath(path)
            raise
    finally:
        system.close(fd)


def free_bytes(path: PathLike) -> int:
    """Bytes that may still be written where `path` is or would be."""
    path = Path(path).absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return system.free_bytes(path)
