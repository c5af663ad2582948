"""The evidence for where a table lies: cold and warm rows against serial reads, fio and NumPy; a prefill against torch.

    python benchmarks/io.py [--folder DIR] [--gigabytes 4] [--rounds 7] [--json FILE]

Everything that is compared is measured in turns within one run. Cold means dropped and seen to be gone. fio and torch
are used where they are installed; without them their lines are missing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from engramctl import repack, repack_plan
from engramctl.bench import cold, lookups, stages
from engramctl.checkpoint import open_checkpoint
from engramctl.source import open_source
from engramctl.table import Part, Table
from formats.disk import ReadFile
from formats.row264 import ROW_BYTES, WIDTH

sys.path.insert(0, str(Path(__file__).parent))
import large

PIECE = 1 << 18  # rows written at a time
ROWS, TOKEN_ROWS, TOKENS = 20_000, 48, 512


def write_table(path: Path, size: int) -> int:
    """A file of about `size` bytes of valid random rows; how many."""
    rng, rows = np.random.default_rng(1), size // ROW_BYTES
    with path.open("wb") as file:
        for first in range(0, rows, PIECE):
            piece = rng.integers(0, 256, (min(PIECE, rows - first), ROW_BYTES), dtype=np.uint8)
            piece[:, :WIDTH][piece[:, :WIDTH] & 0x7F == 0x7F] = 0
            piece[:, WIDTH:] = 119 + piece[:, WIDTH:] % 2
            file.write(piece.tobytes())
    return rows


def fio(path: Path, seconds: float) -> float | None:
    """Random 4 KiB reads a second at queue depth 64, uncached, by a tool that does nothing else."""
    if shutil.which("fio") is None:
        return None
    for engine in ("io_uring", "libaio"):
        words = [
            "fio", "--name=randread", f"--filename={path}", "--rw=randread", "--bs=4k", "--direct=1", "--readonly",
            f"--ioengine={engine}", "--iodepth=64", "--time_based", f"--runtime={seconds}", "--output-format=json",
        ]  # fmt: skip
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return float(json.loads(done.stdout)["jobs"][0]["read"]["iops"])
    return None


def in_turns(rounds: int, works: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Each work's own measure, all of them once a round."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            found[name].append(work())
    return found


def cold_rates(table: Table, path: Path, rounds: int) -> Iterator[dict[str, Any]]:
    """Rows a second, nothing in memory."""
    rows = lookups.pick(table, ROWS)
    readers = {io: lookups._cold_reader(table, rows, io) for io in ("pread", "direct", "mmap")}

    def rate(work: Callable[[], None], count: int) -> float:
        cold.make_cold(table, rows)
        start = time.perf_counter()
        work()
        return count / (time.perf_counter() - start)

    some = rows[: ROWS // 4]
    works: dict[str, Callable[[], float]] = {
        "serial pread": lambda: rate(lookups.serial(table, some.tolist()), some.size)
    }
    for io, work in readers.items():
        if io != "mmap":
            works[f"--io {io}"] = lambda work=work: rate(work, rows.size)
    mapped = lookups._cold_reader(table, some, "mmap")
    works["--io mmap"] = lambda: rate(mapped, some.size)
    if fio(path, 0.5) is not None:
        works["fio, queue depth 64"] = lambda: fio(path, 1.5) or 0.0
    for work in readers.values():
        work()
    found = in_turns(rounds, works)
    yield from _lines("cold random rows", found, "rows/s", better=max)


def token_times(table: Table, rounds: int) -> Iterator[dict[str, Any]]:
    """Milliseconds for one token's rows, nothing in memory."""
    all_rows = lookups.pick(table, TOKEN_ROWS * rounds)
    works: dict[str, Callable[[], float]] = {}
    with table.placed("pread") as pread, table.placed("direct") as direct:
        tables = {"--io pread": pread, "--io direct": direct}

        def timed(name: str, number: list[int]) -> float:
            rows = all_rows[TOKEN_ROWS * number[0] :][:TOKEN_ROWS]
            number[0] += 1
            cold.make_cold(table, rows)
            work = lookups.serial(table, rows.tolist()) if name == "serial pread" else None
            start = time.perf_counter()
            if work is None:
                tables[name].read(rows)
            else:
                work()
            return 1e3 * (time.perf_counter() - start)

        for name in ("serial pread", *tables):
            works[name] = lambda name=name, number=[0]: timed(name, number)
        found = in_turns(rounds, works)
    yield from _lines("one cold token", found, "ms", better=min)


def _lines(
    case: str, found: dict[str, list[float]], unit: str, better: Callable[..., float]
) -> Iterator[dict[str, Any]]:
    for name, values in found.items():
        yield {
            "case": case, "by": name, "unit": unit, "best": better(values), "middle": statistics.median(values),
            "all": values,
        }  # fmt: skip


def from_bench(lines: Iterator[Any]) -> Iterator[dict[str, Any]]:
    for line in lines:
        unit = "ms" if line.group == "pipeline" else f"{line.unit}/s"
        best, middle = line.rate, line.amount / line.middle
        if unit == "ms":
            best, middle = 1e3 * line.best, 1e3 * line.middle
        yield {
            "case": f"{line.group}: {line.case}",
            "by": line.candidate,
            "unit": unit,
            "best": best,
            "middle": middle,
            "busy": line.busy,
        }


def prefill(folder: Path, rounds: int) -> Iterator[dict[str, Any]]:
    """A token and many, through the whole pipeline from a warm mapped table."""
    print("a prefill", flush=True)
    large.wide(folder / "ckpt")
    with open_checkpoint(folder / "ckpt") as source:
        repack.write(repack_plan.plan(source, "f16"), folder / "engram.gguf")
    with open_source(folder / "engram.gguf") as source:
        yield from from_bench(stages.whole(source, source.sizes.layers[:1], (1, TOKENS), rounds))


def targets(lines: list[dict[str, Any]]) -> list[tuple[str, float, float]]:
    """(what, the ratio found between the medians, the ratio asked for)."""
    middle = {(line["case"], line["by"]): line["middle"] for line in lines}
    best = {(line["case"], line["by"]): line["best"] for line in lines}
    busy = {(line["case"], line["by"]): line.get("busy", 0.0) for line in lines}
    cold_case, token, warm, prefill = (
        "cold random rows", "one cold token", "lookup: warm rows", f"pipeline: {TOKENS} tokens"
    )  # fmt: skip
    asked = [
        ("cold rows, --io pread over serial", cold_case, "--io pread", "serial pread", 8.0),
        ("cold rows, --io pread over fio", cold_case, "--io pread", "fio, queue depth 64", 0.8),
        ("one cold token, serial over --io pread", token, "serial pread", "--io pread", 5.0),
        ("warm gather, --io mmap over NumPy take", warm, "--io mmap", "NumPy take", 1.0),
        ("warm gather, --io ram over NumPy take", warm, "--io ram", "NumPy take", 1.0),
        ("512 tokens, torch eager over engramctl", prefill, "torch eager", "engramctl --io mmap", 2.0),
    ]
    found = []
    for what, case, over, under, least in asked:
        if (case, over) in middle and (case, under) in middle:
            found.append((f"{what}, medians", middle[case, over] / middle[case, under], least))
            found.append((f"{what}, best", best[case, over] / best[case, under], least))
            if case == warm:
                found.append((f"{what}, processor time", busy[case, under] / busy[case, over], least))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows-only", action="store_true", help="no prefill")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="engramctl-io-", dir=given.folder) as name:
        folder = Path(name)
        rows = write_table(folder / "rows", int(given.gigabytes * 1e9))
        with ReadFile.open(folder / "rows") as file:
            table = Table(1, rows, (Part(file, 0, ROW_BYTES),))
            print("cold rows", flush=True)
            lines += cold_rates(table, folder / "rows", given.rounds)
            print("cold tokens", flush=True)
            lines += token_times(table, 8 * given.rounds)
            print("warm rows", flush=True)
            lines += from_bench(lookups.warm(table, ROWS * 5, given.rounds))
        (folder / "rows").unlink()
        if not given.rows_only:
            lines += prefill(folder, max(3, given.rounds // 2))
    print()
    for line in lines:
        print(f"{line['case']:28} {line['by']:28} {line['best']:14,.2f} {line['middle']:14,.2f} {line['unit']}")
    print()
    verdicts = targets(lines)
    for what, ratio, least in verdicts:
        print(f"{what:55} {ratio:7.2f}  asked {least:4.1f}  {'met' if ratio >= least else 'MISSED'}")
    if given.json:
        given.json.write_text(json.dumps({"lines": lines, "targets": verdicts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
