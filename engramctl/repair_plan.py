"""What a repair changes: the new header, and how far the tables' bytes move. Nothing is written here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engramctl import dialect_keys, stored
from engramctl.errors import EngramctlError
from engramctl.repair_values import Truth
from formats import gguf_file as gguf
from formats import gguf_split, recognise
from formats.dialect import Dialect, Key
from formats.dialects import DS4
from formats.errors import FormatError
from formats.gguf_file import GgufHeader, TensorInfo, Value
from formats.gguf_write import encode_parts
from formats.ranges import BLOCK

PADDING = "engramctl.padding"  # a string of blanks: the header ends where the tensor data has to begin
ARCHITECTURE = "general.architecture"
MOST_ALIGNMENT = 1 << 20  # bytes; the dialects' largest is 16384
MOST_GAP = 64 << 20  # bytes between a header and what stays behind it: they are held in memory
PADDING_BYTES = 8 + len(PADDING) + 4 + 8  # of the key, without its blanks

Change = dict[str, str]  # what, was, now
Infos = list[tuple[str, int, tuple[int, ...], int]]  # name, type, shape, offset


@dataclass(frozen=True)
class RepairPlan:
    """The file as it is, the header as it should be, and what differs."""

    header: GgufHeader
    target: Dialect
    truth: Truth
    changes: tuple[Change, ...]
    head: bytes  # exactly up to the tensor data
    data_start: int  # where it ends
    old_end: int  # where the header ended, and constants that are tensors no longer
    after: GgufHeader  # of the repaired file by itself

    @property
    def moved(self) -> int:
        """How many bytes later the tensor data begins."""
        return self.data_start - self.old_end


def plan(path: Path, header: GgufHeader, source: Dialect, target: Dialect, truth: Truth) -> RepairPlan:
    """The repaired header; what cannot be had without moving or re-encoding tables raises `EngramctlError`."""
    require_first(path, header)
    for name, expected, found in header.span_errors():
        raise FormatError(path, f"tensor {name}", expected, found)
    require_tables(path, header, source, target)
    _require_constants(path, header, target, truth)
    changes: list[Change] = []
    keys = _keys(path, header, source, target, truth, changes)
    tensors, dropped = _tensors(header, source, target, changes)
    header = header.alone  # of a split model the file with the keys is written, and no other
    step, shift = _steps(path, header, target)
    bare = encode_parts(keys, tensors)
    old_end = header.data_start + dropped
    require_near(header, old_end)
    room = old_end + shift
    while not _fits(bare, room, header.alignment):
        room += step
    if shift:
        now = f"byte {room}, so that tables begin on pages of {target.alignment}"
        changes.append({"what": "start of the tensor data", "was": f"byte {old_end}", "now": now})
    head = head_of(keys, tensors, room, header.alignment)
    placed = (
        TensorInfo(name, kind, shape, offset, room + offset, gguf.tensor_bytes(kind, shape))
        for name, kind, shape, offset in tensors
    )
    after = GgufHeader(
        path, header.version, header.file_size + room - old_end, header.alignment, dict(keys), tuple(placed), room, room
    )
    return RepairPlan(header, target, truth, tuple(changes), head, room, old_end, after)


def require_first(path: Path, header: GgufHeader) -> None:
    """Of a split model the keys stand in the first file, and its tables have to be there to hold them against."""
    if gguf_split.position(header)[0]:
        where = f"the shard with the keys: {gguf_split.first_of(header)}"
        raise EngramctlError(str(path), where, f"shard {gguf_split.position(header)[0] + 1}")
    for where, expected, found in header.split_errors:
        raise FormatError(path, where, expected, found)


def require_near(header: GgufHeader, end: int) -> None:
    """The header is written anew up to `end`, and moved by whole alignments: both have to be small."""
    if header.alignment > MOST_ALIGNMENT:
        raise FormatError(header.path, None, f"an alignment of at most {MOST_ALIGNMENT}", f"{header.alignment}")
    if end - header.header_end > MOST_GAP:
        gap = f"{end - header.header_end}"
        raise FormatError(header.path, None, f"at most {MOST_GAP} bytes between header and tables", gap)


def _fits(bare: bytes, room: int, alignment: int) -> bool:
    return len(bare) + PADDING_BYTES <= room or gguf.aligned(len(bare), alignment) == room


def head_of(
    keys: list[tuple[str, Value]], tensors: list[tuple[str, int, tuple[int, ...], int]], room: int, alignment: int
) -> bytes:
    """A header of exactly `room` bytes; where zeros behind it would not do, a key of blanks is in it."""
    bare = encode_parts(keys, tensors)
    if gguf.aligned(len(bare), alignment) == room:
        return bare + bytes(room - len(bare))
    blanks = room - len(bare) - PADDING_BYTES
    head = encode_parts([*keys, (PADDING, gguf.string(" " * blanks))], tensors)
    assert len(head) == room
    return head


def _steps(path: Path, header: GgufHeader, target: Dialect) -> tuple[int, int]:
    """By how much the data may move, and the least it has to: whole blocks, and tables on their dialect's pages."""
    step = max(BLOCK, header.alignment)
    if target.placement != "tail":
        return step, 0
    tables = recognise.table_layers(header, target)
    first = min((header.tensor(target.tensors["table"].format(layer=layer)).start for layer in tables), default=0)
    step = max(step, target.alignment)
    return step, -first % target.alignment


def require_tables(path: Path, header: GgufHeader, source: Dialect, target: Dialect) -> None:
    """The target's tensors must be there already, under whichever name, with its types and row bytes."""
    if not target.keys or target.magic or (target.placement == "external" and source is not target):
        raise EngramctlError("--to-dialect", "a dialect whose tables are in a GGUF", target.name, target.loses or None)
    constants = [key.name for key in target.keys.values() if key.tensor]
    there = {tensor.name for tensor in header.tensors}
    if any(name not in there for name in constants):
        raise EngramctlError("--to-dialect", "constants that are keys", f"{target.name}, which holds them as tensors")
    layers = recognise.table_layers(header, source)
    if not layers and source is not target:
        raise EngramctlError(str(path), "tables in the file", "none: they are in other files", _cannot(target))
    for layer in layers:
        for role, pattern in target.tensors.items():
            name = source.tensors.get(role, pattern).format(layer=layer)
            tensor = header.named.get(name)
            if tensor is None:
                if role in ("table", "scales") or source is not target:
                    raise EngramctlError(
                        str(path), f"a tensor for the {role} of layer {layer}", "none", _cannot(target)
                    )
                continue
            first = {"table": target.row, "scales": 8}.get(role, tensor.shape[0] if tensor.shape else 0)
            if recognise.type_of(tensor) not in target.types[role] or tensor.shape[:1] != (first,):
                found = f"{recognise.type_of(tensor)} {list(tensor.shape)}"
                wanted = f"{' or '.join(target.types[role][:3])} [{first}, ...] for the {role}"
                raise EngramctlError(f"{path}: tensor {tensor.name}", wanted, found, _cannot(target))
            if role == "table" and target.layout == "row264":
                layout = recognise.layout_of(header, source, tensor)
                if layout is not None and layout.name != "row264":
                    where = f"{path}: tensor {tensor.name}"
                    raise EngramctlError(where, "rows of 256 codes and then 8 scales", layout.name, _cannot(target))


def _require_constants(path: Path, header: GgufHeader, target: Dialect, truth: Truth) -> None:
    """Constants that stay tensors are not written: they have to be right already."""
    held = stored.of_container(header, target).constants
    wanted = dialect_keys.values(target, truth.params, truth.sizes)
    for role, key in target.keys.items():
        if key.tensor and role in wanted and held.get(role) != np.asarray(wanted[role]).reshape(-1).tolist():
            hint = "--to-dialect split-i8 makes keys of them"
            raise EngramctlError(f"{path}: tensor {key.name}", f"the {role} of {truth.origin}", "others", hint)


def _cannot(target: Dialect) -> str:
    return f"a repair moves no table byte; repack makes a {target.name} file from the checkpoint"


def _keys(
    path: Path, header: GgufHeader, source: Dialect, target: Dialect, truth: Truth, changes: list[Change]
) -> list[tuple[str, Value]]:
    """The header's keys, each constant of the target in its form; other dialects' constants go."""
    wanted = dialect_keys.values(target, truth.params, truth.sizes)
    if "storage" in target.keys and target.keys["storage"].name in header.keys:
        wanted.pop("storage")  # where the rows are is the file's own affair
    new = {
        role: dialect_keys.typed(key, wanted[role], str(path))
        for role, key in target.keys.items()
        if role in wanted and not key.tensor
    }
    names = {name: role for role in new for name in (target.keys[role].name, *target.earlier(target.keys[role]))}
    own = {key.name for key in target.keys.values()}
    foreign = {name for key in source.keys.values() for name in (key.name, *source.earlier(key))} - own - set(names)
    if source is target:
        foreign = set()
    held = header.keys[ARCHITECTURE].value if ARCHITECTURE in header.keys else None
    before = held if isinstance(held, str) and held in target.before else None
    made: dict[str, Value] = {}
    for name, value in header.keys.items():
        role = names.get(name)
        if name == PADDING:
            continue
        if role is not None:
            key = target.keys[role]
            if key.name not in made:
                made[key.name] = _one(header, key, new[role], name, changes)
        elif name in foreign:
            changes.append({"what": name, "was": recognise.describe(value), "now": "gone"})
        elif before is not None and name.startswith(f"{before}."):
            renamed = target.architecture + name.removeprefix(before)
            changes.append({"what": name, "was": name, "now": renamed})
            made[renamed] = value
        elif name == ARCHITECTURE and before is not None:
            made[name] = gguf.string(target.architecture)
            changes.append({"what": name, "was": str(before), "now": target.architecture})
        else:
            made[name] = value
    for role, key in target.keys.items():
        if key.tensor or all(name in made for name in recognise.names_of(key, len(truth.params.layers))):
            continue
        if role not in new:
            raise EngramctlError(str(path), f"key {key.name}, which a repair cannot make", "no such key")
        made[key.name] = new[role]
        changes.append({"what": key.name, "was": "missing", "now": key.type})
    if target is DS4:
        dialect_keys.add_config(made, target, truth.config_text, str(path), changes)
    return list(made.items())


def _one(header: GgufHeader, key: Key, wanted: Value, name: str, changes: list[Change]) -> Value:
    """The stored constant where it is right in name, type and value; else the right one."""
    stored = header.keys.get(key.name, header.keys[name])
    kind = recognise.describe(stored)
    if key.name in header.keys and key.takes(kind) and dialect_keys.same(stored, wanted):
        return stored
    if key.name not in header.keys:
        changes.append({"what": key.name, "was": f"named {name}", "now": key.type})
    elif not key.takes(kind):
        changes.append({"what": key.name, "was": kind, "now": key.type})
    else:
        changes.append({"what": key.name, "was": "another value", "now": f"{_short(wanted)}"})
    return wanted


def _short(value: Value) -> str:
    return f"the right {len(value.value)} entries" if value.item is not None else f"{value.value}"


def _tensors(header: GgufHeader, source: Dialect, target: Dialect, changes: list[Change]) -> tuple[Infos, int]:
    """Infos in their order and at their offsets, under the target's names; how many bytes before them are no tensor's.

    Constants that the source has as tensors and the target as keys go: a loader that counts would find too many.
    """
    gone = {key.name for key in source.keys.values() if key.tensor} - {key.name for key in target.keys.values()}
    renamed = {}
    for layer in recognise.table_layers(header, source):
        for role, pattern in source.tensors.items():
            if role in target.tensors:
                renamed[pattern.format(layer=layer)] = target.tensors[role].format(layer=layer)
    made = []
    for tensor in header.tensors:
        name = renamed.get(tensor.name, tensor.name)
        if header.home(tensor) is not header.alone:
            if name != tensor.name:
                where, found = f"tensor {tensor.name}", f"it in {tensor.shard}, which is not written"
                raise EngramctlError(where, f"its name in {target.name}, {name}", found, _cannot(target))
            continue
        if name in gone:
            changes.append({"what": f"tensor {name}", "was": recognise.type_of(tensor), "now": "gone"})
            continue
        if name != tensor.name:
            changes.append({"what": f"tensor {tensor.name}", "was": tensor.name, "now": name})
        made.append((name, tensor.type, tensor.shape, tensor.offset))
    if not gone or not made:
        return made, 0
    offsets = [offset for _, _, _, offset in made]
    first, last = min(offsets), max(offsets)
    for tensor in header.alone.tensors:
        if tensor.name in gone and first < tensor.offset < last:
            where, what = f"tensor {tensor.name}", "constants before or behind all other tensors"
            raise EngramctlError(where, what, f"it between them, at {tensor.start}", _cannot(target))
    return [(name, kind, shape, offset - first) for name, kind, shape, offset in made], first


def describe(made: RepairPlan, left: list[dict[str, str]]) -> dict[str, Any]:
    """What changes; `left` are rules of the loader that are broken still."""
    return {
        "path": str(made.header.path),
        "dialect": made.target.name,
        "origin": made.truth.origin,
        "healthy": not made.changes and not left,
        "changes": list(made.changes),
        "left": left,
        "data_moves_by": made.moved if made.changes else 0,
    }
