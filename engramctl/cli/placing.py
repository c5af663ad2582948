"""Options that say where a table lies, and the table that they ask for."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from engramctl.cli import edge
from engramctl.errors import EngramctlError

if TYPE_CHECKING:
    from engramctl.source import Source
    from engramctl.table import Table
    from engramctl.tables import Tables


class IoName(StrEnum):
    auto = "auto"
    mmap = "mmap"
    pread = "pread"
    ram = "ram"
    direct = "direct"


class ShardBy(StrEnum):
    rows = "rows"
    heads = "heads"


Io = Annotated[
    IoName | None,
    typer.Option(
        "--io",
        help="Where the table lies: mapped (mmap), read when asked for (pread), in memory on huge pages (ram), "
        "read past the page cache (direct); auto says why it chose. All give equal bits.",
    ),
]
Prewarm = Annotated[bool, typer.Option("--prewarm", help="Bring the whole table into memory first, and say how much.")]
Shard = Annotated[
    str | None, typer.Option("--shard", metavar="i/n", help="Only part i of n, from 1; other rows are zeros.")
]
By = Annotated[
    ShardBy | None, typer.Option("--shard-by", help="Cut between any rows (the default), or between hash columns.")
]


def table(
    source: Source | Tables,
    layer: int,
    io: IoName | None,
    prewarm: bool,
    shard: str | None,
    by: ShardBy | None,
    wanted: int | None,
    quiet: bool = False,
) -> Table:
    """The layer's table, placed; what was chosen or done is said where it was asked for, warnings always."""
    if by is not None and shard is None:
        raise EngramctlError("--shard-by", "--shard i/n with it", "none")
    cut = (by or ShardBy.rows).value
    sharded = source.table(layer).sharded(shard, cut, source)
    placed = sharded.placed("auto" if io is None else io.value, wanted, prewarm)
    if placed.here is not None and not quiet:
        first, last = placed.here
        edge.say(f"layer {layer}: part {shard} by {cut}: rows {first} to {last - 1}")
    for line in placed.said:
        if line.startswith("warning") or (not quiet and (io is not None or prewarm)):
            edge.say(line)
    return placed
