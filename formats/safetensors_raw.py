"""Safetensors shards as raw bytes: where each named tensor lies (spec: safetensors_raw.md).

    0        8                 8 + N                                        end of file
    | N, u64 | JSON, N bytes   | tensor bytes, no hole, no overlap, all of it |

The library does not hand F8 tensors to NumPy, so headers are read here; it stays the second opinion in the tests.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from formats import strict_json
from formats.disk import ReadFile
from formats.errors import FormatError, shown

LENGTH_BYTES = 8
HEADER_LIMIT = 100_000_000  # MAX_HEADER_SIZE in huggingface/safetensors safetensors/src/tensor.rs
CONFIG_LIMIT = 16 << 20
WORD_LIMIT = 2**64 - 1  # every number in a header is a u64
INDEX_NAME, CONFIG_NAME = "model.safetensors.index.json", "config.json"
METADATA = "__metadata__"

DTYPE_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}


@dataclass(frozen=True)
class Tensor:
    """A named tensor and its byte span in its file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    start: int
    end: int


@dataclass(frozen=True)
class Shard:
    """A header whose words make sense; whether its spans fit together and into the file, `span_errors` says."""

    path: Path
    file_size: int
    data_start: int
    tensors: dict[str, Tensor]

    def span_errors(self) -> Iterator[tuple[str, str, str]]:
        """(where, expected, found), in the order of the file."""
        at = self.data_start
        for tensor in sorted(self.tensors.values(), key=lambda tensor: (tensor.start, tensor.end)):
            where = f"tensor {shown(tensor.name)}"
            if tensor.start != at:
                yield where, f"its bytes from {at} on", f"from {tensor.start} on"
            if tensor.end > self.file_size:
                yield where, f"its bytes before the file's end at {self.file_size}", f"up to {tensor.end}"
            size, span = byte_size(tensor.dtype, tensor.shape), tensor.end - tensor.start
            if size != span:
                yield where, f"{size} bytes for {tensor.dtype} {list(tensor.shape)[:8]}", f"{span}"
            at = max(at, tensor.end)
        if at < self.file_size:
            yield "tensor bytes", f"a file of {at} bytes", f"{self.file_size}"


@dataclass(frozen=True)
class Checkpoint:
    """The wanted tensors of a file or folder; `missing` and `problems` hold what a strict reading would refuse."""

    path: Path
    config_text: str | None
    tensors: dict[str, Tensor]
    shards: tuple[Path, ...]  # the files that were opened
    missing: dict[str, str]  # every tensor of the index whose shard is not there -> that shard
    problems: tuple[tuple[str, str, str], ...]  # (where, expected, found)


def byte_size(dtype: str, shape: Iterable[int]) -> int | None:
    """Bytes of a tensor; None if they pass a u64 on the way or are no whole number."""
    count = 1
    for extent in shape:
        count *= extent
        if count > WORD_LIMIT:
            return None
    bits = count * DTYPE_BITS[dtype]
    return None if bits % 8 or bits > WORD_LIMIT else bits // 8


def read_shard(path: str | PathLike[str]) -> dict[str, Tensor]:
    """Every tensor of one file, spans checked."""
    shard = read_header(path)
    for where, expected, found in shard.span_errors():
        raise FormatError(path, where, expected, found)
    return shard.tensors


def read_header(path: str | PathLike[str]) -> Shard:
    """One file's header, its words checked and its spans not."""
    with ReadFile.open(path) as file:
        length = int.from_bytes(file.read(0, LENGTH_BYTES, "the header's length"), "little")
        if length > HEADER_LIMIT:
            raise FormatError(path, 0, f"a header of at most {HEADER_LIMIT} bytes", f"{length}")
        data_start = LENGTH_BYTES + length
        raw = file.read(LENGTH_BYTES, length, "header")
        if not raw.startswith(b"{"):
            raise FormatError(path, LENGTH_BYTES, 'a header that starts with "{"', repr(raw[:8]))
        header = strict_json.read_object(path, raw, LENGTH_BYTES)
        metadata = header.pop(METADATA, {})
        if not (isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())):
            raise FormatError(path, METADATA, "an object of strings", shown(metadata))
        tensors = {name: _tensor(file, data_start, name, entry) for name, entry in header.items()}
        return Shard(Path(path), file.size, data_start, tensors)


def _tensor(file: ReadFile, data_start: int, name: str, entry: object) -> Tensor:
    where = f"tensor {shown(name)}"
    if not isinstance(entry, dict):
        raise FormatError(file.path, where, "an object", shown(entry))
    for field in ("dtype", "shape", "data_offsets"):
        if field not in entry:
            raise FormatError(file.path, where, f"a {field}", "none")
    dtype, shape, span = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise FormatError(file.path, where, "a dtype of safetensors", shown(dtype))
    if not (isinstance(shape, list) and all(_is_word(extent) for extent in shape)):
        raise FormatError(file.path, where, "a shape of unsigned 64-bit integers", _numbers(shape))
    if byte_size(dtype, shape) is None:
        raise FormatError(file.path, where, "a shape that makes whole bytes, counted in 64 bits", _numbers(shape))
    if not (isinstance(span, list) and len(span) == 2 and all(_is_word(end) for end in span) and span[0] <= span[1]):
        raise FormatError(file.path, where, "data_offsets of two ascending unsigned integers", _numbers(span))
    return Tensor(name, dtype, tuple(shape), file.path, data_start + span[0], data_start + span[1])


def _is_word(value: object) -> bool:
    return type(value) is int and 0 <= value <= WORD_LIMIT


def _numbers(value: object) -> str:
    """A short list as it stands, for a message."""
    if isinstance(value, list) and len(value) <= 8:
        return "[" + ", ".join(shown(item) for item in value) + "]"
    return shown(value)


def read_checkpoint(path: str | PathLike[str], wanted: Callable[[str], bool], strict: bool = True) -> Checkpoint:
    """The wanted tensors of a file, a folder with an index, or a folder of shards.

    With `strict` whatever does not fit is refused; without, a header that parses is enough and the rest is listed.
    """
    path = Path(path)
    if not path.exists():
        raise FormatError(path, None, "a checkpoint folder or a safetensors file", "nothing there")
    if not path.is_dir():
        return _gather(path, None, {path: None}, {}, wanted, strict)
    config = read_config(path)
    if not os.path.lexists(path / INDEX_NAME):  # a link that leads nowhere is not the same as none
        shards = sorted(shard for shard in path.glob("*.safetensors") if not shard.name.startswith("."))
        if not shards:
            raise FormatError(path, None, f"{INDEX_NAME} or *.safetensors", "neither")
        return _gather(path, config, dict.fromkeys(shards), {}, wanted, strict)
    promised: dict[Path, list[str] | None] = {}
    missing: dict[str, str] = {}
    there: dict[str, bool] = {}
    for name, shard in _weight_map(path / INDEX_NAME).items():
        if shard not in there:
            there[shard] = (path / shard).exists()
        if not there[shard]:
            missing[name] = shard
            if strict and wanted(name):
                raise FormatError(path / shard, None, f"the shard that holds {shown(name)}", "nothing there")
        elif wanted(name):
            names = promised.setdefault(path / shard, [])
            assert names is not None
            names.append(name)
    return _gather(path, config, promised, missing, wanted, strict)


def read_config(folder: Path) -> str | None:
    """A folder's config.json, verbatim; None where there is none."""
    if not os.path.lexists(folder / CONFIG_NAME):
        return None
    with ReadFile.open(folder / CONFIG_NAME) as file:
        return _text(file, CONFIG_LIMIT)


def _gather(
    path: Path,
    config: str | None,
    shards: dict[Path, list[str] | None],
    missing: dict[str, str],
    wanted: Callable[[str], bool],
    strict: bool,
) -> Checkpoint:
    """Open each shard and take the names an index promised, or (None) every wanted one."""
    tensors: dict[str, Tensor] = {}
    problems: list[tuple[str, str, str]] = []

    def differs(where: Path, at: str, expected: str, found: str) -> None:
        error = FormatError(where, at, expected, found)
        if strict:
            raise error
        problems.append((error.where, expected, found))

    for file, names in shards.items():
        shard = read_header(file)
        for at, expected, found in shard.span_errors():
            differs(file, at, expected, found)
        for name in [name for name in shard.tensors if wanted(name)] if names is None else names:
            if name not in shard.tensors:
                differs(file, f"tensor {shown(name)}", "a tensor that the index promises", "none")
            elif name in tensors:
                differs(
                    file, f"tensor {shown(name)}", f"it in {shown(tensors[name].path.name)} alone", "it here as well"
                )
            else:
                tensors[name] = shard.tensors[name]
    return Checkpoint(path, config, tensors, tuple(shards), missing, tuple(problems))


def _weight_map(path: Path) -> dict[str, str]:
    """An index's tensor -> shard, every shard a plain name beside the index."""
    with ReadFile.open(path) as file:
        if file.size > HEADER_LIMIT:
            raise FormatError(path, None, f"an index of at most {HEADER_LIMIT} bytes", f"{file.size}")
        index = strict_json.read_object(path, file.read(0, file.size, "index"), 0)
    places = index.get("weight_map")
    if not isinstance(places, dict):
        raise FormatError(path, "weight_map", "an object of tensor and shard names", shown(places))
    for name, shard in places.items():
        where = f"weight_map {shown(name)}"
        if not isinstance(shard, str):
            raise FormatError(path, where, "the name of a shard", shown(shard))
        plain = shard.isprintable() and len(shard.encode(errors="replace")) < 256
        if not shard or not plain or "/" in shard or "\\" in shard or ".." in shard or shard == ".":
            raise FormatError(path, where, "the plain name of a file beside the index", shown(shard))
    return places


def _text(file: ReadFile, limit: int) -> str:
    if file.size > limit:
        raise FormatError(file.path, None, f"at most {limit} bytes", f"{file.size}")
    raw = file.read(0, file.size, "text")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(file.path, error.start, "UTF-8", f"byte {raw[error.start]:#04x}") from None


def header(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: dict[str, str] | None = None
) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """(name, dtype, shape) in file order -> the file's first bytes and each tensor's absolute span."""
    entries: dict[str, object] = {} if metadata is None else {METADATA: metadata}
    spans: dict[str, tuple[int, int]] = {}
    at = 0
    for name, dtype, shape in tensors:
        size = byte_size(dtype, shape)
        if size is None or name in entries or name == METADATA:
            raise ValueError(f"tensor {shown(name)}: {dtype} {shape} cannot be written, or its name is taken")
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        spans[name] = (at, at + size)
        at += size
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    start = LENGTH_BYTES + len(text)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text, {n: (start + a, start + b) for n, (a, b) in spans.items()}
