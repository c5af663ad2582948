"""repack on a disk that misbehaves, and under signals: the final name holds all of it or nothing, and --resume finishes
what was cut short, byte for byte."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import ROWS, Mini, rewrite, token_map_of
from cli_helpers import ROOT, Cli, Outcome, parse, snapshot
from faults import Faulty
from gguf import GGUFReader

from engramctl import durable, identity, journal_file, repack_jobs, row_blocks, slices, workspace
from formats import disk, tree_digest

POINTS = 100
HEADER, TABLES = 16384, sum(ROWS.values()) * 264  # bytes
BEGUN = 1200  # about what the lock, the plan in the journal and the mark take


class Job:
    """One conversion, over and over: its words, its output, and what that must be."""

    def __init__(self, cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cli, self.folder, self.monkeypatch = cli, folder, monkeypatch
        self.checkpoint = Mini().write(folder / "ckpt")
        (folder / "out").mkdir()
        self.output = folder / "out" / "engram.gguf"
        self.partial, self.journal = (folder / "out" / f"engram.gguf.{end}" for end in ("partial", "journal"))
        self.words = ("repack", self.checkpoint, "-o", self.output, "--token-map", token_map_of(self.checkpoint))
        system = Faulty()
        assert self.run(system=system).code == 0
        self.written = sum(size for name, size in system.calls if name == "write")
        self.expected = self.output.read_bytes()
        self.output.unlink()

    def run(self, *more: str, system: disk.System | None = None) -> Outcome:
        with self.monkeypatch.context() as patch:
            if system is not None:
                patch.setattr(disk, "system", system)
            return self.cli(*self.words, *more)

    def left(self) -> list[str]:
        return sorted(path.name for path in self.output.parent.iterdir())

    def clear(self) -> None:
        for path in self.output.parent.iterdir():
            path.unlink()

    def refused_naming_both_ways(self) -> None:
        """A run that says nothing of the unfinished one is refused, and changes nothing but a dead run's lock."""
        for lock in self.output.parent.glob("*.lock"):
            lock.unlink()
        refusal = self.cli.refused(self.output.parent, *self.words)
        assert "engram.gguf" in refusal.where
        assert "--resume" in refusal.hint
        assert "--force" in refusal.hint

    def finished(self, *more: str) -> None:
        """The run that ends it all."""
        outcome = self.run(*more)
        assert outcome.code == 0, outcome.err
        assert self.left() == ["engram.gguf"]
        assert self.output.read_bytes() == self.expected


@pytest.fixture
def job(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """With a sync every few rows, so that the journal has many points; syncs that do not wait for a disk."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)
    monkeypatch.setattr(tree_digest, "LEAF_ROWS", 2)
    monkeypatch.setattr(row_blocks, "SPAN_BLOCKS", 1)
    monkeypatch.setattr(durable, "SYNC_BYTES", 2000)
    return Job(cli, tmp_path, monkeypatch)


# reads and writes that are merely awkward


@pytest.mark.parametrize("system", [Faulty(piece=7), Faulty(interrupted=True), Faulty(piece=1001, interrupted=True)])
def test_short_and_interrupted_calls_change_nothing(job: Job, system: Faulty) -> None:
    assert job.run(system=system).code == 0
    assert job.output.read_bytes() == job.expected
    assert job.left() == ["engram.gguf"]


# a disk that fails


def test_a_disk_full_at_any_byte_is_one_line_and_resume_finishes(job: Job) -> None:
    rng = random.Random(1)
    for room in [0, 1, *rng.sample(range(job.written), POINTS - 2)]:
        outcome = job.run(system=Faulty(room=room))
        assert outcome.code == 2
        refusal = parse(outcome.err)
        assert refusal.found == "no space left on device"
        assert refusal.where.startswith(str(job.output) + ".")
        assert not job.output.exists()
        if room < BEGUN:  # not even a plan could be written down
            assert job.left() == []
        elif room > 2 * BEGUN:
            assert job.left() == ["engram.gguf.journal", "engram.gguf.partial"]
            job.refused_naming_both_ways()
        job.finished("--resume")
        job.clear()


def test_a_disk_that_is_full_again_and_again_is_finished_in_the_end(job: Job) -> None:
    """Nothing durable is repeated, so each run gets further than the one before. With one thread: another could fill
    the disk with rows of later spans, which are written again."""
    reached, room = [[0, 0]], job.written - HEADER - TABLES + 5000
    while (outcome := job.run("--resume", "--threads", "1", system=Faulty(room=room))).code:
        assert parse(outcome.err).found == "no space left on device"
        last = json.loads(job.journal.read_text().splitlines()[-1])
        if "finished" in last:  # only the header is left
            room = HEADER + 4000
            continue
        reached.append(last["done"])
        assert reached[-1] > reached[-2]
        room = 8000
    assert len(reached) > 2
    assert job.output.read_bytes() == job.expected


def test_a_source_that_cannot_be_read_keeps_what_was_written(job: Job) -> None:
    rng, size = random.Random(2), (job.checkpoint / "model.safetensors").stat().st_size
    for at in rng.sample(range(4000, size), POINTS):
        outcome = job.run(system=Faulty(broken_at=at))
        assert outcome.code == 2
        refusal = parse(outcome.err)
        assert refusal.where == str(job.checkpoint / "model.safetensors")
        assert refusal.found == "input/output error"
        assert job.left() == ["engram.gguf.journal", "engram.gguf.partial"]
        job.refused_naming_both_ways()
        job.finished("--resume")
        job.clear()


def test_a_source_that_was_cut_while_reading_keeps_what_was_written(job: Job) -> None:
    """It was whole when its header was read, so this is a disk's or a network's fault until the opposite is known."""
    rng, size = random.Random(3), (job.checkpoint / "model.safetensors").stat().st_size
    for end in rng.sample(range(4000, size), 20):
        outcome = job.run(system=Faulty(ends_at=end))
        assert outcome.code == 2
        assert parse(outcome.err).where.startswith(str(job.checkpoint / "model.safetensors"))
        job.refused_naming_both_ways()
        job.finished("--resume")
        job.clear()


class Refusing(disk.System):
    """The n-th call of one kind fails."""

    def __init__(self, call: str, number: int, code: int) -> None:
        self.call, self.left, self.code = call, number, code

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401
        method = object.__getattribute__(self, name)
        if name == object.__getattribute__(self, "call"):
            self.left -= 1
            if self.left < 0:
                return self.closing if name == "close" else self.failing
        return method

    def failing(self, *arguments: object) -> Any:  # noqa: ANN401
        raise OSError(self.code, os.strerror(self.code))

    def closing(self, fd: int) -> None:
        os.close(fd)
        self.failing()


@pytest.mark.parametrize(
    "call",
    ["fsync", "fdatasync", "ftruncate", "replace", "link", "unlink", "close", "lseek", "done_with", "lock", "status"],
)
def test_whichever_call_fails_the_name_holds_all_or_nothing(job: Job, call: str) -> None:
    for number in range(1000):
        system = Refusing(call, number, errno.EIO)
        outcome = job.run(system=system)
        assert not job.output.exists() or job.output.read_bytes() == job.expected
        if outcome.code:
            parse(outcome.err.splitlines()[-1])
            assert outcome.code == 2
        if not job.output.exists():
            job.finished("--resume")
        elif outcome.code == 0:
            assert job.left() in (["engram.gguf"], ["engram.gguf", "engram.gguf.lock"])
        job.clear()
        if system.left >= 0:
            assert outcome.code == 0
            break
    else:
        pytest.fail("it never ends")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EDQUOT])
def test_a_folder_that_cannot_be_written_is_one_line(job: Job, code: int) -> None:
    class ReadOnly(disk.System):
        def open(self, path: disk.PathLike, flags: int, mode: int = 0o666) -> int:
            if flags & os.O_CREAT:
                raise OSError(code, os.strerror(code), os.fspath(path))
            return super().open(path, flags, mode)

    outcome = job.run(system=ReadOnly())
    assert outcome.code == 2
    assert parse(outcome.err).found == os.strerror(code).lower()
    assert job.left() == []


def test_too_little_disk_is_said_before_anything_is_written(job: Job) -> None:
    class Small(disk.System):
        def free_bytes(self, path: disk.PathLike) -> int:
            return 100_000

    before = snapshot(job.folder)
    outcome = job.run(system=Small())
    assert outcome.code == 2
    refusal = parse(outcome.err)
    assert refusal.where == str(job.output.parent)
    assert refusal.found == "100000"
    assert int(refusal.expected.split()[0]) > 100_000
    assert snapshot(job.folder) == before


# power that fails


class PowerLoss(disk.System):
    """After some writes everything stops, and of what was not synced some is on the disk and some is not."""

    class Lost(BaseException):
        """Nobody is there to clean up."""

    def __init__(self, writes: int, rng: random.Random) -> None:
        self.writes, self.rng = writes, rng
        self.unsynced: dict[int, list[tuple[int, bytes]]] = {}
        self.lock_, self.lost = threading.Lock(), False

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401
        method = object.__getattribute__(self, name)
        if name in vars(disk.System) and name != "close" and self.lost:
            raise PowerLoss.Lost
        return method

    def pwrite(self, fd: int, view: memoryview, offset: int) -> int:
        with self.lock_:
            if self.lost:
                raise PowerLoss.Lost
            path = f"/proc/self/fd/{fd}"
            with open(path, "rb") as file:
                file.seek(offset)
                before = file.read(len(view))
            self.unsynced.setdefault(fd, []).append((offset, before))
            if self.writes == 0:
                super().pwrite(fd, view[: self.rng.randrange(len(view))], offset)
                self.lose()
            self.writes -= 1
            return super().pwrite(fd, view, offset)

    def fsync(self, fd: int) -> None:
        with self.lock_:
            if self.lost:
                raise PowerLoss.Lost
            self.unsynced.pop(fd, None)

    fdatasync = fsync

    def lose(self) -> None:
        self.lost = True
        for fd, writes in self.unsynced.items():
            for offset, before in reversed(writes):
                if self.rng.random() < 0.5:
                    os.pwrite(fd, before, offset)
        raise PowerLoss.Lost


def test_after_a_power_cut_nothing_is_trusted_that_was_not_synced(job: Job) -> None:
    rng, syncs = random.Random(4), 0
    for writes in range(0, 200, 3):
        try:
            outcome = job.run(system=PowerLoss(writes, rng))
        except PowerLoss.Lost:
            syncs = max(syncs, job.journal.read_bytes().count(b"done") if job.journal.exists() else 0)
            job.finished("--resume")
        else:
            assert outcome.code == 0
            break
        job.clear()
    assert syncs > 3


# what an unfinished run leaves, and who may touch it


def interrupted(job: Job) -> None:
    """Cut short in the second table."""
    assert job.run(system=Faulty(room=job.written - 5000)).code == 2
    assert job.left() == ["engram.gguf.journal", "engram.gguf.partial"]


def test_force_starts_again(job: Job) -> None:
    interrupted(job)
    job.partial.write_bytes(b"\xff" * 1000)
    job.finished("--force")


def test_resume_of_nothing_is_a_run(job: Job) -> None:
    job.finished("--resume")


def test_resume_does_not_repeat_what_is_durable(job: Job) -> None:
    interrupted(job)
    system = Faulty()
    assert job.run("--resume", system=system).code == 0
    assert sum(size for name, size in system.calls if name == "write") < HEADER + TABLES
    assert job.output.read_bytes() == job.expected


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda job: rewrite(job.checkpoint / "model.safetensors", lambda data: None), "model.safetensors"),
        (lambda job: (*job.words, "--kv-type", "f32"), "kv_type"),
        (lambda job: (*job.words, "--layers", "1"), "layers"),
        (lambda job: (*job.words, "--source-url", "https://example.com"), "header"),
        (lambda job: token_map_of(job.checkpoint).write_text("[0,1,2,3,4,5,6,6,6,6]") and None, "token_map"),
        (lambda job: rewrite(job.checkpoint / "config.json", lambda data: data.extend(b" ")), "config"),
    ],
    ids=["source", "kv-type", "layers", "url", "token-map", "config"],
)
def test_another_source_or_plan_is_refused_by_name(
    job: Job, change: Callable[[Job], tuple[Any, ...] | None], named: str
) -> None:
    interrupted(job)
    job.words = change(job) or job.words
    refusal = job.cli.refused(job.folder, *job.words, "--resume", "--quiet")
    assert named in refusal.where + refusal.expected + refusal.found
    assert "--force" in refusal.hint
    job.cli.ok(*job.words, "--force")
    assert job.left() == ["engram.gguf"]
    assert (job.output.read_bytes() == job.expected) == (named == "model.safetensors")


def test_another_version_does_not_go_on_with_it(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(job)
    monkeypatch.setattr(identity, "__version__", "99")
    assert job.cli.refused(job.folder, *job.words, "--resume").where.endswith(": version")


@pytest.mark.parametrize(
    "text",
    [b"\n", b"[]\n", b"{\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n", b'{"version": "0.1.0"}\n'],
)
def test_a_journal_that_is_none_is_refused(job: Job, text: bytes) -> None:
    interrupted(job)
    job.journal.write_bytes(text)
    refusal = job.cli.refused(job.folder, *job.words, "--resume")
    assert refusal.where.startswith(str(job.journal))
    job.finished("--force")


@pytest.mark.parametrize("line", ['{"done": 1}', '{"done": [1]}', '{"done": [1, -1]}', '{"done": [1.5, 2]}', "{}"])
def test_a_journal_with_points_that_are_none_is_refused(job: Job, line: str) -> None:
    interrupted(job)
    with job.journal.open("a") as file:
        file.write(journal_file.summed(json.loads(line)).decode())
    assert job.cli.refused(job.folder, *job.words, "--resume").where.startswith(str(job.journal))


@pytest.mark.parametrize("point", ["[99, 0]", "[6, 19]", "[7, 31]", "[0, 0]"])
def test_a_journal_whose_point_lies_elsewhere_is_refused(job: Job, point: str) -> None:
    interrupted(job)
    with job.journal.open("a") as file:
        file.write(journal_file.summed({"done": json.loads(point)}).decode())
    assert job.cli.refused(job.folder, *job.words, "--resume").where.startswith(str(job.journal))
    job.finished("--force")


@pytest.mark.parametrize("size", [0, 63, 64, 5000])
def test_a_partial_that_was_cut_short_is_refused(job: Job, size: int) -> None:
    interrupted(job)
    rewrite(job.partial, lambda data: data.__delitem__(slice(size, None)))
    refusal = job.cli.refused(job.folder, *job.words, "--resume")
    assert (refusal.where, refusal.found) == (str(job.partial), str(size))


class Meanwhile(Faulty):
    """Something happens before the nth write."""

    def __init__(self, number: int, what: Callable[[], object]) -> None:
        super().__init__()
        self.number, self.what = number, what

    def pwrite(self, fd: int, view: memoryview, offset: int) -> int:
        self.number -= 1
        if self.number == 0:
            self.what()
        return super().pwrite(fd, view, offset)


@pytest.mark.parametrize("number", [4, 10, 20])
def test_a_source_that_changes_during_the_work_is_never_published(job: Job, number: int) -> None:
    shard = job.checkpoint / "model.safetensors"
    outcome = job.run(system=Meanwhile(number, lambda: os.utime(shard, (1, 1))))
    assert outcome.code == 2
    assert "time of model.safetensors" in parse(outcome.err).where
    assert job.left() == []


@pytest.mark.parametrize("number", [4, 10, 20])
@pytest.mark.parametrize("more", [(), ("--force",)])
def test_the_partial_of_another_run_is_neither_published_nor_removed(
    job: Job, number: int, more: tuple[str, ...]
) -> None:
    def another() -> None:
        job.partial.unlink()
        job.partial.write_bytes(b"another run's")

    outcome = job.run(*more, system=Meanwhile(number, another))
    assert (outcome.code, parse(outcome.err).where) == (2, str(job.partial))
    assert job.partial.read_bytes() == b"another run's"
    assert not job.output.exists()


def test_a_torn_last_line_is_no_line(job: Job) -> None:
    interrupted(job)
    with job.journal.open("a") as file:
        file.write('{"done": [7,')
    job.finished("--resume")


def test_a_partial_without_its_journal_is_not_trusted(job: Job) -> None:
    interrupted(job)
    job.journal.unlink()
    job.refused_naming_both_ways()
    refusal = job.cli.refused(job.folder, *job.words, "--resume")
    assert "engram.gguf.journal" in refusal.where
    assert "--force" in refusal.hint
    job.finished("--force")


def test_a_journal_without_its_partial_holds_nothing_to_keep(job: Job) -> None:
    interrupted(job)
    job.partial.unlink()
    job.refused_naming_both_ways()
    job.finished("--resume")


def test_names_are_the_contracts() -> None:
    whole, some = slices.Slice(0, 9, whole=True), slices.Slice(3, 5)
    assert workspace.partial_of(Path("a/b.gguf")) == Path("a/b.gguf.partial")
    assert workspace.journal_of(Path("a/b.gguf"), whole) == Path("a/b.gguf.journal")
    assert workspace.lock_of(Path("a/b.gguf"), whole) == Path("a/b.gguf.lock")
    assert workspace.journal_of(Path("a/b.gguf"), some) == Path("a/b.gguf.part-3-5.journal")


# signals, for real

SLOW = """
import sys, time
from engramctl import durable, row_blocks
from engramctl.cli.main import main
from formats import disk, tree_digest
tree_digest.LEAF_ROWS, row_blocks.SPAN_BLOCKS, durable.SYNC_BYTES = 1, 1, 2000
class Slow(disk.System):
    def pwrite(self, fd, view, offset):
        time.sleep(0.012)
        return super().pwrite(fd, view, offset)
disk.system = Slow()
main()
"""
CODES = {signal.SIGINT: (130, "interrupted"), signal.SIGTERM: (143, "terminated"), signal.SIGKILL: (-9, None)}


def test_signals_at_any_moment_leave_what_resume_finishes(job: Job) -> None:
    rng, cut = random.Random(5), 0
    for number in range(12):
        kind = list(CODES)[number % 3]
        command = [sys.executable, "-c", SLOW, *map(str, job.words)]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as running:
            while not job.partial.exists() and running.poll() is None:
                time.sleep(0.001)
            time.sleep(rng.random() * 0.4)
            running.send_signal(kind)
            out, err = running.communicate(timeout=60)
        assert out == b""
        if job.output.exists():  # it was done before
            assert job.output.read_bytes() == job.expected
        else:
            code, word = CODES[kind]
            assert running.returncode == code, err.decode()
            kept = f"; {job.partial} is kept, and --resume goes on"
            assert err.decode() in (("",) if word is None else (f"engramctl: {word}\n", f"engramctl: {word}{kept}\n"))
            cut += 1
            job.refused_naming_both_ways()
            job.finished("--resume")
        job.clear()
    assert cut >= 6


# blocks


class Reserving(disk.System):
    """Says what is reserved, and may have no room for it."""

    def __init__(self, code: int | None = None) -> None:
        self.code, self.ranges = code, list[tuple[int, int]]()

    def fallocate(self, fd: int, start: int, size: int) -> None:
        self.ranges.append((start, start + size))
        if self.code is not None:
            raise OSError(self.code, os.strerror(self.code))


@pytest.mark.parametrize("more", [(), ("--layer", "14", "--rows", "10:20")])
def test_blocks_are_reserved_for_what_will_be_written(
    job: Job, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    monkeypatch.setattr(repack_jobs, "RESERVE_BYTES", 1)
    system = Reserving()
    assert job.run(*more, system=system).code == 0
    starts = {t.name: int(t.data_offset) for t in GGUFReader(io_of(job.expected, job.folder)).tensors}
    table = starts["blk.14.engram_embd.weight"]
    if more:
        assert system.ranges == [(table + 10 * 264, table + 20 * 264)]
    else:
        assert (table, table + ROWS[14] * 264) in system.ranges
        assert min(start for start, _ in system.ranges) == min(starts.values())


def io_of(data: bytes, folder: Path) -> Path:
    path = folder / "expected.gguf"
    path.write_bytes(data)
    return path


def test_a_disk_without_room_for_the_blocks_stops_before_the_work(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repack_jobs, "RESERVE_BYTES", 1)
    refusal = parse(job.run(system=Reserving(errno.ENOSPC)).err)
    assert (refusal.where, refusal.found) == (str(job.partial), "no space left on device")
    assert job.run("--resume", system=Reserving(errno.EOPNOTSUPP)).code == 0  # a file system that cannot reserve
    assert job.output.read_bytes() == job.expected
