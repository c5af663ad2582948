"""The bench as a whole: which cases, on which file, how often."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engramctl import profiles, synth, threads
from engramctl.bench import advice, files, lookups, peers, stages
from engramctl.bench.measure import Line
from engramctl.errors import EngramctlError
from engramctl.fast import cpu
from engramctl.placement import memory
from engramctl.source import Source, open_source
from formats.os_errors import made_for

GROUPS = ("hash", "lookup", "projection", "gate", "pipeline", "repack")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Size:
    """How much is done: the usual, or enough to see that it works."""

    base: int  # of the made checkpoint's primes: its rows are about 24 times as many a layer
    hidden: int
    hashed: int
    rows: int
    batches: tuple[int, ...]
    rounds: int


USUAL = Size(20_000, 5120, 20_000, 20_000, (1, 16, 512), 5)
QUICK = Size(2_000, 256, 2_000, 2_000, (1, 16), 2)


def run(
    path: Path | None,
    layer: int | None,
    only: tuple[str, ...],
    quick: bool,
    folder: Path | None,
    say: Say,
    kernel: str = "auto",
) -> dict[str, Any]:
    """Everything, or the groups in `only`, on the file or on one that is made for it; facts for a report.

    `kernel` is how ours projects: auto, or a path that can run here.
    """
    for name in only:
        if name not in GROUPS:
            raise EngramctlError("--only", f"groups among {', '.join(GROUPS)}", f"{name!r:.40}")
    chosen = cpu.choose(kernel)  # refused before anything is made or read
    size, wanted = QUICK if quick else USUAL, only or GROUPS
    lines: list[Line] = []
    skipped: list[str] = []
    own = folder or Path(tempfile.gettempdir())
    with made_for(own), tempfile.TemporaryDirectory(prefix="engramctl-bench-", dir=own) as temporary:
        made = Path(temporary) / "ckpt"
        if path is None or "repack" in wanted:
            say(f"making a checkpoint in {temporary}")
            synth.make(made, profiles.load(), 1, real_tokens=True, full_size=False, base=size.base, hidden=size.hidden)
        if "repack" in wanted:
            lines += _measured("repack", files.repacking(made, Path(temporary), min(3, size.rounds)), skipped, say)
            lines += _measured("memory", files.copying(size.rounds), skipped, say)
        with _source(path, made, Path(temporary)) as source:
            at = source.sizes.layers[0] if layer is None else layer
            if at not in source.sizes.layers:
                raise EngramctlError("--layer", f"one of {', '.join(map(str, source.sizes.layers))}", f"{at}")
            for name, case in _cases(source, at, size, chosen).items():
                if name.split()[0] in wanted:
                    lines += _measured(name, case, skipped, say)
            closing, notes = advice.paragraph(source, lines), advice.notes(source)
            where = str(path) if path is not None else "a synthetic table, made for this"
    return {
        "file": where,
        "layer": at,
        "machine": _machine(chosen),
        "lines": [line.as_dict() for line in lines],
        "skipped": skipped,
        "notes": notes,
        "advice": closing,
    }


def _cases(source: Source, layer: int, size: Size, kernel: str) -> dict[str, Iterator[Line]]:
    table = source.table(layer)
    token = source.sizes.columns * 2
    return {
        "hash": stages.hashing(source, size.hashed, size.rounds),
        "lookup warm": lookups.warm(table, size.rows, size.rounds),
        "lookup cold": lookups.cold_rows(table, size.rows, size.rounds),
        "lookup token": lookups.cold_rows(table, token, 4 * size.rounds, f"one cold token, {token} rows"),
        "projection": stages.projection(source, layer, size.batches, size.rounds, kernel),
        "gate": stages.gating(source, layer, size.batches, size.rounds),
        "pipeline": stages.whole(source, (layer,), size.batches, size.rounds, kernel),
    }


def _measured(name: str, case: Iterator[Line], skipped: list[str], say: Say) -> list[Line]:
    """A case that this machine or file cannot do is left out, and said to be."""
    say(f"measuring {name}")
    try:
        return list(case)
    except EngramctlError as error:
        skipped.append(f"{name}: {error}")
        return []


@contextmanager
def _source(path: Path | None, made: Path, temporary: Path) -> Iterator[Source]:
    if path is None:
        from engramctl import repack, repack_plan
        from engramctl.checkpoint import open_checkpoint

        path = temporary / "engram.gguf"
        ready = temporary / "repacked.gguf"
        if ready.exists():
            path = ready
        else:
            with open_checkpoint(made) as checkpoint:
                repack.write(repack_plan.plan(checkpoint, "f16"), path)
    with open_source(path) as source:
        yield source


def _machine(kernel: str) -> dict[str, Any]:
    t = peers.torch()
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "threads": threads.count(),
        "kernel": kernel,
        "free_memory": memory.free_bytes(),
        "numpy": np.__version__,
        "torch": None if t is None else str(t.__version__),
    }


def as_table(facts: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """For people: one line a candidate, ours beside its peers."""
    rows = [
        (
            line["group"], line["case"], line["candidate"], _time(line["best"]), _time(line["middle"]),
            _rate(line["per_second"], line["unit"]), f"{line['ratio']:,.2f} x {line['peer']}",
        )
        for line in facts["lines"]
    ]  # fmt: skip
    return ("group", "case", "by", "best", "middle", "rate", "as fast as"), rows


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:,.2f} ms"


def _rate(rate: float, unit: str) -> str:
    if unit == "bytes":
        return f"{rate / 1e9:,.2f} GB/s"
    return f"{rate / 1e6:,.2f} M {unit}/s" if rate >= 1e6 else f"{rate:,.0f} {unit}/s"
