"""unpack: a lossless container's tables back as a safetensors checkpoint, byte for byte.

Rows, gate weights and config are the bytes that were packed. The projection was dequantised then: it is written as
codes and scales of exactly its values, each block under the smallest scale that holds them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import container_sizes, sidecars, stored, tables
from engramctl.errors import EngramctlError
from engramctl.extents import data_rows
from engramctl.pieces import Progress
from engramctl.profiles import Profile, Sizes
from engramctl.shapes import PROJECTION_BLOCK
from engramctl.source import is_container
from engramctl.table import Table
from formats import recognise, row264, row_layouts, safetensors_raw, token_map
from formats.dialect import Dialect
from formats.disk import ReadFile, WriteFile, fsync_folder
from formats.errors import FormatError
from formats.floats import E4M3_VALUES, exact_in_bf16, to_bf16
from formats.gguf_file import TensorInfo
from formats.gguf_split import read_model

CHUNK_ROWS = 16384
FLOATS = {"F16": "<f2", "BF16": "<u2", "F32": "<f4"}


def write(path: Path, folder: Path, profile: Profile, progress: Progress = lambda n: None) -> dict[str, Any]:
    """A checkpoint in `folder`, which is new or empty; it appears whole. What was written, by name."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise EngramctlError(str(folder), "a new or empty folder", "files in it" if folder.is_dir() else "a file")
    if not folder.parent.is_dir():
        raise FormatError(folder.parent, None, "a folder", "nothing there")
    partial = folder.with_name(folder.name + ".partial")
    if partial.exists():
        raise EngramctlError(str(partial), "no unfinished output", "one", "remove it to start again")
    try:
        partial.mkdir()
        made = _write(path, partial, profile, progress)
        fsync_folder(partial)
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return made


def _write(path: Path, folder: Path, profile: Profile, progress: Progress) -> dict[str, Any]:
    if not is_container(path):
        found = sidecars.recognise(path)
        if found is None:
            raise FormatError(path, None, "a container or a file of rows", "neither")
        with ReadFile.open(path) as file:
            held = sidecars.tables(file, found)
            return _finish(folder, [_shard(folder, held, profile, {}, progress)], None, None)
    header = read_model(path)
    with tables.Files(header) as files:
        dialect, held = tables.of_header(files)
        lossy = next((table.layout.name for table in held.values() if not table.layout.lossless), None)
        if lossy is not None:
            why = dialect.loses or "they were re-encoded"
            raise EngramctlError(str(path), "rows that hold the checkpoint's bytes", f"{lossy} rows: {why}")
        constants = stored.of_container(header, dialect).constants
        sizes = container_sizes.of_container(header, dialect, constants, profile)
        weights = {layer: _weights(files, dialect, layer) for layer in held}
        shards = [_shard(folder, {layer: held[layer]}, profile, weights, progress) for layer in held]
        config = header.keys[dialect.config].value if dialect.config in header.keys else None
        if config is None and sizes is not None:
            config = _config(sizes, profile)
        return _finish(folder, shards, config, constants.get("token_map"))


def _shard(
    folder: Path,
    held: dict[int, Table],
    profile: Profile,
    weights: dict[int, dict[str, NDArray[Any]]],
    progress: Progress,
) -> dict[str, str]:
    """One safetensors file with these layers; the shard of each tensor."""
    layer = next(iter(held))
    shard = f"engram-layer-{layer:02d}.safetensors"
    entries: list[tuple[str, str, tuple[int, ...]]] = []
    for number, table in held.items():
        if table.first or table.covered or table.rows != table.whole:
            raise EngramctlError("unpack", "all rows of a layer", f"a part of layer {number}")
        for role, width in (("codes", row264.WIDTH), ("scales", row264.SCALES)):
            entries.append((profile.tensors[role].of(number), profile.tensors[role].dtype, (table.rows, width)))
        for role, array in weights.get(number, {}).items():
            entries.append((profile.tensors[role].of(number), profile.tensors[role].dtype, array.shape))
    head, spans = safetensors_raw.header(entries)
    with WriteFile.create(folder / shard) as file:
        file.write(0, head)
        file.resize(max(end for _, end in spans.values()))
        for number, table in held.items():
            codes_at, scales_at = (spans[profile.tensors[role].of(number)][0] for role in ("codes", "scales"))
            for first, rows in _rows(table):
                codes, scales = row264.split(rows)
                file.write(codes_at + first * row264.WIDTH, np.ascontiguousarray(codes).data)
                file.write(scales_at + first * row264.SCALES, np.ascontiguousarray(scales).data)
                progress(rows.nbytes)
            for role, array in weights.get(number, {}).items():
                file.write(spans[profile.tensors[role].of(number)][0], np.ascontiguousarray(array).data)
        file.sync()
    return dict.fromkeys((name for name, _, _ in entries), shard)


def _rows(table: Table) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """(first row, rows as codes then scales) of what is no hole."""
    paged = table.pages is not None
    for start, end in iter([(0, table.rows)]) if paged else data_rows(table):
        for first in range(start, end, CHUNK_ROWS):
            last = min(first + CHUNK_ROWS, end)
            if not table.plain:
                yield first, table.read(np.arange(first, last))
                continue
            pieces = []
            for part in table.parts:
                raw = part.file.read(part.start + first * part.stride, (last - first) * part.stride, "rows")
                pieces.append(np.frombuffer(raw, np.uint8).reshape(last - first, part.stride))
            yield first, pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)


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
    text = {spellings[0]: _plain(getattr(sizes, size)) for size, spellings in profile.config_keys.items()}
    return json.dumps({"text_config": text}, indent=2) + "\n"


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _finish(folder: Path, shards: list[dict[str, str]], config: str | None, ids: list[int] | None) -> dict[str, Any]:
    """Index, config and token map."""
    places = dict(sorted(item for shard in shards for item in shard.items()))
    index = json.dumps({"metadata": {}, "weight_map": places}, indent=2) + "\n"
    _text(folder / safetensors_raw.INDEX_NAME, index.encode())
    if config is not None:
        _text(folder / safetensors_raw.CONFIG_NAME, config.encode())
    if ids is not None:
        _text(folder / "engram_token_map.bin", token_map.encode(np.array(ids, np.uint32), "u32"))
    return {"tensors": list(places), "config": config is not None, "token_map": ids is not None}


def _text(path: Path, data: bytes) -> None:
    with WriteFile.create(path) as file:
        file.write(0, data)
        file.sync()
