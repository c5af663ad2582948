"""Hash constants as a file has them, right or wrong: lists of integers by role. Nothing here refuses an odd value."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from engramctl.config import MOST
from engramctl.profiles import Sizes
from formats import recognise
from formats.dialect import Dialect, Key
from formats.disk import ReadFile
from formats.errors import FormatError
from formats.gguf_file import GgufHeader, TensorInfo, ValueType

ROLES: tuple[str, ...] = (
    *("layers", "rows", "heads", "width", "size", "base", "compressed", "pad_id", "pad_token_id", "token_map"),
    *("multipliers", "moduli", "offsets"),
)
TENSOR_DTYPES = {"I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}
MOST_TENSOR = 1 << 28  # bytes of a constant that is held as a tensor


@dataclass
class Stored:
    """What a file says, under its own names; `problems` are (where, expected, found) of what it does not say well."""

    constants: dict[str, list[int]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    problems: list[tuple[str, str, str]] = field(default_factory=list)
    of_map: dict[str, str] = field(default_factory=dict)  # what a file says about the map: vocabulary, token_map_sha256
    guess: Sizes | None = None  # sizes that its own keys say, where nothing else does


def of_container(header: GgufHeader, dialect: Dialect) -> Stored:
    """A container's constants, whatever their integer types and places; absent and odd ones are problems."""
    stored = Stored()
    for role, key in dialect.keys.items():
        stored.names[role] = key.name
        if role not in ROLES:
            continue
        where = f"{'tensor' if key.tensor else 'key'} {key.name}"
        found = recognise.find(header, dialect, key)
        if found is None:
            stored.problems.append((where, f"a {'tensor' if key.tensor else 'key'} of type {key.type}", "no such key"))
            continue
        at, kind = found
        if at != key.name:
            stored.problems.append((f"key {at}", f"the name {key.name}", "the name of before"))
        listed = _tensor(header, key) if key.tensor else _integers(header, at, key)
        if listed is None:
            stored.problems.append((where, key.type, kind))
        else:
            stored.constants[role] = listed
    return stored


def _integers(header: GgufHeader, name: str, key: Key) -> list[int] | None:
    value = header.keys[name]
    is_array = key.type.endswith("[]")
    if isinstance(value.value, np.ndarray):
        if value.value.size > MOST["vocabulary"]:  # no model's, and too much to look at one by one
            return None
        listed: list[int] = value.value.tolist()
        return listed if is_array and np.issubdtype(value.value.dtype, np.integer) else None
    return [value.value] if type(value.value) is int and not is_array and value.type != ValueType.BOOL else None


def _tensor(header: GgufHeader, key: Key) -> list[int] | None:
    """The numbers of an integer tensor, row by row."""
    tensor: TensorInfo = header.tensor(key.name)
    dtype = TENSOR_DTYPES.get(recognise.type_of(tensor))
    if dtype is None or tensor.size is None or tensor.size > MOST_TENSOR:
        return None
    try:
        with ReadFile.open(header.home(tensor).path) as file:
            raw = file.read(tensor.start, tensor.size, tensor.name)
    except FormatError:
        return None
    listed: list[int] = np.frombuffer(raw, dtype).tolist()
    return listed
