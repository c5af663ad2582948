"""The plan of a conversion: every key, tensor and place of the output, before a byte is written.

It is a function of the checkpoint and the request alone: no time, host or path, so that equal input gives equal bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from engramctl import dialect_keys, identity
from engramctl.checkpoint import CheckpointSource
from engramctl.extents import data_rows
from engramctl.identity import Identity
from engramctl.tensor_pieces import KvType, bands, require_width
from formats import gguf_file as gguf
from formats import row264
from formats.dialects import DS4, Key
from formats.errors import FormatError

TYPE_IDS = {known.name: number for number, known in gguf.GGML_TYPES.items()}


@dataclass(frozen=True)
class Target:
    """One tensor of the output: what it is made from and where it goes."""

    name: str
    role: str
    layer: int
    type: str  # ggml type name
    shape: tuple[int, ...]  # ne order
    size: int
    start: int = 0


@dataclass(frozen=True)
class Plan:
    """Everything about the output but the tensor bytes."""

    source: CheckpointSource
    layout: gguf.Layout
    targets: tuple[Target, ...]
    kv_type: KvType
    data_bytes: int  # to be written by the whole conversion: holes left out

    def identity(self) -> Identity:
        """What an interrupted run must find unchanged to go on: the request, the rules, and the source's files."""
        return identity.of(self)


def plan(
    source: CheckpointSource, kv_type: KvType = "f16", source_url: str | None = None, source_revision: str | None = None
) -> Plan:
    """Keys, tensors and places of the output; a config that does not fit the dialect's types raises `FormatError`."""
    sizes, params = source.sizes, source.params()
    require_width(source, DS4.name)
    kv = kv_type.upper()
    targets = []
    for layer in sizes.layers:
        gate = (sizes.hidden, sizes.streams)
        targets += [_target(role, layer, "F32", gate) for role in ("q_weight", "k_weight")]
        targets.append(_target("projection", layer, kv, (sizes.inputs, sizes.outputs)))
    for layer, rows in zip(sizes.layers, sizes.rows, strict=True):
        targets.append(_target("table", layer, "I8", (row264.ROW_BYTES, rows)))
    constants: dict[str, Any] = {
        "encoding": DS4.encoding,
        "layers": sizes.layers,
        "rows": sizes.rows,
        "compressed": sizes.compressed,
        "pad_id": params.pad_id,
        "token_map": params.token_map,
        "moduli": params.moduli.reshape(-1),
        "multipliers": params.multipliers.reshape(-1),
    }
    keys = [("general.architecture", gguf.string(DS4.architecture)), (gguf.ALIGNMENT_KEY, gguf.u32(DS4.alignment))]
    keys.append(("general.name", gguf.string(f"{source.profile.title} Engram")))
    for option, name, said in (
        ("--source-url", "general.source.url", source_url),
        ("--source-revision", "general.source.revision", source_revision),
    ):
        if said is not None:
            keys.append((name, dialect_keys.typed(Key(name, "string"), said, option)))
    if source.config_text is not None and source.config is not None:
        keys.append((DS4.config, gguf.string(source.config_text)))
        path = str(source.path / "config.json")
        keys += dialect_keys.hyperparameters(DS4, dict(source.config), path)
    keys += [(key.name, dialect_keys.typed(key, constants[role], str(source.path))) for role, key in DS4.keys.items()]
    layout = gguf.encode_header(keys, [(t.name, TYPE_IDS[t.type], t.shape, t.size) for t in targets], DS4.alignment)
    placed = tuple(Target(t.name, t.role, t.layer, t.type, t.shape, t.size, layout.starts[t.name]) for t in targets)
    return Plan(source, layout, placed, kv_type, _data_bytes(source, layout, placed))


def _target(role: str, layer: int, kind: str, shape: tuple[int, int]) -> Target:
    return Target(
        DS4.tensors[role].format(layer=layer), role, layer, kind, shape, gguf.tensor_bytes(TYPE_IDS[kind], shape) or 0
    )


def _data_bytes(source: CheckpointSource, layout: gguf.Layout, targets: tuple[Target, ...]) -> int:
    total = len(layout.header)
    for target in targets:
        if target.role == "table":
            total += sum(last - first for first, last in data_rows(source.table(target.layer))) * row264.ROW_BYTES
        elif target.role == "projection":
            total += sum(count for _, count in bands(source, target.layer)) * (target.size // target.shape[1])
        else:
            total += target.size
    return total


def notes(source: CheckpointSource) -> list[str]:
    """What one may not have meant: another token map than the tokenizer's, or layers that a loader will miss."""
    found = []
    tokenizer = source.path / "tokenizer.json"
    if source.given_map is not None and source.path.is_dir() and tokenizer.exists():
        from engramctl import vocabulary

        try:
            same = np.array_equal(
                vocabulary.build(vocabulary.load_tokenizer(tokenizer), tokenizer), source.given_map.ids
            )
        except FormatError:
            same = False
        if not same:
            found.append(f"{source.given_map.origin} is not the token map that {tokenizer} gives")
    if source.sizes.layers != source.whole.layers:
        some, every = list(source.sizes.layers), list(source.whole.layers)
        found.append(f"layers {some} of {every}: {DS4.name}'s loader wants all of them in one file")
    return found


def describe(made: Plan) -> dict[str, Any]:
    """The plan in numbers, for `--dry-run` and `--json`."""
    tensors = [
        {"name": t.name, "type": t.type, "shape": list(t.shape), "start": t.start, "bytes": t.size}
        for t in made.targets
    ]
    return {
        "dialect": DS4.name,
        "layers": list(made.source.sizes.layers),
        "token_map": made.source.token_map().origin,
        "file_bytes": made.layout.file_size,
        "data_bytes": made.data_bytes,
        "tensors": tensors,
    }


def as_table(facts: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The plan for people: headings and rows."""
    rows = [
        [t["name"], t["type"], " x ".join(map(str, t["shape"])), f"{t['start']:,}", f"{t['bytes']:,}"]
        for t in facts["tensors"]
    ]
    rows.append(["file", facts["dialect"], "", "", f"{facts['file_bytes']:,}"])
    rows.append(["to be written (holes stay holes)", "", "", "", f"{facts['data_bytes']:,}"])
    return ["tensor", "type", "shape", "starts at", "bytes"], rows
