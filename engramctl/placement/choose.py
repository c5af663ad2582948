"""From `--io` to a placement; auto says why it chose, prewarm says what came of it."""

from __future__ import annotations

from engramctl.errors import EngramctlError
from engramctl.placement import residency
from engramctl.placement.place import NAMES, Extent, Io, Place
from engramctl.threads import count as default_threads

FEW = 4096  # rows that are read before compiled code is loaded
WARM = 0.9  # of the pages in memory: faults are rare from there on


def place(
    extent: Extent, io: Io = "auto", wanted: int | None = None, prewarm: bool = False, threads: int | None = None
) -> Place:
    """The extent's rows, placed as `io` says. `wanted` is how many rows will be asked for, None if that is unknown."""
    if io not in NAMES:
        raise EngramctlError("--io", f"one of {', '.join(NAMES)}", f"{io!r:.40}")
    if prewarm and io == "direct":
        raise EngramctlError("--prewarm", "--io mmap, pread, ram or auto, which have a cache to warm", "--io direct")
    count = threads or default_threads()
    made: Place
    if io == "ram":
        from engramctl.placement.in_memory import InMemory

        return InMemory(extent, count)
    said: list[str] = []
    if io == "auto" and extent.last > extent.first:
        io, why = choose(extent, wanted, prewarm)
        said.append(f"layer {extent.layer}: auto chose {io}: {why}")
    if io == "mmap" and extent.last > extent.first:
        from engramctl.placement.in_memory import Mapped

        mapped = Mapped(extent)
        if prewarm:
            mapped.populate(count)
        made = mapped
    elif io == "direct":
        from engramctl.placement.on_disk import Direct

        made = Direct(extent)
    else:
        from engramctl.placement.on_disk import OnDisk

        made = OnDisk(extent)
        if prewarm:
            _warm(extent, count)
    made.said.extend(said)
    if prewarm:
        made.said.append(_residency(extent))
    return made


def choose(extent: Extent, wanted: int | None, prewarm: bool = False) -> tuple[Io, str]:
    """mmap where the table lies in memory, pread where it does not or where little is asked for. Never `ram` or
    `direct`: copying a table, or doing without the cache that others share, is for a person to decide."""
    if wanted is not None and wanted < FEW and not prewarm:
        return "pread", f"{wanted:,} rows are read before compiled code is loaded"
    found = residency.share(extent)
    if prewarm:
        return "mmap", "prewarmed"
    if found is None:
        return "pread", "this system does not say what is in memory"
    if found[0] >= WARM:
        return "mmap", f"{found[0]:.0%} of its pages are in memory"
    return "pread", f"{found[0]:.0%} of its pages are in memory, so reads are asked for ahead"


def _residency(extent: Extent) -> str:
    found = residency.share(extent)
    if found is None:
        return f"layer {extent.layer}: prewarmed; this system does not say what is in memory"
    short = "" if found[0] >= WARM else "warning: "
    return f"{short}layer {extent.layer}: prewarmed, {found[0]:.1%} of {found[1]:,} pages looked at are in memory"


def _warm(extent: Extent, threads: int) -> None:
    from functools import partial

    from engramctl.placement import memory
    from engramctl.placement.in_memory import in_shares

    for part in extent.parts:
        in_shares(threads, *extent.span(part), partial(memory.touch, part.file))
