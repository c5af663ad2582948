"""hash, lookup: which rows, and what is in them."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engramctl.cli.options import (
    STDIN,
    Force,
    History,
    Ids,
    IdsFile,
    IdsForm,
    IdsFormat,
    Layer,
    Mask,
    MaskFile,
    MaybeProfile,
    Output,
    Params,
    Quiet,
    Text,
    Threads,
    Tokenizer,
    TokenMap,
)
from engramctl.cli.placing import By, Io, Prewarm, Shard

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from engramctl.siblings.table import PlainTable
    from engramctl.source import Source
    from engramctl.table import Table
    from engramctl.tables import Tables


class RowsForm(StrEnum):
    tsv = "tsv"
    jsonl = "jsonl"
    npy = "npy"
    u32 = "u32"
    sha256 = "sha256"


ROWS_ENDINGS = {f".{form.value}": form for form in RowsForm} | {".txt": RowsForm.tsv}


class ValuesForm(StrEnum):
    raw = "raw"
    bf16 = "bf16"
    f32 = "f32"


def hash_(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Token ids (text, .npy, .jsonl); - is standard input."),
    ] = None,
    ids: Ids = None,
    ids_file: IdsFile = None,
    text: Text = None,
    ids_format: IdsForm = IdsFormat.auto,
    mask: Mask = None,
    mask_file: MaskFile = None,
    history: History = None,
    to: Annotated[
        RowsForm | None,
        typer.Option(
            "--to", help="The rows' form; else as the output's name ends (.npy, .jsonl, .u32, ...), else tsv."
        ),
    ] = None,
    output: Output = STDIN,
    check: Annotated[
        Path | None, typer.Option("--check", metavar="SUMS", help="Compute the digests in this file again and compare.")
    ] = None,
    tokenizer: Tokenizer = None,
    token_map: TokenMap = None,
    params: Params = None,
    profile: MaybeProfile = None,
    threads: Threads = None,
    force: Force = False,
    json: Annotated[bool, typer.Option("--json", help="With --check: print its report as one JSON object.")] = False,
    quiet: Quiet = False,
) -> None:
    """Turn token ids or text into row numbers."""
    from engramctl import constants, rows_out
    from engramctl import threads as pool
    from engramctl.cli import inputs, sums
    from engramctl.cli.output import emit, form_of, refuse_existing, refuse_source
    from engramctl.errors import EngramctlError

    refuse_source(output, *(files or ()), ids_file, mask_file, params, tokenizer, token_map, profile=profile)
    form = form_of(to, output, ROWS_ENDINGS, RowsForm.tsv)
    refuse_existing(output, force, binary=check is None and form in (RowsForm.npy, RowsForm.u32))
    if threads is not None:
        pool.use(threads)
    found = constants.read(params, profile, token_map).params
    if check is not None:
        others = {"FILE": files or None, "--ids": ids, "--ids-file": ids_file, "--text": text}
        others |= {"--mask": mask, "--mask-file": mask_file, "--history": history}
        if both := [name for name, value in others.items() if value is not None]:
            raise EngramctlError("--check", "no other input: the file it names lists the inputs", " and ".join(both))
        raise typer.Exit(sums.check(check, lambda file: sums.digest(file, ids_format, found), json, quiet))
    if json:
        raise EngramctlError("--json", "--check beside it", "rows, which are data: --to jsonl")
    if files and len(files) > 1:
        if form is not RowsForm.sha256 or any(x is not None for x in (ids, ids_file, text, mask, mask_file, history)):
            raise EngramctlError(
                "token ids", "one file, or several with --to sha256 and no other input", f"{len(files)} files"
            )
        emit(output, (sums.line(sums.digest(file, ids_format, found), file) for file in files), force)
        return
    if files and ids_file is not None:
        raise EngramctlError("token ids", "exactly one input", "a file and --ids-file")
    if files and not files[0].exists() and re.fullmatch(r"-?\d[\d,-]*", str(files[0])):
        raise EngramctlError(str(files[0]), "a file", "nothing there", f"--ids {files[0]} takes token ids")
    ids_file = files[0] if files else ids_file
    home = params if params is not None and params.is_dir() else None
    space = found.rule.id_space
    given = inputs.read_sequence(ids, ids_file, text, mask, mask_file, history, ids_format, tokenizer, home, space)
    given.fits(found.token_map.size)
    rows = rows_out.chunks(given.ids, found, given.mask, given.history)
    if form is RowsForm.sha256:
        emit(output, [sums.line(rows_out.sha256(rows), ids_file or STDIN)], force)
    else:
        emit(output, rows_out.write(rows, form.value, found, given.ids.size), force)


def lookup(
    source: Annotated[Path, typer.Argument(metavar="FILE|DIR", help="A container or checkpoint.")],
    layer: Layer = None,
    rows: Annotated[
        str | None, typer.Option("--rows", metavar="0,5,100:200", help="Row numbers; ranges are half open.")
    ] = None,
    rows_file: Annotated[
        Path | None, typer.Option("--rows-file", metavar="FILE", help="Row numbers in a file; - is standard input.")
    ] = None,
    to: Annotated[
        ValuesForm, typer.Option("--to", help="raw bytes, bf16 bits, or f32 exact values.")
    ] = ValuesForm.bf16,
    io: Io = None,
    prewarm: Prewarm = False,
    shard: Shard = None,
    shard_by: By = None,
    output: Output = STDIN,
    profile: MaybeProfile = None,
    threads: Threads = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Read rows by number, as an npy array."""
    from engramctl import siblings
    from engramctl import threads as pool
    from engramctl.cli import inputs, placing
    from engramctl.cli.output import emit, npy, refuse_ending, refuse_existing, refuse_source
    from engramctl.source import open_source, the_layer
    from engramctl.tables import open_tables

    refuse_source(output, source, rows_file, profile=profile)
    refuse_ending(output, (".npy",))
    refuse_existing(output, force, binary=True)
    if threads is not None:
        pool.use(threads)
    sibling = siblings.profile_of(source, profile) is not None
    with ExitStack() as stack:
        opened: Source | Tables
        if sibling:
            opened = stack.enter_context(open_source(source, profile))
            at = the_layer(opened, layer)
        else:
            opened = stack.enter_context(open_tables(source, profile))
            at = opened.the_layer(layer)
        wanted = inputs.read_rows(rows, rows_file, opened.table(at).rows)
        table = stack.enter_context(placing.table(opened, at, io, prewarm, shard, shard_by, wanted.size, quiet))
        emit(output, npy(_values(table, wanted, to, sibling)), force)


def _values(table: Table | PlainTable, wanted: NDArray[np.int64], to: ValuesForm, sibling: bool) -> NDArray[Any]:
    from engramctl import pipeline
    from engramctl.siblings import run
    from engramctl.table import Table

    if sibling or not isinstance(table, Table):
        return run.looked_up(table, wanted, to.value)
    if to is ValuesForm.raw:
        return table.read(wanted)
    if to is ValuesForm.f32:
        return table.decoded(wanted)
    return table.values(wanted, pipeline.engine_of("fast" if table.compiled(wanted.size) else "reference"))


COMMANDS: dict[str, Callable[..., None]] = {"hash": hash_, "lookup": lookup}
