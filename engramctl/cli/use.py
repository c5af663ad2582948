"""hash, lookup, run: which rows, what is in them, what they do."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from engramctl.cli.options import (
    STDIN,
    Force,
    Hidden,
    History,
    Ids,
    IdsFile,
    IdsForm,
    IdsFormat,
    Json,
    Layer,
    Mask,
    MaskFile,
    Output,
    Params,
    Quiet,
    RoundHidden,
    Text,
    Threads,
    Tokenizer,
    TokenMap,
)


class RowsForm(StrEnum):
    tsv = "tsv"
    jsonl = "jsonl"
    npy = "npy"
    u32 = "u32"
    sha256 = "sha256"


class ValuesForm(StrEnum):
    raw = "raw"
    bf16 = "bf16"
    f32 = "f32"


class StopAt(StrEnum):
    rows = "rows"
    values = "values"
    kv = "kv"
    gate = "gate"


class EngineName(StrEnum):
    fast = "fast"
    reference = "reference"


class KernelName(StrEnum):
    auto = "auto"
    amx = "amx"
    avx512 = "avx512"
    avx2 = "avx2"
    portable = "portable"


class ActivationName(StrEnum):
    plain = "plain"
    official = "official"


OptionalProfile = Annotated[
    str | None, typer.Option("--profile", metavar="NAME", help="The model whose names and rules apply.")
]


def hash_(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Token ids (text, .npy, .jsonl); - is standard input."),
    ] = None,
    ids: Ids = None,
    ids_file: IdsFile = None,
    text: Text = None,
    ids_format: IdsForm = IdsFormat.auto,
    mask: Mask = None,
    mask_file: MaskFile = None,
    history: History = None,
    to: Annotated[RowsForm, typer.Option("--to", help="The form of the rows.")] = RowsForm.tsv,
    output: Output = STDIN,
    check: Annotated[
        Path | None, typer.Option("--check", metavar="SUMS", help="Compute the digests in this file again and compare.")
    ] = None,
    tokenizer: Tokenizer = None,
    token_map: TokenMap = None,
    params: Params = None,
    profile: OptionalProfile = None,
    threads: Threads = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn token ids or text into row numbers."""
    from engramctl import constants, rows_out
    from engramctl.cli import inputs, sums
    from engramctl.cli.output import emit, refuse_existing
    from engramctl.errors import EngramctlError

    refuse_existing(output, force)
    if threads is not None:
        from engramctl import fast

        fast.use_threads(threads)
    found = constants.read(params, profile, token_map).params
    if check is not None:
        raise typer.Exit(sums.check(check, lambda file: sums.digest(file, ids_format, found), json, quiet))
    if json:
        raise EngramctlError("--json", "--check beside it", "rows, which are data: --to jsonl")
    if files and len(files) > 1:
        if to is not RowsForm.sha256 or any(x is not None for x in (ids, ids_file, text, mask, mask_file, history)):
            raise EngramctlError(
                "token ids", "one file, or several with --to sha256 and no other input", f"{len(files)} files"
            )
        emit(output, (sums.line(sums.digest(file, ids_format, found), file) for file in files), force)
        return
    if files and ids_file is not None:
        raise EngramctlError("token ids", "exactly one input", "a file and --ids-file")
    ids_file = files[0] if files else ids_file
    checkpoint = params if params is not None and params.is_dir() else None
    given = inputs.read_sequence(ids, ids_file, text, mask, mask_file, history, ids_format, tokenizer, checkpoint)
    rows = rows_out.chunks(given.ids, found, given.mask, given.history)
    if to is RowsForm.sha256:
        emit(output, [sums.line(rows_out.sha256(rows), ids_file or STDIN)], force)
    else:
        emit(output, rows_out.write(rows, to.value, found, given.ids.size), force)


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
    output: Output = STDIN,
    profile: OptionalProfile = None,
    force: Force = False,
) -> None:
    """Read rows by number, as an npy array."""
    from engramctl import tables
    from engramctl.cli import inputs
    from engramctl.cli.output import emit, npy, refuse_existing

    refuse_existing(output, force)
    with tables.open_tables(source, profile) as opened:
        table = opened.table(layer)
        wanted = inputs.read_rows(rows, rows_file, table.rows)
        if to is ValuesForm.raw:
            emit(output, npy(table.read(wanted)), force)
        elif to is ValuesForm.f32:
            emit(output, npy(table.values(wanted)), force)
        else:
            emit(output, npy(table.bf16(wanted)), force)


def run(
    source: Annotated[Path, typer.Argument(metavar="FILE|DIR", help="A container or checkpoint.")],
    layer: Layer = None,
    ids: Ids = None,
    ids_file: IdsFile = None,
    text: Text = None,
    ids_format: IdsForm = IdsFormat.auto,
    mask: Mask = None,
    mask_file: MaskFile = None,
    history: History = None,
    hidden: Hidden = None,
    round_hidden: RoundHidden = False,
    stop_at: Annotated[
        StopAt | None, typer.Option("--stop-at", help="Write this stage instead of the new hidden states.")
    ] = None,
    engine: Annotated[
        EngineName | None, typer.Option("--engine", help="fast by default; both give equal bits.")
    ] = None,
    kernel: Annotated[KernelName, typer.Option("--kernel", help="Which kernels; auto chooses.")] = KernelName.auto,
    activation: Annotated[
        ActivationName, typer.Option("--activation", help="official quantises the projection's input first.")
    ] = ActivationName.plain,
    output: Output = STDIN,
    tokenizer: Tokenizer = None,
    token_map: TokenMap = None,
    profile: OptionalProfile = None,
    threads: Threads = None,
    force: Force = False,
) -> None:
    """Run one layer: rows, values, kv, gate.

    Token ids and hidden states in, new hidden states out; --stop-at writes a stage in between.
    """
    from engramctl import dumps, maps, pipeline
    from engramctl.cli import inputs
    from engramctl.cli.output import emit, npy, refuse_existing
    from engramctl.errors import EngramctlError
    from engramctl.source import open_source, the_layer

    refuse_existing(output, force)
    if kernel not in (KernelName.auto, KernelName.portable):
        raise EngramctlError("--kernel", "auto or portable, which this version has", kernel.value)
    if activation is ActivationName.official and engine is EngineName.fast:
        raise EngramctlError("--activation official", "--engine reference", "--engine fast")
    chosen = engine or (EngineName.reference if activation is ActivationName.official else EngineName.fast)
    given = inputs.read_sequence(
        ids, ids_file, text, mask, mask_file, history, ids_format, tokenizer, source if source.is_dir() else None
    )
    with open_source(source, profile, maps.given(token_map)) as opened:
        at = the_layer(opened, layer)
        states = None
        if stop_at in (None, StopAt.gate):
            if hidden is None:
                raise EngramctlError("--hidden", "a file of hidden states", "none")
            shape = (given.ids.size, opened.sizes.streams, opened.sizes.hidden)
            states = dumps.read_hidden(hidden, shape, round_hidden)
        result = pipeline.run(
            opened,
            at,
            given.ids,
            None if states is None else states.bits,
            given.mask,
            given.history,
            "out" if stop_at is None else stop_at.value,
            chosen.value,
            activation.value,
            threads,
        )
        written = npy(result) if stop_at is not None or states is None else dumps.write_hidden(states, result)
        emit(output, written, force)


COMMANDS: dict[str, Callable[..., None]] = {"hash": hash_, "lookup": lookup, "run": run}
