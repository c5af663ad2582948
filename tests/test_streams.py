"""Standard streams that are closed, full, or speak another encoding: one line, and the exit code stays right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import ROOT, Cli, process, python

from engramctl import arrays


def shell(line: str) -> subprocess.CompletedProcess[bytes]:
    """A shell's command line in which `engramctl` is this one."""
    text = f'engramctl() {{ "{sys.executable}" -m engramctl "$@"; }}; {line}'
    return subprocess.run(["/bin/sh", "-c", text], cwd=ROOT, capture_output=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("line", "code", "lines"),
    [
        ("engramctl hash --ids 1x 2>&-", 2, 0),
        ("engramctl hash --ids 5 --to sha256 2>&- >/dev/null", 0, 0),
        ("engramctl hash --ids 5 >&-", 2, 1),
        ("engramctl hash --ids 5 >&- 2>&-", 2, 0),
        ("engramctl hash - <&-", 2, 1),
        ("engramctl hash --ids 1x --json >/dev/full", 2, 1),
        ("engramctl hash --ids 1x 2>/dev/full", 2, 0),
    ],
)
def test_a_stream_that_cannot_be_used_leaves_the_exit_code_right(line: str, code: int, lines: int) -> None:
    done = shell(line)
    assert (done.returncode, len(done.stderr.splitlines())) == (code, lines), done.stderr
    assert all(each.startswith(b"engramctl: error: ") for each in done.stderr.splitlines())


def test_a_terminal_without_unicode_gets_escapes(tmp_path: Path) -> None:
    path = tmp_path / "\u00fc.txt"
    path.write_text("5")
    done = process("hash", path, "--to", "sha256", env={"PYTHONIOENCODING": "ascii", "COLUMNS": "abc"})
    assert (done.returncode, done.stderr) == (0, b"")
    done = process("profiles", env={"PYTHONIOENCODING": "ascii", "COLUMNS": "abc"})
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_check_of_listed_digests_takes_no_other_input(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("5")
    (tmp_path / "sums").write_bytes(cli.ok("hash", tmp_path / "ids", "--to", "sha256").out)
    cli.ok("hash", "--check", tmp_path / "sums")
    for more in (("--ids", "5"), ("--mask", "1"), (tmp_path / "ids",), ("--history", "3"), ("--text", "x")):
        assert cli.refused(tmp_path, "hash", "--check", tmp_path / "sums", *more).where == "--check"


def test_an_array_larger_than_memory_is_refused_before_it_is_read(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = np.zeros((1, 8), np.float32)
    arrays_ = {"hidden": flat[None], "key": flat[None], "value": flat, "q_weight": flat, "k_weight": flat}
    np.savez(tmp_path / "gate.npz", **arrays_, gate=flat[:, :1])
    monkeypatch.setattr(arrays.os, "sysconf", lambda name: 1)
    assert "memory of 1 bytes" in cli.refused(tmp_path, "check", "gate", tmp_path / "gate.npz").expected


def test_a_name_between_colons_stays_as_it_is(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / ":smile:").write_text("5")
    (tmp_path / "sums").write_text(f"{'00' * 32}  {tmp_path}/:smile:\n")
    assert b":smile:: expected " in cli("hash", "--check", tmp_path / "sums").out


DURING_IMPORT = """
import os, sys
class Struck:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), int(sys.argv[1]))
sys.meta_path.insert(0, Struck())
from engramctl.__main__ import main
main()
"""


@pytest.mark.parametrize(("number", "word", "code"), [(2, "interrupted", 130), (15, "terminated", 143)])
def test_a_signal_while_the_program_starts_is_one_line_too(number: int, word: str, code: int) -> None:
    done = python(DURING_IMPORT, number)
    assert (done.returncode, done.stdout, done.stderr.decode()) == (code, b"", f"engramctl: {word}\n")
