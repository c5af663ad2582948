"""check: each command derives what is right anew and says what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engramctl.cli import check_dumps, edge, packing, quick
from engramctl.cli.check_dumps import DEFAULT
from engramctl.cli.options import Json, MapTokenizer, MaybeProfile, Profile, Quiet, TokenMap
from engramctl.cli.verdict import verdict
from engramctl.errors import EngramctlError

HELP = "Verify maps, constants, rows, values, projections, gates and files, each against an independent expectation."
app = typer.Typer(cls=quick.Group, rich_markup_mode=None, no_args_is_help=False, help=HELP, epilog=edge.EXITS)
Sample = Annotated[int | None, typer.Option("--sample", metavar="N", min=0, help="Rows at edges, and N seeded ones.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Chooses the sample.")]
Release = Annotated[bool, typer.Option("--release", help="It has to be the release: compare the published rows.")]


@app.callback(invoke_without_command=True)
def list_(
    context: typer.Context,
    listed: Annotated[bool, typer.Option("--list", help="Print the known mistakes that checks look for.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Verify maps, constants, rows, values, projections, gates and files, each against an independent expectation."""
    if context.invoked_subcommand is not None:
        return
    if not listed:
        context.fail("Missing command.")
    from engramctl import report
    from engramctl.mistakes import catalogue

    entries = [entry.facts() for entry in catalogue.every()]
    if json:
        report.as_json("check", True, {"mistakes": entries})
    else:
        for entry in entries:
            report.heading(f"{entry['stage']}: {entry['name']}")
            report.facts([(f"  {each}", entry[each]) for each in catalogue.WORDS])


@app.command("map", epilog=edge.EXITS)
def map_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A map in any form, a container or a checkpoint.")],
    tokenizer: MapTokenizer = None,
    allow_mismatch: Annotated[
        bool, typer.Option("--allow-mismatch", help="It need not be the profile's published map.")
    ] = False,
    profile: MaybeProfile = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare a token map with the one the tokenizer gives, and with the published digest."""
    from engramctl import maps
    from engramctl.checkpoint import profile_of
    from engramctl.verify import token_map

    known = profile_of(file, profile)
    maps.expect_map(known)
    verdict("map", file, token_map.check_file(file, known, tokenizer, not allow_mismatch), json)


@app.command("params", epilog=edge.EXITS)
def params_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="json, npz, a container or a checkpoint; - is standard input.")
    ],
    source: Annotated[
        Path | None,
        typer.Option("--source", metavar="SOURCE", help="Their checkpoint or container: its sizes derive them."),
    ] = None,
    token_map: TokenMap = None,
    profile: MaybeProfile = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare hash constants with the derivation and with the profile's published ones."""
    from engramctl import maps, profiles
    from engramctl.siblings import checking
    from engramctl.verify import params

    known, given = profiles.load(profile or DEFAULT), maps.given(token_map)
    result = checking.params(file, profile, given) or params.check(file, known, given, source)
    verdict("params", file, result, json)


for name, command in check_dumps.COMMANDS.items():
    app.command(name, epilog=edge.EXITS)(command)


app.command("packing", epilog=edge.EXITS)(packing.packing)


@app.command("file", epilog=edge.EXITS)
def file_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A container.")],
    loader: Annotated[
        str | None, typer.Option("--loader", metavar="NAME", help="Whose rules: ds4, llamacpp, split-i8, or all.")
    ] = None,
    release: Release = False,
    profile: Profile = DEFAULT,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Judge a container by the rules of its dialect's loader; the release's own also by its published rows."""
    from engramctl import profiles, sidecars
    from engramctl.siblings import checking
    from engramctl.verify import container

    if file.is_dir():
        rows = [f"check file {each.path}" for each in sidecars.of_folder(file)[:1]]
        hint = f"one file of rows at a time: {rows[0]}" if rows else f"check source {file} judges a checkpoint"
        raise EngramctlError(str(file), "a file", "a folder", hint)
    sibling = checking.file(file, loader or "ds4")
    verdict("file", file, sibling or container.check(file, profiles.load(profile), loader, release), json)


@app.command("source", epilog=edge.EXITS)
def source_(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A folder or a safetensors file.")],
    sample: Annotated[
        int,
        typer.Option("--sample", metavar="N", min=0, help="N seeded rows, beside those at edges."),
    ] = 1000,
    seed: Seed = 0,
    all_rows: Annotated[bool, typer.Option("--all-rows", help="Look at every row.")] = False,
    release: Release = False,
    token_map: TokenMap = None,
    profile: MaybeProfile = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Hold a checkpoint's shards, index, config and tensors against each other, the profile and published digests."""
    from engramctl import kinds, maps, profiles, report
    from engramctl.siblings import checking
    from engramctl.verify import checkpoint as check

    kinds.refuse_other(checkpoint, kinds.CHECKPOINT, hint=f"check file {checkpoint} judges a container")
    sibling = checking.source(checkpoint, profile, sample, seed, all_rows)
    if sibling is not None:
        verdict("source", checkpoint, sibling, json)
    known, given = profiles.load(profile or DEFAULT), maps.given(token_map)
    with report.progress(
        check.bytes_to_read(checkpoint) if all_rows else 0, checkpoint.name, quiet or json or not all_rows
    ) as advance:
        result = check.check(checkpoint, known, profile is not None, sample, seed, all_rows, release, advance, given)
    verdict("source", checkpoint, result, json)
