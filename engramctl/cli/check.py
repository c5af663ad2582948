"""check: each command derives what is right anew and says what differs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engramctl.cli import edge
from engramctl.cli.options import (
    History,
    Ids,
    IdsFile,
    IdsForm,
    IdsFormat,
    Json,
    Layer,
    Mask,
    MaskFile,
    Params,
    Profile,
    Quiet,
    Text,
    Tokenizer,
    TokenMap,
)
from engramctl.errors import EngramctlError

HELP = "Verify maps, constants, rows, values, projections, gates and files, each against an independent expectation."
app = typer.Typer(rich_markup_mode=None, no_args_is_help=False, help=HELP, epilog=edge.EXITS)
if TYPE_CHECKING:
    from engramctl.cli.inputs import Sequence
    from engramctl.verify.result import Result

DEFAULT = "deepseek-v4.1-flash"
MaybeProfile = Annotated[str | None, typer.Option("--profile", metavar="NAME", help="The model; else the default.")]
Dump = Annotated[Path, typer.Argument(metavar="DUMP", help="What the engine dumped; - is standard input.")]
Source = Annotated[Path, typer.Argument(metavar="SOURCE", help="The container or checkpoint it came from.")]
Rows = Annotated[str | None, typer.Option("--rows", metavar="0,5,100:200", help="Row numbers instead of token ids.")]
RowsFile = Annotated[Path | None, typer.Option("--rows-file", metavar="FILE", help="The same in a file.")]
Sample = Annotated[int | None, typer.Option("--sample", metavar="N", min=0, help="The telling rows and N seeded ones.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Chooses the sample.")]
Release = Annotated[bool, typer.Option("--release", help="It has to be the release: compare the published rows.")]


class DumpForm(StrEnum):
    auto = "auto"
    arrays = "arrays"  # npy, npz, safetensors: each says so itself
    u32 = "u32"
    tsv = "tsv"
    jsonl = "jsonl"


@app.command("map", epilog=edge.EXITS)
def map_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A map in any form, a container or a checkpoint.")],
    tokenizer: Annotated[Path | None, typer.Option("--tokenizer", metavar="FILE", help="tokenizer.json.")] = None,
    allow_mismatch: Annotated[bool, typer.Option("--allow-mismatch", help="It need not be the profile's.")] = False,
    profile: Profile = DEFAULT,
    json: Json = False,
) -> None:
    """Compare a token map with the one the tokenizer gives, and with the published digest."""
    from engramctl import profiles
    from engramctl.verify import token_map

    _report("map", file, token_map.check_file(file, profiles.load(profile), tokenizer, not allow_mismatch), json)


@app.command("params", epilog=edge.EXITS)
def params_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="json, npz, a container or a checkpoint.")],
    source: Annotated[
        Path | None, typer.Option("--source", metavar="SOURCE", help="The checkpoint or container they are of.")
    ] = None,
    token_map: TokenMap = None,
    profile: Profile = DEFAULT,
    json: Json = False,
) -> None:
    """Compare hash constants with the derivation and with the profile's published ones."""
    from engramctl import maps, profiles
    from engramctl.verify import params

    _report("params", file, params.check(file, profiles.load(profile), maps.given(token_map), source), json)


@app.command("hash", epilog=edge.EXITS)
def hash_(
    dump: Dump,
    ids: Ids = None,
    ids_file: IdsFile = None,
    text: Text = None,
    ids_format: IdsForm = IdsFormat.auto,
    mask: Mask = None,
    mask_file: MaskFile = None,
    history: History = None,
    layer: Layer = None,
    skip_dead: Annotated[bool, typer.Option("--skip-dead", help="Leave dead positions out.")] = False,
    dump_form: Annotated[DumpForm, typer.Option("--dump-form", help="How the dump is written.")] = DumpForm.auto,
    tokenizer: Tokenizer = None,
    token_map: TokenMap = None,
    params: Params = None,
    profile: MaybeProfile = None,
    json: Json = False,
) -> None:
    """Compare row numbers that an engine dumped with the reference."""
    from engramctl import constants
    from engramctl.cli import inputs
    from engramctl.row_dumps import Wanted, read_rows
    from engramctl.verify import rows

    found = constants.read(params, profile, token_map).params
    checkpoint = params if params is not None and params.is_dir() else None
    given = inputs.read_sequence(ids, ids_file, text, mask, mask_file, history, ids_format, tokenizer, checkpoint)
    dumped = read_rows(dump, Wanted(given.ids.size, found.layers, found.columns, layer), dump_form.value)
    _report("hash", dump, rows.check(dumped, given.ids, found, given.mask, given.history, skip_dead), json)


@app.command("values", epilog=edge.EXITS)
def values_(
    dump: Dump,
    source: Source,
    layer: Layer = None,
    ids: Ids = None,
    ids_file: IdsFile = None,
    text: Text = None,
    ids_format: IdsForm = IdsFormat.auto,
    mask: Mask = None,
    mask_file: MaskFile = None,
    history: History = None,
    rows: Rows = None,
    rows_file: RowsFile = None,
    tokenizer: Tokenizer = None,
    token_map: TokenMap = None,
    profile: MaybeProfile = None,
    json: Json = False,
) -> None:
    """Compare looked-up values with the source, bit for bit."""
    from engramctl.cli import inputs

    given = None
    if rows is None and rows_file is None:
        home = source if source.is_dir() else None
        given = inputs.read_sequence(ids, ids_file, text, mask, mask_file, history, ids_format, tokenizer, home)
    elif any(option is not None for option in (ids, ids_file, text, mask, mask_file, history)):
        raise EngramctlError("what was looked up", "token ids or rows", "both")
    _lookups("values", dump, source, layer, given, rows, rows_file, token_map, profile, json)


@app.command("kv", epilog=edge.EXITS)
def kv_(
    dump: Dump,
    source: Source,
    layer: Layer = None,
    ids: Ids = None,
    ids_file: IdsFile = None,
    text: Text = None,
    ids_format: IdsForm = IdsFormat.auto,
    mask: Mask = None,
    mask_file: MaskFile = None,
    history: History = None,
    rows: Rows = None,
    rows_file: RowsFile = None,
    tokenizer: Tokenizer = None,
    token_map: TokenMap = None,
    profile: MaybeProfile = None,
    json: Json = False,
) -> None:
    """Compare projections with float64, within what BF16 and F32 summation may cost."""
    from engramctl.cli import inputs

    given = None
    if rows is None and rows_file is None:
        home = source if source.is_dir() else None
        given = inputs.read_sequence(ids, ids_file, text, mask, mask_file, history, ids_format, tokenizer, home)
    elif any(option is not None for option in (ids, ids_file, text, mask, mask_file, history)):
        raise EngramctlError("what was looked up", "token ids or rows", "both")
    _lookups("kv", dump, source, layer, given, rows, rows_file, token_map, profile, json)


def _lookups(
    stage: str,
    dump: Path,
    source: Path,
    layer: int | None,
    given: Sequence | None,
    rows: str | None,
    rows_file: Path | None,
    token_map: Path | None,
    profile: str | None,
    json: bool,
) -> None:
    """Values or projections of a sequence's rows, or of those listed."""
    from engramctl import array_files, maps
    from engramctl.cli import inputs
    from engramctl.source import open_source, the_layer
    from engramctl.verify import values

    with open_source(source, profile, maps.given(token_map)) as opened:
        at = the_layer(opened, layer)
        if given is None:
            looked = values.Looked(inputs.read_rows(rows, rows_file, opened.table(at).rows))
        else:
            looked = values.Looked(values.rows_of(opened, at, given.ids, given.mask, given.history))
        array = array_files.read(dump).only(stage)
        check = values.check_values if stage == "values" else values.check_kv
        _report(stage, dump, check(array, opened, at, looked), json)


@app.command("gate", epilog=edge.EXITS)
def gate_(dump: Dump, profile: Profile = DEFAULT, json: Json = False) -> None:
    """Compare gates and new hidden states with float64 on the dump's own hidden, key, value, q_weight and k_weight."""
    from engramctl import array_files, profiles
    from engramctl.verify import gate

    known = profiles.load(profile)
    inputs, gates, out = gate.read(array_files.read(dump))
    _report("gate", dump, gate.check(inputs, gates, out, known.sizes.eps, known.clamp), json)


@app.command("packing", epilog=edge.EXITS)
def packing_(
    source: Annotated[Path, typer.Argument(metavar="CHECKPOINT|FILE", help="What is right.")],
    made: Annotated[Path, typer.Argument(metavar="FILE", help="What is compared with it.")],
    layer: Layer = None,
    rows: Rows = None,
    sample: Sample = None,
    seed: Seed = 0,
    token_map: TokenMap = None,
    profile: MaybeProfile = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare a container with its checkpoint, or two containers: every byte of every row, weights and constants."""
    from contextlib import ExitStack

    from engramctl import maps, profiles, report, rowsets
    from engramctl.verify import packing
    from engramctl.verify.sides import open_side

    if rows is not None and sample is not None:
        raise EngramctlError("rows", "one of --rows and --sample", "both")
    known = profiles.load(profile or DEFAULT)
    asked = packing.Asked(layer, None if rows is None else rowsets.parse(rows, "--rows"), sample, seed)
    with ExitStack() as stack:
        want, have = (open_side(stack, path, known, profile, maps.given(token_map)) for path in (source, made))
        advance = stack.enter_context(
            report.progress(packing.bytes_to_read(want, have, asked), made.name, quiet or json)
        )
        result = packing.check(want, have, known, asked, advance)
    _report("packing", made, result, json)


@app.command("file", epilog=edge.EXITS)
def file_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A container.")],
    loader: Annotated[str | None, typer.Option("--loader", metavar="NAME", help="Whose rules, or all.")] = None,
    release: Release = False,
    profile: Profile = DEFAULT,
    json: Json = False,
) -> None:
    """Judge a container by the rules of its dialect's loader; the release's own also by its published rows."""
    from engramctl import profiles
    from engramctl.verify import container

    _report("file", file, container.check(file, profiles.load(profile), loader, release), json)


@app.command("source", epilog=edge.EXITS)
def source_(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A folder or a safetensors file.")],
    sample: Annotated[
        int, typer.Option("--sample", metavar="N", min=0, help="Seeded rows beside the telling ones.")
    ] = 1000,
    seed: Seed = 0,
    all_rows: Annotated[bool, typer.Option("--all-rows", help="Look at every row.")] = False,
    release: Release = False,
    profile: MaybeProfile = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Hold a checkpoint's shards, index, config and tensors against each other, the profile and published digests."""
    from engramctl import profiles, report
    from engramctl.verify import checkpoint as check

    known = profiles.load(profile or DEFAULT)
    with report.progress(
        check.bytes_to_read(checkpoint) if all_rows else 0, checkpoint.name, quiet or json or not all_rows
    ) as advance:
        result = check.check(checkpoint, known, profile is not None, sample, seed, all_rows, release, advance)
    _report("source", checkpoint, result, json)


def _report(command: str, path: Path, result: Result, json: bool) -> None:
    from engramctl import report
    from engramctl.cli.inputs import label

    report.check(f"check-{command}", f"check {command} {label(path)}", result, json)
    raise typer.Exit(edge.OK if result.ok else edge.DIFFERS)
