"""Which dialect a GGUF header speaks: by its keys, tensor shapes, types and row bytes, never by its architecture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from formats import gguf_split, ple_gguf, row_layouts
from formats.dialect import Dialect, Key
from formats.dialects import DIALECTS
from formats.disk import ReadFile
from formats.errors import FormatError
from formats.gguf_file import GGML_TYPES, GgufHeader, TensorInfo, Value, ValueType

UNDERWAY = "conversion_underway"  # dongnh311/ds4-metal-qwen gguf-tools/deepseek41_engram_q4.c, while it works
INTERRUPTED = f"{UNDERWAY}: an in-place conversion to 4-bit rows was interrupted; its own tool resumes it"
SAMPLED_ROWS = 64
MOST_LAYERS = 256
ABSENT = 0.1  # taken off for each name that is not there: files without any constants are known by their tables
Wrong = tuple[str, str, str]  # where, expected, found


@dataclass(frozen=True)
class Recognised:
    """A dialect, or the nearest one and what keeps the file from being it."""

    dialect: Dialect | None
    nearest: Dialect | None
    sure: str
    missing: tuple[str, ...] = ()
    wrong: tuple[Wrong, ...] = ()
    layers: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Dialect | None:
        return self.dialect or self.nearest


def recognise(header: GgufHeader) -> Recognised:
    """The dialect of a header; a few rows are read where two layouts have the same bytes a row."""
    scored = sorted(((_score(header, each), -i) for i, each in enumerate(DIALECTS) if not each.magic), reverse=True)
    score, number = scored[0]
    nearest = DIALECTS[-number]
    notes = tuple(_notes(header))
    if score <= 0 or not any(True for _ in _present(header, nearest)):
        return Recognised(None, None, "no key and no tensor of an Engram", notes=notes)
    layers = layers_of(header, nearest)
    missing, wrong = difference(header, nearest, layers)
    marked = all(_there(header, mark) for mark in nearest.marks)
    if not missing and not wrong:
        return Recognised(nearest, nearest, "certain: every key, type, tensor and row", (), (), layers, notes)
    sure = "by its own marks" if marked else "the nearest by names, types and shapes"
    return Recognised(None, nearest, sure, tuple(missing), tuple(wrong), layers, notes)


def difference(header: GgufHeader, dialect: Dialect, layers: tuple[int, ...]) -> tuple[list[str], list[Wrong]]:
    """Names of the dialect that are not there, and (where, expected, found) of what is there in another form."""
    missing: list[str] = []
    wrong: list[Wrong] = []
    for role, key in dialect.keys.items():
        for name in names_of(key, len(layers)):
            found = find(header, dialect, Key(name, key.type, key.also, key.tensor))
            if found is None:
                missing.append(name)
                continue
            at, kind = found
            if at != name:
                wrong.append((at, f"the name {name}", "the name of before"))
            elif not key.takes(kind):
                wrong.append((name, key.type, kind))
            elif role == "encoding" and header.keys[name].value != dialect.encoding:
                wrong.append((name, dialect.encoding, f"{header.keys[name].value!r:.60}"))
    there = header.named
    for layer in layers:
        for role, pattern in dialect.tensors.items():
            name = pattern.format(layer=layer)
            if name not in there:
                if role not in ("table", "scales") or not elsewhere(header, dialect):
                    missing.append(name)
            elif (odd := _odd_tensor(header, dialect, role, there[name])) is not None:
                wrong.append(odd)
    return missing, wrong


def elsewhere(header: GgufHeader, dialect: Dialect) -> bool:
    """Are the tables in other files?"""
    storage = dialect.keys.get("storage")
    said = None if storage is None else _text(header, storage.name)
    return dialect.placement == "external" or said == "external"


def find(header: GgufHeader, dialect: Dialect, key: Key) -> tuple[str, str] | None:
    """The name and the type under which a constant is there, its names of before included."""
    if key.tensor:
        tensor = header.named.get(key.name)
        return None if tensor is None else (key.name, type_of(tensor))
    for name in (key.name, *dialect.earlier(key)):
        if name in header.keys:
            return name, describe(header.keys[name])
    return None


def names_of(key: Key, count: int) -> list[str]:
    """The key's name, or one name for each table."""
    return [key.name.format(number=number) for number in range(count)] if "{number}" in key.name else [key.name]


def layers_of(header: GgufHeader, dialect: Dialect) -> tuple[int, ...]:
    """Layers by the dialect's key where it is sound, else by the names of the tables."""
    key = dialect.keys.get("layers")
    found = None if key is None else find(header, dialect, key)
    value = None if found is None else header.keys[found[0]].value
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.size <= MOST_LAYERS:
        return tuple(dict.fromkeys(int(layer) for layer in value))
    return table_layers(header, dialect)


def table_layers(header: GgufHeader, dialect: Dialect) -> tuple[int, ...]:
    """Decoder layers of which there is a table tensor, by its name, ascending."""
    if "table" not in dialect.tensors:
        return ()
    before, after = dialect.tensors["table"].split("{layer}")
    names = (tensor.name for tensor in header.tensors if tensor.name.startswith(before) and tensor.name.endswith(after))
    numbers = (name[len(before) : len(name) - len(after)] for name in names)
    return tuple(
        sorted({int(number) for number in numbers if number.isascii() and number.isdigit() and len(number) < 10})
    )


def type_of(tensor: TensorInfo) -> str:
    return GGML_TYPES[tensor.type].name if tensor.type in GGML_TYPES else f"type {tensor.type}"


def describe(value: Value) -> str:
    """A GGUF value's type in short words: u32, u32[], string."""
    short = {"UINT": "u", "INT": "i", "FLOAT": "f"}

    def word(one: ValueType) -> str:
        for long, letter in short.items():
            if one.name.startswith(long):
                return letter + one.name.removeprefix(long)
        return one.name.lower()

    return word(value.type) if value.item is None else f"{word(value.item)}[]"


def layout_of(header: GgufHeader, dialect: Dialect, table: TensorInfo) -> row_layouts.RowLayout | None:
    """How the rows of a table tensor lie; None where that is not known."""
    if dialect.layout == "ggml":
        return row_layouts.ggml(type_of(table), table.shape[0] if table.shape else 0)
    known = row_layouts.LAYOUTS.get(dialect.layout)
    if known is not None and known.name in ("row264", "block264"):
        seen = _plausible(header, table, known.stored)
        return row_layouts.LAYOUTS[seen] if seen else known
    return known


def _plausible(header: GgufHeader, table: TensorInfo, stored: int) -> str | None:
    """The layout that some rows say they are in, spread over the part of the table that is no hole; None if unread."""
    try:
        samples = _sample(header, table, stored)
    except (OSError, FormatError):
        return None
    return row_layouts.plausible(np.frombuffer(b"".join(samples), np.uint8).reshape(-1, stored)) if samples else None


def _sample(header: GgufHeader, table: TensorInfo, stored: int) -> list[bytes]:
    rows = table.shape[1] if len(table.shape) == 2 else 0
    home = header.home(table)
    end = min(table.start + rows * stored, home.file_size)
    samples = []
    with ReadFile.open(home.path) as file:
        for start, stop in file.data(table.start, max(end, table.start)):
            first, last = -(-(start - table.start) // stored), (stop - table.start) // stored
            step = max(1, (last - first) // SAMPLED_ROWS)
            for row in range(first, last, step):
                samples.append(file.read(table.start + row * stored, stored, "a row"))
                if len(samples) >= SAMPLED_ROWS:
                    break
            if len(samples) >= SAMPLED_ROWS:
                break
    return samples


def _odd_tensor(header: GgufHeader, dialect: Dialect, role: str, tensor: TensorInfo) -> Wrong | None:
    """What a tensor should be and is not; a table's row length and layout count as well."""
    kind, types = type_of(tensor), dialect.types.get(role, ())
    first = {"table": dialect.row, "scales": 8}.get(role)
    words = " or ".join(types if len(types) <= 3 else (*types[:2], "another of ggml's"))
    rest = "rows" if role in ("table", "scales") else "..."
    expected = f"{words} [{first if first is not None else '...'}, {rest}]"
    if kind not in types or len(tensor.shape) != 2 or (first is not None and tensor.shape[0] != first):
        return tensor.name, expected, f"{kind} [{', '.join(map(str, tensor.shape))}]"
    if role == "table" and dialect.layout == "row264":
        layout = layout_of(header, dialect, tensor)
        if layout is not None and layout.name == "block264":
            return tensor.name, "rows of 256 codes and then 8 scales", "rows of 8 blocks, a scale and its 32 codes each"
    return None


def _there(header: GgufHeader, name: str) -> bool:
    return name in header.keys or name in header.named


def _present(header: GgufHeader, dialect: Dialect) -> Iterator[str]:
    for key in dialect.keys.values():
        for name in names_of(key, 1):
            if find(header, dialect, Key(name, key.type, key.also, key.tensor)) is not None:
                yield key.name
    names = {tensor.name for tensor in header.tensors}
    for layer in table_layers(header, dialect) or layers_of(header, dialect):
        yield from (name for name in dialect.tensors.values() if name.format(layer=layer) in names)


def _score(header: GgufHeader, dialect: Dialect) -> float:
    """How much of the dialect is there, less what is not; its marks and the form of its tables count most."""
    score = 0.0
    for key in dialect.keys.values():
        found = find(header, dialect, Key(names_of(key, 1)[0], key.type, key.also, key.tensor))
        if found is None:
            score -= ABSENT
        else:
            score += 1.0 if key.takes(found[1]) and found[0] == names_of(key, 1)[0] else 0.5
    encoding = dialect.keys.get("encoding")
    if encoding is not None and encoding.name in header.keys:
        value = _text(header, encoding.name)
        score += (
            8.0 if value == dialect.encoding else 1.0 if value == UNDERWAY and dialect.layout == "lloyd136" else 0.0
        )
    if dialect.marks and all(_there(header, mark) for mark in dialect.marks):
        score += 4.0
    there = header.named
    for layer in table_layers(header, dialect)[:2]:
        for role, pattern in dialect.tensors.items():
            tensor = there.get(pattern.format(layer=layer))
            if tensor is None:
                score -= ABSENT
            elif role not in ("table", "scales"):
                score += 0.5
            else:
                first = dialect.row if role == "table" else 8
                fits = type_of(tensor) in dialect.types[role] and tensor.shape[:1] == (first,)
                score += 3.0 if fits else 0.5
    return score


def _text(header: GgufHeader, name: str) -> str | None:
    """A key's value where it is a text, as a damaged one need not be."""
    value = header.keys[name].value if name in header.keys else None
    return value if isinstance(value, str) else None


def refuse_underway(header: GgufHeader) -> None:
    """Some rows are of the old encoding and some of the new, and nothing here says which: no row is to be used."""
    for name in header.keys:
        if _is_underway(header, name):
            raise FormatError(header.path, f"key {name}", "rows of one encoding", INTERRUPTED)


def _is_underway(header: GgufHeader, name: str) -> bool:
    return name.endswith(".engram.encoding") and _text(header, name) == UNDERWAY


def _notes(header: GgufHeader) -> Iterator[str]:
    """What else a header says of itself, whatever its dialect."""
    for name in header.keys:
        if _is_underway(header, name):
            yield f"{name} is {INTERRUPTED}"
    yield from gguf_split.notes(header)
    for tensor in header.tensors:
        if tensor.name == ple_gguf.TABLE and ple_gguf.has_constants(header):
            yield f"{tensor.name} is Qwen3.8's hashed table (PLE), not an Engram's"
        elif tensor.name == ple_gguf.TABLE:
            yield f"{tensor.name} is an embedding for each token id and layer (Gemma), not a hashed table"
