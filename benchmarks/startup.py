"""How long a command takes to start, beside the imports that it cannot avoid: whole processes, in turn, as ratios.

    python benchmarks/startup.py [--runs 7] [--json]

Each command is run once unmeasured, then `runs` times in round-robin: the machine's drift meets all of them alike.
Seconds are of the processor, which a busy machine changes less than the wall's; both are in the JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PYTHON = [sys.executable]
ENGRAMCTL = [sys.executable, "-m", "engramctl"]
WARM = """
from engramctl import fast, profiles, published
import numpy as np
fast.hash_rows(np.arange(10), published(profiles.load()))
"""


def commands(folder: Path) -> dict[str, tuple[list[str], str]]:
    """Each command, and what it is compared with: the imports that it needs whatever it does."""
    ids = folder / "ids.txt"
    ids.write_text(" ".join(map(str, range(20_000))))
    subprocess.run([*ENGRAMCTL, "synth", str(folder / "ckpt"), "--quiet"], check=True)
    subprocess.run([*ENGRAMCTL, "repack", str(folder / "ckpt"), "-o", str(folder / "e.gguf"), "--quiet"], check=True)
    typer, numpy, numba = "import typer", "import typer, numpy", "numba: one cached kernel"
    return {
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
        "engramctl lookup, 3 rows": (
            [*ENGRAMCTL, "lookup", str(folder / "e.gguf"), "--layer", "1", "--rows", "0,5,9"],
            numpy,
        ),
        "engramctl hash, 20,000 ids": ([*ENGRAMCTL, "hash", str(ids), "--to", "sha256"], numba),
        "engramctl profiles": ([*ENGRAMCTL, "profiles"], numpy),
    }


def measure(some: dict[str, tuple[list[str], str]], runs: int) -> tuple[dict[str, float], dict[str, float]]:
    """Median seconds of each command, of the processor and of the wall."""
    busy: dict[str, list[float]] = {name: [] for name in some}
    wall: dict[str, list[float]] = {name: [] for name in some}
    for turn in range(runs + 1):
        for name, (command, _) in some.items():
            start, before = time.perf_counter(), _used()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
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
        busy, wall = measure(some, given.runs)
    if given.json:
        report = {"unit": "seconds, median", "runs": given.runs, "processor": busy, "wall": wall}
        print(json.dumps(report, indent=1))
        return
    for name, (_, base) in some.items():
        print(
            f"{name:30} {busy[name] * 1000:6.0f} ms busy {wall[name] * 1000:6.0f} ms wall   "
            f"{busy[name] / busy[base]:5.2f} x {base}"
        )


if __name__ == "__main__":
    main()
