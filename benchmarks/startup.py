"""How long a command takes to start, beside the imports that it cannot avoid: whole processes, in turn, as ratios.

    python benchmarks/startup.py [--runs 7] [--json]

Each command is run once unmeasured, then `runs` times in round-robin: the machine's drift meets all of them alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

PYTHON = [sys.executable]
ENGRAMCTL = [sys.executable, "-m", "engramctl"]
COMMANDS = {
    "python -c pass": [*PYTHON, "-c", "pass"],
    "import typer": [*PYTHON, "-c", "import typer"],
    "import typer, rich.console": [*PYTHON, "-c", "import typer, rich.console"],
    "import numpy": [*PYTHON, "-c", "import numpy"],
    "import numba": [*PYTHON, "-c", "import numba"],
    "engramctl --help": [*ENGRAMCTL, "--help"],
    "engramctl hash --help": [*ENGRAMCTL, "hash", "--help"],
    "engramctl hash --ids 0,3,42": [*ENGRAMCTL, "hash", "--ids", "0,3,42"],
    "engramctl profiles": [*ENGRAMCTL, "profiles"],
}
BASE = "import typer"


def measure(runs: int) -> dict[str, float]:
    """Median seconds of each command."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for turn in range(runs + 1):
        for name, command in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure(given.runs)
    if given.json:
        print(json.dumps({"unit": "seconds, median", "runs": given.runs, "times": found}, indent=1))
        return
    for name, seconds in found.items():
        print(f"{name:30} {seconds * 1000:7.0f} ms   {seconds / found[BASE]:5.2f} x {BASE}")


if __name__ == "__main__":
    main()
