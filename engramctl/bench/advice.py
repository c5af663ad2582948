"""What the numbers say about where to put the table: one paragraph."""

from __future__ import annotations

from engramctl.bench.measure import Line
from engramctl.placement import memory
from engramctl.source import Source

SMALL = 100_000_000  # bytes of tables; below it nothing is like a model's 203 GB
HIDDEN = 0.1  # of the projection's time: what costs less is not noticed


def notes(source: Source) -> list[str]:
    """What the numbers do not mean."""
    size = _table_bytes(source)
    if size >= SMALL:
        return []
    why = "a processor's caches hold much of them, and starting to work takes longer than the work"
    return [f"tables of {_bytes(size)} are too small for ratios to mean anything: {why}"]


def _table_bytes(source: Source) -> int:
    row_bytes = sum(part.stride for part in source.table(source.sizes.layers[0]).parts)
    return sum(source.sizes.rows) * row_bytes


def paragraph(source: Source, lines: list[Line]) -> str:
    """For whoever has to choose `--io`; says only what was measured."""
    sizes = source.sizes
    size, free = _table_bytes(source), memory.free_bytes()
    rows = sizes.columns * len(sizes.layers)
    said = [
        f"The tables are {_bytes(size)} in {_count(len(sizes.layers), 'layer')}; a token needs {rows} rows of them"
        + (f", and {_bytes(free)} of memory is free." if free is not None else ".")
    ]
    warm, cold = _rates(lines, "warm rows"), _rates(lines, "cold rows")
    best_warm = max(warm, key=lambda io: warm[io], default=None)
    best_cold = max(cold, key=lambda io: cold[io], default=None)
    if best_warm is not None:
        said.append(f"In memory they cost {_micro(rows / warm[best_warm])} a token (--io {best_warm}).")
    if best_cold is not None:
        said.append(
            f"From this disk {_micro(rows / cold[best_cold])} a token when many are asked for at once "
            f"(--io {best_cold}, {cold[best_cold]:,.0f} rows/s)" + _one_token(lines) + "."
        )
    if best_warm is not None:
        said.append(_choice(free is not None and size * 1.1 < free, best_warm, cold, lines, rows))
    if "direct" in cold and "pread" in cold and cold["direct"] > 0.9 * cold["pread"]:
        said.append("--io direct reads as fast and leaves the page cache to others.")
    return " ".join(said)


def _choice(fits: bool, best_warm: str, cold: dict[str, float], lines: list[Line], rows: int) -> str:
    compute = _pipeline(lines)
    if fits:
        extra = "" if best_warm != "ram" else "; --io ram if something else could push the pages out"
        return f"They fit: --io mmap --prewarm{extra}."
    if not cold:
        return "They do not fit into memory, and what a cold row costs was not measured."
    best = max(cold.values())
    if compute is None:
        return "They do not fit: --io pread keeps the disk busy with one thread."
    share = rows / best / compute
    hidden = "hide behind the projections" if share < 1 else "are what a prefill waits for"
    return (
        f"They do not fit: --io pread. Reads take {share:.0%} of the time that the rest of the pipeline takes for a "
        f"prefill, so they {hidden}."
    )


def _rates(lines: list[Line], case: str) -> dict[str, float]:
    """Rows a second by placement."""
    prefix = "--io "
    return {
        line.candidate.removeprefix(prefix): line.rate
        for line in lines
        if line.group == "lookup" and line.case == case and line.candidate.startswith(prefix)
    }


def _one_token(lines: list[Line]) -> str:
    found = [line for line in lines if line.group == "lookup" and line.case.startswith("one cold token")]
    ours = [line for line in found if line.candidate == "--io pread"]
    return f", {_micro(ours[0].middle)} for one token alone" if ours else ""


def _pipeline(lines: list[Line]) -> float | None:
    """Seconds a token for all layers together, with the largest batch measured."""
    found = [line for line in lines if line.group == "pipeline" and line.candidate.startswith("engramctl")]
    return max(found, key=lambda line: line.amount).best / max(line.amount for line in found) if found else None


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} microseconds" if seconds < 1e-3 else f"{seconds * 1e3:,.1f} ms"


def _bytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= SMALL else f"{size / 1e6:,.1f} MB"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
