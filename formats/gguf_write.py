"""A GGUF's header and the places of its tensors, before a single tensor byte exists (spec: gguf_file.md)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from formats.gguf_values import Value, ValueType, encode, tensor_bytes, u32

MAGIC = b"GGUF"
VERSION = 3
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"


@dataclass(frozen=True)
class Layout:
    """The header, padded up to the tensor data; where each tensor starts; where the file ends."""

    header: bytes
    starts: dict[str, int]
    file_size: int


def aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def encode_header(
    keys: Sequence[tuple[str, Value]],
    tensors: Sequence[tuple[str, int, tuple[int, ...], int]],
    alignment: int = DEFAULT_ALIGNMENT,
) -> Layout:
    """Keys and (name, ggml type id, ne shape, bytes), in file order -> a version 3 header.

    Every tensor starts at the aligned end of the one before and the file ends at an aligned end. An alignment that
    is not the default is written as a key, after the first one, unless `keys` has it.
    """
    keys = list(keys)
    held = dict(keys)
    if len(held) != len(keys) or len({name for name, _, _, _ in tensors}) != len(tensors):
        raise ValueError("a key or a tensor name is there twice")
    if alignment <= 0 or alignment & (alignment - 1):
        raise ValueError(f"alignment {alignment} is no power of two")
    if ALIGNMENT_KEY not in held and alignment != DEFAULT_ALIGNMENT:
        keys.insert(1, (ALIGNMENT_KEY, u32(alignment)))
    elif ALIGNMENT_KEY in held and held[ALIGNMENT_KEY] != u32(alignment):
        raise ValueError(f"alignment {alignment} contradicts the key {ALIGNMENT_KEY}")

    offset = 0
    offsets: dict[str, int] = {}
    for name, type_id, shape, size in tensors:
        known = tensor_bytes(type_id, shape)
        if known is not None and known != size:
            raise ValueError(f"tensor {name}: {shape} of type {type_id} takes {known} bytes, not {size}")
        offsets[name] = offset
        offset += aligned(size, alignment)
    header = encode_parts(keys, [(name, type_id, shape, offsets[name]) for name, type_id, shape, _ in tensors])
    data_start = aligned(len(header), alignment)
    header += bytes(data_start - len(header))
    return Layout(header, {name: data_start + at for name, at in offsets.items()}, data_start + offset)


def encode_parts(keys: Sequence[tuple[str, Value]], tensors: Sequence[tuple[str, int, tuple[int, ...], int]]) -> bytes:
    """A version 3 header up to the end of the tensor infos: keys, and (name, ggml type id, ne shape, offset)."""
    parts = [struct.pack("<4sIQQ", MAGIC, VERSION, len(tensors), len(keys))]
    for name, value in keys:
        parts += [encode(Value(ValueType.STRING, name)), struct.pack("<I", value.type), encode(value)]
    for name, type_id, shape, offset in tensors:
        parts += [encode(Value(ValueType.STRING, name)), struct.pack(f"<I{len(shape)}Q", len(shape), *shape)]
        parts.append(struct.pack("<IQ", type_id, offset))
    return b"".join(parts)
