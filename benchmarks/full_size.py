"""Real rows by the gigabyte, and the release's full size: peak memory, throughput against cp, and slices that compose.

    .venv/bin/python benchmarks/full_size.py --disk /var/tmp/full --json full_size.json

Takes about 2.2 times --gib on the disk while it runs, and removes it again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import large
from measuring import make_cold, ratio, resident, rounds, sync, table, timed

from formats import row264

LIMIT = 400_000_000  # bytes that may be resident at most
LINES = [line // row264.ROW_BYTES for line in (2**31, 2**32, 2**33)]  # rows in which those bytes lie
PEAK = """
import sys
from engramctl.cli.main import run
code = run(sys.argv[1:])
with open("/proc/self/status") as status:
    sys.stderr.write("peak " + next(line.split()[1] for line in status if line.startswith("VmHWM")) + "\\n")
sys.exit(code)
"""
peaks: dict[str, int] = {}


def engramctl(name: str, *words: object) -> str:
    """One command in a process of its own; its peak memory is noted, its standard output given back."""
    command = [sys.executable, "-c", PEAK, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr}")
    peaks[name] = max(peaks.get(name, 0), int(done.stderr.split()[-1]) * 1024)
    return done.stdout


def real(folder: Path, gib: float, count: int) -> dict[str, Any]:
    """Tables of real rows: throughput against cp, cold, fsync included; what stays in the page cache."""
    checkpoint, output, copy = folder / "ckpt", folder / "made.gguf", folder / "copy"
    size = large.make(checkpoint, gib) * row264.ROW_BYTES
    shards = sorted(checkpoint.glob("*.safetensors"))
    left: list[float] = []

    def by_cp() -> float:
        output.unlink(missing_ok=True)
        make_cold(shards)

        def run() -> None:
            copy.mkdir()
            subprocess.run(["cp", "--reflink=never", *map(str, shards), str(copy)], check=True)
            for path in copy.iterdir():
                sync(path)

        seconds = timed(run)
        shutil.rmtree(copy)
        return seconds

    def by_us() -> float:
        output.unlink(missing_ok=True)
        make_cold(shards)
        seconds = timed(lambda: engramctl("repack", "repack", checkpoint, "-o", output, "--digest", "tree", "-q"))
        files = [*shards, output]
        left.append(
            sum(resident(path) * path.stat().st_size for path in files) / sum(path.stat().st_size for path in files)
        )
        return seconds

    taken = rounds({"cp": by_cp, "repack --digest tree": by_us}, count)
    if not output.exists():
        by_us()
    make_cold([*shards, output])
    start = time.perf_counter()
    engramctl("check packing", "check", "packing", checkpoint, output, "--digest", "tree", "-q")
    checked = time.perf_counter() - start
    output.unlink()
    shutil.rmtree(checkpoint)
    return {"bytes": size, "seconds": taken, "check": checked, "resident": max(left)}


def sparse(folder: Path) -> None:
    """The release's sizes: plan, slices around the lines that 32-bit offsets break at, merge, check."""
    checkpoint, whole, merged = folder / "sparse", folder / "whole.gguf", folder / "merged.gguf"
    engramctl("synth", "synth", checkpoint, "--full-size", "--tokens", "real", "-q")
    plan = json.loads(engramctl("plan", "repack", checkpoint, "--dry-run", "--json"))
    digests = engramctl("repack, sparse", "repack", checkpoint, "-o", whole, "--digest", "tree", "-q")
    tables = [tensor for tensor in plan["tensors"] if tensor["type"] == "I8"]
    for layer, tensor in zip(plan["layers"], tables, strict=True):
        edges = [0, *sorted(LINES), *(row + 1 for row in LINES), tensor["shape"][1]]
        for first, last in zip(sorted(edges), sorted(edges)[1:], strict=False):
            some = ("--layer", layer, "--rows", f"{first}:{last}")
            engramctl("slice", "repack", checkpoint, "-o", merged, *some, "--digest", "tree", "-q")
    if engramctl("merge", "repack", checkpoint, "-o", merged, "--merge", "--digest", "tree", "-q") != digests:
        raise SystemExit("the merged tables have another digest")
    for one, other in ((checkpoint, merged), (whole, merged)):
        report = json.loads(engramctl("check, sparse", "check", "packing", one, other, "--digest", "tree", "--json"))
        if sorted(report["digests"].values()) != sorted(line.split()[0] for line in digests.splitlines()):
            raise SystemExit("check packing found another digest")
    if merged.stat().st_blocks * 512 > 64 << 20:
        raise SystemExit("the holes were filled")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disk", type=Path, required=True, help="a folder on a disk, made and removed again")
    parser.add_argument("--gib", type=float, default=8.2, help="of rows")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    asked.disk.mkdir(parents=True)
    try:
        found = real(asked.disk, asked.gib, asked.rounds)
        sparse(asked.disk)
    finally:
        shutil.rmtree(asked.disk)
    lines = []
    for name, seconds in found["seconds"].items():
        if name.endswith(": processor"):
            continue
        middle, best = ratio(found["seconds"], name, "cp")
        lines.append([name, f"{found['bytes'] / min(seconds) / 1e9:.2f}", f"{middle:.2f} ({best:.2f})"])
    lines.append(["check packing (of both files)", f"{2 * found['bytes'] / found['check'] / 1e9:.2f}", ""])
    print(table([f"{found['bytes'] / 2**30:.1f} GiB of rows, cold, fsync", "GB/s", "against cp, median (best)"], lines))
    print()
    print(table(["command", "peak memory, MB"], [[name, f"{peak / 1e6:.0f}"] for name, peak in peaks.items()]))
    print(f"\nat most {found['resident']:.1%} of what was read and written stays in the page cache after repack")
    if asked.json:
        asked.json.write_text(json.dumps(found | {"peaks": peaks}, indent=1) + "\n")
    if max(peaks.values()) > LIMIT:
        raise SystemExit(f"more than {LIMIT / 1e6:.0f} MB were resident")


if __name__ == "__main__":
    main()
