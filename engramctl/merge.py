"""repack --merge: see that the parts cover everything exactly once, then give the output its header and its name."""

from __future__ import annotations

from pathlib import Path

from engramctl import digests, journal, slices, threads, workspace
from engramctl.errors import EngramctlError
from engramctl.journal import Leaves, Said
from engramctl.repack import Options, Written
from engramctl.repack_jobs import remaining_bytes
from engramctl.repack_plan import Plan
from engramctl.slices import Slice
from engramctl.workspace import WHOLE_WAYS


def merge(made: Plan, output: Path, options: Options) -> Written:
    """Finish an output whose parts are all there. May be repeated: after an interruption, and when all is done."""
    sizes = made.source.sizes
    every = slices.whole(sizes)
    header, size = made.layout.header, made.layout.file_size
    published = workspace.is_published(output, size, header)
    if not published:
        workspace.refuse_existing(output, options.force, options.resume)
    with workspace.only_one(output, every, every, options.break_lock):
        already = published and not workspace.journals(output, every)
        parts = _parts(made, output, every, published)
        if not published:
            slices.require_cover(list(parts), sizes, str(output))
        file = output if published else workspace.partial_of(output)
        found = _digests(made, file, every, parts, options)
        if not published:
            workspace.publish(output, header, options.force)
        for part in parts:
            workspace.remove(output, part)
        workspace.remove(output, every)
    return Written(found, already)


def _parts(made: Plan, output: Path, every: Slice, published: bool) -> dict[Slice, Said]:
    """Every part's journal, if its plan is this one and it is done."""
    identity = made.identity()
    parts = {}
    for part, path in workspace.journals(output, every).items():
        said = journal.read(path)
        if part.whole:
            raise EngramctlError(str(path), "parts to merge", "a conversion of all rows", WHOLE_WAYS)
        if said is None or not said.finished:
            raise EngramctlError(str(path), "a finished part", "an unfinished one", "--resume finishes it")
        said.require_plan(identity, journal.PART_CHANGED)
        said.require_end(remaining_bytes(made, part, said.point))
        if not published:
            workspace.require_mark(output, said, made.layout.file_size, made.layout.header)
        if (said.first, said.last) != (part.first, part.last):
            raise EngramctlError(str(path), f"rows {part.first}:{part.last} of all", f"{said.first}:{said.last}")
        parts[part] = said
    return parts


def _digests(made: Plan, file: Path, every: Slice, parts: dict[Slice, Said], options: Options) -> dict[int, str]:
    if options.digest == "sha256":
        return digests.of_file(made, file)
    if options.digest is None:
        return {}
    known: Leaves = {}
    for part, said in parts.items():
        for number, leaves in digests.whole_leaves(said.leaves, part, made).items():
            known.setdefault(number, {}).update(leaves)
    return digests.tree(made, every, known, file, threads.for_files(options.threads), options.say)
