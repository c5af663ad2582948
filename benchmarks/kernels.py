"""The compiled kernels beside NumPy and torch, in one process: every path this machine can run, and its ceilings.

    .venv/bin/python benchmarks/kernels.py --json kernels.json [--only projection]

Real width: 25,600 outputs, 6,144 inputs, 4 streams of 5,120. Each peer is compared with ours before it is timed. Every
call is warmed up twice, since memory that was idle is slow at first, and every library's threads are let settle.
`--only` measures some groups anew, and leaves the others as the file has them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numba
import numpy as np

from engramctl import threads
from engramctl.bench import peers
from engramctl.bench.measure import Line
from engramctl.fast import cpu
from formats.row264 import ROW_BYTES, WIDTH

sys.path.insert(0, str(Path(__file__).parent))
import ceilings
import kernel_cases
import targets
from kernel_cases import BIG, CHAINED, COLUMNS, DRAWN, HASHED, MANY, PREPACKED, ROWS, TOKENS, D, K, N, S, rows_of
from measuring import table
from targets import Target, Work

WEIGHT = N * K + N * K / 1024  # bytes of codes and scales


def asked(path: str) -> list[Target]:
    """What was asked for on a machine with AMX, and the bytes and FLOP that it takes."""
    eager, by_hand, thread = "torch eager", "torch by hand", "engramctl, 1 thread"
    row = Work(reads=ROW_BYTES, writes=2 * WIDTH)
    hashed = Work(reads=8, writes=8 * COLUMNS)
    gated = Work(reads=2 * (2 * S + 1) * D, writes=2 * S * D)
    both = Work(reads=COLUMNS * ROW_BYTES + 2 * gated.reads, sums=4 * N * K, once=2 * WEIGHT)
    many, near_by, drawn = rows_of(MANY), rows_of(ROWS, "in cache"), rows_of(DRAWN, f"of {BIG:,}")
    ids = f"{HASHED:,} tokens, {COLUMNS} rows each"
    return [
        *_projections(f"{path} E4M3"),
        Target("row decode, large", "torch", "decode", (many,), "engramctl", "torch", 20, row),
        Target("row decode, in cache", "torch", "decode", (near_by,), "engramctl", "torch", 60),
        Target("gather and decode", "torch", "gather, decode", (drawn,), "engramctl", "torch", 15, row),
        Target("hash, one thread", "NumPy", "hash", (ids,), "engramctl int64, 1 thread", "NumPy", 15, hashed, 1),
        Target("hash, one thread", "torch", "hash", (ids,), "engramctl int64, 1 thread", "torch", 8, hashed, 1),
        Target("gate, one thread", by_hand, "gate", ("512 tokens",), thread, by_hand, 4, gated, 1),
        Target("stages chained", eager, "pipeline", (f"{CHAINED} tokens",), "engramctl --io ram", eager, 2, both),
    ]


def _projections(ours: str) -> Iterator[Target]:
    work, linear = Work(reads=2 * (N + K), sums=2 * N * K, once=WEIGHT), "torch BF16"
    few = tuple(count for count in TOKENS if count <= PREPACKED)
    for counts, peer, least in (
        ((1,), linear, 2.8), ((1,), None, 0.85), ((2, 4, 16), linear, 1.9), ((32, 64), linear, 2.2),
        ((128,), linear, 1.3), ((512,), linear, 1.15), (few, "torch BF16 prepacked", 1.8),
    ):  # fmt: skip
        tokens = "-".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
        cases = tuple(f"{count} tokens" for count in counts)
        against = peer or "reading, all threads"
        yield Target(f"projection, {tokens} tokens", against, "projection", cases, ours, peer, least, work)


GROUPS = ("ceilings", "projection", "rows", "hash", "gate", "chain")
BY_GROUP = {
    "memory": "ceilings", "multipliers": "ceilings", "decode": "rows", "gather, decode": "rows", "pipeline": "chain",
}  # fmt: skip


def kept(path: Path | None, only: list[str] | None) -> list[Line]:
    """What an earlier run found of the groups that are not measured now."""
    if path is None or not only or not path.exists():
        return []
    names = [field.name for field in fields(Line)]
    lines = [Line(**{name: line[name] for name in names}) for line in json.loads(path.read_text())["lines"]]
    return [line for line in lines if BY_GROUP.get(line.group, line.group) not in only]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=threads.count())
    parser.add_argument("--only", choices=GROUPS, action="append")
    given = parser.parse_args()
    threads.use(given.threads)
    t = peers.torch()
    if t is not None:
        t.set_num_threads(given.threads)
    cases = {
        "ceilings": lambda: ceilings.measured(N * K, given.rounds, t),
        "projection": lambda: kernel_cases.projections(given.rounds, t),
        "rows": lambda: kernel_cases.rows(given.rounds, t),
        "hash": lambda: kernel_cases.hashing(given.rounds, t),
        "gate": lambda: kernel_cases.gating(given.rounds, t),
        "chain": lambda: kernel_cases.chained(given.rounds),
    }
    lines = kept(given.json, given.only)
    for name in given.only or GROUPS:
        lines += cases[name]()
        time.sleep(0.3)
    machine = {
        "processor": cpu.target()[0],
        "features": sorted(f for f in cpu.features() if f.startswith(("avx", "amx", "fma", "f16c"))),
        "threads": given.threads,
        "kernel": cpu.choose("auto"),
        "date": time.strftime("%Y-%m-%d"),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "torch": None if t is None else str(t.__version__),
    }
    facts = (f"{name} {' '.join(value) if isinstance(value, list) else value}" for name, value in machine.items())
    print("; ".join(facts), end="\n\n")
    shown = [
        [line.group, line.case, line.candidate, f"{line.best * 1e3:,.3f}", f"{line.middle * 1e3:,.3f}", _rate(line),
         f"{line.ratio:,.2f} x {line.peer}"]
        for line in lines
    ]  # fmt: skip
    print(table(["work", "case", "by", "best ms", "middle ms", "rate", "as fast as"], shown), end="\n\n")
    wanted = asked(cpu.choose("auto"))
    verdicts = list(targets.found(wanted, lines, ceilings.Ceilings(lines, given.threads)))
    print(table(targets.HEADINGS, targets.shown(verdicts)))
    if given.json:
        report = {"machine": machine, "lines": [line.as_dict() for line in lines], "targets": verdicts}
        given.json.write_text(json.dumps(report, indent=1) + "\n")


def _rate(line: Line) -> str:
    if line.group == "projection":
        return f"{2 * line.amount * N * K / line.best / 1e9:,.0f} GF/s"
    if line.unit in ("bytes", "FLOP"):
        return f"{line.rate / 1e9:,.1f} {'GB' if line.unit == 'bytes' else 'GF'}/s"
    return f"{line.rate / 1e6:,.3f} M {line.unit}/s"


if __name__ == "__main__":
    main()
