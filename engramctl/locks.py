"""One process at a time: a lock file beside the output that says who works on it.

    {"host": ..., "pid": ..., "boot": ..., "started": ..., "since": ...}

The kernel's lock on that file is the truth where there is one; the words in it are for people, and for file systems
that are shared between hosts.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engramctl.errors import EngramctlError
from formats import disk
from formats.disk import ReadFile, WriteFile
from formats.errors import NOTHING, FormatError

MOST_BYTES = 4096
BEGINNING = b'{"host": '
TRIES = 100  # a lock that is given up and taken again under our eyes

Holder = dict[str, Any]


@contextlib.contextmanager
def hold(path: Path, break_lock: bool = False) -> Iterator[None]:
    """Hold the lock while the block runs; `EngramctlError` names whoever has it."""
    file = _take(path, break_lock)
    try:
        yield
    finally:
        _let_go(file, path)


def refuse_live(path: Path, break_lock: bool) -> None:
    """Refuse if another run may hold this lock, without taking it; one of another host goes if it is to be broken."""
    holder = _said(path)
    if not _is_live(holder):
        return
    here = _is_here(holder)
    if here or not break_lock:
        _refuse(path, _words(holder), here, "these rows")
    with contextlib.suppress(FileNotFoundError):
        disk.system.unlink(path)


def refuse_held(path: Path) -> None:
    """Refuse if somebody surely holds the lock, without touching it."""
    holder = _said(path)
    if _is_live(holder) and _is_here(holder):
        _refuse(path, _words(holder), here=True)


def _take(path: Path, break_lock: bool) -> WriteFile:
    for _ in range(TRIES):
        with contextlib.suppress(FileExistsError):
            file = WriteFile.create(path)
            if _lock(file, path, break_lock):
                return file
            continue
        try:
            _refuse_other(path)
            file = WriteFile.open(path)
        except FileNotFoundError:
            continue
        if _lock(file, path, break_lock):
            return file
    raise EngramctlError(str(path), "a lock that can be taken", "one that others keep taking")


def _refuse_other(path: Path) -> None:
    """A lock is written over and goes in the end: neither a link's target nor a file of more than words is one."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise FormatError(path, None, "a lock", "a link")
    if stat.S_ISREG(status.st_mode) and status.st_size > MOST_BYTES:
        raise FormatError(path, None, f"a lock of at most {MOST_BYTES} bytes", f"{status.st_size}")
    try:
        with ReadFile.open(path) as file:
            begun = file.read(0, min(file.size, len(BEGINNING)), "lock").rstrip(b"\0")
    except FormatError as error:
        if error.found == NOTHING:  # it went meanwhile
            raise FileNotFoundError from None
        raise
    if not BEGINNING.startswith(begun):  # a torn one may be cut short, or zeros
        raise FormatError(path, None, "a lock of ours", "another file of that name")


def _lock(file: WriteFile, path: Path, break_lock: bool) -> bool:
    """Take the opened lock file; False if its name has gone to another file meanwhile."""
    try:
        try:
            file.lock()
        except BlockingIOError:
            holder = _said(path)
            if (here := _is_here(holder)) or not break_lock:
                _refuse(path, _words(holder), here)
            disk.system.unlink(path)  # a lock that a shared file system keeps for a host that is gone
            file.close()
            return False
        except OSError:
            pass  # a file system without locks: the words must do
        if not _is_named(file, path):
            file.close()
            return False
        holder = _said(path)
        if _is_live(holder) and ((here := _is_here(holder)) or not break_lock):
            _refuse(path, _words(holder), here)
    except BaseException:
        file.close()
        raise
    try:
        file.resize(0)
        file.write(0, json.dumps(_ourselves()).encode() + b"\n")
        file.sync()
    except BaseException:
        _let_go(file, path)
        raise
    return True


def _let_go(file: WriteFile, path: Path) -> None:
    """First the name, then the lock: nobody takes a lock that is about to go."""
    try:
        with contextlib.suppress(OSError):
            disk.system.unlink(path)
    finally:
        with contextlib.suppress(OSError):
            file.close()


def _is_named(file: WriteFile, path: Path) -> bool:
    try:
        return file.is_same(path)
    except FileNotFoundError:
        return False


def _refuse(path: Path, words: str, here: bool, what: str = "this output") -> None:
    hint = "wait for it, or stop it" if here else "--break-lock takes it, if that run is surely dead"
    raise EngramctlError(str(path), f"no other run on {what}", words, hint)


def _ourselves() -> Holder:
    pid = os.getpid()
    return {
        "host": socket.gethostname(),
        "pid": pid,
        "boot": _boot(),
        "started": _started(pid),
        "since": int(time.time()),
    }


def _said(path: Path) -> Holder:
    """What a lock file says; a torn one, or one that has just gone, says nothing."""
    try:
        with ReadFile.open(path) as file:
            data = file.read(0, min(file.size, MOST_BYTES), "lock")
        holder = json.loads(data)
    except (FormatError, ValueError, RecursionError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _is_here(holder: Holder) -> bool:
    """Was it written on this host?"""
    return bool(holder.get("host") == socket.gethostname())


def _is_live(holder: Holder) -> bool:
    """May the process that wrote this still run? On another host nobody here can tell."""
    host, pid = holder.get("host"), holder.get("pid")
    if not isinstance(host, str) or not isinstance(pid, int) or pid <= 0:
        return False
    if not _is_here(holder):
        return True
    if holder.get("boot") != _boot() or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    if _is_over(pid):
        return False
    started = _started(pid)
    return started is None or holder.get("started") in (None, started)  # else the number is another process's by now


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _is_over(pid: int) -> bool:
    """Is the process dead, and only its parent has not asked how it ended? A signal still reaches its number."""
    return _stat(pid)[:1] in (["Z"], ["X"])


def _started(pid: int) -> int | None:
    """When a process started, in ticks since boot, where the system says."""
    try:
        return int(_stat(pid)[19])
    except (ValueError, IndexError):
        return None


def _stat(pid: int) -> list[str]:
    """What Linux says of a process (proc(5), /proc/PID/stat), from its state on; nothing on other systems."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _words(holder: Holder) -> str:
    since = holder.get("since")
    age = f" for {_span(int(time.time()) - since)}" if type(since) is int else ""
    return f"process {holder.get('pid', '?')} on host {holder.get('host', '?')}{age}"


def _span(seconds: int) -> str:
    minutes = max(seconds, 0) // 60
    if minutes < 1:
        return f"{max(seconds, 0)} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
