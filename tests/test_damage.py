"""Damage: a small container and a small shard, cut at every length and with every header bit flipped.

Each must read as the same header, as another valid one, or be refused by one FormatError; nothing else may come out.
What is read is proved by writing it again: neither format has two ways to say the same thing, but for JSON's spaces.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import resource
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import safetensors

from formats.errors import FormatError
from formats.gguf_file import GgufHeader, ValueType, boolean, encode_header, f32, read_header, string, strings, u32
from formats.gguf_file import array as numbers
from formats.safetensors_raw import Tensor, header, read_shard

SLOWEST = 10.0  # seconds for one header, which takes less than a thousandth of one
LONGEST = 400  # letters of a message, behind the path
ROOM = 64 << 20  # bytes that a reader may ask for at any time; more is a MemoryError, which no reader may raise


def damaged(path: Path, raw: bytes, header_end: int) -> Iterator[bytes]:
    """Every damage, made in the one file, as the bytes that are in it."""
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        yield raw[:length]
    path.write_bytes(raw)
    with open(path, "r+b", buffering=0) as file:
        for at in range(header_end):
            for bit in range(8):
                flipped = raw[at] ^ 1 << bit
                file.seek(at)
                file.write(bytes([flipped]))
                yield raw[:at] + bytes([flipped]) + raw[at + 1 :]
            file.seek(at)
            file.write(raw[at : at + 1])


@contextlib.contextmanager
def little_room() -> Iterator[None]:
    """No more address space than there is now, plus `ROOM` (where the system counts it)."""
    now = Path("/proc/self/statm")
    if not now.exists():
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (int(now.read_text().split()[0]) * resource.getpagesize() + ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def survive(path: Path, raw: bytes, header_end: int, read: Callable, valid: Callable) -> tuple[int, int]:
    """Read every damage; `valid` proves what was read. How many were read, and how many refused."""
    accepted = refused = 0
    lines: list[str] = []
    with little_room():
        for bytes_ in damaged(path, raw, header_end):
            started = time.perf_counter()
            try:
                found = read(path)
            except FormatError as error:
                refused += 1
                lines.append(str(error).removeprefix(str(path)))
                continue
            accepted += 1
            valid(found, bytes_)
            assert time.perf_counter() - started < SLOWEST
    assert [line for line in lines if not line.isprintable() or len(line) > LONGEST or line[0] not in ": "] == []
    return accepted, refused


# a GGUF

KEYS = [
    ("general.architecture", string("deepseek41")),
    ("general.alignment", u32(64)),
    ("deepseek41.engram.encoding", string("e4m3_e8m0_32_row264")),
    ("deepseek41.rms_norm_eps", f32(1e-20)),
    ("deepseek41.norm_topk_prob", boolean(True)),
    ("tokenizer.ggml.tokens", strings([f"token {i}" for i in range(24)] + ["", "\u00e9"])),
    ("deepseek41.engram.multipliers", numbers(ValueType.UINT64, [2**46 + 1, 5, 7])),
    ("deepseek41.engram.token_map", numbers(ValueType.UINT32, np.arange(160) % 99)),
    ("flags", numbers(ValueType.BOOL, [True, False, True])),
    ("scores", numbers(ValueType.FLOAT32, [0.5, -1.5, float("inf")])),
    *((f"scalar.{kind.name}", numbers(kind, [3])) for kind in (ValueType.INT8, ValueType.INT16, ValueType.FLOAT64)),
]
TENSORS = [
    ("blk.1.engram_q_norm.weight", 0, (8, 4), 128),
    ("blk.1.engram_kv.weight", 1, (16, 3), 96),
    ("blk.1.engram_embd.weight", 24, (264, 5), 1320),
    ("blk.1.quantised", 8, (64, 2), 136),
]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def written_again(read: GgufHeader) -> bytes:
    """The header's bytes from what was read, written out here from the format's description."""
    out = b"GGUF" + struct.pack("<IQQ", read.version, len(read.tensors), len(read.keys))
    letters = dict(zip(range(13), "BbHhIif?--Qqd", strict=True))
    for name, value in read.keys.items():
        out += text(name) + struct.pack("<I", value.type)
        if value.type == ValueType.STRING:
            out += text(value.value)
        elif value.type != ValueType.ARRAY:
            out += struct.pack("<" + letters[value.type], value.value)
        else:
            out += struct.pack("<IQ", value.item, len(value.value))
            if value.item == ValueType.STRING:
                out += b"".join(text(item) for item in value.value)
            else:
                out += value.value.tobytes()
    for tensor in read.tensors:
        out += (
            text(tensor.name)
            + struct.pack("<I", len(tensor.shape))
            + struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape)
        )
        out += struct.pack("<IQ", tensor.type, tensor.offset)
    return out


def test_a_damaged_gguf_is_the_same_or_valid_or_refused(tmp_path: Path) -> None:
    layout = encode_header(KEYS, TENSORS, 64)
    raw = layout.header + bytes(layout.file_size - len(layout.header))
    path = tmp_path / "x.gguf"
    path.write_bytes(raw)
    whole = read_header(path)
    assert 1500 < whole.header_end < 4096
    assert written_again(whole) == raw[: whole.header_end]

    def valid(read: GgufHeader, bytes_: bytes) -> None:
        assert written_again(read) == bytes_[: read.header_end]
        assert (read.file_size, read.data_start % read.alignment) == (len(bytes_), 0)
        spans = sorted((tensor.start, tensor.start + (tensor.size or 0)) for tensor in read.tensors)
        assert all(end <= after for (_, end), (after, _) in itertools.pairwise(spans))
        assert all(read.data_start <= start <= end <= len(bytes_) for start, end in spans)

    accepted, refused = survive(path, raw, whole.data_start, read_header, valid)
    assert accepted + refused == len(raw) + 8 * whole.data_start
    assert accepted > 1000
    assert refused > 1000


def test_a_damaged_gguf_reads_as_the_library_reads_it(tmp_path: Path) -> None:
    """A sample: the library takes milliseconds a file. What it cannot read we may only read where it is too strict."""
    layout = encode_header(KEYS[:5], TENSORS[2:], 64)
    raw = layout.header + bytes(layout.file_size - len(layout.header))
    path = tmp_path / "x.gguf"
    compared = 0
    for number, bytes_ in enumerate(damaged(path, raw, layout.starts["blk.1.engram_embd.weight"])):
        if number % 23:
            continue
        try:
            ours = read_header(path)
        except FormatError:
            continue
        try:
            theirs = gguf.GGUFReader(path)
        except ValueError:  # a ggml type that the library has no name for, a size that is not the file's
            continue
        compared += 1
        names = [name for name in theirs.fields if not name.startswith("GGUF.")]
        assert names == list(ours.keys), len(bytes_)
        for tensor, mine in zip(theirs.tensors, ours.tensors, strict=True):
            assert (tensor.name, int(tensor.data_offset)) == (mine.name, mine.start)
            assert (int(tensor.tensor_type), tuple(tensor.shape), int(tensor.n_bytes)) == (
                mine.type,
                mine.shape,
                mine.size,
            )
    assert compared > 40


# a shard

SHARD = [
    *((f"layers.{n}.engram.q_weight", "BF16", (4, n)) for n in range(1, 14)),
    ("layers.1.engram.embed.weight", "F8_E4M3", (3, 256)),
    ("layers.1.engram.embed.scale", "F8_E8M0", (3, 8)),
    ("layers.1.\u00e9\"\\", "F32", ()),
]  # fmt: skip


def test_a_damaged_shard_is_the_same_or_valid_or_refused(tmp_path: Path) -> None:
    made, spans = header(SHARD, {"format": "pt"})
    size = max(end for _, end in spans.values())
    raw = made + bytes(size - len(made))
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    whole = read_shard(path)
    assert 1000 < len(made) < 4096
    stricter = []

    def valid(read: dict[str, Tensor], bytes_: bytes) -> None:
        end = 8 + int.from_bytes(bytes_[:8], "little")
        entries = json.loads(bytes_[8:end])
        entries.pop("__metadata__", None)
        assert list(entries) == list(read)
        for name, tensor in read.items():
            assert entries[name]["data_offsets"] == [tensor.start - end, tensor.end - end]
            assert (entries[name]["dtype"], tuple(entries[name]["shape"])) == (tensor.dtype, tensor.shape)
        assert sum(tensor.end - tensor.start for tensor in read.values()) == len(bytes_) - end
        try:
            theirs = safetensors.deserialize(bytes_)
        except safetensors.SafetensorError as error:
            stricter.append(str(error))
        else:
            assert {name for name, _ in theirs} == set(read)

    accepted, refused = survive(path, raw, len(made), read_shard, valid)
    assert len(whole) == len(SHARD)
    assert accepted + refused == len(raw) + 8 * len(made)
    assert accepted > 1000
    assert refused > 1000
    assert stricter == []


def test_what_the_library_reads_of_a_damaged_shard_we_read(tmp_path: Path) -> None:
    made, spans = header(SHARD[:3], {"format": "pt"})
    raw = made + bytes(max(end for _, end in spans.values()) - len(made))
    path = tmp_path / "x.safetensors"
    stricter = []
    for bytes_ in damaged(path, raw, len(made)):
        try:
            safetensors.deserialize(bytes_)
        except safetensors.SafetensorError:
            continue
        try:
            read_shard(path)
        except FormatError as error:
            stricter.append(str(error))
    assert stricter == []
