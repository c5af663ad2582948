"""Write a container of Qwen3.8's table: all of it under its name, or NAME.partial and a journal for --resume.

The files beside an unfinished output are those of V4.1's conversion (`workspace`, `journal`, `locks`); it is never
shared between runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engramctl import __version__, identity, journal, locks, room, slices, threads, workspace
from engramctl.durable import Durable
from engramctl.errors import EngramctlError
from engramctl.extents import chunks, data_rows
from engramctl.identity import Identity
from engramctl.journal import Journal, Point
from engramctl.ordered import in_order
from engramctl.row_blocks import spans
from engramctl.siblings import repack
from engramctl.siblings.repack import Plan, Target
from engramctl.table import Part, Table
from formats import disk, tree_digest
from formats.disk import ReadFile, WriteFile
from formats.errors import FormatError, ShortFileError

RESERVE_BYTES = 1 << 20  # shorter ranges are not worth a call to reserve them

Job = tuple[int, Target, int, int]  # number of the tensor, and its rows first..last; a weight is one row


@dataclass(frozen=True)
class Options:
    """How to write, as asked for. None of it changes a byte."""

    resume: bool = False
    force: bool = False
    digest: str | None = None  # "tree" or "sha256"
    break_lock: bool = False
    threads: int | None = None
    progress: Callable[[int], None] = lambda n: None
    say: Callable[[str], None] = lambda text: None


def write(made: Plan, output: Path, options: Options | None = None) -> str | None:
    """Write the plan to `output`; returns the table's digest, if one was asked for.

    Bad content removes what was begun. An interruption, a full disk or an I/O error leaves NAME.partial and its
    journal, which `resume` takes up.
    """
    options = options or Options()
    every = slices.whole(made.source.sizes)
    room.refuse_sources([output], [made.source.path, *_sources(made)])
    if not options.resume:
        disk.refuse_existing(output, options.force)
        if not options.force:
            locks.refuse_held(workspace.lock_of(output, every))
            workspace.refuse_leftovers(output, every, resume=False)
    with workspace.only_one(output, every, every, options.break_lock):
        return _write(made, output, options)


def _sources(made: Plan) -> list[Path]:
    tensors = getattr(made.source, "tensors", {})
    return sorted({tensor.path for tensor in tensors.values()})


def _write(made: Plan, output: Path, options: Options) -> str | None:
    every, ours = slices.whole(made.source.sizes), _identity(made)
    path, header = workspace.journal_of(output, every), made.layout.header
    said = journal.read(path) if options.resume else None
    if said is not None and said.finished and workspace.is_published(output, made.layout.file_size, header):
        said.require_plan(ours)
    else:
        disk.refuse_existing(output, options.force)
        with _opened(made, output, options, said, ours) as (file, log):
            try:
                _fill(made, file, log, options)
                now = _identity(made)
                identity.require_same(made.source.path, ours, now, identity.UNCHANGED)
                log.finish()
            except ShortFileError:
                raise
            except (FormatError, EngramctlError):
                workspace.require_own(output, file)  # else what is there is another run's
                workspace.remove(output, every)
                raise
            workspace.require_own(output, file)
        workspace.publish(output, header, options.force)
    workspace.remove(output, every)
    return _digest(made, output, options)


def _identity(made: Plan) -> Identity:
    """What an interrupted run must find unchanged to go on: the request, the rules, and the source's files."""
    source = made.source
    rules = json.dumps(source.profile.facts, sort_keys=True, default=str)
    config = getattr(source, "config_text", None)
    found: Identity = {
        "version": __version__,
        "profile": source.profile.name,
        "profile digest": identity.sha256(rules.encode()),
        "dialect": made.dialect.name,
        "row_type": made.row_type,
        "config": None if config is None else identity.sha256(config.encode()),
    }
    for path in _sources(made):
        found |= identity.shard(path)
    return found | {"header": identity.sha256(made.layout.header), "size": made.layout.file_size}


@contextmanager
def _opened(
    made: Plan, output: Path, options: Options, said: journal.Said | None, ours: Identity
) -> Iterator[tuple[WriteFile, Journal]]:
    """The unfinished output and its journal: those of the run to be resumed, or new ones."""
    every, size = slices.whole(made.source.sizes), made.layout.file_size
    path, partial = workspace.journal_of(output, every), workspace.partial_of(output)
    if options.force and not options.resume:
        workspace.forget(output, every, every)
    with ExitStack() as opened:
        if said is not None and partial.exists():
            said.require_plan(ours)
            said.require_points([_rows(made, target) for target in made.targets])
            workspace.require_mark(output, said, size, made.layout.header)
            log = opened.enter_context(closing(Journal.resume(path, said)))
        else:
            workspace.refuse_leftovers(output, every, options.resume)
            room.require(output.parent, made.data_bytes)
            log = opened.enter_context(closing(workspace.begin(output, every, every, size, ours)))
        yield opened.enter_context(WriteFile.open(partial)), log


def _rows(made: Plan, target: Target) -> int:
    return made.source.sizes.rows[0] if target.role == "table" else 1


def _jobs(made: Plan, point: Point) -> Iterator[Job]:
    """What is left to write from a point on, a table in pieces; rows in holes are not written."""
    for number, target in enumerate(made.targets[point[0] :], point[0]):
        row = point[1] if number == point[0] else 0
        if target.role != "table":
            if row == 0:
                yield number, target, 0, 1
            continue
        for first, last in made.table.data_ranges():
            for start, stop in chunks(max(first, row), last):
                yield number, target, start, stop


def _place(made: Plan, job: Job) -> tuple[int, int]:
    """Where in the file a job writes."""
    _, target, first, last = job
    if target.role != "table":
        return target.start, target.start + target.size
    row_bytes = made.rows.row_bytes
    return target.start + first * row_bytes, target.start + last * row_bytes


def _fill(made: Plan, file: WriteFile, log: Journal, options: Options) -> None:
    """Everything but the header, from the journal's point on, down to the disk."""
    left = 0
    for job in _jobs(made, log.point):
        start, end = _place(made, job)
        left += end - start
        if end - start >= RESERVE_BYTES:
            file.reserve(start, end)
    options.progress(made.data_bytes - len(made.layout.header) - left)
    table = made.table  # opened here, then shared by the threads

    def work(job: Job) -> int:
        _, target, first, last = job
        if target.role == "table":
            data = repack.converted(table, np.arange(first, last), made.row_type).tobytes()
        else:
            data = repack.weight_bytes(made, target)
        file.write(_place(made, job)[0], data)
        return len(data)

    with closing(Durable(file, log)) as durable:
        with closing(in_order(_jobs(made, log.point), work, threads.for_files(options.threads))) as done:
            for job, size in done:
                durable.reached((job[0], job[3]), [_place(made, job)], {})
                options.progress(size)
        durable.flush()


def _digest(made: Plan, output: Path, options: Options) -> str | None:
    """The finished table's, read once more: of its rows, or of its bytes in order."""
    if options.digest is None:
        return None
    options.say("reading the finished table for the digest")
    (target,) = (target for target in made.targets if target.role == "table")
    rows, row_bytes = _rows(made, target), made.rows.row_bytes
    with ReadFile.open(output) as file:
        table = Table(made.source.sizes.layers[0], rows, (Part(file, target.start, row_bytes),))
        if options.digest == "tree":
            return tree_digest.root(0, rows, list(_leaves(table)), row_bytes)
        sha = hashlib.sha256()
        for first, last in chunks(0, rows):
            sha.update(file.read(target.start + first * row_bytes, (last - first) * row_bytes, f"rows {first} on"))
        return sha.hexdigest()


def _leaves(table: Table) -> Iterator[bytes]:
    """The leaf of each block; holes are not read."""
    (part,) = table.parts
    for span in spans(data_rows(table), 0, table.rows):
        for first, last, data in span.blocks():
            if not data:
                yield tree_digest.zero_leaf(last - first, part.stride)
                continue
            yield tree_digest.leaf(
                part.file.read(part.start + first * part.stride, (last - first) * part.stride, "rows")
            )
