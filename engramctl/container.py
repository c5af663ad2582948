"""A GGUF container as a source: its constants read by role, tolerant of integer widths, strict about what they say
together.

Whether the types are exactly those that a loader demands is for `check file`; here only the meaning counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from engramctl import config as configs
from engramctl import container_sizes, stored, tables
from engramctl.container_sizes import read_config
from engramctl.errors import EngramctlError
from engramctl.hash_params import HashParams
from engramctl.profiles import Profile, Sizes
from engramctl.projection import Projection
from engramctl.source import FoundMap, Weights, fitting_map, subset
from engramctl.table import Table
from formats import recognise, row_layouts
from formats.closing import Closing
from formats.dialects import DS4, Dialect
from formats.errors import FormatError
from formats.floats import bf16_finite, exact_in_bf16, from_bf16, to_bf16
from formats.gguf_file import GgufHeader
from formats.gguf_split import read_model

__all__ = ["FLOATS", "ContainerSource", "open_container", "read_config"]

FLOATS = {"F16": "<f2", "BF16": "<u2", "F32": "<f4"}  # types a weight may have, and how its bytes are read


@dataclass
class ContainerSource(Closing):
    """An opened container."""

    path: Path
    profile: Profile
    header: GgufHeader
    whole: Sizes
    sizes: Sizes
    config: Mapping[str, Any] | None
    hash_params: HashParams
    given_map: FoundMap | None = None
    record: Dialect = DS4

    def __post_init__(self) -> None:
        self.dialect, self._files = self.record.name, tables.Files(self.header)

    def table(self, layer: int) -> Table:
        return tables.of_layer(self._files, self.record, layer)

    def weights(self, layer: int) -> Weights:
        sizes = self.sizes
        gate = (sizes.streams, sizes.hidden)
        return Weights(
            Projection((sizes.outputs, sizes.inputs), self._rows(layer, "projection", (sizes.outputs, sizes.inputs))),
            self._weight(layer, "q_weight", gate),
            self._weight(layer, "k_weight", gate),
        )

    def _weight(self, layer: int, role: str, shape: tuple[int, int]) -> NDArray[np.uint16]:
        """BF16 bits of a whole weight."""
        return self._rows(layer, role, shape)(0, shape[0])

    def _rows(self, layer: int, role: str, shape: tuple[int, int]) -> Callable[[int, int], NDArray[np.uint16]]:
        """BF16 bits of some rows of a weight. All must be finite, and exact in BF16 whatever their type: where some are
        not, the refusal is of the whole weight."""
        from engramctl.reference import exact_bf16

        tensor = self.header.tensor(self.record.tensors[role].format(layer=layer))
        name, (count, width) = recognise.type_of(tensor), shape
        layout = None if name in FLOATS else row_layouts.ggml(name, width)
        if (name not in FLOATS and layout is None) or tensor.shape != shape[::-1]:
            wanted = f"{' or '.join(FLOATS)} {list(shape[::-1])}"
            raise FormatError(self.path, f"tensor {tensor.name}", wanted, f"{name} {list(tensor.shape)}")
        row_bytes = layout.stored if layout is not None else width * np.dtype(FLOATS[name]).itemsize

        def stored(first: int, last: int) -> NDArray[Any]:
            raw = np.empty((last - first, row_bytes), np.uint8)
            self._files.of(tensor).read_into(raw.data, tensor.start + first * row_bytes, tensor.name)
            return raw.view(FLOATS[name]) if layout is None else layout.decode(raw)

        def rows(first: int, last: int) -> NDArray[np.uint16]:
            array = stored(first, last)
            if name == "BF16":
                if not bf16_finite(array).all():
                    self._refuse_infinite(tensor.name, stored(0, count))
                return array
            if not exact_in_bf16(array).all():
                exact_bf16(stored(0, count), tensor.name)
            return to_bf16(array.astype(np.float32))

        return rows

    def _refuse_infinite(self, name: str, bits: NDArray[np.uint16]) -> NoReturn:
        """The first of a weight's values that is no finite number, and how many there are."""
        finite = bf16_finite(bits)
        row, column = (int(i) for i in np.argwhere(~finite)[0])
        where, count = f"tensor {name} row {row} column {column}", int(np.count_nonzero(~finite))
        raise FormatError(self.path, where, "a finite number", f"{from_bf16(bits[row, column])}, {count} in all")

    def token_map(self) -> FoundMap:
        if self.given_map is not None:
            return fitting_map(self.given_map, self.sizes, self.path)
        return FoundMap(self.hash_params.token_map, "the container")

    def params(self) -> HashParams:
        return self.hash_params

    def close(self) -> None:
        self._files.close()


def open_container(
    path: Path, profile: Profile, token_map: FoundMap | None = None, header: GgufHeader | None = None
) -> ContainerSource:
    """Open a container for use; constants that are absent, odd, or contradict each other raise `FormatError`."""
    header = read_model(path) if header is None else header
    seen = recognise.recognise(header)
    dialect = seen.best or DS4
    roles = _roles(header, dialect, "; ".join(seen.notes))
    layers = tuple(roles["layers"])
    if not layers or len(layers) > configs.MOST["layers"] or len(set(layers)) != len(layers):
        raise FormatError(path, _at(dialect, "layers"), f"1 to {configs.MOST['layers']} layers, each once", f"{layers}")
    rows = _rows(header, dialect, roles, layers)
    config = read_config(header, dialect)
    whole = container_sizes.of_container(header, dialect, roles, profile)
    if whole is None:
        raise FormatError(path, None, "keys that say the model's sizes, or a config", "neither")
    origin = f"profile {profile.name}" if config is None else "the config"
    sizes = _sizes(header, dialect, roles, layers, rows, whole, origin)
    compressed = roles["compressed"][0] if "compressed" in roles else sizes.compressed
    ids = np.array(roles["token_map"], np.int64) if token_map is None else token_map.ids.astype(np.int64)
    if ids.min() < 0 or int(ids.max()) >= compressed:
        odd = int(ids.min()) if ids.min() < 0 else int(ids.max())
        raise EngramctlError(str(path), f"token map entries in 0..{compressed - 1}", f"{odd}")
    if token_map is not None:
        fitting_map(token_map, sizes, path)
    moduli = _by_layer(header, dialect, roles, "moduli", len(layers))
    offsets = np.zeros_like(moduli)  # where a dialect keeps none they are the moduli's running sum
    offsets[:, 1:] = np.cumsum(moduli, axis=1)[:, :-1]
    if "offsets" in roles:
        offsets = _by_layer(header, dialect, roles, "offsets", len(layers))
    params = HashParams(
        layers,
        rows,
        sizes.heads,
        compressed,
        _pad(roles, ids, sizes, token_map is not None and config is not None, path),
        ids.astype(np.uint32),
        _by_layer(header, dialect, roles, "multipliers", len(layers)),
        moduli,
        offsets,
        profile.rule,
    ).check(str(path))
    return ContainerSource(path, profile, header, whole, sizes, config, params, token_map, dialect)


def _roles(header: GgufHeader, dialect: Dialect, notes: str) -> dict[str, list[int]]:
    """Each constant of the dialect by its role; an absent or odd one raises `FormatError`."""
    for role, key in dialect.keys.items():
        where = f"{'tensor' if key.tensor else 'key'} {key.name}"
        if "{number}" in key.name or role not in (*stored.ROLES, "encoding"):
            continue
        if recognise.find(header, dialect, key) is None:
            raise FormatError(header.path, None, where, f"no such key{f' ({notes})' if notes else ''}")
        if role == "encoding":
            value = header.keys[key.name]
            if not isinstance(value.value, str):
                raise FormatError(header.path, where, "string", recognise.describe(value))
            if value.value != dialect.encoding:
                raise FormatError(header.path, where, dialect.encoding, f"{value.value!r:.60}")
    found = stored.of_container(header, dialect)
    for where, expected, seen in found.problems:
        if not expected.startswith("the name "):  # one of before says the same
            raise FormatError(header.path, where, expected, seen)
    for role, listed in found.constants.items():
        if not listed or min(listed) < 0:
            kind = dialect.keys[role].type
            raise FormatError(header.path, _at(dialect, role), kind, f"{min(listed)}" if listed else "no entry")
        if dialect.keys[role].type in ("u32[]", "i32[]") and max(listed) >= 2**32:
            raise FormatError(header.path, _at(dialect, role), "numbers below 4294967296", f"{max(listed)}")
    for role in ("layers", "token_map", "moduli", "multipliers"):
        if role not in found.constants:
            raise FormatError(header.path, None, f"a constant: {role}", f"none in dialect {dialect.name}")
    return found.constants


def _at(dialect: Dialect, role: str) -> str:
    key = dialect.keys[role]
    return f"{'tensor' if key.tensor else 'key'} {key.name}"


def _rows(
    header: GgufHeader, dialect: Dialect, roles: Mapping[str, list[int]], layers: tuple[int, ...]
) -> tuple[int, ...]:
    """Each table's rows, on which keys and tensors agree."""
    if "rows" in roles and len(roles["rows"]) != len(layers):
        found = f"{len(roles['rows'])}"
        raise FormatError(header.path, _at(dialect, "rows"), f"{len(layers)} entries, one a layer", found)
    made = []
    for number, layer in enumerate(layers):
        here = "table" in dialect.tensors and not recognise.elsewhere(header, dialect)
        tensor = header.tensor(dialect.tensors["table"].format(layer=layer)) if here else None
        rows = roles["rows"][number] if "rows" in roles else -1 if tensor is None else tensor.shape[-1]
        if tensor is not None:
            kind = recognise.type_of(tensor)
            if kind not in dialect.types["table"] or tensor.shape != (dialect.row, rows):
                first = dialect.types["table"][0] if len(dialect.types["table"]) == 1 else "a quantised type"
                wanted = f"{first} [{dialect.row}, {rows}]"
                raise FormatError(header.path, f"tensor {tensor.name}", wanted, f"{kind} {list(tensor.shape)}")
        made.append(rows)
    return tuple(made)


def _by_layer(
    header: GgufHeader, dialect: Dialect, roles: Mapping[str, list[int]], role: str, layers: int
) -> NDArray[np.uint64]:
    if len(roles[role]) % layers:
        raise FormatError(header.path, _at(dialect, role), f"entries for {layers} layers", f"{len(roles[role])}")
    return np.array(roles[role], np.uint64).reshape(layers, -1)


def _pad(roles: Mapping[str, list[int]], ids: NDArray[np.int64], sizes: Sizes, through_map: bool, path: Path) -> int:
    """The compressed pad: as stored, or the raw one through the map."""
    raw = roles.get("pad_token_id", [sizes.pad_token_id])[0]
    if "pad_id" in roles and not through_map:
        return roles["pad_id"][0]
    if raw >= ids.size:
        raise EngramctlError(str(path), f"a pad token id below {ids.size}", f"{raw}")
    return int(ids[raw])


def _sizes(
    header: GgufHeader,
    dialect: Dialect,
    roles: Mapping[str, list[int]],
    layers: tuple[int, ...],
    rows: tuple[int, ...],
    whole: Sizes,
    origin: str,
) -> Sizes:
    """The whole model's sizes cut to the layers that are here, if the keys agree with them."""
    strange = [layer for layer in layers if layer not in whole.layers]
    if strange:
        wanted = f"layers among {list(whole.layers)}"
        raise FormatError(header.path, _at(dialect, "layers"), wanted, f"{strange[0]}")
    sizes, count = subset(whole, layers), len(layers)
    pairs: dict[str, tuple[object, object]] = {
        "layers": (sizes.layers, layers),
        "rows": (sizes.rows, rows),
        "compressed": (sizes.compressed, roles.get("compressed", [sizes.compressed])[0]),
        "token_map": (sizes.vocabulary, len(roles["token_map"])),
        "moduli": (count * sizes.columns, len(roles["moduli"])),
        "multipliers": (count * sizes.size, len(roles["multipliers"])),
        "offsets": (count * sizes.columns, len(roles.get("offsets", roles["moduli"]))),
    }
    for role, (expected, found) in pairs.items():
        if expected != found:
            where = _at(dialect, role) if role in dialect.keys else f"tensor of layer {layers[0]}"
            raise FormatError(header.path, where, f"{expected} as {origin} says", f"{found}")
    return sizes
