"""Files that hold rows, or their constants, and are no GGUF: what each is, by its first bytes and its size.

DS4ENG4B   4096-byte header, 4-bit rows              DS41EPG2   4096-byte header, 15 rows of 264 bytes a page
TSD41E01   constants alone                           (none)     rows of 264 or 144 bytes, a .json beside them
"""

from __future__ import annotations

import re
import struct
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from engramctl import kinds
from engramctl.extents import joined
from engramctl.table import Part, Table
from formats import row264, row_layouts, strict_json
from formats.dialects import DS4_HLWQ, DS4_Q4K, ROW264_BARE, ROW264_PAGED, TENSORSHARP, VLLM_PARTS, Dialect
from formats.disk import ReadFile
from formats.errors import FormatError

HLWQ_HEADER, HLWQ_ENTRY, HLWQ_TABLES = 4096, 32, 96
HLWQ_WORDS = ["version", "tables", "width", "block", "row_bytes", "alignment"]
PAGED_WORDS = ["layer", "first", "rows_end", "rows", "row_bytes", "page_rows", "page_bytes"]
PAGED_HEADER = 4096
VLLM_NAME = re.compile(r"engram_v(\d{1,12})_(\d{1,12})_r(\d{1,6})\.(weight|scale)\.bin")
FEW_ROWS, SAMPLED_ROWS = 8, 64  # fewer do not say what a file is; so many are looked at
MOST_JSON = 1 << 20
MOST_TABLES = 64
BARE_NAME = re.compile(r"engram-l(\d{1,4})-packed\.bin")
Q4K_NAME = re.compile(r"engram-(\d{1,4})\.q4_k\.bin")


@dataclass(frozen=True)
class Sidecar:
    """What such a file is: facts for `show`, and where its tables' rows lie."""

    path: Path
    dialect: Dialect
    facts: dict[str, Any]
    layers: tuple[int, ...] = ()
    problems: tuple[tuple[str, str, str], ...] = ()  # (where, expected, found)
    notes: tuple[str, ...] = field(default_factory=tuple)
    by_rows: bool = False  # nothing but its rows says what it is


def recognise(path: Path) -> Sidecar | None:
    """What the file says it is; None where it is none of these."""
    with ReadFile.open(path) as file:
        magic = file.read(0, min(8, file.size), "magic")
        if magic == DS4_HLWQ.magic:
            return _hlwq(file)
        if magic == ROW264_PAGED.magic:
            return _paged(file)
        if magic == TENSORSHARP.magic:
            from formats import tsd41

            return Sidecar(path, TENSORSHARP, tsd41.read(file).facts())
        return _vllm(file) or _bare(file)


def of_folder(folder: Path) -> tuple[Sidecar, ...]:
    """Files of rows that lie in one folder, one a layer; none where the folder is something else."""
    if not folder.is_dir() or any(path.suffix == ".safetensors" for path in folder.iterdir()):
        return ()
    named = [path for path in folder.iterdir() if BARE_NAME.fullmatch(path.name) or Q4K_NAME.fullmatch(path.name)]
    every = (recognise(path) for path in sorted(named)[:MOST_TABLES])
    return tuple(found for found in every if found is not None)


def opened(stack: ExitStack, path: Path) -> tuple[Dialect, dict[int, Table]] | None:
    """Tables of a file of rows, or of a folder of such; None where it is neither. `stack` closes them."""
    alone = None if path.is_dir() else recognise(path)
    every = of_folder(path) if alone is None else (alone,)
    made: dict[int, Table] = {}
    for found in every:
        for layer, table in tables(stack.enter_context(ReadFile.open(found.path)), found).items():
            if layer in made:
                raise FormatError(found.path, None, f"one file of layer {layer}", "a second one")
            made[layer] = table
    return (every[0].dialect, dict(sorted(made.items()))) if every else None


def tables(file: ReadFile, found: Sidecar) -> dict[int, Table]:
    """The tables that the sidecar's rows make; rows that are not decoded raise `FormatError` with the reason."""
    if found.dialect is DS4_HLWQ:
        why = "rows that another tool can decode: Hadamard-rotated 4-bit codes (DS4ENG4B) are not"
        raise FormatError(found.path, None, why, f"{found.facts['row_bytes']}-byte rows")
    if found.dialect is TENSORSHARP:
        raise FormatError(found.path, None, "a file of rows", "constants alone: the rows are in the GGUF beside it")
    if found.dialect is VLLM_PARTS:
        raise FormatError(found.path, None, "a file that says which layer its rows are of", "a range of rows alone")
    facts = found.facts
    if found.problems:
        raise FormatError(found.path, *found.problems[0])
    if found.dialect is ROW264_BARE and not found.layers:
        what = "a name or a .json beside it that says which layer its rows are of, such as engram-l1-packed.bin"
        raise FormatError(found.path, None, what, "rows alone")
    layer = found.layers[0]
    if found.dialect is ROW264_PAGED:
        part, pages = Part(file, PAGED_HEADER, row264.ROW_BYTES), (facts["page_rows"], facts["page_bytes"])
        rows = {"pages": pages, "first": facts["first"], "total": facts["rows"]}
        return {layer: Table(layer, facts["rows_end"], (part,), **rows)}
    layout = row_layouts.ROW264 if found.dialect is ROW264_BARE else row_layouts.ggml("Q4_K")
    assert layout is not None
    part = Part(file, facts.get("offset", 0), layout.stored)
    covered = _ranges(facts.get("ranges"), facts["rows"])
    return {layer: Table(layer, facts["rows"], (part,), layout=layout, covered=covered)}


def _ranges(stated: object, rows: int) -> tuple[tuple[int, int], ...]:
    """A manifest's row ranges, as far as they make sense."""
    made = []
    for each in stated if isinstance(stated, list) else ():
        if isinstance(each, list) and len(each) == 2 and all(type(x) is int for x in each):
            first, last = each
            if 0 <= first < last <= rows:
                made.append((first, last))
    whole = tuple(joined(iter(sorted(made))))
    return () if whole == ((0, rows),) else whole


def _hlwq(file: ReadFile) -> Sidecar:
    head = file.read(0, HLWQ_HEADER, "the header")
    facts: dict[str, Any] = dict(zip(HLWQ_WORDS, struct.unpack_from("<6I", head, 8), strict=True))
    facts["centroids"] = list(struct.unpack_from("<16f", head, 32))
    problems = []
    geometry = {"version": 1, "width": row264.WIDTH, "block": 128, "row_bytes": row_layouts.HLWQ_BYTES}
    geometry["alignment"] = 4096
    for name, expected in geometry.items():
        if facts[name] != expected:
            problems.append((name, f"{expected}", f"{facts[name]}"))
    if not 1 <= facts["tables"] <= MOST_TABLES:
        problems.append(("tables", f"1 to {MOST_TABLES}", f"{facts['tables']}"))
    entries = []
    for i in range(min(facts["tables"], MOST_TABLES)):
        layer, rows, start, source, _ = struct.unpack_from("<IIQQQ", head, HLWQ_TABLES + i * HLWQ_ENTRY)
        entries.append({"layer": layer, "rows": rows, "start": start, "source_offset": source})
        end = start + rows * row_layouts.HLWQ_BYTES
        if end > file.size:
            problems.append(
                (f"table of layer {layer}", f"its rows before the file's end at {file.size}", f"up to {end}")
            )
    facts["table_entries"] = entries
    layers = tuple(entry["layer"] for entry in entries)
    return Sidecar(file.path, DS4_HLWQ, facts, layers, tuple(problems))


def _paged(file: ReadFile) -> Sidecar:
    head = file.read(0, 64, "the header")
    facts = dict(zip(PAGED_WORDS, struct.unpack_from("<7Q", head, 8), strict=True))
    problems = []
    for name, expected in (("row_bytes", row264.ROW_BYTES), ("page_rows", 15), ("page_bytes", 4096)):
        if facts[name] != expected:
            problems.append((name, f"{expected}", f"{facts[name]}"))
    first, end = facts["first"], facts["rows_end"]
    if not problems and not first < end <= facts["rows"]:
        problems.append(("row range", f"ascending, within {facts['rows']} rows", f"{first} to {end}"))
    if not problems:
        size = PAGED_HEADER + -(-(end - first) // 15) * 4096
        if size != file.size:
            problems.append(("size", f"{size} bytes for {end - first} rows", f"{file.size}"))
    note = f"rows {first} to {end} of {facts['rows']}: one rank's part"
    return Sidecar(file.path, ROW264_PAGED, facts, (facts["layer"],), tuple(problems), (note,))


def _vllm(file: ReadFile) -> Sidecar | None:
    """Codes or scales of a range of rows, which the name says; beside it the other file, and a mark of the end."""
    named = VLLM_NAME.fullmatch(file.path.name)
    if named is None:
        return None
    first, end, shard, kind = int(named[1]), int(named[2]), int(named[3]), named[4]
    sizes = {"weight": row264.WIDTH, "scale": row264.SCALES}
    facts = {"first": first, "rows_end": end, "shard": shard, "holds": kind, "rows": file.size // sizes[kind]}
    problems = []
    if file.size % sizes[kind]:
        problems.append(("size", f"whole rows of {sizes[kind]} bytes", f"{file.size} bytes"))
    stem = file.path.name.removesuffix(f".{kind}.bin")
    other = "scale" if kind == "weight" else "weight"
    beside = file.path.with_name(f"{stem}.{other}.bin")
    if not beside.is_file():
        problems.append((beside.name, "a file beside it", "none"))
    elif (found := beside.stat().st_size) != facts["rows"] * sizes[other]:
        problems.append((beside.name, f"{facts['rows']} rows of {sizes[other]} bytes", f"{found} bytes"))
    if not file.path.with_name(f"{stem}.done.json").is_file():
        problems.append((f"{stem}.done.json", "a file beside it, written last", "none: it may be unfinished"))
    return Sidecar(file.path, VLLM_PARTS, facts, (), tuple(problems))


def _bare(file: ReadFile) -> Sidecar | None:
    """Rows and nothing else: known by name, by the manifest beside them, or by what the rows look like."""
    named, q4k = BARE_NAME.fullmatch(file.path.name), Q4K_NAME.fullmatch(file.path.name)
    manifest = _manifest(file.path)
    if q4k is not None:
        return _q4k(file, int(q4k[1]), manifest)
    stated = manifest if manifest is not None and manifest.get("row_bytes") == row264.ROW_BYTES else None
    by_rows = named is None and stated is None
    if by_rows and (file.size % row264.ROW_BYTES or file.size < FEW_ROWS * row264.ROW_BYTES or kinds.name(file.path)):
        return None
    layout = _looks(file)
    if by_rows and layout is None:
        return None
    facts: dict[str, Any] = {"row_bytes": row264.ROW_BYTES, "rows": file.size // row264.ROW_BYTES}
    problems = []
    if file.size % row264.ROW_BYTES:
        problems.append(("size", f"whole rows of {row264.ROW_BYTES} bytes", f"{file.size} bytes"))
    if layout == row_layouts.BLOCK264.name:
        problems.append(("rows", "256 codes and then 8 scales", "8 blocks of a scale and its 32 codes"))
    layers = (int(named[1]),) if named is not None else ()
    notes = []
    if by_rows:
        notes.append("neither its name nor a .json beside it says which layer its rows are of")
    elif manifest is None:
        notes.append("no .json beside it: which rows are covered is not known")
    else:
        if type(manifest.get("layer")) is int:
            layers = (int(str(manifest["layer"])),)
        if manifest.get("rows") != facts["rows"]:
            problems.append(("rows", f"{manifest.get('rows')!r:.20} as its manifest says", f"{facts['rows']}"))
        facts["ranges"] = manifest.get("ranges")
    return Sidecar(file.path, ROW264_BARE, facts, layers, tuple(problems), tuple(notes), by_rows)


def _looks(file: ReadFile) -> str | None:
    """Which of the two layouts of 264 bytes some rows of the file are in; None where they do not say."""
    count = file.size // row264.ROW_BYTES
    step = max(1, count // SAMPLED_ROWS)
    rows = [file.read(row * row264.ROW_BYTES, row264.ROW_BYTES, "a row") for row in range(0, count, step)]
    return row_layouts.plausible(np.frombuffer(b"".join(rows), np.uint8).reshape(-1, row264.ROW_BYTES))


def _q4k(file: ReadFile, layer: int, manifest: dict[str, Any] | None) -> Sidecar:
    stated = manifest or {}
    offset = stated.get("offset", 0)
    offset = offset if type(offset) is int and 0 <= offset <= file.size else 0
    rows = (file.size - offset) // 144
    problems = []
    want = stated.get("rows", rows)
    if want != rows or offset + rows * 144 != file.size:
        problems.append(("size", f"{offset} + {want!r:.20} rows of 144 bytes", f"{file.size} bytes"))
    facts = {"row_bytes": 144, "rows": rows, "offset": offset, "complete": stated.get("complete")}
    return Sidecar(file.path, DS4_Q4K, facts, (layer,), tuple(problems))


def _manifest(path: Path) -> dict[str, Any] | None:
    for beside in (path.with_name(path.name + ".json"), path.with_suffix(".json")):
        if beside.is_file():
            with ReadFile.open(beside) as file:
                if file.size <= MOST_JSON:
                    try:
                        return strict_json.read_object(beside, file.read(0, file.size, "manifest"), 0)
                    except FormatError:
                        return None
    return None
