"""repack --dialect row264-bare: rows and nothing else, a file and a manifest a layer."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from engramctl import __version__, identity, journal_file, pieces, repack_split, tensor_pieces, unfinished
from engramctl.checkpoint import CheckpointSource
from engramctl.errors import EngramctlError
from engramctl.extents import data_rows
from engramctl.journal_file import BOTH_WAYS, CHANGED
from formats import disk, row264
from formats.dialects import ROW264_BARE
from formats.disk import ReadFile
from formats.errors import FormatError


def bare(
    source: CheckpointSource,
    folder: Path,
    resume: bool = False,
    force: bool = False,
    progress: pieces.Progress = lambda n: None,
) -> list[Path]:
    """One file of rows and one manifest a layer, in a folder; the manifest last, so that it vouches for the rows.

    Until the last manifest is durable a journal in the folder says what is written, and which layers are done:
    `resume` goes on only from the same checkpoint.
    """
    tensor_pieces.require_width(source, ROW264_BARE.name)
    if folder.exists() and not folder.is_dir():
        raise FormatError(folder, None, "a folder", "a file")
    folder.mkdir(parents=True, exist_ok=True)
    with unfinished.alone(folder / f"{ROW264_BARE.name}.lock"):
        return _bare(source, folder, resume, force, progress)


def _bare(source: CheckpointSource, folder: Path, resume: bool, force: bool, progress: pieces.Progress) -> list[Path]:
    journal, every = folder / f"{ROW264_BARE.name}.journal", _files(source, folder)
    who = _plan(source)
    done = _done(journal, who, every, resume, force)
    try:
        for layer, (path, size, manifest) in every.items():
            if not (layer in done or _is_named(path)) or not _is_file(path, size):
                done = [other for other in done if other != layer]
                needed = _held(source, [other for other in every if other not in done])
                piece = tensor_pieces.row264_piece(source.table(layer), 0)
                own: Callable[[], dict[str, Any]] = partial(dict, who, layer=layer)
                sources = repack_split.files_of(source)
                pieces.write(path, size, needed, [piece], own, sources, resume=True, force=True, progress=progress)
            identity.require_same(source.path, who, _plan(source), identity.UNCHANGED)
            if layer not in done:
                done = [*done, layer]
                _note(journal, who, done)
            if not _holds(_beside(path), manifest):
                disk.write_whole(_beside(path), [manifest], force=True)
    except (FormatError, EngramctlError):
        if not done and not any(path.with_name(path.name + ".partial").exists() for path, _, _ in every.values()):
            disk.system.unlink(journal)  # nothing was begun, or nothing of it is kept
        raise
    disk.remove(*_torn(journal, every), journal)
    disk.fsync_folder(folder)
    return [path for path, _, _ in every.values()]


def _held(source: CheckpointSource, layers: list[int]) -> int:
    """Bytes of these layers' rows that are no hole."""
    return sum(last - first for layer in layers for first, last in data_rows(source.table(layer))) * row264.ROW_BYTES


def _is_named(path: Path) -> bool:
    """Was a run killed between giving the rows their name and taking away the one before? It is done here."""
    partial = path.with_name(path.name + ".partial")
    if not (path.exists() and partial.exists() and partial.samefile(path)):
        return False
    disk.system.unlink(partial)
    disk.remove(path.with_name(path.name + ".journal"))
    return True


def _torn(journal: Path, every: dict[int, tuple[Path, int, bytes]]) -> list[Path]:
    """Small files that a killed run was writing."""
    names = [journal.name, *(_beside(path).name for path, _, _ in every.values())]
    return [torn for name in names for torn in journal.parent.glob(f"{name}.*.tmp")]


def _plan(source: CheckpointSource) -> dict[str, Any]:
    """What decides the rows: the layers asked for, and the shards by size, time and header."""
    sizes = source.sizes
    made: dict[str, Any] = {"version": __version__, "layers": list(sizes.layers), "rows": list(sizes.rows)}
    for path in sorted({source.tensors[layer, role].path for layer in sizes.layers for role in ("codes", "scales")}):
        made |= identity.shard(path)
    return made


def _files(source: CheckpointSource, folder: Path) -> dict[int, tuple[Path, int, bytes]]:
    """By layer: the file of rows, its size, and its manifest."""
    made = {}
    for layer, rows in zip(source.sizes.layers, source.sizes.rows, strict=True):
        manifest = {
            "layer": layer,
            "rows": rows,
            "row_bytes": row264.ROW_BYTES,
            "dim": row264.WIDTH,
            "sb": row264.SCALES,
            "tp": 1,
            "rank": 0,
            "mode": "contiguous",
            "cols": list(range(source.sizes.columns)),
            "ranges": [[0, rows]],
        }
        text = (json.dumps(manifest, indent=1) + "\n").encode()
        made[layer] = folder / f"engram-l{layer}-packed.bin", rows * row264.ROW_BYTES, text
    return made


def _done(
    journal: Path, who: dict[str, Any], every: dict[int, tuple[Path, int, bytes]], resume: bool, force: bool
) -> list[int]:
    """Layers whose rows an interrupted run of the same plan has finished; else the plan is begun."""
    if resume and journal.exists():
        found, done = _read(journal)
        if found is not None:
            identity.require_same(f"{journal}: the journal's plan", found, who, CHANGED)
            return done
    elif journal.exists() and not force:
        raise EngramctlError(str(journal), "no unfinished output", "one", BOTH_WAYS)
    left = [path.with_name(path.name + ending) for path, _, _ in every.values() for ending in (".partial", ".journal")]
    for path, _, _ in every.values():
        for each in (path, _beside(path)):
            disk.refuse_existing(each, force)
    for each in left:
        if each.exists() and not force:
            raise EngramctlError(str(each), "no unfinished output without a plan", "one", "--force starts again")
    disk.remove(journal, *left)  # of another plan, as far as anybody can tell
    _note(journal, who, [])
    return []


def _note(journal: Path, who: dict[str, Any], done: list[int]) -> None:
    disk.write_whole(journal, [journal_file.summed({"plan": who, "done": done})], force=True)


def _read(journal: Path) -> tuple[dict[str, Any] | None, list[int]]:
    """The plan and the layers that are done; None where the journal says nothing."""
    for said in journal_file.head(journal):
        if isinstance(said.get("plan"), dict) and isinstance(said.get("done"), list):
            return said["plan"], said["done"]
    return None, []


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _is_file(path: Path, size: int) -> bool:
    return path.is_file() and disk.system.status(path).st_size == size


def _holds(path: Path, text: bytes) -> bool:
    if not _is_file(path, len(text)):
        return False
    with ReadFile.open(path) as file:
        return file.read(0, len(text), "manifest") == text
