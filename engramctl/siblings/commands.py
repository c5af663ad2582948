"""What `repack` does for a sibling: which way it goes, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engramctl import report
from engramctl.errors import EngramctlError
from engramctl.siblings import repack, unpack
from engramctl.siblings.container import PleContainer
from engramctl.siblings.opened import as_sibling
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
    dry_run: bool
    force: bool
    json: bool
    quiet: bool


def convert(asked: Asked, others: Mapping[str, object]) -> str:
    """Do it; `others` are options that belong to V4.1's conversion, refused if given. Returns what to say."""
    for option, value in others.items():
        if value:
            raise EngramctlError(option, "deepseek-v4.1-flash, whose conversion has it", "another model")
    with open_source(asked.checkpoint, asked.profile) as found:
        source = as_sibling(found)
        repack.require_ple(source)
        if isinstance(source, PleContainer):
            return _back(asked, source)
        made = repack.plan(source, repack.dialect_named(asked.dialect), _upper(asked.row_type), _upper(asked.kv_type))
        facts = repack.describe(made)
        if asked.dry_run or asked.output is None:
            return _told(asked, {"dry_run": True, **facts}, "")
        with report.progress(made.data_bytes, asked.output.name, asked.quiet) as advance:
            repack.write(made, asked.output, asked.force, advance)
        said = (
            f"{asked.output}: {made.layout.file_size:,} bytes of dialect {made.dialect.name}, rows as {made.row_type}"
        )
        return _told(asked, {"dry_run": False, "output": str(asked.output), **facts}, said)


def _back(asked: Asked, source: PleContainer) -> str:
    if asked.dialect != unpack.DIALECT:
        raise EngramctlError("--dialect", f"{unpack.DIALECT}: what a container is made back into", f"{asked.dialect}")
    if asked.dry_run or asked.output is None:
        raise EngramctlError("--dry-run", "a conversion into a container", "one back into a checkpoint")
    with report.progress(source.header.file_size, asked.output.name, asked.quiet) as advance:
        unpack.write(source, asked.output, asked.force, advance)
    facts = {"dry_run": False, "output": str(asked.output), "dialect": unpack.DIALECT}
    return _told(asked, facts, f"{asked.output}: a checkpoint of {source.sizes.rows[0]:,} rows")


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
    return None if kind is None else kind.upper()
