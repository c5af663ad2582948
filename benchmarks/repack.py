"""repack and check packing against cp, cat and the ds4 converter's method, side by side in one run.

.venv/bin/python benchmarks/repack.py --disk /var/tmp/bench --tmpfs /dev/shm/bench --json repack.json
"""

from __future__ import annotations

import argparse
import ctypes
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import large
from measuring import libc, make_cold, make_warm, ratio, rounds, sync, table, timed

from engramctl import profiles, repack, repack_plan
from engramctl.checkpoint import open_checkpoint
from engramctl.fast import pack
from engramctl.repack import Options
from engramctl.verify import packing
from engramctl.verify.sides import open_side
from formats import row264

DS4_ROWS = 16384
RING_ROWS = 2048


def by_ds4(source: Path, output: Path, to_disk: bool) -> None:
    """As antirez/ds4 gguf-tools/deepseek41_quantize.py does: chunks of 16,384 rows, strided copies, two checks."""
    with open_checkpoint(source) as opened, output.open("wb") as out:
        for layer in opened.sizes.layers:
            codes, scales = opened.table(layer).parts
            with codes.file.path.open("rb") as one, scales.file.path.open("rb") as other:
                one.seek(codes.start)
                other.seek(scales.start)
                for first in range(0, opened.table(layer).rows, DS4_ROWS):
                    rows = min(DS4_ROWS, opened.table(layer).rows - first)
                    code = np.frombuffer(one.read(rows * row264.WIDTH), np.uint8).reshape(rows, row264.WIDTH)
                    scale = np.frombuffer(other.read(rows * row264.SCALES), np.uint8).reshape(rows, row264.SCALES)
                    if ((code & 0x7F) == 0x7F).any() or (scale == 255).any():
                        raise SystemExit("a row that is no number")
                    packed = np.empty((rows, row264.ROW_BYTES), np.uint8)
                    packed[:, : row264.WIDTH] = code
                    packed[:, row264.WIDTH :] = scale
                    out.write(packed.tobytes())
    if to_disk:
        sync(output)


def by_cp(sources: list[Path], output: Path, to_disk: bool) -> None:
    output.mkdir()
    subprocess.run(["cp", "--reflink=never", *map(str, sources), str(output)], check=True)
    if to_disk:
        for path in output.iterdir():
            sync(path)


def by_us(source: Path, output: Path, digest: str | None, threads: int | None) -> None:
    with open_checkpoint(source) as opened:
        repack.run(repack_plan.plan(opened), output, Options(digest=digest, threads=threads))


def by_cat(paths: list[Path]) -> None:
    subprocess.run(["cat", *map(str, paths)], check=True, stdout=subprocess.DEVNULL)


def by_check(source: Path, made: Path, digest: str | None) -> None:
    with ExitStack() as stack:
        known = profiles.load()
        want, have = (open_side(stack, path, known) for path in (source, made))
        if not packing.check(want, have, known, packing.Asked(digest=digest)).ok:
            raise SystemExit("the container differs")


def gone(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def conversions(folder: Path, cold: bool, to_disk: bool, count: int) -> dict[str, list[float]]:
    source, output = folder / "ckpt", folder / "out"
    shards = sorted(source.glob("*.safetensors"))

    def task(work: Callable[[], None]) -> Callable[[], float]:
        def run() -> float:
            gone(output)
            (make_cold if cold else make_warm)(shards)
            return timed(work)

        return run

    tasks = {
        "cp": task(lambda: by_cp(shards, output, to_disk)),
        "ds4": task(lambda: by_ds4(source, output, to_disk)),
        "repack": task(lambda: by_us(source, output, None, None)),
        "repack, 1 thread": task(lambda: by_us(source, output, None, 1)),
        "repack --digest tree": task(lambda: by_us(source, output, "tree", None)),
        "repack --digest sha256": task(lambda: by_us(source, output, "sha256", None)),
    }
    taken = rounds(tasks, count)
    gone(output)
    return taken


def checks(folder: Path, cold: bool, count: int) -> dict[str, list[float]]:
    source, made = folder / "ckpt", folder / "made.gguf"
    by_us(source, made, None, None)
    files = [*sorted(source.glob("*.safetensors")), made]

    def task(work: Callable[[], None]) -> Callable[[], float]:
        def run() -> float:
            (make_cold if cold else make_warm)(files)
            return timed(work)

        return run

    tasks = {
        "cat of both": task(lambda: by_cat(files)),
        "check packing": task(lambda: by_check(source, made, None)),
        "check packing --digest tree": task(lambda: by_check(source, made, "tree")),
    }
    taken = rounds(tasks, count)
    gone(made)
    return taken


def kernels(count: int) -> dict[str, list[float]]:
    """Out of memory into a ring that the cache holds, against memcpy of the same bytes to memory and into that ring."""
    rows = 1 << 20
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 0x7F, (rows, row264.WIDTH), np.uint8)
    scales = rng.integers(118, 122, (rows, row264.SCALES), np.uint8)
    source = rng.integers(0, 256, rows * row264.ROW_BYTES, np.uint8)
    copy, ring = np.ones_like(source), np.ones((RING_ROWS, row264.ROW_BYTES), np.uint8)
    libc.memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    pack.ready()

    def ours(pack_valid: Callable[..., object]) -> None:
        for first in range(0, rows, RING_ROWS):
            if pack_valid(codes[first : first + RING_ROWS], scales[first : first + RING_ROWS], ring) is not None:
                raise SystemExit("a row that is no number")

    def into_ring() -> None:
        for first in range(0, source.nbytes, ring.nbytes):
            libc.memcpy(ring.ctypes.data, source.ctypes.data + first, ring.nbytes)

    def third(work: Callable[[], object]) -> Callable[[], float]:
        def run() -> float:  # memory that was idle is slow at first: two passes that do not count
            work()
            work()
            return timed(work)

        return run

    tasks = {
        "memcpy": third(lambda: libc.memcpy(copy.ctypes.data, source.ctypes.data, source.nbytes)),
        "memcpy into the ring": third(into_ring),
        "kernel": third(lambda: ours(pack.pack_valid)),
        "NumPy": third(lambda: ours(row264.pack_valid)),
    }
    return rounds(tasks, count)


def report(title: str, taken: dict[str, list[float]], size: float, peers: list[str]) -> list[list[str]]:
    lines = []
    for name, seconds in taken.items():
        if name.endswith(": processor"):
            continue
        cells = [title, name, f"{size / min(seconds) / 1e9:.2f}", f"{min(taken[f'{name}: processor']):.2f}"]
        for peer in peers:
            middle, best = ratio(taken, name, peer)
            cells.append(f"{middle:.2f} ({best:.2f})")
        lines.append(cells + [""] * (2 - len(peers)))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disk", type=Path, help="a folder on a disk, made and removed again")
    parser.add_argument("--tmpfs", type=Path, help="a folder in memory, made and removed again")
    parser.add_argument("--gib", type=float, default=1.0, help="of rows")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    lines: list[list[str]] = []
    headings = ["what", "how", "GB/s, best", "processor, s", "against the first, median (best)", "against the second"]
    found["kernel"] = kernels(asked.rounds)
    size = (1 << 20) * row264.ROW_BYTES
    lines += report("kernel", found["kernel"], size, ["memcpy", "memcpy into the ring"])
    for name, folder in (("disk", asked.disk), ("tmpfs", asked.tmpfs)):
        if folder is None:
            continue
        folder.mkdir(parents=True)
        try:
            size = large.make(folder / "ckpt", asked.gib) * row264.ROW_BYTES
            for cold in (True, False) if name == "disk" else (False,):
                title = f"{name}, {'cold' if cold else 'warm'}"
                found[title] = conversions(folder, cold, name == "disk", asked.rounds)
                lines += report(title, found[title], size, ["cp", "ds4"])
                title = f"check, {title}"
                found[title] = checks(folder, cold, asked.rounds)
                lines += report(title, found[title], 2 * size, ["cat of both"])
        finally:
            shutil.rmtree(folder)
    print(table(headings, lines))
    if asked.json:
        asked.json.write_text(json.dumps({"rounds": asked.rounds, "gib": asked.gib, "seconds": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
