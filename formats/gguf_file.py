"""GGUF headers: a bounded scan that never looks at tensor bytes (spec: gguf_file.md).

    | "GGUF", version, counts | keys | tensor infos | padding | tensor data, each start aligned |

Every count and length is compared with the bytes that are left before memory is asked for.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path

from formats.disk import ReadFile
from formats.errors import FormatError, shown
from formats.gguf_scan import COUNT_LIMIT, Scan
from formats.gguf_values import (
    COUNT_BYTES,
    DTYPES,
    GGML_TYPES,
    TYPE_BYTES,
    GgmlType,
    Value,
    ValueType,
    array,
    boolean,
    encode,
    f32,
    f32s,
    i32,
    i32s,
    scalar,
    string,
    strings,
    tensor_bytes,
    u8,
    u32,
    u32s,
    u64,
    u64s,
)
from formats.gguf_write import ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, VERSION, Layout, aligned, encode_header

__all__ = [
    "ALIGNMENT_KEY",
    "DEFAULT_ALIGNMENT",
    "DTYPES",
    "GGML_TYPES",
    "VERSION",
    "GgmlType",
    "GgufHeader",
    "Layout",
    "TensorInfo",
    "Value",
    "ValueType",
    "aligned",
    "array",
    "boolean",
    "encode",
    "encode_header",
    "f32",
    "f32s",
    "i32",
    "i32s",
    "read_header",
    "scalar",
    "string",
    "strings",
    "tensor_bytes",
    "u8",
    "u32",
    "u32s",
    "u64",
    "u64s",
]

READ_VERSIONS = (2, VERSION)
MAX_DIMENSIONS = 4
ELEMENT_LIMIT = 2**63 - 1  # ggml counts elements and bytes in an int64
LEAST_KEY = COUNT_BYTES + TYPE_BYTES + 1  # no name, a type, one byte
LEAST_TENSOR = COUNT_BYTES + TYPE_BYTES + TYPE_BYTES + COUNT_BYTES  # no name, no dimension, a type, an offset


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as the header describes it; `size` is None where the ggml type is unknown."""

    name: str
    type: int
    shape: tuple[int, ...]  # ne order: the row's length first
    offset: int  # from the start of the tensor data
    start: int  # from the start of the file
    size: int | None
    shard: Path | None = None  # the file it lies in, where a model is in several


@dataclass(frozen=True)
class GgufHeader:
    path: Path
    version: int
    file_size: int
    alignment: int
    keys: dict[str, Value]
    tensors: tuple[TensorInfo, ...]
    header_end: int  # where the tensor infos end
    data_start: int  # the next aligned byte
    shards: tuple[GgufHeader, ...] = ()  # headers of all files of a split model, this one's among them (gguf_split.py)
    text_errors: tuple[tuple[str, str, str], ...] = ()  # (where, expected, found) of texts that are not UTF-8
    split_errors: tuple[tuple[str, str, str], ...] = ()  # (where, expected, found) of files that are not as they should

    @property
    def alone(self) -> GgufHeader:
        """The header of this file by itself."""
        return next((shard for shard in self.shards if shard.path == self.path), self)

    def home(self, tensor: TensorInfo) -> GgufHeader:
        """The header of the file that a tensor lies in."""
        return next((shard for shard in self.shards if shard.path == tensor.shard), self)

    @cached_property
    def named(self) -> dict[str, TensorInfo]:
        """Tensors by name."""
        return {tensor.name: tensor for tensor in self.tensors}

    def tensor(self, name: str) -> TensorInfo:
        if name in self.named:
            return self.named[name]
        absent = "".join(f"; without {where}" for where, _, found in self.split_errors if found == "none")
        raise FormatError(self.path, None, f"a tensor {shown(name)}", f"none among {len(self.tensors)}{absent}")

    def span_errors(self) -> list[tuple[str, str, str]]:
        """(tensor, expected, found): past the end of the file, off the alignment, inside the tensor before."""
        if self.shards:
            return [error for shard in self.shards for error in shard.span_errors()]
        errors = []
        before: TensorInfo | None = None
        for tensor in sorted(self.tensors, key=lambda tensor: (tensor.start, tensor.size or 0)):
            end = tensor.start + (tensor.size or 0)
            if end > self.file_size:
                errors.append((tensor.name, f"its bytes before the file's end at {self.file_size}", f"up to {end}"))
            if tensor.offset % self.alignment:
                errors.append((tensor.name, f"an offset that {self.alignment} divides", f"{tensor.offset}"))
            if before is not None and tensor.start < before.start + (before.size or 0):
                end_before = before.start + (before.size or 0)
                after = f"its bytes from {end_before} on, after {shown(before.name)}"
                errors.append((tensor.name, after, f"from {tensor.start} on"))
            if before is None or end > before.start + (before.size or 0):
                before = tensor
        return errors


def read_header(path: str | PathLike[str], strict: bool = True, any_text: bool = False) -> GgufHeader:
    """The header of a GGUF; `strict` refuses the first span error as well, `any_text` no value for its text."""
    with ReadFile.open(path) as file:
        header = _read(file, any_text)
    if strict:
        for name, expected, found in header.span_errors():
            raise FormatError(path, f"tensor {shown(name)}", expected, found)
    return header


def _read(file: ReadFile, any_text: bool) -> GgufHeader:
    scan = Scan(file, any_text)
    magic = scan.take(len(MAGIC), "magic")
    if magic != MAGIC:
        raise FormatError(file.path, 0, '"GGUF"', shown(magic.decode("latin-1")))
    version = _version(scan)
    tensor_count = scan.count("tensors", LEAST_TENSOR, COUNT_LIMIT)
    key_count = scan.count("keys", LEAST_KEY, COUNT_LIMIT)
    keys: dict[str, Value] = {}
    alignment = DEFAULT_ALIGNMENT
    for _ in range(key_count):
        at = scan.position
        name = scan.name("a key")
        if name in keys:
            raise FormatError(file.path, at, "each key once", f"{shown(name)} again")
        keys[name] = _value(scan, name)
        if name == ALIGNMENT_KEY:
            alignment = _alignment(file, at, keys[name])
    infos: dict[str, tuple[int, tuple[int, ...], int]] = {}
    for _ in range(tensor_count):
        at = scan.position
        name = scan.name("a tensor's name")
        if name in infos:
            raise FormatError(file.path, at, "each tensor once", f"{shown(name)} again")
        infos[name] = _info(scan, name)
    data_start = aligned(scan.position, alignment)
    tensors = tuple(
        TensorInfo(name, kind, shape, offset, data_start + offset, tensor_bytes(kind, shape))
        for name, (kind, shape, offset) in infos.items()
    )
    odd = tuple((f"key {what}", *error) for what, error in scan.text_errors.items())
    return GgufHeader(
        file.path, version, file.size, alignment, keys, tensors, scan.position, data_start, text_errors=odd
    )


def _version(scan: Scan) -> int:
    at = scan.position
    version = scan.word("version")
    if version in READ_VERSIONS:
        return version
    found = f"version {version}"
    if version == 1:
        found = "version 1, whose lengths have 32 bits"
    elif int.from_bytes(version.to_bytes(TYPE_BYTES, "little"), "big") in (1, *READ_VERSIONS):
        found = "a big-endian file"
    raise FormatError(scan.path, at, "GGUF version 2 or 3, little-endian", found)


def _alignment(file: ReadFile, at: int, value: Value) -> int:
    if value.type != ValueType.UINT32:
        raise FormatError(file.path, at, f"{ALIGNMENT_KEY} as UINT32", value.type.name)
    alignment = int(value.value)
    if alignment == 0 or alignment & (alignment - 1):
        raise FormatError(file.path, at, f"{ALIGNMENT_KEY} as a power of two", f"{alignment}")
    return alignment


def _value(scan: Scan, key: str) -> Value:
    kind = scan.value_type(key)
    if kind == ValueType.STRING:
        return Value(kind, scan.text(shown(key)))
    if kind != ValueType.ARRAY:
        return Value(kind, scan.numbers(kind, 1, key)[0].item())
    at = scan.position
    item = scan.value_type(key)
    if item == ValueType.ARRAY:
        raise FormatError(scan.path, at, f"an array of scalars or strings in {shown(key)}", "an array of arrays")
    count = scan.count(f"items of {shown(key)}", COUNT_BYTES if item == ValueType.STRING else DTYPES[item].itemsize)
    if item == ValueType.STRING:
        return Value(kind, scan.texts(count, shown(key)), item)
    return Value(kind, scan.numbers(item, count, key), item)


def _info(scan: Scan, name: str) -> tuple[int, tuple[int, ...], int]:
    what = f"tensor {shown(name)}"
    at = scan.position
    dimensions = scan.word(f"dimensions of {what}")
    if dimensions > MAX_DIMENSIONS:
        raise FormatError(scan.path, at, f"at most {MAX_DIMENSIONS} dimensions for {what}", f"{dimensions}")
    shape = struct.unpack(f"<{dimensions}Q", scan.take(dimensions * COUNT_BYTES, f"the shape of {what}"))
    kind = scan.word(f"the type of {what}")
    offset = scan.long(f"the offset of {what}")
    count = 1
    for extent in shape:
        count *= extent
    size = tensor_bytes(kind, shape)
    if max(count, size or 0, *shape, offset) > ELEMENT_LIMIT:
        raise FormatError(scan.path, at, f"{what} counted in 63 bits", f"shape {list(shape)}, offset {offset}")
    row = shape[0] if shape else 1
    if size is not None and row % GGML_TYPES[kind].block:
        block = GGML_TYPES[kind]
        raise FormatError(scan.path, at, f"{what} in rows of whole {block.name} blocks of {block.block}", f"{row}")
    return kind, shape, offset
