"""What `repack` does for a sibling: which way it goes, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engramctl import report
from engramctl.errors import EngramctlError
from engramctl.siblings import repack, unpack, writing
from engramctl.siblings.container import PleContainer
from engramctl.siblings.opened import as_sibling
from engramctl.siblings.tensors import SCALED
from engramctl.source import open_source


@dataclass(frozen=True)
class Asked:
    """What the command line wants of a conversion."""

    checkpoint: Path
    output: Path | None
    profile: str | None
    dialect: str | None
    row_type: str | None
    kv_type: str | None
    shards: int | None
    dry_run: bool
    resume: bool
    force: bool
    digest: str | None
    break_lock: bool
    threads: int | None
    json: bool
    quiet: bool
    say: Callable[[str], None]


def convert(asked: Asked, others: Mapping[str, object]) -> str:
    """Do it; `others` are options that belong to V4.1's conversion, refused if given. Returns what to say."""
    refuse(others, "deepseek-v4.1-flash, whose conversion has it", "another model")
    with open_source(asked.checkpoint, asked.profile) as found:
        source = as_sibling(found)
        repack.require_ple(source)
        if isinstance(source, PleContainer):
            return _back(asked, source)
        refuse({"--shards": asked.shards}, "a conversion back into a checkpoint", "one into a container")
        made = repack.plan(source, repack.dialect_named(asked.dialect), _upper(asked.row_type), _upper(asked.kv_type))
        facts = repack.describe(made)
        if asked.dry_run or asked.output is None:
            return _told(asked, {"dry_run": True, **facts}, "")
        with report.progress(made.data_bytes, asked.output.name, asked.quiet) as advance:
            options = writing.Options(
                asked.resume, asked.force, asked.digest, asked.break_lock, asked.threads, advance, asked.say
            )
            digest = writing.write(made, asked.output, options)
        if digest is not None and not asked.json:
            report.line(f"{digest}  {next(t.name for t in made.targets if t.role == 'table')}")
        said = (
            f"{asked.output}: {made.layout.file_size:,} bytes of dialect {made.dialect.name}, rows as {made.row_type}"
        )
        digests = {} if digest is None else {str(source.sizes.layers[0]): digest}
        body = {"output": str(asked.output), **facts, "digest": asked.digest, "digests": digests}
        return _told(asked, {"dry_run": False, **body}, said)


def refuse(options: Mapping[str, object], expected: str, found: str) -> None:
    """Refuse, by name, options that do not belong to what was asked for."""
    for option, value in options.items():
        if value is not None and value is not False:
            raise EngramctlError(option, expected, found)


def _back(asked: Asked, source: PleContainer) -> str:
    if asked.dialect != unpack.DIALECT:
        what = f"{unpack.DIALECT}: what a container is made back into"
        raise EngramctlError("--dialect", what, asked.dialect or "none")
    given = {"--dry-run": asked.dry_run or asked.output is None, "--resume": asked.resume, "--digest": asked.digest}
    given |= {"--kv-type": asked.kv_type, "--break-lock": asked.break_lock}
    refuse(given, "a conversion into a container", "one back into a checkpoint")
    assert asked.output is not None
    with report.progress(source.header.file_size, asked.output.name, asked.quiet) as advance:
        kind = unpack.write(source, asked.output, _upper(asked.row_type), asked.shards, asked.force, advance)
    facts = {"dry_run": False, "output": str(asked.output), "dialect": unpack.DIALECT, "row_type": kind}
    what = "the table and its constants alone, without a config" if source.table_alone else "a checkpoint"
    return _told(asked, facts, f"{asked.output}: {what}, {source.sizes.rows[0]:,} rows as {kind}")


def _told(asked: Asked, facts: dict[str, Any], said: str) -> str:
    """The report in JSON or as a table; what is left to say on standard error."""
    if asked.json:
        report.as_json("repack", True, facts)
        return ""
    if facts["dry_run"]:
        from engramctl.repack_plan import as_table

        report.table(*as_table(facts))
    return "" if asked.quiet else said


def _upper(kind: str | None) -> str | None:
    """A type as tensors name it."""
    return {None: None, "e4m3": SCALED}.get(kind, None if kind is None else kind.upper())
