"""One run per output: who may take a lock, and who is told whose it is."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from checkpoints import Mini, token_map_of
from cli_helpers import Cli, Refusal

from engramctl import locks
from engramctl.errors import EngramctlError
from formats import disk

HERE = socket.gethostname()


def boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def write_lock(path: Path, **changed: Any) -> None:  # noqa: ANN401
    """A lock as another process would have left it."""
    words = {"host": HERE, "pid": 1, "boot": boot(), "started": None, "since": int(time.time()) - 3 * 3600 - 61}
    path.write_text(json.dumps(words | changed))


@pytest.fixture
def dead() -> int:
    """The number of a process that is no more."""
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    return gone.pid


class Locked:
    """A conversion whose output has a lock."""

    def __init__(self, cli: Cli, folder: Path) -> None:
        self.cli, checkpoint = cli, Mini().write(folder / "ckpt")
        (folder / "out").mkdir()
        self.folder, self.output = folder / "out", folder / "out" / "engram.gguf"
        self.lock = folder / "out" / "engram.gguf.lock"
        self.words = ("repack", checkpoint, "--token-map", token_map_of(checkpoint), "-o", self.output)

    def refused(self, *more: str) -> Refusal:
        return self.cli.refused(self.folder, *self.words, *more)

    def runs(self, *more: str) -> None:
        self.cli.ok(*self.words, *more)
        assert [path.name for path in self.folder.iterdir()] == ["engram.gguf"]


@pytest.fixture
def locked(cli: Cli, tmp_path: Path) -> Locked:
    return Locked(cli, tmp_path)


@pytest.mark.parametrize("more", [(), ("--resume",), ("--force",), ("--break-lock",)])
def test_a_living_process_of_this_host_keeps_its_lock(locked: Locked, more: tuple[str, ...]) -> None:
    write_lock(locked.lock)
    refusal = locked.refused(*more)
    assert refusal.where == str(locked.lock)
    assert refusal.found == f"process 1 on host {HERE} for 3 h 1 min"


def test_a_dead_process_another_boot_and_a_reused_number_are_taken_over(locked: Locked, dead: int) -> None:
    for changed in ({"pid": dead}, {"boot": "another"}, {"started": 1, "pid": os.getppid()}):
        write_lock(locked.lock, **changed)
        locked.runs()
        locked.output.unlink()


def test_a_killed_process_that_its_parent_has_not_reaped_holds_nothing(locked: Locked) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as zombie:
        write_lock(locked.lock, pid=zombie.pid)
        assert locked.refused().found.startswith(f"process {zombie.pid} ")
        zombie.kill()
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)  # dead, and still in the table of processes
        os.kill(zombie.pid, 0)
        locked.runs()


@pytest.mark.parametrize("text", [b"", b"{", b'{"host": 5}', b'{"host": "a", "p' + bytes(60), bytes(4096)])
def test_a_lock_that_says_nothing_holds_nothing(locked: Locked, text: bytes) -> None:
    locked.lock.write_bytes(text)
    locked.runs()


@pytest.mark.parametrize("more", [(), ("--resume",), ("--force",), ("--break-lock",)])
@pytest.mark.parametrize("text", [b"precious\n", b"[]", b'{"pid": "x"}', b"\xff" * 4096, b'{\n  "nodes": {}'])
def test_somebodys_file_that_is_called_as_a_lock_is_kept(locked: Locked, text: bytes, more: tuple[str, ...]) -> None:
    """As `-o flake` would meet flake.lock."""
    locked.lock.write_bytes(text)
    refusal = locked.refused(*more)
    assert (refusal.where, refusal.expected) == (str(locked.lock), "a lock of ours")
    assert locked.lock.read_bytes() == text


@pytest.mark.parametrize("more", [(), ("--resume",), ("--force",), ("--break-lock",)])
@pytest.mark.parametrize("linked", [True, False])
def test_what_is_no_lock_is_not_written_over(locked: Locked, linked: bool, more: tuple[str, ...]) -> None:
    other = locked.folder.parent / "other" if linked else locked.lock
    other.write_bytes(b"x" * 5000)
    if linked:
        locked.lock.symlink_to(other)
    refusal = locked.refused(*more)
    assert (refusal.where, refusal.found) == (str(locked.lock), "a link" if linked else "5000")
    assert other.read_bytes() == b"x" * 5000


@pytest.mark.parametrize("since", ["1e999", "-1e999", "NaN", "9" * 400, '"x"', "true", "1.5"])
def test_a_lock_with_an_odd_time_is_refused_without_it(locked: Locked, since: str) -> None:
    locked.lock.write_text(f'{{"host": "node17", "pid": 5, "since": {since}}}')
    assert locked.refused().found.startswith("process 5 on host node17")


def test_another_host_keeps_its_lock_until_it_is_broken(locked: Locked, dead: int) -> None:
    write_lock(locked.lock, host="node17", pid=dead)
    refusal = locked.refused("--resume")
    assert refusal.found == f"process {dead} on host node17 for 3 h 1 min"
    assert "--break-lock" in refusal.hint
    locked.runs("--break-lock")


@pytest.mark.parametrize("others", ["engram.gguf.part-0-10.lock", "engram.gguf.part-5-48.lock"])
def test_rows_under_another_name_are_locked_too(locked: Locked, others: str) -> None:
    write_lock(locked.folder / others)
    assert locked.refused().where.endswith(others)
    assert locked.refused("--merge").where.endswith(others)
    assert locked.refused("--layer", "1", "--rows", "6:9").where.endswith(others)
    if others.endswith("0-10.lock"):
        locked.cli.ok(*locked.words, "--layer", "1", "--rows", "10:12")


def test_breaking_another_hosts_lock_breaks_none_of_this_host(locked: Locked) -> None:
    other = locked.folder / "engram.gguf.part-5-48.lock"
    write_lock(other)
    refusal = locked.refused("--break-lock")
    assert (refusal.where, refusal.found) == (str(other), f"process 1 on host {HERE} for 3 h 1 min")
    assert locked.refused("--merge", "--break-lock").where == str(other)
    write_lock(other, host="node17")
    assert "--break-lock" in locked.refused().hint
    locked.runs("--break-lock")  # and nothing is left of the broken lock


def test_a_whole_conversion_locks_its_parts(locked: Locked) -> None:
    write_lock(locked.lock)
    assert locked.refused("--part", "1/2").where == str(locked.lock)


def test_a_held_lock_is_held_against_everybody(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locks.hold(path):
        assert json.loads(path.read_text())["pid"] == os.getpid()
        with pytest.raises(EngramctlError, match=f"process {os.getpid()} on host {HERE}"), locks.hold(path):
            pytest.fail("two at once")
    assert not path.exists()


def test_where_the_file_system_has_no_locks_the_words_must_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoLocks(disk.System):
        def lock(self, fd: int) -> None:
            raise OSError(38, "no locks here")

    monkeypatch.setattr(disk, "system", NoLocks())
    path = tmp_path / "lock"
    with locks.hold(path):
        assert path.exists()
    write_lock(path)
    with pytest.raises(EngramctlError, match="process 1 on host"), locks.hold(path):
        pytest.fail("two at once")


RACE = """
import sys
from pathlib import Path
from engramctl import locks
from engramctl.errors import EngramctlError
path, seen = Path(sys.argv[1]), Path(sys.argv[2])
for _ in range(300):
    try:
        with locks.hold(path):
            with seen.open("x"):
                pass
            seen.unlink()
    except EngramctlError:
        pass
"""


def test_of_many_that_want_a_stale_lock_one_has_it_at_a_time(tmp_path: Path, dead: int) -> None:
    write_lock(tmp_path / "lock", pid=dead)
    command = [sys.executable, "-c", RACE, str(tmp_path / "lock"), str(tmp_path / "seen")]
    running = [subprocess.Popen(command, cwd=Path(__file__).parent.parent, stderr=subprocess.PIPE) for _ in range(4)]
    for one in running:
        assert one.communicate(timeout=60)[1] == b""
        assert one.returncode == 0
