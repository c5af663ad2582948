"""Memory for whole tables: huge pages asked for and counted, how much is free, pages touched."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError
from formats.disk import ReadFile
from formats.page_cache import PAGE, Mapping

HUGE = 2 << 20  # bytes of a huge page on x86-64, and on arm64 with 4 KiB pages
MADV_COLLAPSE = 25  # Linux 6.1; Python does not name it
SPARE = 256 << 20  # bytes left to everything else
TOUCH = 1 << 20


class Arena:
    """Zeroed anonymous memory that begins at a huge page and is advised to be of them, with slack at both ends so that
    the system keeps it a mapping of its own."""

    def __init__(self, size: int) -> None:
        self.span = max(1, -(-size // HUGE)) * HUGE
        self._map = mmap.mmap(-1, self.span + 2 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        whole: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self._start = HUGE - int(whole.ctypes.data) % HUGE
        self.bytes = whole[self._start : self._start + size]
        self._advise(getattr(mmap, "MADV_HUGEPAGE", None))

    @property
    def address(self) -> int:
        return int(self.bytes.ctypes.data)

    def _advise(self, advice: int | None) -> bool:
        if advice is None:
            return False
        with contextlib.suppress(OSError):
            self._map.madvise(advice, self._start, self.span)
            return True
        return False

    def collapse(self) -> bool:
        """Make huge pages now of what did not become one when it was touched."""
        share = self.huge_share()
        return share is not None and share < 1 and self._advise(MADV_COLLAPSE)

    def huge_share(self) -> float | None:
        """How much of it lies on huge pages, as smaps says; None where there is no smaps."""
        huge = mapping_kib(self.address, "AnonHugePages")
        return None if huge is None else min(1.0, huge * 1024 / self.span)

    def close(self) -> None:
        del self.bytes
        with contextlib.suppress(BufferError):
            self._map.close()


def mapping_kib(address: int, key: str, smaps: Path = Path("/proc/self/smaps")) -> int | None:
    """The KiB that smaps gives under `key` for the mapping that holds `address`."""
    try:
        lines = smaps.read_text().splitlines()
    except OSError:
        return None
    inside = False
    for line in lines:
        head = line.split(" ", 1)[0]
        if not head.endswith(":"):
            start, _, end = head.partition("-")
            inside = int(start, 16) <= address < int(end, 16)
        elif inside and head == f"{key}:":
            return int(line.split()[1])
    return None


def free_bytes() -> int | None:
    """Memory that can be had without swapping, of the machine and of this control group; None where none says."""
    found = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")))
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        found.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    if not found:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            found.append(os.sysconf("SC_PHYS_PAGES") * PAGE)
    return min(found, default=None)


def require(size: int, what: str) -> None:
    """Refuse before anything is read what would drive the machine out of memory."""
    free = free_bytes()
    if free is not None and size + SPARE > free:
        raise EngramctlError(
            f"--io ram: {what}",
            f"{size + SPARE:,} free bytes of memory",
            f"{free:,}",
            "--io pread needs none; --shard i/n holds a part",
        )


def touch(file: ReadFile, start: int, end: int) -> None:
    """Read a file's bytes for the page cache's sake."""
    scratch = bytearray(min(TOUCH, end - start))
    for at in range(start, end, TOUCH):
        file.read_into(memoryview(scratch)[: min(TOUCH, end - at)], at, "the table")


def touch_pages(mapped: Mapping) -> None:
    """Look at one byte of each page: for systems that do not fill a mapping when asked."""
    int(mapped.bytes[::PAGE].sum(dtype=np.int64))


@contextlib.contextmanager
def kept_out(file: ReadFile, start: int, end: int) -> Iterator[None]:
    """What is read inside leaves the page cache again, unless most of it was there before: a copy is enough."""
    before = _resident_share(file, start, end)
    yield
    if before is not None and before < 0.5:
        file.done_with(-(-start // PAGE) * PAGE, end // PAGE * PAGE)


def _resident_share(file: ReadFile, start: int, end: int) -> float | None:
    if end <= start:
        return None
    try:
        mapped = Mapping(file, start, end)
    except (OSError, ValueError):
        return None
    try:
        pages = mapped.resident()
    finally:
        mapped.close()
    return None if pages is None else float(pages.mean())
