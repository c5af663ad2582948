"""probe: inputs chosen so that every known mistake shows."""

from __future__ import annotations

from typing import Annotated

import typer

from engramctl.cli import edge, quick
from engramctl.cli.check_dumps import DEFAULT, home_tokenizer
from engramctl.cli.options import Force, Json, MapTokenizer, MaybeProfile, Output, Params, Profile, Quiet, TokenMap

LISTED = 4  # pairs that are named on standard error
HELP = "Write inputs on which every known mistake of an engine shows; --with-answers makes them test vectors."
app = typer.Typer(cls=quick.Group, rich_markup_mode=None, no_args_is_help=False, help=HELP, epilog=edge.EXITS)
Answers = Annotated[bool, typer.Option("--with-answers", help="Add the right numbers of every stage.")]


@app.command("hash", epilog=edge.EXITS)
def hash_(
    output: Output,
    answers: Answers = False,
    tokenizer: MapTokenizer = None,
    token_map: TokenMap = None,
    params: Params = None,
    profile: MaybeProfile = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write sequences (masks, chunks, a fork) that tell the hash's mistakes from the truth and each other."""
    from json import dumps

    from engramctl import constants, profiles, report
    from engramctl.cli.output import emit, refuse_both, refuse_ending, refuse_source
    from engramctl.mistakes import hash_probe_file, map_sources
    from engramctl.siblings import checking

    refuse_both(json, output)
    refuse_source(output, params, tokenizer, token_map, profile=profile)
    refuse_ending(output, (".json",))
    found = constants.read(params, profile, token_map).params
    checking.expect_v41(found.rule, "probe hash")
    home = home_tokenizer(tokenizer, params if params is not None and params.is_dir() else None)
    made = hash_probe_file.encode(
        found, map_sources.for_params(found, profiles.load(profile or DEFAULT), home), answers
    )
    emit(output, [(dumps(made) + "\n").encode()], force)
    told, alike = made["pairs_told_apart"], made["pairs_alike"]
    if json:
        facts = {name: made[name] for name in ("mistakes", "not_tried", "pairs_told_apart", "pairs_alike")}
        report.as_json("probe-hash", True, facts | {"sequences": [each["name"] for each in made["sequences"]]})
    elif not quiet:
        tokens = sum(len(each["tokens"]) for each in made["sequences"])
        pairs = told + len(alike)
        edge.say(f"{output}: {tokens} tokens in {len(made['sequences'])} sequences; {told} of {pairs} pairs told apart")
        for pair in alike[:LISTED]:
            edge.say(f"{pair['one']} and {pair['other']} cannot be told apart: {pair['reason']}")
        if len(alike) > LISTED:
            edge.say(f"and {len(alike) - LISTED} pairs more, which the file lists")


@app.command("gate", epilog=edge.EXITS)
def gate_(
    output: Output,
    answers: Answers = False,
    profile: Profile = DEFAULT,
    hidden: Annotated[
        int | None,
        typer.Option("--hidden-size", metavar="D", min=4, max=1 << 16, help="Another hidden width than the model's."),
    ] = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write hidden states, keys, values, weights and a mask, as npz or safetensors.

    Each known mistake of the gate shows on them; what cannot be told apart is said.
    """
    from engramctl import profiles, report
    from engramctl.cli.output import emit, refuse_both, refuse_ending, refuse_existing, refuse_source
    from engramctl.mistakes import gate_probe_file
    from engramctl.siblings import checking

    refuse_both(json, output)
    refuse_source(output, profile=profile)
    refuse_ending(output, (".npz", ".safetensors"))
    refuse_existing(output, force, binary=True)
    known = profiles.load(profile)
    checking.expect_v41(known.rule, "probe gate")
    made = gate_probe_file.make(known, hidden or known.sizes.hidden, answers)
    emit(output, gate_probe_file.encode(made.arrays, output.suffix), force)
    told, alike = [pair for pair in made.pairs if pair.reason is None], [pair for pair in made.pairs if pair.reason]
    if json:
        body = {
            "tokens": list(made.why),
            "pairs_told_apart": len(told),
            "pairs_alike": [pair.facts() for pair in alike],
        }
        report.as_json("probe-gate", True, body)
    elif not quiet:
        edge.say(f"{output}: {len(made.why)} tokens; {len(told)} of {len(made.pairs)} pairs told apart")
        for pair in alike:
            edge.say(f"{pair.one} and {pair.other} cannot be told apart: {pair.reason}")
