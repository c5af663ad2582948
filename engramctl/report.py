"""Results for people and for scripts: the only importer of rich."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from engramctl.verify.result import MOST_FINDINGS, Result

if TYPE_CHECKING:
    from rich.console import Console

FEW = 8  # findings that people see where the mistake behind them has a name
SHOWN_FINDINGS = 10  # of a check, to people
ONE_BY_ONE = ("check-hash", "check-values", "check-kv", "check-gate")  # a finding is one of what is counted
PIPE_WIDTH = 120  # of tables where standard output is no terminal


def as_json(command: str, ok: bool, body: Mapping[str, Any]) -> None:
    """Exactly one JSON object on standard output."""
    report = {"schema": f"engramctl/{command}/1", "ok": ok, **body}
    sys.stdout.write(json.dumps(_finite(report), indent=1) + "\n")


def _finite(value: Any) -> Any:  # noqa: ANN401  (whatever a report holds)
    """JSON has no NaN and no infinity: they go by their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def check(command: str, title: str, result: Result, json_wanted: bool) -> None:
    """A check's result: JSON, or a line that says it all and then the findings."""
    if json_wanted:
        findings = [
            {"check": f.check, "where": f.where, "expected": f.expected, "found": f.found} for f in result.findings
        ]
        coverage = result.coverage.__dict__
        body = {
            "findings": findings,
            "findings_total": result.total,
            "coverage": coverage,
            "diagnosis": None if result.diagnosis is None else result.diagnosis.facts(),
            "structure": result.structure,
            "notes": result.notes,
        }
        as_json(command, result.ok, body | result.extra)
        return
    console = _console()
    console.print(f"{_plain(title)}: {_verdict(command, result)}")
    for line in [] if result.diagnosis is None else result.diagnosis.lines():
        console.print(f"  {_plain(line)}")
    if result.structure:
        searched = "" if command == "check-packing" else "no known mistake explains it; "
        console.print(f"  {searched}what is common to the differences:")
    for fact in result.structure:
        console.print(f"    {_plain(fact)}")
    shown = result.findings[: SHOWN_FINDINGS if result.diagnosis is None else FEW]
    for f in shown:
        console.print(f"  {_plain(f.where)}: expected {_plain(f.expected)}, found {_plain(f.found)}")
    if result.total > len(shown):
        console.print(f"  and {result.total - len(shown):,} more (--json lists up to {MOST_FINDINGS})")
    for note in result.notes:
        console.print(f"  note: {_plain(note)}")


def heading(text: str) -> None:
    _console().print(f"[bold]{_plain(text)}[/bold]")


def _verdict(command: str, result: Result) -> str:
    """ok, or how much differs, and out of how much."""
    seen = result.coverage
    sampled = ", sampled" if seen.sampled else ""
    if result.ok:
        return f"[green]ok[/green] ({seen.checked:,} of {seen.of:,} {seen.unit}{sampled})"
    differ = "differs" if result.total == 1 else "differ"
    if command in ONE_BY_ONE and result.total <= seen.checked:
        return f"[red]{result.total:,} of {seen.checked:,} {seen.unit} {differ}[/red]{sampled}"
    return f"[red]{result.total:,} {differ}[/red] ({seen.checked:,} of {seen.of:,} {seen.unit} checked{sampled})"


def facts(pairs: Sequence[tuple[str, str]]) -> None:
    """Names and values, one a line, aligned."""
    width = max((len(name) for name, _ in pairs), default=0)
    console = _console()
    for name, value in pairs:
        console.print(f"[bold]{_plain(name):<{width}}[/bold]  {_plain(value)}")


def line(text: str) -> None:
    """A line for scripts, on standard output, as it is."""
    sys.stdout.write(text + "\n")


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table for people, on standard output."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(headings):
        shown.add_column(heading, overflow="fold", no_wrap=number == 0)  # the first names the row
    for row in rows:
        shown.add_row(*(_plain(cell) for cell in row))
    console = _console(soft_wrap=False)
    with console.capture() as printed:
        console.print(shown)
    sys.stdout.write("".join(line.rstrip() + "\n" for line in printed.get().splitlines()))


def text(paragraph: str) -> None:
    """A paragraph, on standard output."""
    _console().print(_plain(paragraph))


@contextmanager
def progress(total: int, what: str, quiet: bool) -> Iterator[Any]:
    """A bar with rate and time left on standard error where that is a terminal; yields a function of bytes done."""
    if quiet or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, advance=done)


def _columns() -> int:
    """As COLUMNS says, if it is a number that a table can have."""
    said = os.environ.get("COLUMNS", "")
    return int(said) if said.isascii() and len(said) < 6 and said.isdigit() and int(said) else PIPE_WIDTH


def _console(soft_wrap: bool = True) -> Console:
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            """Rich would end the program with 1, which is what a check says of a difference."""
            raise BrokenPipeError

    width = None if sys.stdout.isatty() else _columns()
    return Plain(file=sys.stdout, highlight=False, emoji=False, soft_wrap=soft_wrap, width=width)


def _plain(text: str) -> str:
    """Text that rich must not read as markup, with nothing in it that moves a cursor."""
    from rich.markup import escape

    return escape("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))
