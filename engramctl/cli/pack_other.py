"""repack into other dialects, and behind the tensors of an existing model: what `repack` hands on."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engramctl.errors import EngramctlError

if TYPE_CHECKING:
    from engramctl.checkpoint import CheckpointSource
    from engramctl.tensor_pieces import KvType
    from formats.dialect import Dialect

Dialects = Annotated[
    str | None,
    typer.Option(
        "--dialect",
        metavar="NAME",
        help="ds4, split-i8 or row264-bare (-o DIR); qwen4exp or ple-sidecar for PLE, hf goes back from those.",
    ),
]
AppendTo = Annotated[
    Path | None, typer.Option("--append-to", metavar="MODEL", help="Put them behind this model's tensors.")
]
InPlace = Annotated[bool, typer.Option("--in-place", help="With --append-to: into the model itself.")]


@dataclass(frozen=True)
class Asked:
    """What `repack` was asked for, beside the checkpoint."""

    dialect: str
    append_to: Path | None
    in_place: bool
    output: Path | None
    kv_type: KvType
    dry_run: bool
    resume: bool
    force: bool
    json: bool
    quiet: bool

    @property
    def mine(self) -> bool:
        return self.dialect != "ds4" or self.append_to is not None or self.in_place


def refuse(asked: Asked, of_ds4: list[object]) -> None:
    """Before the checkpoint is opened: dialects that are not written, and options that do not go together."""
    from engramctl import repack_split

    repack_split.choose(asked.dialect)
    if asked.mine and any(option is not None for option in of_ds4):
        raise EngramctlError("--dialect", "ds4 in a new file with slices and digests", "another dialect or --append-to")
    if asked.in_place and (asked.append_to is None or asked.output is not None or asked.resume):
        raise EngramctlError("--in-place", "--append-to MODEL, and neither -o nor --resume", "other options")
    if asked.output is None and not (asked.dry_run or asked.in_place):
        raise EngramctlError("--output", "a file or folder", "none")


def run(source: CheckpointSource, asked: Asked) -> None:
    """Write, and say what was written."""
    from engramctl import repack_split, report
    from engramctl.cli import edge
    from engramctl.repair import alone

    dialect = repack_split.choose(asked.dialect)
    facts: dict[str, Any] = {"dialect": dialect.name, "layers": list(source.sizes.layers), "dry_run": asked.dry_run}
    facts |= {"output": None if asked.output is None else str(asked.output)}
    if asked.append_to is not None:
        with alone(asked.append_to) if asked.in_place else nullcontext():
            facts |= _append(source, dialect, asked, asked.append_to)
        where = asked.output or asked.append_to
    else:
        assert asked.output is not None or asked.dry_run
        where = asked.output or source.path
        facts |= _write(source, dialect, asked)
    if asked.json:
        report.as_json("repack", True, facts)
    elif not asked.quiet:
        done = "would be written" if asked.dry_run else "written"
        edge.say(f"{where}: {dialect.name}, layers {facts['layers']}, {facts['file_bytes']:,} bytes {done}")


def _append(source: CheckpointSource, dialect: Dialect, asked: Asked, model: Path) -> dict[str, Any]:
    from engramctl import append, report

    made = append.plan(source, model, dialect, asked.kv_type)
    with report.progress(made.size, model.name, asked.quiet or asked.json) as advance:
        if asked.output is not None and not asked.dry_run:
            append.to_file(made, asked.output, asked.resume, asked.force, advance)
        elif not asked.dry_run:
            append.in_place(made, advance)
    return {"file_bytes": made.size, "model_moves_by": made.moved, "starts": made.starts}


def _write(source: CheckpointSource, dialect: Dialect, asked: Asked) -> dict[str, Any]:
    from engramctl import repack_bare, repack_split, report, tensor_pieces
    from formats import row264

    if dialect.name == "row264-bare":
        size = sum(source.sizes.rows) * row264.ROW_BYTES
    else:
        size = sum(each[3] for each in repack_split.infos(source, dialect, asked.kv_type))
    if asked.dry_run or asked.output is None:
        return {"file_bytes": size}
    total = tensor_pieces.data_bytes(source)
    with report.progress(total, asked.output.name, asked.quiet or asked.json) as advance:
        if dialect.name == "row264-bare":
            made = repack_bare.bare(source, asked.output, asked.resume, asked.force, advance)
            return {"file_bytes": size, "files": [str(path) for path in made]}
        size = repack_split.split(source, asked.output, asked.kv_type, asked.resume, asked.force, advance)
    return {"file_bytes": size}
