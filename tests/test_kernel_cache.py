"""Compiled kernels are kept, never stale and never in the way: no folder, a broken file, a fork, several at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOOKUP = """
import numpy as np
from engramctl.fast import cache, lookup
from engramctl.fast.cpu import vectors
from engramctl.fast.decode import lookups
rows = np.zeros((1, 264), np.uint8); rows[0, :256], rows[0, 256:] = 0x38, 120
assert (lookup(rows) == 0x3C00).all()
stats = lookups[vectors()]._compiled.stats
print(cache.FOLDER, *(sum(getattr(stats, "cache_" + kind).values()) for kind in ("hits", "misses")))
"""
PROJECT = """
import numpy as np
from engramctl.fast import hold, project
one = np.full((1, 1), 0x3F80, np.uint16)
print(project(one, hold(one, "portable")).item())
"""


def start(code: str, home: Path, source: Path = ROOT, **environment: str) -> subprocess.Popen[str]:
    keep = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
    keep |= {"XDG_CACHE_HOME": str(home), "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"} | environment
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.Popen(command, env=keep, cwd=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> list[str]:
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    return out.split()


def run(code: str, home: Path, source: Path = ROOT, **environment: str) -> list[str]:
    return finish(start(code, home, source, **environment))


def test_several_processes_fill_the_cache_at_once_and_the_next_one_reads_it(tmp_path: Path) -> None:
    first = [finish(process) for process in [start(LOOKUP, tmp_path) for _ in range(3)]]
    folders = {folder for folder, *_ in first}
    assert len(folders) == 1
    assert Path(folders.pop()).parent == tmp_path / "engramctl"
    assert run(LOOKUP, tmp_path)[1:] == ["1", "0"]
    for file in (tmp_path / "engramctl").rglob("*.nb[ic]"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])  # a copy cut short
    run(LOOKUP, tmp_path)


def test_an_edited_helper_is_compiled_anew(tmp_path: Path) -> None:
    """The helper is in another file than the kernel, which is all that Numba itself would look at."""
    for package in ("engramctl", "formats"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    assert run(PROJECT, tmp_path / "home", tmp_path) == [str(0x3F80)]
    bits = tmp_path / "engramctl" / "fast" / "bits.py"
    before = bits.read_text()
    bits.write_text(before.replace("np.uint32(0x7FFF)", "np.uint32(0x17FFF)"))
    assert bits.read_text() != before
    assert run(PROJECT, tmp_path / "home", tmp_path) == [str(0x3F81)]


@pytest.mark.parametrize("home", ["/dev/null/cache", "/proc/cache"])
def test_without_a_folder_that_can_be_written_kernels_still_run(home: str) -> None:
    assert run(LOOKUP, Path(home)) == ["None", "0", "1"]


def test_without_any_home_kernels_still_run(tmp_path: Path) -> None:
    found = run(LOOKUP, Path("relative"), HOME=str(tmp_path))
    assert Path(found[0]).parent == tmp_path / ".cache" / "engramctl"  # a relative XDG_CACHE_HOME is to be ignored


def test_a_users_own_numba_folder_is_left_alone(tmp_path: Path) -> None:
    code = LOOKUP + "import numba; print(numba.config.CACHE_DIR)"
    assert run(code, tmp_path / "ours", NUMBA_CACHE_DIR=str(tmp_path / "theirs"))[-1] == str(tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()


def test_a_forked_child_and_several_callers_at_once_are_served(tmp_path: Path) -> None:
    code = """
import os, warnings
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from engramctl import fast
fast.use_threads(2)
rows = np.zeros((9000, 264), np.uint8)
def right(_=None): return bool((fast.lookup(rows) == 0).all())
with ThreadPoolExecutor(4) as callers:
    assert all(callers.map(right, range(8)))
warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, about forking with threads
pid = os.fork()
if not pid:
    os._exit(0 if right() else 1)
print(os.waitpid(pid, 0)[1])
"""
    assert run(code, tmp_path) == ["0"]


def test_the_reference_does_not_import_numba(tmp_path: Path) -> None:
    code = "import sys, engramctl.reference; print('numba' in sys.modules, 'engramctl.fast' in sys.modules)"
    assert run(code, tmp_path) == ["False", "False"]
