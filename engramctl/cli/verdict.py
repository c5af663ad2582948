"""How a check ends: its report, and the exit code that says whether something differs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from engramctl.cli import edge

if TYPE_CHECKING:
    from engramctl.verify.result import Result


def verdict(command: str, path: Path, result: Result, json: bool) -> None:
    """Report `check COMMAND PATH` and exit."""
    from engramctl import report
    from engramctl.cli.inputs import label

    report.check(f"check-{command}", f"check {command} {label(path)}", result, json)
    raise typer.Exit(edge.OK if result.ok else edge.DIFFERS)
