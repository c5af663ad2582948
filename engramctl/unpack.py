"""unpack: a lossless container's tables back as a safetensors checkpoint, byte for byte.

Rows, gate weights and config are the bytes that were packed. The projection was dequantised then: it is written as
codes and scales of exactly its values, each block under the smallest scale that holds them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import __version__, container_sizes, identity, pieces, room, sidecars, stored, tables, unfinished
from engramctl.errors import EngramctlError
from engramctl.extents import chunks, data_rows
from engramctl.pieces import Progress
from engramctl.profiles import Profile, Sizes
from engramctl.shapes import PROJECTION_BLOCK
from engramctl.source import is_container
from engramctl.table import Table
from formats import disk, recognise, row264, row_layouts, safetensors_raw, token_map
from formats.dialect import Dialect
from formats.disk import ReadFile, WriteFile
from formats.errors import FormatError, ShortFileError
from formats.floats import E4M3_VALUES, exact_in_bf16, to_bf16
from formats.gguf_file import TensorInfo
from formats.gguf_split import read_model

PIECE_ROWS = 16 << 20  # 4 GiB of rows are durable before the next are begun
FLOATS = {"F16": "<f2", "BF16": "<u2", "F32": "<f4"}


@dataclass(frozen=True)
class Plan:
    """What is read from the source before anything is begun, and what its rows turn out to be wrong about."""

    held: dict[int, Table]
    profile: Profile
    weights: dict[int, dict[str, NDArray[Any]]] = field(default_factory=dict)
    config: str | None = None
    ids: list[int] | None = None
    wrong: list[Exception] = field(default_factory=list)


def write(
    path: Path,
    folder: Path,
    profile: Profile,
    resume: bool = False,
    force: bool = False,
    progress: Progress = lambda n: None,
) -> dict[str, Any]:
    """A checkpoint in `folder`, which is new or empty; it appears whole. What was written, by name.

    What was interrupted stays as `.partial`, and goes on with `resume`, and so does what a full disk or another run
    stopped; only bad content of the source removes what was begun.
    """
    if not path.exists():
        raise FormatError(path, None, "a container", "nothing there")
    _require_codes(profile)
    folder = folder if folder.name not in ("", "..") else folder.resolve()
    room.require_folder(folder.parent)
    with unfinished.alone(unfinished.lock_of(folder)), ExitStack() as stack:
        who = _identity(path, profile)
        left = unfinished.require(folder, who, resume, force)
        plan = _plan(stack, path, profile)
        if left is None:
            room.require(folder.parent, _needed(plan.held.values()))
        partial = unfinished.begin(folder, who, resume, left)
        try:
            made = _write(plan, partial, progress)
        except (FormatError, EngramctlError):
            if plan.wrong:
                unfinished.remove(partial)
            raise
        if _identity(path, profile) != who:
            raise EngramctlError(str(path), "a file that is not changed while it is read", "another time or size")
        unfinished.finish(folder)
        return made


def _require_codes(profile: Profile) -> None:
    if not {"codes", "scales"} <= profile.tensors.keys():
        raise EngramctlError("--profile", "a model whose rows are codes and scales", profile.name)


def _identity(path: Path, profile: Profile) -> dict[str, Any]:
    """What an interrupted run must find unchanged to go on."""
    every = sorted(path.iterdir()) if path.is_dir() else [path]
    if not path.is_dir() and is_container(path):
        every = [shard.path for shard in read_model(path).shards] or every
    status = {each.name: disk.system.status(each) for each in every}
    stamps = {name: [each.st_size, each.st_mtime_ns] for name, each in status.items()}
    rules = identity.sha256(json.dumps(profile.facts, sort_keys=True, default=str).encode())
    return {"version": __version__, "profile": [profile.name, rules]} | stamps


def _plan(stack: ExitStack, path: Path, profile: Profile) -> Plan:
    """Everything but the rows; `stack` closes the files."""
    if path.is_dir() or not is_container(path):
        rows = sidecars.opened(stack, path)
        if rows is None:
            raise FormatError(path, None, "a container, or a file or folder of rows", "neither")
        _require_lossless(path, *rows)
        return Plan(rows[1], profile)
    header = read_model(path)
    recognise.refuse_underway(header)
    files = stack.enter_context(tables.Files(header))
    dialect, held = tables.of_header(files)
    _require_lossless(path, dialect, held)
    constants = stored.of_container(header, dialect).constants
    sizes = container_sizes.of_container(header, dialect, constants, profile)
    weights = {layer: _weights(files, dialect, layer) for layer in held}
    config = header.keys[dialect.config].value if dialect.config in header.keys else None
    if config is None and sizes is not None:
        config = _config(sizes, profile)
    ids = constants.get("token_map")
    if ids is not None and not all(0 <= each < 1 << 32 for each in ids):
        raise FormatError(path, "token map", "compressed ids of 32 bits", "others")
    return Plan(held, profile, weights, config, ids)


def _write(plan: Plan, folder: Path, progress: Progress) -> dict[str, Any]:
    return _finish(folder, _shards(folder, plan, progress), plan.config, plan.ids)


def _require_lossless(path: Path, dialect: Dialect, held: dict[int, Table]) -> None:
    lossy = next((table.layout.name for table in held.values() if not table.layout.lossless), None)
    if lossy is not None:
        why = dialect.loses or "they were re-encoded"
        raise EngramctlError(str(path), "rows that hold the checkpoint's bytes", f"{lossy} rows: {why}")
    for layer, table in held.items():
        if table.first or table.covered or table.rows != table.whole:
            raise EngramctlError("unpack", "all rows of a layer", f"a part of layer {layer}")


def _needed(held: Iterable[Table]) -> int:
    """Bytes of the rows that are no hole."""
    return sum(last - first for table in held for first, last in _ranges(table)) * row264.ROW_BYTES


def _shards(folder: Path, plan: Plan, progress: Progress) -> list[dict[str, str]]:
    """One safetensors file a layer; the shard of each tensor. Those that are there whole were finished before."""
    profile, made, rest = plan.profile, [], []
    for layer, table in plan.held.items():
        shard, weights = folder / f"engram-layer-{layer:02d}.safetensors", plan.weights.get(layer, {})
        entries: list[tuple[str, str, tuple[int, ...]]] = []
        for role, width in (("codes", row264.WIDTH), ("scales", row264.SCALES)):
            entries.append((profile.tensors[role].of(layer), profile.tensors[role].dtype, (table.rows, width)))
        for role, array in weights.items():
            entries.append((profile.tensors[role].of(layer), profile.tensors[role].dtype, array.shape))
        made.append(dict.fromkeys((name for name, _, _ in entries), shard.name))
        head, spans = safetensors_raw.header(entries)
        if not _is_whole(shard, head, max(end for _, end in spans.values())):
            rest.append((shard, table, weights, head, spans))
    for number, (shard, table, arrays, head, spans) in enumerate(rest):
        size = max(end for _, end in spans.values())
        places = {role: spans[profile.tensors[role].of(table.layer)][0] for role in ("codes", "scales", *arrays)}
        edges = pairwise([*range(0, table.rows, PIECE_ROWS), table.rows])
        every = [_array(0, np.frombuffer(head, np.uint8)), *(_piece(plan, table, places, *edge) for edge in edges)]
        every += [_array(places[role], array) for role, array in arrays.items()]
        needed = _needed(table for _, table, *_ in rest[number:])
        pieces.write(shard, size, needed, every, partial(dict, shard=shard.name), resume=True, progress=progress)
    return made


def _is_whole(shard: Path, head: bytes, size: int) -> bool:
    """Is it there as a run has finished it? What is there otherwise goes: it is written again."""
    if not shard.is_file():
        return False
    with ReadFile.open(shard) as file:
        whole = file.size == size and file.read(0, len(head), "header") == head
    beside = [shard.with_name(shard.name + ending) for ending in (".partial", ".journal")]  # killed as it was named
    disk.remove(*(beside if whole else [shard]))
    return whole


def _piece(plan: Plan, table: Table, places: dict[str, int], start: int, end: int) -> pieces.Piece:
    def fill(file: WriteFile, progress: Progress) -> None:
        try:
            for first, rows in _rows(table, start, end):
                codes, scales = row264.split(rows)
                file.write(places["codes"] + first * row264.WIDTH, np.ascontiguousarray(codes).data)
                file.write(places["scales"] + first * row264.SCALES, np.ascontiguousarray(scales).data)
                progress(rows.nbytes)
        except ShortFileError:
            raise  # a disk that fails, or a file that is being changed
        except (FormatError, EngramctlError) as error:
            plan.wrong.append(error)
            raise

    return pieces.Piece(f"layer {table.layer} from row {start} on", fill)


def _array(at: int, array: NDArray[Any]) -> pieces.Piece:
    return pieces.Piece("header or weight", lambda file, progress: file.write(at, np.ascontiguousarray(array).data))


def _ranges(table: Table, start: int = 0, end: int | None = None) -> Iterator[tuple[int, int]]:
    """Ranges of rows of which some part is no hole; of rows on pages, all."""
    last = table.rows if end is None else end
    return iter([(start, last)]) if table.pages is not None else data_rows(table, start, last)


def _rows(table: Table, start: int, end: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """(first row, rows as codes then scales) of what is no hole."""
    for begin, stop in _ranges(table, start, end):
        for first, last in chunks(begin, stop):
            if not table.plain:
                yield first, table.read(np.arange(first, last))
                continue
            made = []
            for part in table.parts:
                raw = part.file.read(part.start + first * part.stride, (last - first) * part.stride, "rows")
                made.append(np.frombuffer(raw, np.uint8).reshape(last - first, part.stride))
            yield first, made[0] if len(made) == 1 else np.concatenate(made, axis=1)


def _weights(files: tables.Files, dialect: Dialect, layer: int) -> dict[str, NDArray[Any]]:
    """The layer's gate weights as BF16 bits, and the projection as codes and scales; absent ones are left out."""
    there = files.header.named
    made: dict[str, NDArray[Any]] = {}
    for role in ("q_weight", "k_weight", "projection"):
        tensor = there.get(dialect.tensors.get(role, "").format(layer=layer))
        if tensor is None:
            continue
        values = _values(files.of(tensor), tensor)
        if role == "projection":
            made["projection"], made["projection_scale"] = requantise(values, tensor.name)
        else:
            if not exact_in_bf16(values).all():
                where, path = f"tensor {tensor.name}", files.header.path
                raise FormatError(path, where, "values that BF16 holds exactly", "others")
            made[role] = to_bf16(values).astype("<u2")
    return made


def _values(file: ReadFile, tensor: TensorInfo) -> NDArray[np.float32]:
    kind = recognise.type_of(tensor)
    if kind not in FLOATS or len(tensor.shape) != 2:
        wanted = f"{' or '.join(FLOATS)} in two dimensions"
        raise FormatError(file.path, f"tensor {tensor.name}", wanted, f"{kind} {list(tensor.shape)}")
    layout = row_layouts.ggml(kind, tensor.shape[0])
    assert layout is not None
    raw = np.frombuffer(file.read(tensor.start, tensor.size or 0, tensor.name), np.uint8)
    return layout.decode(raw.reshape(tensor.shape[1], layout.stored))


def requantise(values: NDArray[np.float32], name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """[N, K] values -> E4M3 codes and E8M0 scales of 32 x 32 blocks, exactly; `EngramctlError` where they are none."""
    if not np.isfinite(values).all():
        raise EngramctlError(name, "finite values", "an infinity or a NaN")
    rows, columns = values.shape
    down, across = -(-rows // PROJECTION_BLOCK), -(-columns // PROJECTION_BLOCK)
    codes, scales = np.empty((rows, columns), np.uint8), np.empty((down, across), np.uint8)
    numbers = np.append(E4M3_VALUES[:127], np.inf)  # ascending, from code 0 on
    for i in range(down):
        band = slice(i * PROJECTION_BLOCK, (i + 1) * PROJECTION_BLOCK)
        most = np.abs(values[band]).max(axis=0)
        most = np.pad(most, (0, across * PROJECTION_BLOCK - columns)).reshape(across, -1).max(axis=1)
        with np.errstate(divide="ignore"):
            powers = np.ceil(np.log2(np.maximum(most, 2.0**-120) / 448)).astype(int)
        scales[i] = np.clip(powers + 127, 0, 254)
        spread = np.repeat(np.exp2(scales[i].astype(np.float64) - 127), PROJECTION_BLOCK)[:columns]
        exact = np.abs(values[band].astype(np.float64)) / spread
        found = np.searchsorted(numbers, exact)
        if not np.array_equal(numbers[found], exact):
            raise EngramctlError(name, "values that E4M3 codes under one scale a block hold", "others")
        codes[band] = found | np.signbit(values[band]).astype(np.uint8) << 7
    return codes, scales


def _config(sizes: Sizes, profile: Profile) -> str:
    """A config that says the sizes, where the container carries none."""
    found = {spellings[0]: getattr(sizes, size) for size, spellings in profile.config_keys.items()}
    text = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
    return json.dumps({"text_config": text}, indent=2) + "\n"


def _finish(folder: Path, shards: list[dict[str, str]], config: str | None, ids: list[int] | None) -> dict[str, Any]:
    """Index, config and token map."""
    places = dict(sorted(item for shard in shards for item in shard.items()))
    index = json.dumps({"metadata": {}, "weight_map": places}, indent=2) + "\n"
    disk.write_whole(folder / safetensors_raw.INDEX_NAME, [index.encode()], force=True)
    if config is not None:
        disk.write_whole(folder / safetensors_raw.CONFIG_NAME, [config.encode()], force=True)
    if ids is not None:
        disk.write_whole(
            folder / "engram_token_map.bin", [token_map.encode(np.array(ids, np.uint32), "u32")], force=True
        )
    return {"tensors": list(places), "config": config is not None, "token_map": ids is not None}
