"""map, params, synth, show: from tokenizer to constants, and what a file is."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engramctl.cli.options import STDIN, Force, Json, MaybeProfile, Output, Profile, Quiet, TokenMap

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Maybe = Path | None


class MapForm(StrEnum):
    u32 = "u32"
    i64 = "i64"
    npy = "npy"
    json = "json"


class ParamsForm(StrEnum):
    json = "json"
    npz = "npz"
    c = "c"
    rust = "rust"


MAP_ENDINGS = {f".{form.value}": form for form in MapForm}
PARAMS_ENDINGS = {".json": ParamsForm.json, ".npz": ParamsForm.npz, ".h": ParamsForm.c, ".rs": ParamsForm.rust}


class Tokens(StrEnum):
    tiny = "tiny"
    real = "real"


OptionalOutput = Annotated[
    Maybe,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Where to write; - is standard output; without it, only compare."
    ),
]


def make_map(
    source: Annotated[
        Maybe,
        typer.Argument(metavar="TOKENIZER|MAP", help="tokenizer.json, or a map in any form; - is standard input."),
    ] = None,
    output: OptionalOutput = None,
    to: Annotated[
        MapForm | None,
        typer.Option("--to", help="The form; else as the output's name ends (.npy, .json, .i64), else u32."),
    ] = None,
    allow_mismatch: Annotated[
        bool, typer.Option("--allow-mismatch", help="Write a map that is not the profile's.")
    ] = False,
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="ID|TEXT", help="Which tokens share its compressed id, and why.")
    ] = None,
    profile: MaybeProfile = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make or rewrite the token map.

    From a tokenizer, or a map in any form; one that is not the profile's published map is refused.
    """
    from engramctl import maps, report
    from engramctl.checkpoint import profile_of
    from engramctl.cli import edge
    from engramctl.cli.output import emit, form_of, refuse_both, refuse_existing, refuse_source
    from formats import token_map

    refuse_both(json, output)
    refuse_source(output, source, profile=profile)
    form = form_of(to, output, MAP_ENDINGS, MapForm.u32)
    if output == STDIN:
        refuse_existing(output, force, binary=form is not MapForm.json)
    known = profile_of(source, profile)
    maps.expect_map(known)
    found = maps.read(source, known)
    if explain is not None:
        _explain(explain, source, found.ids, json)
        return
    facts = maps.describe(found.ids, known)
    if facts["same"] or allow_mismatch:
        if output is not None:
            emit(output, [token_map.encode(found.ids, form.value)], force)
        code = edge.OK
    else:
        code = edge.DIFFERS
    if json:
        body = facts | {"origin": found.origin, "output": None if output is None or code else str(output)}
        report.as_json("map", code == edge.OK, body)
    elif code:
        edge.say(f"error: {found.origin}: expected {facts['expected']['summary']}, found {facts['found']['summary']}")
        edge.say("hint: --allow-mismatch writes it all the same")
    elif not quiet:
        verdict = "as published" if facts["same"] else "not the published map"
        edge.say(f"{found.origin}: {facts['found']['summary']}, {verdict}")
    raise typer.Exit(code)


def _explain(asked: str, source: Path | None, ids: NDArray[np.uint32], json: bool) -> None:
    from engramctl import explain_map, report, vocabulary
    from engramctl.maps import is_tokenizer

    path = source / "tokenizer.json" if source is not None and source.is_dir() else source
    if path is None:
        path = vocabulary.extra_tokenizer()
    elif path == STDIN or not path.is_file() or not is_tokenizer(path):
        path = None
    found = explain_map.explain(asked, ids, path)
    if json:
        report.as_json("map", True, {"explain": found})
    else:
        report.table(("class", "token", "piece", "key", "why"), explain_map.rows(found))


def params(
    source: Annotated[
        Maybe, typer.Argument(metavar="SOURCE", help="A checkpoint, container or params file; the profile if absent.")
    ] = None,
    output: Output = STDIN,
    to: Annotated[
        ParamsForm | None,
        typer.Option("--to", help="The form; else as the output's name ends (.json, .npz, .h, .rs), else json."),
    ] = None,
    profile: MaybeProfile = None,
    token_map: TokenMap = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write the hash constants.

    Multipliers, primes, offsets, pad and row counts of the profile or a source; compared with the derivation.
    """
    import json

    from engramctl import constants, params_code, params_file, profiles
    from engramctl.cli import edge
    from engramctl.cli.output import emit, form_of, refuse_existing, refuse_source

    refuse_source(output, source, token_map, profile=profile)
    form = form_of(to, output, PARAMS_ENDINGS, ParamsForm.json)
    if output == STDIN:
        refuse_existing(output, force, binary=form is ParamsForm.npz)
    found = constants.read(source, profile, token_map)
    known = found.profile or profiles.load(profile or profiles.DEFAULT)
    statuses, differs = constants.statuses(found, known), constants.differs_from_profile(found, known)
    if form in (ParamsForm.c, ParamsForm.rust):
        data = params_code.FORMS[form.value](found.params).encode()
    elif form is ParamsForm.npz:
        data = params_file.to_npz(found.params)
    else:
        facts = {
            "schema": params_file.SCHEMA,
            "ok": True,
            "origin": found.origin,
            "derivation": statuses,
            "differs_from_profile": differs,
        }
        data = (json.dumps(facts | params_file.to_dict(found.params), indent=1) + "\n").encode()
    emit(output, [data], force)
    if not quiet:
        lines = [f"{name} {status}" for name, status in statuses.items()]
        lines.append(f"{', '.join(differs)} not the profile's" if differs else "equal to the profile")
        edge.say(f"{found.origin}: {'; '.join(lines)}")


def synth(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Equal seeds give equal bytes.", min=0)] = 0,
    tokens: Annotated[
        Tokens, typer.Option("--tokens", help="The tiny tokenizer, or the shipped real map (no tokenizer file).")
    ] = Tokens.tiny,
    full_size: Annotated[
        bool, typer.Option("--full-size", help="The release's sizes as sparse files with marked rows.")
    ] = False,
    profile: Profile = "deepseek-v4.1-flash",
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a synthetic checkpoint.

    In the real format: config, index, shards, tokenizer; seeded, so equal everywhere.
    """
    from engramctl import profiles, report
    from engramctl import synth as make
    from engramctl.cli import edge
    from engramctl.siblings import synth as siblings
    from engramctl.source import V41_ROWS

    known = profiles.load(profile)
    if known.storage.encoding == V41_ROWS:
        made = make.make(folder, known, seed, tokens is Tokens.real, full_size, force)
    else:
        made = siblings.make(folder, known, seed, tokens is Tokens.real, full_size, force)
    if json:
        body = {
            "path": str(folder),
            "layers": made.sizes.layers,
            "rows": made.sizes.rows,
            "marked": {str(k): v for k, v in made.marked.items()},
        }
        report.as_json("synth", True, body)
    elif not quiet:
        edge.say(f"{folder}: layers {list(made.sizes.layers)} of {list(made.sizes.rows)} rows")


def show(
    path: Annotated[
        Path, typer.Argument(metavar="FILE|DIR", help="A container, checkpoint, shard, token map, file of rows.")
    ],
    profile: MaybeProfile = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what a file or folder is.

    Dialect, constants, tables, sizes, and which loaders take it; reads headers only.
    """
    from engramctl import report, show_lines
    from engramctl.siblings import show as siblings

    found = siblings.describe_any(path, profile)
    if json:
        report.as_json("show", True, found)
    else:
        report.facts(show_lines.lines(found))


COMMANDS: dict[str, Callable[..., None]] = {
    "map": make_map,
    "params": params,
    "show": show,
    "synth": synth,
}
