"""Digests of rows in sha256sum's line format, written and computed again."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from engramctl import report, rows_out
from engramctl.cli import inputs
from engramctl.cli.options import IdsFormat
from engramctl.hash_params import HashParams
from engramctl.verify.result import Coverage, Result
from formats.errors import FormatError

LINE = re.compile(r"(\\?)([0-9a-fA-F]{64}) [ *]([^\0]+)")
ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}  # in names; a line with any of them starts with a backslash


def digest(file: Path, form: IdsFormat, params: HashParams) -> str:
    """SHA-256 of the rows of one file of token ids."""
    return rows_out.sha256(rows_out.chunks(inputs.read_ids(file, form), params, None, ()))


def line(sha256: str, file: Path) -> bytes:
    name = str(file)
    escaped = "".join(ESCAPES.get(c, c) for c in name)
    return os.fsencode(f"{sha256}  {escaped}\n" if escaped == name else f"\\{sha256}  {escaped}\n")


def _file(name: str, escaped: bool) -> Path:
    plain = {escape[1:]: character for character, escape in ESCAPES.items()}
    return Path(re.sub(r"\\([\\nr])", lambda match: plain[match[1]], name) if escaped else name)


def check(sums: Path, compute: Callable[[Path], str], json_wanted: bool, quiet: bool) -> int:
    """Compute each line's digest again; 0 if all are the same, else 1. Files are found from where you stand, as
    sha256sum does."""
    name, text = inputs.label(sums), os.fsdecode(inputs.read_bytes(sums))  # file names need not be text
    wanted = []
    for number, each in enumerate(text.removesuffix("\n").split("\n"), 1):
        match = LINE.fullmatch(each)
        if match is None:
            raise FormatError(name, f"line {number}", "a digest, two spaces and a file name", f"{each[:40]!r}")
        wanted.append((match[2].lower(), _file(match[3], bool(match[1]))))
    result = Result(Coverage("files", len(wanted), len(wanted)))
    for expected, file in wanted:
        found = compute(file)
        if found != expected:
            result.add("hash", str(file), expected, found)
    if not quiet or json_wanted:
        report.check("hash", f"rows of the files in {name}", result, json_wanted)
    return 0 if result.ok else 1
