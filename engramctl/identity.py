"""What an interrupted conversion must find unchanged to go on: the request, the rules, and the source's files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engramctl import __version__
from engramctl.errors import EngramctlError
from engramctl.hash_params import digest
from formats import disk
from formats.disk import ReadFile
from formats.safetensors_raw import LENGTH_BYTES

if TYPE_CHECKING:
    from engramctl.repack_plan import Plan

Identity = dict[str, Any]  # JSON by names that are fit for a message
UNCHANGED = "do not change it while it is read"


def of(made: Plan) -> Identity:
    """Everything that decides the output's bytes, short: what was asked for, sizes, times and digests."""
    source = made.source
    profile, config = source.profile.name, source.config_text
    found: Identity = {
        "version": __version__,
        "profile": profile,
        "profile digest": sha256(json.dumps(source.profile.facts, sort_keys=True, default=str).encode()),
        "layers": list(source.sizes.layers),
        "kv_type": made.kv_type,
        "config": None if config is None else sha256(config.encode()),
        "token_map": digest(source.params().token_map, "<u4"),
    }
    for path in sorted({tensor.path for tensor in source.tensors.values()}):
        found |= shard(path)
    header = sha256(made.layout.header)  # whatever else was asked for
    return found | {"header": header, "size": made.layout.file_size}


def shard(path: Path) -> Identity:
    """One file of the source: its size, time and header."""
    status = disk.system.status(path)
    with ReadFile.open(path) as file:
        length = int.from_bytes(file.read(0, LENGTH_BYTES, "header length"), "little")
        header = file.read(LENGTH_BYTES, length, "header")
    return {
        f"size of {path.name}": status.st_size,
        f"time of {path.name}": status.st_mtime_ns,
        f"header of {path.name}": sha256(header),
    }


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def require_begun(path: Path, before: Mapping[str, object], now: Identity, found: str, hint: str) -> None:
    """Refuse to go on with what was begun for something else: all of it by name."""
    if before == now:
        return
    changed = [name for name in now if before.get(name) != now[name]] if before else []
    raise EngramctlError(str(path), f"the same {', '.join(changed) or 'input'} as when it was begun", found, hint)


def require_same(where: str | Path, before: Mapping[str, object], now: Identity, hint: str) -> None:
    """Refuse by name the first thing that is not as it was."""
    for name in [*now, *(name for name in before if name not in now)]:
        if before.get(name) != now.get(name):
            expected, found = (str(side.get(name, "none")) for side in (before, now))
            raise EngramctlError(f"{where}: {name}", expected, found, hint)
