"""repack --merge: see that the parts cover everything exactly once, then give the output its header and its name."""

from __future__ import annotations

from pathlib import Path

from engramctl import digests, journal, slices, workspace
from engramctl.errors import EngramctlError
from engramctl.journal import Leaves, Said
from engramctl.ordered import processors
from engramctl.repack import MOST_THREADS, Options, Written
from engramctl.repack_plan import Plan
from engramctl.slices import Slice
from formats import disk


def merge(made: Plan, output: Path, options: Options) -> Written:
    """Finish an output whose parts are all there. May be repeated after an interruption."""
    sizes = made.source.sizes
    every = slices.whole(sizes)
    disk.refuse_existing(output, options.force)
    with workspace.only_one(output, every, every, options.break_lock):
        parts = _parts(made, output, every)
        slices.require_cover(list(parts), sizes, str(output))
        found = _digests(made, output, every, parts, options)
        workspace.publish(output, made.layout.header, options.force)
        for part in parts:
            workspace.remove(output, part)
        workspace.remove(output, every)
    return Written(found)


def _parts(made: Plan, output: Path, every: Slice) -> dict[Slice, Said]:
    """Every part's journal, if its plan is this one and it is done."""
    identity = made.identity()
    parts = {}
    for part, path in workspace.journals(output, every).items():
        said = journal.read(path)
        if part.whole:
            raise EngramctlError(str(path), "parts to merge", "a conversion of all rows", workspace.BOTH_WAYS)
        if said is None or not said.finished:
            raise EngramctlError(str(path), "a finished part", "an unfinished one", "--resume finishes it")
        said.require_plan(identity)
        workspace.require_mark(output, said, made.layout.file_size, made.layout.header)
        if (said.first, said.last) != (part.first, part.last):
            raise EngramctlError(str(path), f"rows {part.first}:{part.last} of all", f"{said.first}:{said.last}")
        parts[part] = said
    return parts


def _digests(made: Plan, output: Path, every: Slice, parts: dict[Slice, Said], options: Options) -> dict[int, str]:
    partial = workspace.partial_of(output)
    if options.digest == "sha256":
        return digests.of_file(made, partial)
    if options.digest is None:
        return {}
    known: Leaves = {}
    for part, said in parts.items():
        for number, leaves in digests.whole_leaves(said.leaves, part, made).items():
            known.setdefault(number, {}).update(leaves)
    threads = options.threads or min(processors(), MOST_THREADS)
    return digests.tree(made, every, known, partial, threads, options.say)
