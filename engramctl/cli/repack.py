"""repack: from checkpoint to container, at once, in slices, or after an interruption."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from engramctl.cli import pack_other
from engramctl.cli.options import STDIN, Force, Json, MaybeProfile, Quiet, Threads, TokenMap

if TYPE_CHECKING:
    from engramctl.profiles import Sizes
    from engramctl.repack_plan import Plan
    from engramctl.slices import Slice


class KvForm(StrEnum):
    f16 = "f16"
    bf16 = "bf16"
    f32 = "f32"


class RowForm(StrEnum):
    bf16 = "bf16"
    f16 = "f16"
    f32 = "f32"
    q8_0 = "q8_0"
    e4m3 = "e4m3"


class Digest(StrEnum):
    tree = "tree"
    sha256 = "sha256"


def repack(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A folder or a safetensors file.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The container to write.")
    ] = None,
    layers: Annotated[str | None, typer.Option("--layers", metavar="1,14", help="Only these layers.")] = None,
    dialect: pack_other.Dialects = None,
    append_to: pack_other.AppendTo = None,
    in_place: pack_other.InPlace = False,
    kv_type: Annotated[
        KvForm | None, typer.Option("--kv-type", help="The projection's type; refused where it is not exact.")
    ] = None,
    row_type: Annotated[
        RowForm | None, typer.Option("--row-type", help="Of PLE's rows: what the dialect has; back, bf16 or e4m3.")
    ] = None,
    shards: Annotated[
        int | None, typer.Option("--shards", metavar="N", help="Back from PLE's containers: tensors of the table.")
    ] = None,
    profile: MaybeProfile = None,
    token_map: TokenMap = None,
    source_url: Annotated[
        str | None, typer.Option("--source-url", metavar="URL", help="Recorded as general.source.url.")
    ] = None,
    source_revision: Annotated[
        str | None, typer.Option("--source-revision", metavar="REV", help="Recorded as general.source.revision.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan; write nothing.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")] = False,
    digest: Annotated[
        Digest | None,
        typer.Option("--digest", help="Print each table's digest: of its rows, or of its bytes in order."),
    ] = None,
    layer: Annotated[int | None, typer.Option("--layer", metavar="L", help="Write only rows of this layer.")] = None,
    rows: Annotated[str | None, typer.Option("--rows", metavar="A:B", help="With --layer: only these rows.")] = None,
    part: Annotated[str | None, typer.Option("--part", metavar="i/n", help="Write only the i-th of n parts.")] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Check that all parts are there, and finish the file.")
    ] = False,
    break_lock: Annotated[
        bool, typer.Option("--break-lock", help="Take the lock of a run on another host that is surely dead.")
    ] = False,
    threads: Threads = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Convert a checkpoint to a container.

    Its tables become row264 tail tensors of a GGUF in the ds4 dialect, without a bit changed.
    """
    from engramctl import maps, repack_jobs, repack_plan, report, siblings, slices, workspace
    from engramctl import merge as together
    from engramctl import repack as convert
    from engramctl.checkpoint import open_checkpoint
    from engramctl.cli import edge
    from engramctl.cli.inputs import integers
    from engramctl.cli.output import kept, refuse_source
    from engramctl.errors import EngramctlError
    from formats.dialects import DS4

    if output == STDIN or (output is None and not dry_run and not in_place):
        found = "none" if output is None else "- (no stream)"
        raise EngramctlError("--output", "-o FILE, a container to write", found, "--dry-run prints the plan alone")
    refuse_source(output, token_map, profile=profile)
    if siblings.profile_of(checkpoint, profile) is not None:
        from engramctl.siblings import commands

        kinds = (None if row_type is None else row_type.value, None if kv_type is None else kv_type.value)
        wish = commands.Asked(
            checkpoint, output, profile, dialect, *kinds, shards, dry_run, resume, force,
            None if digest is None else digest.value, break_lock, threads, json, quiet,
            (lambda text: None) if quiet else edge.say,
        )  # fmt: skip
        others: dict[str, object] = {"--layers": layers, "--token-map": token_map, "--source-url": source_url}
        others |= {"--source-revision": source_revision, "--layer": layer, "--rows": rows}
        others |= {"--append-to": append_to, "--in-place": in_place, "--part": part, "--merge": merge}
        with kept(output):
            if said := commands.convert(wish, others):
                edge.say(said)
        return
    if shards is not None:
        raise EngramctlError("--shards", "a container of Qwen3.8's table", "another model's")
    if row_type is not None:
        raise EngramctlError("--row-type", "none: this model's rows are row264", f"{row_type}")
    form: Literal["f16", "bf16", "f32"] = "f16" if kv_type is None else kv_type.value
    chosen = dialect or DS4.name
    asked = pack_other.Asked(chosen, append_to, in_place, output, form, dry_run, resume, force, json, quiet)
    pack_other.refuse(asked, [layer, rows, part, digest, merge or None])
    wanted = None if layers is None else tuple(int(x) for x in integers(layers, "--layers"))
    with open_checkpoint(checkpoint, profile, maps.given(token_map), wanted) as source:
        if asked.mine:
            with kept(output):
                pack_other.run(source, asked)
            return
        made = repack_plan.plan(source, asked.kv_type, source_url, source_revision)
        some = _slice(source.sizes, layer, rows, part, merge)
        notes = repack_plan.notes(source)
        if not quiet:
            for note in notes:
                edge.say(f"note: {note}")
        if dry_run or output is None:
            facts = repack_plan.describe(made)
            if json:
                report.as_json("repack", True, {"dry_run": True, **facts, "notes": notes})
            else:
                report.table(*repack_plan.as_table(facts))
            return
        whole = slices.whole(source.sizes)
        total = 0 if merge else repack_jobs.remaining_bytes(made, some or whole)
        with report.progress(total, output.name, quiet) as advance:
            say = (lambda text: None) if quiet else edge.say
            kind = None if digest is None else digest.value
            options = convert.Options(some, resume, force, kind, break_lock, threads, advance, say)
            write = together.merge if merge else convert.run
            with kept(output):
                written = write(made, output, options)
    if written.already and not quiet:
        edge.say(f"{output.name} is finished already: nothing to do (check packing compares it)")
    slice_rows = {table[0]: table[1:] for table in (some or whole).tables(made.source.sizes)}
    if json:
        body = {"dry_run": False, "output": str(output), **repack_plan.describe(made)}
        body |= {"digest": kind, "digests": {str(key): value for key, value in written.digests.items()}}
        body |= {
            "slice": {str(key): value for key, value in slice_rows.items()},
            "finished": some is None or written.already,
        }
        body["notes"] = notes
        report.as_json("repack", True, body)
        return
    for number, value in written.digests.items():
        first, last = slice_rows[number]
        report.line(f"{value}  {_table(made, number)}" + (f" rows {first}:{last}" if some else ""))
    if not (quiet or written.already):
        if some is not None:
            edge.say(f"{workspace.partial_of(output)}: {some.words(source.sizes)} written; --merge makes {output.name}")
            return
        of = f"layers {list(source.sizes.layers)}, token map of {source.token_map().origin}"
        edge.say(f"{output}: {made.layout.file_size:,} bytes, {of}")


def _slice(sizes: Sizes, layer: int | None, rows: str | None, part: str | None, merge: bool) -> Slice | None:
    """The slice asked for; None for all of it."""
    from engramctl import slices
    from engramctl.errors import EngramctlError

    given = {"--layer": layer is not None, "--part": part is not None, "--merge": merge}
    asked = [name for name, value in given.items() if value]
    if len(asked) > 1:
        raise EngramctlError(asked[1], f"one way to share the work, and {asked[0]} is given", "both")
    if rows is not None and layer is None:
        raise EngramctlError("--rows", "--layer L with it: rows are counted in a layer's table", "none")
    if part is not None:
        return slices.of_part(sizes, part)
    return None if layer is None else slices.of_rows(sizes, layer, rows)


def _table(made: Plan, layer: int) -> str:
    return next(target.name for target in made.targets if target.role == "table" and target.layer == layer)


COMMANDS = {"repack": repack}
