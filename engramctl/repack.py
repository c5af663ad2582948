"""repack: write what the plan says in one pass over the source, so that the final name holds all of it or nothing.

    plan -> jobs -> | read, check, interleave, hash, write | -> in order -> sync, journal
                    | on several threads                   |

A row whose bytes all lie in holes is neither read nor written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from engramctl import digests, journal, locks, packer, room, threads, workspace
from engramctl import identity as identities
from engramctl.digests import FileOrder
from engramctl.durable import Durable
from engramctl.errors import EngramctlError
from engramctl.identity import Identity
from engramctl.journal import Journal, Leaves
from engramctl.letting_go import LettingGo
from engramctl.ordered import in_order
from engramctl.repack_jobs import Job, jobs, places, remaining_bytes, reserve
from engramctl.repack_plan import Plan
from engramctl.row_writer import RowWriter
from engramctl.slices import Slice, whole
from engramctl.weight_writer import WeightWriter
from formats import disk
from formats.disk import WriteFile
from formats.errors import FormatError, ShortFileError
from formats.tree_digest import blocks, zero_leaves

Progress = Callable[[int], None]  # bytes done since the last call


@dataclass(frozen=True)
class Options:
    """How to write, as asked for. None of it changes a byte."""

    part: Slice | None = None  # None: all of it, under the final name
    resume: bool = False
    force: bool = False
    digest: str | None = None  # "tree" or "sha256"
    break_lock: bool = False
    threads: int | None = None
    progress: Progress = lambda n: None
    say: Callable[[str], None] = lambda text: None


@dataclass(frozen=True)
class Written:
    """What was done: the digest of each table, or of the slice's rows of it, by layer."""

    digests: dict[int, str] = field(default_factory=dict)
    already: bool = False  # the output was finished before: nothing was written


def write(
    made: Plan,
    output: Path,
    resume: bool = False,
    force: bool = False,
    progress: Progress = lambda n: None,
) -> Written:
    """Write all of the plan to `output`."""
    return run(made, output, Options(resume=resume, force=force, progress=progress))


def run(made: Plan, output: Path, options: Options) -> Written:
    """Write the plan, or a slice of it, to `output`: whole, or not at all.

    Bad content removes what was begun. An interruption, a full disk or an I/O error leaves NAME.partial and its
    journal, which `resume` takes up.
    """
    every = whole(made.source.sizes)
    room.refuse_sources([output], [made.source.path, *(tensor.path for tensor in made.source.tensors.values())])
    one = _Run(made, output, options.part or every, options, made.identity())
    if options.digest == "sha256" and not one.part.whole:
        hint = "--merge can tell it; --digest tree works for parts"
        raise EngramctlError("--digest", "tree for a part of a table", "sha256", hint)
    if not options.resume:
        disk.refuse_existing(output, options.force)
        if not options.force:
            locks.refuse_held(workspace.lock_of(output, one.part))
            workspace.refuse_others(output, one.part, made.source.sizes)
            workspace.refuse_leftovers(output, one.part, resume=False)
    with workspace.only_one(output, one.part, every, options.break_lock):
        return one.run(every)


@dataclass
class _Run:
    """One conversion, under its lock."""

    made: Plan
    output: Path
    part: Slice
    options: Options
    identity: Identity
    leaves: Leaves = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.threads = threads.for_files(self.options.threads)
        self.header, self.size = self.made.layout.header, self.made.layout.file_size

    def run(self, every: Slice) -> Written:
        path = workspace.journal_of(self.output, self.part)
        said = journal.read(path) if self.options.resume else None
        if (
            said is not None
            and said.finished
            and self.part.whole
            and workspace.is_published(self.output, self.size, self.header)
        ):
            self._require_plan(said)
            found = self._digests(said.leaves, self.output)
            workspace.remove(self.output, self.part)
            return Written(found)
        if self._is_done(said):
            return Written(self._digests({}, self.output), already=True)
        workspace.refuse_existing(self.output, self.options.force, self.options.resume)
        with self._opened(said, path, every) as (file, log):
            self.leaves = log.leaves
            if log.point != journal.START:
                left = remaining_bytes(self.made, self.part, log.point)
                self.options.progress(remaining_bytes(self.made, self.part) - left)
            try:
                found = self._all(file, log)
            except ShortFileError:
                raise
            except (FormatError, EngramctlError):
                workspace.require_own(self.output, file)  # else what is there is another run's
                workspace.remove(self.output, self.part)
                workspace.remove_if_alone(self.output, every, self.part)
                raise
            workspace.require_own(self.output, file)
        if self.part.whole:
            workspace.publish(self.output, self.header, self.options.force)
            workspace.remove(self.output, self.part)
        return Written(found)

    def _is_done(self, said: journal.Said | None) -> bool:
        """Does the final name hold what is to be resumed? A merge that was stopped late is for --merge to end."""
        if not self.options.resume or self.options.force or (said is not None and not said.finished):
            return False
        if not workspace.is_published(self.output, self.size, self.header):
            return False
        if self.part.whole:
            workspace.refuse_others(self.output, self.part, self.made.source.sizes)
        self.options.progress(remaining_bytes(self.made, self.part))
        return True

    def _require_plan(self, said: journal.Said) -> None:
        said.require_plan(self.identity)
        said.require_points([target.shape[1] for target in self.made.targets])
        said.require_end(remaining_bytes(self.made, self.part, said.point))

    @contextmanager
    def _opened(self, said: journal.Said | None, path: Path, every: Slice) -> Iterator[tuple[WriteFile, Journal]]:
        """The unfinished output and the slice's journal: those of the run to be resumed, or new ones."""
        partial = workspace.partial_of(self.output)
        if self.options.force and not self.options.resume:
            workspace.forget(self.output, self.part, every)
        workspace.refuse_others(self.output, self.part, self.made.source.sizes)
        if self.options.resume or not self.options.force:  # else all parts are being written again, one by one
            workspace.refuse_other_plans(self.output, self.part, every, self.identity)
        with ExitStack() as opened:
            if said is not None and partial.exists():
                self._require_plan(said)
                workspace.require_mark(self.output, said, self.size, self.header)
                log = opened.enter_context(closing(Journal.resume(path, said)))
            else:
                workspace.refuse_leftovers(self.output, self.part, self.options.resume)
                room.require(self.output.parent, remaining_bytes(self.made, self.part))
                begun = workspace.begin(self.output, self.part, every, self.size, self.identity)
                log = opened.enter_context(closing(begun))
            yield opened.enter_context(WriteFile.open(partial)), log

    def _all(self, file: WriteFile, log: Journal) -> dict[int, str]:
        """Everything but the header, down to the disk; then the digests."""
        if not log.finished:
            reserve(self.made, self.part, log.point, file)
            with closing(Durable(file, log)) as durable:
                found = self._followed(file, durable)
                durable.flush()
            now = self.made.identity()
            identities.require_same(self.made.source.path, self.identity, now, identities.UNCHANGED)
            log.finish()
            if found:
                return found
        return self._digests(self.leaves, workspace.partial_of(self.output))

    def _followed(self, file: WriteFile, durable: Durable) -> dict[int, str]:
        """The pass, with SHA-256 behind it if that is wanted: what it says is known before the pages are let go."""
        if self.options.digest != "sha256":
            self._tensors(file, durable, None)
            return {}
        with closing(FileOrder(self.made, workspace.partial_of(self.output))) as follower:
            self._tensors(file, durable, follower)
            return follower.finish()

    def _digests(self, leaves: Leaves, file: Path) -> dict[int, str]:
        if self.options.digest == "tree":
            return digests.tree(self.made, self.part, leaves, file, self.threads, self.options.say)
        if self.options.digest == "sha256":
            self.options.say("reading the finished tables again for the digest")
            return digests.of_file(self.made, file)
        return {}

    def _tensors(self, file: WriteFile, durable: Durable, follower: FileOrder | None) -> None:
        """The one pass, from the journal's point on."""
        made, point = self.made, durable.point
        if follower is not None and point != journal.START:
            self.options.say("reading the finished part again for the digest")
        for tensor in made.source.tensors.values():
            made.source.file(tensor)  # opened here, then shared by the threads
        rows = RowWriter(file, packer.choose(self.part.last - self.part.first), self.options.digest == "tree")
        weights = WeightWriter(made, file)
        tables = self.part.tables(made.source.sizes)
        behind = {layer: LettingGo(made.source.table(layer), (first, last)) for layer, first, last in tables}

        def work(job: Job) -> tuple[list[bytes], int]:
            if job.span is not None:
                hole = not job.span.data
                return ([] if hole else rows.span(made.source.table(job.target.layer), job.target, job.span)), 0
            if job.target.role == "projection":
                return [], weights.band(job.target, job.first, job.last)
            weights.gate(job.target)
            return [], 0

        inexact, before = 0, made.targets[0]
        with closing(in_order(jobs(made, self.part, point), work, self.threads)) as done:
            for job, (leaves, odd) in done:
                if job.target is not before:
                    weights.refuse_inexact(before, inexact)
                    before = job.target
                inexact += odd
                if job.span is not None:
                    behind[job.target.layer].upto(job.last)
                if follower is not None:
                    follower.advance(job.number, job.last if job.span is not None else 0)
                written = places(job)
                if not inexact:  # else all of this projection is counted again after an interruption
                    durable.reached((job.number, job.last), written, self._new_leaves(job, leaves))
                self.options.progress(sum(end - start for start, end in written))
        weights.refuse_inexact(before, inexact)
        weights.let_go()

    def _new_leaves(self, job: Job, leaves: list[bytes]) -> Leaves:
        if self.options.digest != "tree" or job.span is None:
            return {}
        if not job.span.data:
            leaves = zero_leaves(job.first, job.last)
        new = {job.number: dict(zip(blocks(job.first, job.last), leaves, strict=True))}
        self.leaves.setdefault(job.number, {}).update(new[job.number])
        return new
