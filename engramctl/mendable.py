"""Whether `repair` would take a container, and the command for it: what reports of missing constants end with."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from engramctl import dialect_keys, kinds, repair_journal, repair_plan
from engramctl.errors import EngramctlError
from engramctl.source import is_ple
from formats import recognise
from formats.dialect import Dialect
from formats.errors import FormatError
from formats.gguf_file import GgufHeader
from formats.recognise import Recognised

KEY = "key "  # begins the place of a finding that is about a key


def note(
    path: Path, header: GgufHeader, seen: Recognised, wrong: Iterable[str], loader: str | None = None
) -> str | None:
    """The command that mends what is missing or wrong at these places; None where it would not, or be refused.

    `loader` is the dialect that was asked for, where it is not the file's own.
    """
    best = seen.best
    if best is None or loader not in (None, best.name):
        return None
    keys = {name for key in best.keys.values() if not key.tensor for name in recognise.names_of(key, len(seen.layers))}
    if not (keys & set(seen.missing) or any(where.startswith(KEY) for where in wrong)):
        return None
    if not _is_taken(path, header, best):
        return None
    return f"constants are mended by: engramctl repair {shlex.quote(str(path))} --from CHECKPOINT -o NEW"


def _is_taken(path: Path, header: GgufHeader, dialect: Dialect) -> bool:
    """Every refusal of a repair that needs no checkpoint to be known."""
    if is_ple(header) or header.span_errors() or kinds.unfinished(path) or repair_journal.left(path):
        return False
    layers = recognise.table_layers(header, dialect) or recognise.layers_of(header, dialect)
    made = all(
        role in dialect_keys.MADE or key.tensor or set(recognise.names_of(key, len(layers))) <= header.keys.keys()
        for role, key in dialect.keys.items()
    )
    try:
        repair_plan.require_first(path, header)
        repair_plan.require_tables(path, header, dialect, dialect)
        repair_plan.require_near(header.alone, header.alone.data_start)
    except (EngramctlError, FormatError):
        return False
    return bool(layers) and made
