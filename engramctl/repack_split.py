"""repack --dialect split-i8: the checkpoint's bytes in two tensors. What is written at all, and what it needs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from engramctl import __version__, dialect_keys, pieces, tensor_pieces
from engramctl.checkpoint import CheckpointSource
from engramctl.errors import EngramctlError
from engramctl.tensor_pieces import KV_TYPES, KvType, Projection
from formats import disk, row264
from formats import gguf_file as gguf
from formats.dialect import Dialect
from formats.dialects import DS4, ROW264_BARE, SPLIT_I8, by_name

TYPE_IDS = {known.name: number for number, known in gguf.GGML_TYPES.items()}
WRITTEN = (DS4.name, SPLIT_I8.name, ROW264_BARE.name)

Infos = list[tuple[str, int, tuple[int, ...], int]]  # name, ggml type, shape, bytes


def choose(name: str) -> Dialect:
    """A dialect that is written; for another the reason why not."""
    dialect = by_name(name)
    if dialect is None or name not in WRITTEN:
        reason = None if dialect is None else dialect.loses or "nobody but its own tool reads it"
        raise EngramctlError("--dialect", f"one of {', '.join(WRITTEN)}", name, reason)
    return dialect


def identity(source: CheckpointSource, dialect: Dialect, **more: Any) -> dict[str, Any]:  # noqa: ANN401 (JSON)
    """What an interrupted run must find unchanged to go on."""
    shards = sorted({tensor.path for tensor in source.tensors.values()})
    status = [disk.system.status(path) for path in shards]
    stamps = {path.name: [s.st_size, s.st_mtime_ns] for path, s in zip(shards, status, strict=True)}
    return {"version": __version__, "dialect": dialect.name, "shards": stamps} | more


def files_of(source: CheckpointSource) -> list[Path]:
    """What is read, or lies beside it in the checkpoint's folder."""
    return [source.path, *sorted({tensor.path for tensor in source.tensors.values()})]


def infos(source: CheckpointSource, dialect: Dialect, kv_type: KvType) -> Infos:
    """The Engram's tensors in a dialect of GGUF: weights first, tables last."""
    sizes, kind = source.sizes, KV_TYPES[kv_type]
    made: Infos = []

    def add(role: str, layer: int, type_name: str, shape: tuple[int, ...]) -> None:
        name, number = dialect.tensors[role].format(layer=layer), TYPE_IDS[type_name]
        made.append((name, number, shape, gguf.tensor_bytes(number, shape) or 0))

    for layer in sizes.layers:
        add("q_weight", layer, "F32", (sizes.hidden, sizes.streams))
        add("k_weight", layer, "F32", (sizes.hidden, sizes.streams))
        add("projection", layer, kind, (sizes.inputs, sizes.outputs))
    for layer, rows in zip(sizes.layers, sizes.rows, strict=True):
        add("table", layer, "I8", (dialect.row, rows))
        if "scales" in dialect.tensors:
            add("scales", layer, "I8", (row264.SCALES, rows))
    return made


def fill(source: CheckpointSource, dialect: Dialect, kv_type: KvType, starts: dict[str, int]) -> list[pieces.Piece]:
    """What writes the tensors into their places."""
    made = []
    for layer in source.sizes.layers:
        at = {role: starts[name.format(layer=layer)] for role, name in dialect.tensors.items()}
        made += [tensor_pieces.gate_piece(source, layer, role, at[role]) for role in ("q_weight", "k_weight")]
        made.append(Projection(source, layer, kv_type).piece(at["projection"]))
        if "scales" in at:
            made.append(tensor_pieces.split_piece(source.table(layer), at["table"], at["scales"]))
        else:
            made.append(tensor_pieces.row264_piece(source.table(layer), at["table"]))
    return made


def constants(source: CheckpointSource, dialect: Dialect) -> list[tuple[str, gguf.Value]]:
    wanted = dialect_keys.values(dialect, source.params(), source.sizes)
    keys = [(key.name, dialect_keys.typed(key, wanted[role], str(source.path))) for role, key in dialect.keys.items()]
    if source.config_text is not None:
        keys.insert(0, (dialect.config, gguf.string(source.config_text)))
    return keys


def split(
    source: CheckpointSource,
    output: Path,
    kv_type: KvType,
    resume: bool = False,
    force: bool = False,
    progress: pieces.Progress = lambda n: None,
) -> int:
    """A split-i8 GGUF; its bytes."""
    tensor_pieces.require_width(source, SPLIT_I8.name)
    keys = [("general.architecture", gguf.string(SPLIT_I8.architecture))]
    keys.append(("general.name", gguf.string(f"{source.profile.title} Engram")))
    keys += constants(source, SPLIT_I8)
    layout = gguf.encode_header(keys, infos(source, SPLIT_I8, kv_type))
    head = pieces.Piece("header", lambda file, progress: file.write(0, layout.header))
    every = [*fill(source, SPLIT_I8, kv_type, layout.starts), head]

    def who() -> dict[str, Any]:
        return identity(source, SPLIT_I8, kv_type=kv_type, header=hashlib.sha256(layout.header).hexdigest())

    needed = tensor_pieces.data_bytes(source) + len(layout.header)
    pieces.write(output, layout.file_size, needed, every, who, files_of(source), resume, force, progress)
    return layout.file_size
