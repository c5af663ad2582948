"""check hash|values|kv|gate: what an engine dumped, against the reference."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
    MaybeProfile,
    Params,
    Profile,
    Quiet,
    Text,
    Tokenizer,
    TokenMap,
)
from engramctl.cli.verdict import verdict
from engramctl.errors import EngramctlError

if TYPE_CHECKING:
    from engramctl.cli.inputs import Sequence

DEFAULT = "deepseek-v4.1-flash"
Dump = Annotated[Path, typer.Argument(metavar="DUMP", help="What the engine dumped; - is standard input.")]
Source = Annotated[Path, typer.Argument(metavar="SOURCE", help="The container or checkpoint it came from.")]
Rows = Annotated[str | None, typer.Option("--rows", metavar="0,5,100:200", help="Row numbers instead of token ids.")]
RowsFile = Annotated[Path | None, typer.Option("--rows-file", metavar="FILE", help="The same in a file.")]
Axes = Annotated[
    str | None,
    typer.Option(
        "--axes",
        metavar="T,L,C",
        help="The dump's axes in their order: T tokens, L layers, C columns (or N orders, H heads), W a row's values, "
        "S keys and the value, D hidden width.",
    ),
]


class RowsAre(StrEnum):
    rows = "rows"
    buckets = "buckets"


class DumpForm(StrEnum):
    auto = "auto"
    arrays = "arrays"  # npy, npz, safetensors: each says so itself
    u32 = "u32"
    u64 = "u64"
    i64 = "i64"
    tsv = "tsv"
    jsonl = "jsonl"


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
    axes: Axes = None,
    rows_are: Annotated[
        RowsAre,
        typer.Option(
            "--rows-are", help="What the dump has: rows of the table, or buckets: rows less their column's offset."
        ),
    ] = RowsAre.rows,
    probe: Annotated[
        Path | None, typer.Option("--probe", metavar="FILE", help="The dump is of this file by `probe hash`.")
    ] = None,
    tokenizer: Tokenizer = None,
    token_map: TokenMap = None,
    params: Params = None,
    profile: MaybeProfile = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare row numbers that an engine dumped with the reference."""
    from engramctl import constants, profiles
    from engramctl.cli import inputs
    from engramctl.mistakes import hash_probe_file, map_sources
    from engramctl.row_dumps import Judge, Wanted, read_rows
    from engramctl.row_dumps import Rows as Dumped
    from engramctl.siblings import checking
    from engramctl.verify import rows

    source = constants.read(params, profile, token_map)
    found = source.params
    checkpoint = params if params is not None and params.is_dir() else None
    known = map_sources.for_params(found, profiles.load(profile or DEFAULT), home_tokenizer(tokenizer, checkpoint))
    buckets = rows_are is RowsAre.buckets

    def read(tokens: int, judge: Judge) -> Dumped:
        wanted = Wanted(tokens, found.layers, found.columns, layer, found.heads, axes, judge)
        dumped = read_rows(dump, wanted, dump_form.value)
        return rows.with_offsets(dumped, found) if buckets else dumped

    if probe is not None:
        if any(option is not None for option in (ids, ids_file, text, mask, mask_file, history)):
            raise EngramctlError("token ids", "a probe or a sequence", "both")
        checking.expect_v41(found.rule, "--probe")
        asked = hash_probe_file.read(probe, found)
        first = asked.sequences[0].case
        dumped = read(asked.tokens, rows.judge(first.tokens, found, first.mask, first.history, buckets))
        verdict("hash", dump, rows.check_probe(dumped, asked, found, skip_dead, known), json)
    home, space = checkpoint, found.rule.id_space
    given = inputs.read_sequence(ids, ids_file, text, mask, mask_file, history, ids_format, tokenizer, home, space)
    given.fits(found.token_map.size)
    dumped = read(given.ids.size, rows.judge(given.ids, found, given.mask, given.history, buckets))
    result = rows.check(dumped, given.ids, found, given.mask, given.history, skip_dead, known)
    result.notes.append(f"compared with the constants of {source.origin}")
    checking.hash_notes(result, dumped, given.ids, found, given.mask, given.history)
    verdict("hash", dump, result, json)


def home_tokenizer(given: Path | None, checkpoint: Path | None) -> Path | None:
    """The tokenizer.json that mistaken maps can be made with: the given one, or the checkpoint's."""
    own = None if checkpoint is None else checkpoint / "tokenizer.json"
    return given if given is not None or own is None or not own.is_file() else own


def _command(stage: str, what: str) -> Callable[..., None]:
    """check values and check kv: the same options."""

    def command(
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
        axes: Axes = None,
        tokenizer: Tokenizer = None,
        token_map: TokenMap = None,
        profile: MaybeProfile = None,
        json: Json = False,
        quiet: Quiet = False,
    ) -> None:
        from engramctl.cli import inputs

        given = None
        if rows is None and rows_file is None:
            home, space = source if source.is_dir() else None, inputs.id_space(source, profile)
            given = inputs.read_sequence(
                ids, ids_file, text, mask, mask_file, history, ids_format, tokenizer, home, space
            )
        elif any(option is not None for option in (ids, ids_file, text, mask, mask_file, history)):
            raise EngramctlError("what was looked up", "token ids or rows", "both")
        _lookups(stage, dump, source, layer, given, rows, rows_file, axes, token_map, profile, json)

    command.__doc__ = what
    return command


def _lookups(
    stage: str,
    dump: Path,
    source: Path,
    layer: int | None,
    given: Sequence | None,
    rows: str | None,
    rows_file: Path | None,
    axes: str | None,
    token_map: Path | None,
    profile: str | None,
    json: bool,
) -> None:
    """Values or projections of a sequence's rows, or of those listed."""
    from engramctl import array_files, maps
    from engramctl.cli import inputs
    from engramctl.mistakes import map_sources
    from engramctl.siblings import checking
    from engramctl.source import open_source, the_layer
    from engramctl.verify import values

    with open_source(source, profile, maps.given(token_map)) as opened:
        at = the_layer(opened, layer)
        if given is None:
            looked = values.Looked(inputs.read_rows(rows, rows_file, opened.table(at).rows))
        else:
            given.fits(opened.params().token_map.size)
            home = home_tokenizer(None, source if source.is_dir() else None)
            known = map_sources.for_params(opened.params(), opened.profile, home)
            looked = values.looked_up(opened, at, given.ids, given.mask, given.history, known)
        array = array_files.read(dump).only(stage)
        sibling = checking.kv(array, opened, at, looked) if stage == "kv" else None
        check = values.check_values if stage == "values" else values.check_kv
        if sibling is None:
            sibling = check(array, opened, at, looked, axes)
        verdict(stage, dump, sibling, json)


def gate_(dump: Dump, profile: Profile = DEFAULT, json: Json = False, quiet: Quiet = False) -> None:
    """Compare gates and new hidden states with float64 on the dump's own hidden, key, value, q_weight and k_weight."""
    from engramctl import array_files, profiles
    from engramctl.siblings import checking
    from engramctl.source import V41_ROWS
    from engramctl.verify import gate

    known = profiles.load(profile)
    inputs, gates, out = gate.read(array_files.read(dump), f32=known.storage.encoding != V41_ROWS)
    checking.expect_gates(known, out)
    verdict("gate", dump, gate.check(inputs, gates, out, known.sizes.eps, known.clamp), json)


COMMANDS: dict[str, Callable[..., None]] = {
    "hash": hash_,
    "values": _command("values", "Compare looked-up values with the source, bit for bit."),
    "kv": _command("kv", "Compare projections with float64, within what BF16 and F32 summation may cost."),
    "gate": gate_,
}
