"""Whatever happens at whatever moment: the final name is absent or complete, and --resume ends with the same bytes and
the same digest. Seeded faults in this process, and real signals to real processes; ten times as many with
ENGRAMCTL_LONG=1."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import ROWS, Mini, token_map_of
from cli_helpers import ROOT, Cli, parse

from engramctl import durable, row_blocks
from formats import disk, tree_digest

LONG = os.environ.get("ENGRAMCTL_LONG") == "1"
FAULTS, KILLS = (1000, 150) if LONG else (100, 15)
pytestmark = [pytest.mark.timeout(0)] if LONG else []


class Killed(BaseException):
    """The process is gone: nobody is there to clean up, and nothing works any more."""


class Chaos(disk.System):
    """One thing goes wrong at one call; before it, calls may be short or interrupted."""

    KINDS = ("full", "write", "read", "cut", "sync", "open", "kill", "power", "vanish")

    def __init__(self, seed: int, calls: int, size: int) -> None:
        self.rng = random.Random(seed)
        self.kind = self.rng.choice(self.KINDS)
        self.at = self.rng.randrange(calls)  # of all calls that reach the disk
        self.room = self.rng.randrange(size)
        self.piece = self.rng.choice([1 << 30, 1 << 30, 1009, 97])
        self.eintr = self.rng.random() < 0.3
        self.count, self.dead, self.struck = 0, False, False
        self.unsynced: dict[int, list[tuple[int, bytes]]] = {}
        self.guard = threading.RLock()

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401
        if name in vars(disk.System) and not name.startswith("_"):
            if object.__getattribute__(self, "dead") and name != "close":
                raise Killed
            if name in ("open", "ftruncate", "fsync", "fdatasync", "link", "unlink", "replace", "status"):
                self.step(name)
        return object.__getattribute__(self, name)

    def step(self, name: str) -> None:
        """Count a call; when its time has come, the fault strikes."""
        with self.guard:
            self.count += 1
            if self.dead:
                raise Killed
            due = self.count > self.at
            if self.kind == "vanish" and due and name in ("open", "status", "read", "write", "fsync", "fdatasync"):
                self.strike(errno.EIO)
            if self.kind in ("kill", "power") and due:
                self.die()
            if not due or self.struck:
                return
            if (self.kind, name) in (("write", "write"), ("read", "read"), ("open", "open")):
                self.strike(errno.EIO if name != "open" else errno.EACCES)
            if self.kind == "sync" and name in ("fsync", "fdatasync"):
                self.strike(errno.EIO)

    def strike(self, code: int) -> None:
        self.struck = True
        raise OSError(code, os.strerror(code))

    def die(self) -> None:
        """A kill leaves what was written; a power cut leaves of what was not synced as much as it likes."""
        self.dead = True
        if self.kind == "power":
            for fd, writes in self.unsynced.items():
                for offset, before in reversed(writes):
                    if self.rng.random() < 0.5:
                        os.pwrite(fd, before, offset)
        raise Killed

    def close(self, fd: int) -> None:
        self.unsynced.pop(fd, None)
        os.close(fd)

    def interrupted(self, name: str) -> None:
        self.step(name)
        if self.eintr and self.rng.random() < 0.1:
            raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))

    def pread_into(self, fd: int, view: memoryview, offset: int) -> int:
        self.interrupted("read")
        if self.kind == "cut" and self.count > self.at and not self.struck and len(view) > 8:
            self.struck = True
            return 0
        return super().pread_into(fd, view[: self.piece], offset)

    def pwrite(self, fd: int, view: memoryview, offset: int) -> int:
        self.interrupted("write")
        with self.guard:
            if self.dead:
                raise Killed
            view = view[: self.piece]
            if self.kind == "full":
                if self.room == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                view = view[: self.room]
                self.room -= len(view)
            if self.kind == "power":
                path = f"/proc/self/fd/{fd}"
                with open(path, "rb") as file:
                    file.seek(offset)
                    before = file.read(len(view))
                if before == b"" or len(before) < len(view):
                    before = before.ljust(len(view), b"\0")
                self.unsynced.setdefault(fd, []).append((offset, before))
            return os.pwrite(fd, view, offset)

    def fsync(self, fd: int) -> None:
        self.unsynced.pop(fd, None)

    fdatasync = fsync


class Job:
    """One conversion, over and over."""

    def __init__(self, cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cli, self.monkeypatch = cli, monkeypatch
        checkpoint = Mini().write(folder / "ckpt")
        self.folder = folder / "out"
        self.folder.mkdir()
        self.output = self.folder / "engram.gguf"
        self.words = ("repack", str(checkpoint), "--token-map", str(token_map_of(checkpoint)), "-o", str(self.output))

    def clear(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()

    def expect(self, *more: str) -> None:
        """What an uninterrupted run gives, and how many calls and bytes it takes."""
        watch = Chaos(0, 1, 1)
        watch.kind, watch.at, watch.piece, watch.eintr = "none", 1 << 60, 1 << 30, False
        with self.monkeypatch.context() as patch:
            patch.setattr(disk, "system", watch)
            self.printed = self.cli.ok(*self.words, *more).out
        self.calls, self.expected = watch.count, self.output.read_bytes()
        self.clear()

    def strike(self, seed: int, *more: str) -> str:
        """Run into a fault; the final name is absent or complete, and what is said is one line. Which kind it was."""
        chaos = Chaos(seed, self.calls, len(self.expected) + 5000)
        with self.monkeypatch.context() as patch:
            patch.setattr(disk, "system", chaos)
            try:
                outcome = self.cli(*self.words, *more)
            except Killed:
                outcome = None
        assert not self.output.exists() or self.output.read_bytes() == self.expected, (seed, chaos.kind)
        if outcome is not None and outcome.code:
            assert outcome.code == 2
            parse("".join(line for line in outcome.err.splitlines(True) if " again for the digest" not in line))
            assert outcome.out == b""
        return chaos.kind if outcome is None or outcome.code else ""

    def finish(self, *more: str) -> None:
        outcome = self.cli(*self.words, *more)
        assert outcome.code == 0, outcome.err
        assert outcome.out == self.printed
        assert self.output.read_bytes() == self.expected
        assert [path.name for path in self.folder.iterdir()] == ["engram.gguf"]


@pytest.fixture
def job(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setattr(tree_digest, "LEAF_ROWS", 2)
    monkeypatch.setattr(row_blocks, "SPAN_BLOCKS", 1)
    monkeypatch.setattr(durable, "SYNC_BYTES", 2000)
    return Job(cli, tmp_path, monkeypatch)


@pytest.mark.parametrize("kind", ["tree", "sha256", "none"])
def test_faults_anywhere_and_again_in_the_resumed_run(job: Job, kind: str) -> None:
    more = () if kind == "none" else ("--digest", kind)
    job.expect(*more)
    struck: dict[str, int] = {}
    share = {"tree": 0.6, "sha256": 0.2, "none": 0.2}[kind]
    for seed in range(round(FAULTS * share)):
        again = seed
        fault = job.strike(seed, *more)
        struck[fault] = struck.get(fault, 0) + 1
        while again % 3 == 2 and not job.output.exists():  # a third of them are struck again, and some once more
            again //= 3
            job.strike(100_000 + seed + again, "--resume", *more)
        if job.output.exists():
            _tidy_or_resume(job, *more)
        else:
            job.finish("--resume", *more)
        job.clear()
    if kind == "tree":
        assert len(struck) >= 8, struck


def _tidy_or_resume(job: Job, *more: str) -> None:
    """It is complete: a resume says so, or cleans up what a run that died after the name was given left beside it."""
    outcome = job.cli(*job.words, *more) if "--merge" in more else job.cli(*job.words, "--resume", *more)
    assert job.output.read_bytes() == job.expected
    assert outcome.code == 0
    assert outcome.out == job.printed
    assert [path.name for path in job.folder.iterdir()] == ["engram.gguf"]


def test_parts_struck_anywhere_are_resumed_and_merged(job: Job) -> None:
    job.expect("--digest", "tree")
    for seed in range(FAULTS // 10):
        rng = random.Random(seed)
        count = rng.randrange(2, 5)
        for i in range(1, count + 1):
            more = ("--part", f"{i}/{count}", "--digest", "tree")
            with job.monkeypatch.context() as patch:
                patch.setattr(disk, "system", Chaos(seed * 10 + i, job.calls, len(job.expected) // count))
                try:
                    outcome = job.cli(*job.words, *more)
                    assert outcome.code in (0, 2)
                except Killed:
                    pass
            assert not job.output.exists()
            job.cli.ok(*job.words, *more, "--resume")
        job.strike(777 + seed, "--merge", "--digest", "tree")
        if job.output.exists():
            _tidy_or_resume(job, "--merge", "--digest", "tree")
        else:
            job.finish("--merge", "--digest", "tree")
        job.clear()


# signals, for real: children forked by a process that has everything loaded, killed at random moments

SERVER = """
import json, os, sys, time
from engramctl import durable, row_blocks, repack, merge, checkpoint, digests
from engramctl.cli.main import run
from formats import disk, tree_digest
tree_digest.LEAF_ROWS, row_blocks.SPAN_BLOCKS, durable.SYNC_BYTES = 2, 1, 2000
class Slow(disk.System):
    def pwrite(self, fd, view, offset):
        time.sleep(0.002)
        return super().pwrite(fd, view, offset)
disk.system = Slow()
for line in sys.stdin:
    words, out, err = json.loads(line)
    child = os.fork()
    if child == 0:
        for path, fd in ((out, 1), (err, 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
        code = run(words)
        sys.stdout.flush()
        os._exit(code)
    sys.stdout.write(f"{child}\\n")
    sys.stdout.flush()
    _, status = os.waitpid(child, 0)
    sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\\n")
    sys.stdout.flush()
"""
CODES = {signal.SIGINT: (130, "interrupted"), signal.SIGTERM: (143, "terminated"), signal.SIGKILL: (-9, None)}


def test_signals_at_any_moment(job: Job, tmp_path: Path) -> None:
    more = ("--digest", "tree")
    job.expect(*more)
    out, err, rng, cut = tmp_path / "stdout", tmp_path / "stderr", random.Random(11), 0
    command, pipe = [sys.executable, "-c", SERVER], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for number in range(KILLS):
            kind, resume = list(CODES)[number % 3], ()
            for _ in range(rng.randrange(1, 4)):  # killed up to three times, each run going on from the last
                err.unlink(missing_ok=True)
                server.stdin.write(json.dumps([[*job.words, *more, *resume], str(out), str(err)]) + "\n")
                server.stdin.flush()
                child = int(server.stdout.readline())
                time.sleep(rng.random() * 0.25)
                with contextlib.suppress(ProcessLookupError):  # it was quicker
                    os.kill(child, kind)
                code, (wanted, word) = int(server.stdout.readline()), CODES[kind]
                if job.output.exists():
                    assert job.output.read_bytes() == job.expected
                    break
                if code == wanted:  # else it struck before the handlers were there
                    said = err.read_text() if err.exists() else ""
                    kept = f"; {job.output}.partial is kept, and --resume goes on"
                    assert said in (("",) if word is None else (f"engramctl: {word}\n", f"engramctl: {word}{kept}\n"))
                    cut += 1
                resume = ("--resume",)
            if job.output.exists():
                _tidy_or_resume(job, *more)
            else:
                job.finish("--resume", *more)
            job.clear()
        server.stdin.close()
    assert cut > KILLS // 2
    assert sum(ROWS.values()) * 264 > 5 * 2000  # so there were points to go on from
