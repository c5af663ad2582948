"""run: what one layer's Engram does to a sequence, and where the time goes."""

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
    Kernel,
    KernelName,
    Layer,
    Mask,
    MaskFile,
    MaybeProfile,
    Output,
    Pin,
    Quiet,
    RoundHidden,
    Text,
    Threads,
    Tokenizer,
    TokenMap,
)
from engramctl.cli.placing import By, Io, Prewarm, Shard


class StopAt(StrEnum):
    rows = "rows"
    values = "values"
    kv = "kv"
    gate = "gate"


class EngineName(StrEnum):
    fast = "fast"
    reference = "reference"


class ActivationName(StrEnum):
    plain = "plain"
    official = "official"


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
    kernel: Kernel = KernelName.auto,
    activation: Annotated[
        ActivationName, typer.Option("--activation", help="official quantises the projection's input first.")
    ] = ActivationName.plain,
    io: Io = None,
    prewarm: Prewarm = False,
    shard: Shard = None,
    shard_by: By = None,
    times: Annotated[
        bool,
        typer.Option("--times", help="Say how long each stage took, and how long was waited (or a bare --profile)."),
    ] = False,
    output: Output = STDIN,
    tokenizer: Tokenizer = None,
    token_map: TokenMap = None,
    profile: MaybeProfile = None,
    threads: Threads = None,
    pin: Pin = False,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run one layer: rows, values, kv, gate.

    Token ids and hidden states in, new hidden states out; --stop-at writes a stage in between.
    """
    from engramctl import dumps, maps, pipeline, report
    from engramctl import threads as pool
    from engramctl.ahead import Times
    from engramctl.cli import edge, inputs, placing
    from engramctl.cli.output import emit, npy, refuse_both, refuse_ending, refuse_existing, refuse_source
    from engramctl.errors import EngramctlError
    from engramctl.source import V41_ROWS, open_source, the_layer

    refuse_both(json, output)
    refuse_source(output, source, ids_file, mask_file, hidden, tokenizer, token_map, profile=profile)
    refuse_ending(output, _endings(stop_at, hidden))
    refuse_existing(output, force, binary=True)
    if shard is not None and stop_at not in (StopAt.rows, StopAt.values):
        what = "--stop-at values: parts of values add up, their projections do not"
        raise EngramctlError("--shard", what, "none" if stop_at is None else f"--stop-at {stop_at.value}")
    if threads is not None:
        pool.use(threads)
    if activation is ActivationName.official and engine is EngineName.fast:
        raise EngramctlError("--activation official", "--engine reference", "--engine fast")
    chosen = engine or (EngineName.reference if activation is ActivationName.official else EngineName.fast)
    if pin and chosen is EngineName.reference:
        raise EngramctlError("--pin", "--engine fast, whose threads it keeps", "--engine reference")
    if kernel is not KernelName.auto:
        from engramctl import fast

        fast.cpu.choose(kernel.value)  # refused before anything is read
    home, space = source if source.is_dir() else None, inputs.id_space(source, profile)
    given = inputs.read_sequence(ids, ids_file, text, mask, mask_file, history, ids_format, tokenizer, home, space)
    with open_source(source, profile, maps.given(token_map)) as opened:
        at = the_layer(opened, layer)
        if text is not None:
            given.fits(opened.params().token_map.size)
        if opened.profile.storage.encoding != V41_ROWS:
            from engramctl.siblings import commands
            from engramctl.siblings import run as siblings

            others: dict[str, object] = {"--times": times, "--round-hidden": round_hidden, "--pin": pin}
            others |= {"--activation": activation is not ActivationName.plain}
            others |= {"--kernel": kernel is not KernelName.auto}
            commands.refuse(others, "deepseek-v4.1-flash, whose pipeline has it", "another model")
            asked = siblings.Asked(at, hidden, "out" if stop_at is None else stop_at.value, chosen.value, threads)
            wanted = given.ids.size * opened.sizes.columns
            with placing.table(opened, at, io, prewarm, shard, shard_by, wanted, quiet) as placed:
                emit(output, siblings.results(opened, asked, placed, given.ids, given.mask, given.history), force)
                where = {"io": placed.io, "layer": at, "tokens": given.ids.size}
            notes = [] if stop_at in (StopAt.rows, StopAt.values) else [siblings.TRUTH]
            if json:
                report.as_json("run", True, {**where, "notes": notes})
            elif notes and not quiet:
                edge.say(notes[0])
            return
        if pin:
            pool.pin(opened.sizes.layers.index(at))
        states = None
        if stop_at in (None, StopAt.gate):
            if hidden is None:
                raise EngramctlError("--hidden", "a file of hidden states", "none", "--stop-at kv needs none")
            shape = (given.ids.size, opened.sizes.streams, opened.sizes.hidden)
            states = dumps.read_hidden(hidden, shape, round_hidden)
        spent = Times()
        rows = given.ids.size * opened.sizes.columns
        with placing.table(opened, at, io, prewarm, shard, shard_by, rows, quiet) as table:
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
                table,
                spent,
                kernel.value,
            )
        written = npy(result) if stop_at is not None or states is None else dumps.write_hidden(states, result)
        emit(output, written, force)
        if json:
            where = {"io": table.io, "layer": at, "tokens": given.ids.size}
            report.as_json("run", True, {**where, "seconds": spent.as_dict()})
        elif times and not quiet:
            for line in spent.lines(given.ids.size):
                edge.say(line)


def _endings(stop_at: StopAt | None, hidden: Path | None) -> tuple[str, ...]:
    """How the output's name may end: a stage is npy, new hidden states have the form of the old ones."""
    from engramctl import kinds

    if stop_at is not None or hidden is None:
        return (".npy",)
    if not hidden.is_file():
        return (".npy", ".safetensors")  # a pipe has not been looked at
    return (".safetensors",) if kinds.name(hidden) is None else (".npy",)


COMMANDS: dict[str, Callable[..., None]] = {"run": run}
