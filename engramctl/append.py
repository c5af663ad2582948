"""repack --append-to: a checkpoint's tables and constants at the tail of an existing model, in a copy or in place.

The model's own tensors keep their bytes and their order. In place the tail is written behind the last of them, then the
header in front, as a repair does it: the journal finishes or undoes it from any step.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engramctl import pieces, repack_split, repair_journal, room, tensor_pieces
from engramctl.checkpoint import CheckpointSource
from engramctl.dialect_keys import hyperparameters
from engramctl.errors import EngramctlError
from engramctl.identity import UNCHANGED, require_same
from engramctl.repair import no_room, no_whole_blocks, said, undo, write_over
from engramctl.repair_plan import PADDING, head_of, require_near
from engramctl.source import is_ple, named
from engramctl.tensor_pieces import KvType
from formats import gguf_file as gguf
from formats import gguf_split, ranges
from formats.dialect import Dialect
from formats.dialects import DS4
from formats.disk import ReadFile, WriteFile
from formats.errors import FormatError, shown
from formats.gguf_file import GgufHeader
from formats.gguf_write import encode_parts


@dataclass(frozen=True)
class AppendPlan:
    """The model, its new header, and where each new tensor goes."""

    model: GgufHeader
    dialect: Dialect
    source: CheckpointSource
    kv_type: KvType
    head: bytes
    starts: dict[str, int]
    size: int

    @property
    def moved(self) -> int:
        return len(self.head) - self.model.data_start

    @property
    def tail(self) -> int:
        """Where the first new tensor starts."""
        return min(self.starts.values())


def plan(source: CheckpointSource, model: Path, dialect: Dialect, kv_type: KvType) -> AppendPlan:
    """Where everything goes; a model that has tables already, or whose offsets leave no room, is refused."""
    if dialect.layout not in ("row264", "split264") or not dialect.tensors:
        raise EngramctlError("--dialect", "a GGUF dialect that is written: ds4 or split-i8", dialect.name)
    repair_journal.refuse_open(model)
    header = gguf.read_header(model)
    require_near(header, header.data_start)
    if gguf_split.position(header)[1] > 1:
        hint = "llama-gguf-split --merge joins them"
        raise EngramctlError(str(model), "a model in one file", "a shard of a split GGUF", hint)
    if is_ple(header):
        raise EngramctlError(str(model), "a model that an Engram belongs to", f"architecture {named(header)}")
    tensor_pieces.require_width(source, dialect.name)
    made = repack_split.infos(source, dialect, kv_type)
    there = {tensor.name for tensor in header.tensors}
    for name, _, _, _ in made:
        if name in there:
            raise EngramctlError(str(model), "a model without tables of its own", f"a tensor {name}")
    keys = {name: value for name, value in header.keys.items() if name != PADDING}
    for name, value in repack_split.constants(source, dialect):
        if name == dialect.config and name in keys:
            continue
        if name in keys and keys[name] != value:
            raise EngramctlError(f"{model}: key {name}", "none yet, or the checkpoint's", "another")
        keys[name] = value
    if dialect is DS4 and source.config is not None:
        for name, value in hyperparameters(dialect, dict(source.config), str(source.path / "config.json")):
            keys.setdefault(name, value)
    old = [(t.name, t.type, t.shape, t.offset) for t in header.tensors]
    end = _end(header)
    length = len(encode_parts(list(keys.items()), old + [(name, kind, shape, 0) for name, kind, shape, _ in made]))
    step = max(ranges.BLOCK, header.alignment)
    room = header.data_start
    while not fits(length, room, header.alignment):
        room += step
    placed, size = _places(made, gguf.aligned(end, header.alignment), room, header.alignment, dialect)
    head = head_of(list(keys.items()), old + placed, room, header.alignment)
    starts = {name: room + offset for name, _, _, offset in placed}
    return AppendPlan(header, dialect, source, kv_type, head, starts, room + size)


def _end(header: GgufHeader) -> int:
    """Where the model's last tensor ends, from the start of its data on; nothing that is not a tensor may follow it."""
    end = 0
    for tensor in header.tensors:
        if tensor.size is None:
            where = f"tensor {shown(tensor.name)}"
            raise FormatError(header.path, where, "a ggml type of known size", f"type {tensor.type}")
        end = max(end, tensor.offset + tensor.size)
    more = header.file_size - header.data_start - gguf.aligned(end, header.alignment)
    if more > 0:
        raise FormatError(header.path, None, "a file that ends with its last tensor", f"{more} bytes more")
    return end


def fits(length: int, room: int, alignment: int) -> bool:
    from engramctl.repair_plan import PADDING_BYTES

    return length + PADDING_BYTES <= room or gguf.aligned(length, alignment) == room


def _places(
    made: repack_split.Infos, end: int, room: int, alignment: int, dialect: Dialect
) -> tuple[list[tuple[str, int, tuple[int, ...], int]], int]:
    """Offsets behind the model's: a tail dialect's tables on its pages, others each at the aligned end of the last."""
    tables = {dialect.tensors["table"].split("{layer}")[1]}
    placed, offset = [], end
    for name, kind, shape, size in made:
        if dialect.placement == "tail" and any(name.endswith(each) for each in tables):
            offset = gguf.aligned(room + offset, dialect.alignment) - room
        if offset % alignment:
            what = f"tables on pages of {dialect.alignment} at offsets that {alignment} divides"
            raise EngramctlError(name, what, f"offset {offset}")
        placed.append((name, kind, shape, offset))
        offset = gguf.aligned(offset + size, alignment)
    return placed, offset


def _pieces(made: AppendPlan) -> list[pieces.Piece]:
    return repack_split.fill(made.source, made.dialect, made.kv_type, made.starts)


def to_file(
    made: AppendPlan,
    output: Path,
    resume: bool = False,
    force: bool = False,
    progress: pieces.Progress = lambda n: None,
) -> None:
    """Model and tables in a new file."""
    model = made.model
    every = [*pieces.of_file(model, model.data_start, len(made.head), []), *_pieces(made)]
    every.append(pieces.Piece("header", lambda file, advance: file.write(0, made.head)))

    def who() -> dict[str, Any]:
        return repack_split.identity(made.source, made.dialect, **pieces.identity(model, made.head))

    needed = pieces.bytes_of(model, output) + tensor_pieces.data_bytes(made.source)
    sources = [model.path, *repack_split.files_of(made.source)]
    pieces.write(output, made.size, needed, every, who, sources, resume, force, progress)


def in_place(made: AppendPlan, progress: pieces.Progress = lambda n: None) -> None:
    """The tables behind the model's own tensors, then the new header in front of all of them."""
    model = made.model
    path, inserted = model.path, made.moved
    repair_journal.refuse_open(path)
    if inserted % ranges.block_of(path):
        raise no_whole_blocks(path, inserted, "the same command with -o NEW for --in-place writes a copy")
    with ReadFile.open(path) as file:
        size = file.size
        old = file.read(0, min(model.data_start, size), "the header")  # without tensors it may end before the padding
        body = repair_journal.sample(file, len(old), size - len(old))
    tail = made.size - inserted - size
    room.require(path.parent, tensor_pieces.data_bytes(made.source), disk_of=path)
    if inserted and not ranges.inserts(path.resolve().parent):
        raise no_room(path)
    who = repack_split.identity(made.source, made.dialect)
    repair_journal.begin(path, old, old, 0, size, body, tail, grown=True)
    with said(path, "--undo"):
        try:
            _write_tail(made, size + tail, progress)
            require_same(path, who, repack_split.identity(made.source, made.dialect), UNCHANGED)
        except (FormatError, EngramctlError):
            undo(path)  # the checkpoint is not as it must be: nothing is left behind
            raise
        repair_journal.begin(path, old, made.head, inserted, size, body, tail, force=True)
    with said(path, "--resume or --undo"):
        write_over(path, made.head, inserted, size, tail)


def _write_tail(made: AppendPlan, size: int, progress: pieces.Progress) -> None:
    starts = {name: at - made.moved for name, at in made.starts.items()}
    with WriteFile.open(made.model.path) as out:
        out.resize(size)
        for piece in repack_split.fill(made.source, made.dialect, made.kv_type, starts):
            piece.fill(out, progress)
        out.sync()
