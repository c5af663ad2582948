"""How long a command takes to start, beside the imports that it cannot avoid: whole processes, in turn, as ratios.

    python benchmarks/startup.py [--runs 7] [--json]

Each command is run once unmeasured, then `runs` times in round-robin: the machine's drift meets all of them alike.
A first start finds no compiled kernels and keeps what it compiles, a second one finds them, one without a cache can
keep nothing. The processor's seconds change less on a busy machine than the wall's; both are shown.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

PYTHON = [sys.executable]
ENGRAMCTL = [sys.executable, "-m", "engramctl"]
WARM = """
from engramctl import fast, profiles, published
import numpy as np
fast.hash_rows(np.arange(10), published(profiles.load()))
"""
STREAMS, HIDDEN = 4, 64  # of what `synth` makes


@dataclass(frozen=True)
class Command:
    """What is run, what it is compared with, the imports that it needs whatever it does, and the kernels it finds."""

    words: list[str]
    base: str
    cache: Literal["filled", "empty", "none"] = "filled"

    def environment(self, folder: Path) -> dict[str, str]:
        """`filled` is shared by all; `empty` is new each time; below a file nothing can be made."""
        where = {"filled": folder / "cache", "empty": folder, "none": folder / "ids.txt"}[self.cache]
        if self.cache == "empty":
            where = Path(tempfile.mkdtemp(dir=folder))
        return {**os.environ, "XDG_CACHE_HOME": str(where)}


def commands(folder: Path) -> dict[str, Command]:
    ids, states = folder / "ids.txt", folder / "hidden.npy"
    ids.write_text(" ".join(map(str, range(20_000))))
    np.save(states, np.ones((3, STREAMS, HIDDEN), np.float32))
    subprocess.run([*ENGRAMCTL, "synth", str(folder / "ckpt"), "--quiet"], check=True)
    subprocess.run([*ENGRAMCTL, "repack", str(folder / "ckpt"), "-o", str(folder / "e.gguf"), "--quiet"], check=True)
    typer, numpy, numba = "import typer", "import typer, numpy", "numba: one cached kernel"
    container = str(folder / "e.gguf")
    simple = {
        "python -c pass": ([*PYTHON, "-c", "pass"], "python -c pass"),
        typer: ([*PYTHON, "-c", typer], typer),
        "import typer, rich.console": ([*PYTHON, "-c", "import typer, rich.console"], typer),
        numpy: ([*PYTHON, "-c", numpy], numpy),
        "import numba": ([*PYTHON, "-c", "import numba"], "import numba"),
        numba: ([*PYTHON, "-c", WARM], "import numba"),
        "engramctl --help": ([*ENGRAMCTL, "--help"], typer),
        "engramctl hash --help": ([*ENGRAMCTL, "hash", "--help"], typer),
        "engramctl check hash --help": ([*ENGRAMCTL, "check", "hash", "--help"], typer),
        "engramctl hash --ids 0,3,42": ([*ENGRAMCTL, "hash", "--ids", "0,3,42"], numpy),
        "engramctl profiles": ([*ENGRAMCTL, "profiles"], numpy),
    }
    compiled = {
        "hash, 20,000 ids": ["hash", str(ids), "--to", "sha256"],
        "lookup, 3 rows": ["lookup", container, "--layer", "1", "--rows", "0,5,9"],
        "run, 3 tokens": ["run", container, "--layer", "1", "--ids", "0,5,9", "--hidden", str(states)],
    }
    some = {name: Command(*each) for name, each in simple.items()}
    for name, words in compiled.items():
        some[f"engramctl {name}, first start"] = Command([*ENGRAMCTL, *words], numpy, "empty")
        some[f"engramctl {name}, second start"] = Command([*ENGRAMCTL, *words], numpy)
        some[f"engramctl {name}, no cache"] = Command([*ENGRAMCTL, *words], numpy, "none")
    return some


def measure(some: dict[str, Command], folder: Path, runs: int) -> tuple[dict[str, float], dict[str, float]]:
    """Median seconds of each command, of the processor and of the wall."""
    busy: dict[str, list[float]] = {name: [] for name in some}
    wall: dict[str, list[float]] = {name: [] for name in some}
    for turn in range(runs + 1):
        for name, command in some.items():
            there = command.environment(folder)
            start, before = time.perf_counter(), _used()
            subprocess.run(command.words, check=True, stdout=subprocess.DEVNULL, env=there)
            if turn:
                wall[name].append(time.perf_counter() - start)
                busy[name].append(_used() - before)
    return tuple({name: statistics.median(found) for name, found in each.items()} for each in (busy, wall))  # type: ignore[return-value]


def _used() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="engramctl-startup-") as folder:
        some = commands(Path(folder))
        busy, wall = measure(some, Path(folder), given.runs)
    if given.json:
        against = {name: command.base for name, command in some.items()}
        report = {"unit": "seconds, median", "runs": given.runs, "processor": busy, "wall": wall, "against": against}
        print(json.dumps(report, indent=1))
        return
    for name, command in some.items():
        base = command.base
        print(
            f"{name:42} {busy[name] * 1000:6.0f} ms busy {wall[name] * 1000:6.0f} ms wall   "
            f"{busy[name] / busy[base]:5.2f} x ({wall[name] / wall[base]:.2f} x) {base}"
        )


if __name__ == "__main__":
    main()
