"""bench: what a placement costs here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from engramctl.cli.options import Json, Kernel, KernelName, Layer, Pin, Quiet, Threads


def bench(
    source: Annotated[
        Path | None, typer.Argument(metavar="FILE|DIR", help="A container or checkpoint; one is made if absent.")
    ] = None,
    layer: Layer = None,
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="GROUP,...", help="hash, lookup, projection, gate, pipeline, repack."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small and short: to see that it works.")] = False,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="For its own files: a folder on the disk to measure.")
    ] = None,
    kernel: Kernel = KernelName.auto,
    threads: Threads = None,
    pin: Pin = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure every stage and placement here.

    Side by side with NumPy, torch where it is installed, cp and plain reads; ends with what that means for --io.
    """
    from engramctl import report, siblings
    from engramctl import threads as pool
    from engramctl.bench import run as measure
    from engramctl.cli import edge
    from engramctl.errors import EngramctlError

    if source is not None and (other := siblings.profile_of(source, None)) is not None:
        raise EngramctlError(str(source), "tables of deepseek-v4.1-flash, whose stages are measured", other.name)
    if threads is not None:
        pool.use(threads)
    if pin:
        pool.pin()
    groups = tuple(name for name in (only or "").split(",") if name)
    say = (lambda line: None) if quiet or json else edge.say
    facts = measure.run(source, layer, groups, quick, folder, say, kernel.value)
    if json:
        report.as_json("bench", True, facts)
        return
    report.table(*measure.as_table(facts))
    for line in facts["skipped"]:
        report.text(f"skipped {line}")
    for note in facts["notes"]:
        report.text(f"note: {note}")
    report.text(facts["advice"])


COMMANDS: dict[str, Callable[..., None]] = {"bench": bench}
