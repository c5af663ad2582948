"""check packing: two holders of the same tables, byte by byte."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from engramctl.cli.options import Json, MaybeProfile, Quiet, Threads, TokenMap

DEFAULT = "deepseek-v4.1-flash"


class TreeDigest(StrEnum):
    tree = "tree"  # sha256 is of a table's bytes in order, and this reads it in pieces, in any order


def packing(
    source: Annotated[Path, typer.Argument(metavar="CHECKPOINT|FILE", help="What is right.")],
    made: Annotated[Path, typer.Argument(metavar="FILE", help="What is compared with it.")],
    layer: Annotated[int | None, typer.Option("--layer", metavar="L", help="Only this layer.")] = None,
    rows: Annotated[str | None, typer.Option("--rows", metavar="0,5,100:200", help="Only these rows.")] = None,
    sample: Annotated[
        int | None,
        typer.Option("--sample", metavar="N", min=0, help="Rows at edges, and N seeded ones."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Chooses the sample.")] = 0,
    digest: Annotated[
        TreeDigest | None,
        typer.Option(
            "--digest", help="Also say each table's digest, as repack --digest tree does, from the same pass."
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="FILE",
            help="Keep the progress in FILE and go on from it; FILE is deleted when the check has ended.",
        ),
    ] = None,
    token_map: TokenMap = None,
    profile: MaybeProfile = None,
    threads: Threads = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare a container with its checkpoint, or two containers: every byte of every row, weights and constants."""
    from contextlib import ExitStack

    from engramctl import maps, profiles, report, rowsets, siblings
    from engramctl.cli import edge
    from engramctl.cli.inputs import label
    from engramctl.cli.output import left_behind
    from engramctl.errors import EngramctlError
    from engramctl.verify import packing as check
    from engramctl.verify.sides import open_side

    if rows is not None and sample is not None:
        raise EngramctlError("rows", "one of --rows and --sample", "both")
    for name, value in (("--digest", digest), ("--resume", resume)):
        if value is not None and (rows is not None or sample is not None):
            raise EngramctlError(name, "all rows to be compared", "--rows" if rows is not None else "--sample")
    if siblings.profile_of(source, profile) is not None:
        from engramctl.siblings import checking

        checking.expect_whole({"--digest": digest, "--resume": resume, "--layer": layer, "--token-map": token_map})
        ranges = None if rows is None else rowsets.parse(rows, "--rows")
        found = checking.packing(source, made, profile, ranges, None if sample is None else (sample, seed))
        report.check("check-packing", f"check packing {label(made)}", found, json)
        raise typer.Exit(edge.OK if found.ok else edge.DIFFERS)
    known = profiles.load(profile or DEFAULT)
    some = None if rows is None else rowsets.parse(rows, "--rows")
    kind = None if digest is None else digest.value
    asked = check.Asked(layer, some, sample, seed, kind, threads, resume)
    with ExitStack() as stack:
        want, have = (open_side(stack, path, known, profile, maps.given(token_map)) for path in (source, made))
        total = check.bytes_to_read(want, have, asked)
        advance = stack.enter_context(report.progress(total, made.name, quiet or json))
        stack.enter_context(left_behind(resume, "keeps the progress, and the same command goes on"))
        result = check.check(want, have, known, asked, advance)
    report.check("check-packing", f"check packing {label(made)}", result, json)
    raise typer.Exit(edge.OK if result.ok else edge.DIFFERS)
