"""repair, unpack: what is wrong with a container, and back to a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engramctl.cli.options import STDIN, Force, Json, MaybeProfile, Quiet
from engramctl.errors import EngramctlError

if TYPE_CHECKING:
    from engramctl.repair_plan import RepairPlan

Maybe = Path | None
MOST_LEFT = 10  # broken rules that people are shown
MOST_RULES = 100  # that are looked for


def repair(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A container.")],
    source: Annotated[
        Maybe,
        typer.Option(
            "--from", metavar="SOURCE", help="A checkpoint, tokenizer, container or params file; else the profile."
        ),
    ] = None,
    to_dialect: Annotated[
        str | None,
        typer.Option("--to-dialect", metavar="NAME", help="Another dialect's names and types."),
    ] = None,
    output: Annotated[
        Maybe, typer.Option("--output", "-o", metavar="FILE", help="Where to write a repaired copy.")
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Change the file itself; no table byte moves.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would change; write nothing.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Finish an interrupted repair in place, or, with -o, an interrupted copy.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take an interrupted repair in place back.")] = False,
    profile: MaybeProfile = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write missing or wrong constants into a container, or another dialect's names and types.

    The tables do not move. In place a journal finishes or undoes what was interrupted; power loss in the middle of
    putting the room in is not promised.
    """
    from engramctl import repair as mend
    from engramctl import report
    from engramctl.cli import edge
    from engramctl.cli.output import kept, refuse_source

    ways = [name for name, given in (("-o", output), ("--in-place", in_place), ("--dry-run", dry_run)) if given]
    if undo or (resume and output is None):
        if ways or source or to_dialect or (resume and undo):
            way = "--resume" if resume else "--undo"
            raise EngramctlError(way, "no other option that says what to do: the journal knows", "another one")
        with mend.alone(file):
            done = mend.resume(file) if resume else mend.undo(file)
        if json:
            report.as_json("repair", True, {"path": str(file), "way": done})
        elif not quiet:
            edge.say(f"{file}: {done}")
        return
    if len(ways) != 1 or output == STDIN:
        raise EngramctlError("repair", "one of -o FILE, --in-place and --dry-run", " and ".join(ways) or "none")
    refuse_source(output, profile=profile)
    with mend.alone(file) if in_place else nullcontext():
        made = _plan(file, source, to_dialect, profile)
        way = "nothing to do" if not made.changes else "dry run"
        if made.changes and output is not None:
            with report.progress(file.stat().st_size, output.name, quiet or json) as advance, kept(output):
                way = mend.to_file(made, output, resume, force, advance)
        elif made.changes and in_place:
            mend.in_place(made)
            way = "in place"
    _report(made, _left(made, profile), way, (output or file) if made.changes else file, json, quiet, dry_run)


def _plan(file: Path, source: Path | None, to_dialect: str | None, profile: str | None) -> RepairPlan:
    from engramctl import kinds, repair_journal, repair_plan, repair_values
    from formats.dialects import DIALECTS, by_name
    from formats.errors import FormatError
    from formats.gguf_split import read_model
    from formats.recognise import recognise, refuse_underway

    repair_journal.refuse_open(file)
    kinds.refuse_other(file, kinds.GGUF, (kinds.GGUF,))
    _refuse_sibling(file, profile)
    target = None if to_dialect is None else by_name(to_dialect)
    if to_dialect is not None and target is None:
        known = ", ".join(each.name for each in DIALECTS if each.keys)
        raise EngramctlError("--to-dialect", f"one of {known}", to_dialect)
    header = read_model(file, strict=False)
    refuse_underway(header)
    seen = recognise(header)
    if seen.best is None:
        raise FormatError(file, None, "a container of Engram tables", "; ".join((seen.sure, *seen.notes)))
    known_profile = repair_values.of_name(profile)
    truth = repair_values.find(header, seen.best, source, known_profile, profile)
    return repair_plan.plan(file, header, seen.best, target or seen.best, truth)


def _refuse_sibling(file: Path, profile: str | None, hint: str | None = None) -> None:
    """Refuse a container of another model's table, by name."""
    from engramctl import siblings

    other = siblings.profile_of(file, profile) if file.is_file() else None
    if other is not None:
        raise EngramctlError(str(file), "a container of deepseek-v4.1-flash", f"one of {other.name}", hint)


def _left(made: RepairPlan, profile: str | None) -> list[dict[str, str]]:
    """Rules of the dialect's own loader that the repaired file breaks still: what is no matter of constants."""
    from itertools import islice

    from engramctl.repair_values import of_name
    from engramctl.verify.container import refusals
    from engramctl.verify.loader_rules import LOADERS
    from formats.gguf_split import position

    if made.target.name not in LOADERS or position(made.header)[1] > 1:
        return []
    return list(islice(refusals(made.after, of_name(profile), made.target.name), MOST_RULES))


def _report(
    made: RepairPlan, left: list[dict[str, str]], way: str, where: Path, json: bool, quiet: bool, dry_run: bool
) -> None:
    from engramctl import repair_plan, report
    from engramctl.cli import edge

    output = None if dry_run or not made.changes else str(where)
    would = _supplies(made) if left else None
    facts: dict[str, Any] = repair_plan.describe(made, left) | {"way": way, "output": output, "supplies": would}
    if json:
        report.as_json("repair", True, facts)
        return
    if made.changes and not quiet:
        report.table(("what", "was", "now"), [(each["what"], each["was"], each["now"]) for each in facts["changes"]])
    if not quiet:
        count = len(facts["changes"])
        done = "would change" if dry_run else "changed in place" if way == "in place" else "changed in a copy"
        verdict = "healthy, left alone" if not left else "nothing to repair, left alone"
        if count:
            verdict = f"{count} {'thing' if count == 1 else 'things'} {done}"
        edge.say(f"{where}: {verdict}; constants of {made.truth.origin}")
        for each in left[:MOST_LEFT]:
            found = f"{each['where']}: expected {each['expected']}, found {each['found']}"
            edge.say(f"{where}: still not as {made.target.name} wants it: {found}")
        if len(left) > MOST_LEFT:
            edge.say(f"{where}: and {len(left) - MOST_LEFT} more: engramctl check file {where}")
        if left:
            still = "would refuse it still" if dry_run else "refuses it still"
            edge.say(f"{where}: the {made.target.name} loader {still}, {_rules(len(left))}: {would}")


def _supplies(made: RepairPlan) -> str:
    """What would give a file what its loader misses still."""
    from formats.dialects import DS4

    if made.target is DS4 and DS4.config not in made.after.keys:
        return (
            f"sizes are the profile's without {DS4.config}, which --from a checkpoint or a container with it supplies"
        )
    writes = "" if made.target.loses else f", as repack CHECKPOINT --dialect {made.target.name} does"
    return f"no constant mends that; the file has to be written anew{writes}"


def _rules(count: int) -> str:
    return f"{count}{' or more' if count == MOST_RULES else ''} broken {'rule' if count == 1 else 'rules'}"


def unpack(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A container, or a file or folder of rows, with lossless rows.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="A new or empty folder.")],
    profile: MaybeProfile = None,
    resume: Annotated[bool, typer.Option("--resume", help="Finish an interrupted run.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Start an interrupted run again.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a lossless container's tables back as a safetensors checkpoint, byte for byte."""
    from engramctl import report
    from engramctl import unpack as back
    from engramctl.cli import edge
    from engramctl.cli.output import kept
    from engramctl.repair_values import of_name

    _refuse_sibling(file, profile, f"repack {file} --dialect hf -o DIR makes it a checkpoint again")
    size = file.stat().st_size if file.is_file() else 0
    with report.progress(size, output.name, quiet or json) as advance, kept(output):
        made = back.write(file, output, of_name(profile), resume, force, advance)
    if json:
        report.as_json("unpack", True, {"output": str(output), **made})
    elif not quiet:
        edge.say(f"{output}: {len(made['tensors'])} tensors{', a config' if made['config'] else ''}")


COMMANDS: dict[str, Callable[..., None]] = {"repair": repair, "unpack": unpack}
