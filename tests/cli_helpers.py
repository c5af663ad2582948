"""One command line, in this process or in its own, and what came of it."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ERROR = re.compile(r"engramctl: error: (\S.*): expected (\S.*), found (\S.*)")
HINT = re.compile(r"engramctl: hint: \S.*[^.]")
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Outcome:
    """Exit code, standard output and standard error."""

    code: int
    out: bytes
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object that standard output holds, and nothing that JSON does not know."""
        report = json.loads(self.out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
        assert isinstance(report, dict)
        return report


@dataclass(frozen=True)
class Refusal:
    """The parts of an error line."""

    where: str
    expected: str
    found: str
    hint: str


class Cli:
    """`engramctl` in this process; nothing but the process's own streams is replaced."""

    def __init__(self, capture: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        self.capture, self.monkeypatch = capture, monkeypatch

    def __call__(self, *words: object, stdin: bytes = b"") -> Outcome:
        from engramctl.cli.main import run

        self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        before, files = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}, open_files()
        self.capture.readouterr()
        try:
            code = run([str(word) for word in words])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        sys.stdout.flush()
        out, err = self.capture.readouterr()
        assert open_files() == files, "files were left open"
        return Outcome(code, out, err.decode())

    def ok(self, *words: object, stdin: bytes = b"") -> Outcome:
        """A command that must do what it was asked."""
        outcome = self(*words, stdin=stdin)
        assert outcome.code == 0, outcome.err
        assert "error" not in outcome.err
        return outcome

    def refused(self, folder: Path, *words: object, stdin: bytes = b"") -> Refusal:
        """A command that must say no: exit code 2, one line and perhaps a hint, `folder` as it was before."""
        before = snapshot(folder)
        outcome = self(*words, stdin=stdin)
        assert snapshot(folder) == before, "something was left behind, or changed"
        assert outcome.code == 2, (outcome.code, outcome.err)
        refusal = parse(outcome.err)
        if "--json" in words:
            report = outcome.json
            assert report["ok"] is False
            assert re.fullmatch(r"engramctl/[a-z-]+/1", report["schema"])
            assert report["error"] == {"where": refusal.where, "expected": refusal.expected, "found": refusal.found}
        else:
            assert outcome.out == b""
        return refusal

    def refused_twice(self, folder: Path, *words: object, stdin: bytes = b"") -> Refusal:
        """The same for people and for scripts."""
        plain = self.refused(folder, *words, stdin=stdin)
        assert self.refused(folder, *words, "--json", stdin=stdin) == plain
        return plain


def parse(err: str) -> Refusal:
    """Exactly one error line, and at most one hint."""
    lines = err.splitlines()
    assert 1 <= len(lines) <= 2, err
    match = ERROR.fullmatch(lines[0])
    assert match, lines[0]
    assert not lines[0].endswith("."), lines[0]
    assert all(HINT.fullmatch(line) for line in lines[1:]), err
    return Refusal(*match.groups(), lines[1].removeprefix("engramctl: hint: ") if lines[1:] else "")


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below a folder, its size and when it was written."""
    found = [path for path in sorted(folder.rglob("*")) if not path.is_dir()]
    return {str(path.relative_to(folder)): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in found}


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0  # noqa: PTH208


def process(*words: object, **more: Any) -> subprocess.CompletedProcess[bytes]:  # noqa: ANN401
    """`python -m engramctl` to its end."""
    command = [sys.executable, "-m", "engramctl", *map(str, words)]
    return subprocess.run(command, cwd=more.pop("cwd", ROOT), capture_output=True, check=False, timeout=120, **more)


def python(code: str, *words: object, **more: Any) -> subprocess.CompletedProcess[bytes]:  # noqa: ANN401
    """A Python program of a few lines to its end; warnings are errors there too."""
    command = [sys.executable, "-W", "error", "-c", code, *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=120, **more)


PEAK = """
import sys
from engramctl.cli.main import run
code = run(sys.argv[1:])
with open("/proc/self/status") as status:
    peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
sys.stderr.write(f"peak {peak}\\n")
sys.exit(code)
"""


def peak_bytes(*words: object) -> int:
    """The most memory a command was resident with, file pages included; it must succeed."""
    done = python(PEAK, *words)
    assert done.returncode == 0, done.stderr.decode()
    return int(done.stderr.split()[-1]) * 1024


Copy = Callable[[Path], Path]
