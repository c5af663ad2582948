"""A GGUF container as a source: its keys read by role, tolerant of integer widths, strict about what they say together.

Whether the types are exactly those that a loader demands is for `check file`; here only the meaning counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from engramctl import config as configs
from engramctl.hash_params import HashParams
from engramctl.profiles import Profile, Sizes
from engramctl.projection import Projection
from engramctl.source import FoundMap, Weights, fitting_map, subset
from engramctl.table import Part, Table
from formats.dialects import DS4, Dialect
from formats.disk import ReadFile
from formats.errors import FormatError
from formats.floats import bf16_finite, exact_in_bf16, from_bf16, to_bf16
from formats.gguf_file import GGML_TYPES, GgufHeader, ValueType, read_header

FLOATS = {"F16": "<f2", "BF16": "<u2", "F32": "<f4"}  # types a weight may have, and how its bytes are read


@dataclass
class ContainerSource:
    """An opened container of the ds4 dialect."""

    path: Path
    profile: Profile
    header: GgufHeader
    whole: Sizes
    sizes: Sizes
    config: Mapping[str, Any] | None
    hash_params: HashParams
    given_map: FoundMap | None = None
    dialect: str = DS4.name
    _files: list[ReadFile] = field(default_factory=list)

    def file(self) -> ReadFile:
        if not self._files:
            self._files.append(ReadFile.open(self.path))
        return self._files[0]

    def table(self, layer: int) -> Table:
        tensor = self.header.tensor(DS4.tensors["table"].format(layer=layer))
        return Table(layer, tensor.shape[1], (Part(self.file(), tensor.start, tensor.shape[0]),))

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
        """BF16 bits of some rows of a weight. All must be finite, F16 and F32 exact in BF16: where some are not, the
        refusal is of the whole weight."""
        from engramctl.reference import exact_bf16

        tensor = self.header.tensor(DS4.tensors[role].format(layer=layer))
        name = GGML_TYPES[tensor.type].name if tensor.type in GGML_TYPES else f"type {tensor.type}"
        if name not in FLOATS or tensor.shape != shape[::-1]:
            raise FormatError(
                self.path,
                f"tensor {tensor.name}",
                f"{' or '.join(FLOATS)} {list(shape[::-1])}",
                f"{name} {list(tensor.shape)}",
            )
        dtype, (count, width) = np.dtype(FLOATS[name]), shape

        def stored(first: int, last: int) -> NDArray[Any]:
            array = np.empty((last - first, width), dtype)
            self.file().read_into(array.data, tensor.start + first * width * dtype.itemsize, tensor.name)
            return array

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
        for file in self._files:
            file.close()
        self._files.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def open_container(
    path: Path, profile: Profile, token_map: FoundMap | None = None, header: GgufHeader | None = None
) -> ContainerSource:
    """Open a ds4 container for use; keys that are absent, odd, or contradict each other raise `FormatError`."""
    header = read_header(path) if header is None else header
    roles = read_roles(header, DS4)
    layers, rows = _ids(roles, "layers", header), _ids(roles, "rows", header)
    for layer, number in zip(layers, rows, strict=True):
        _check_table(header, layer, number, DS4)
    config = read_config(header, DS4)
    whole = profile.sizes if config is None else configs.read_sizes(config, profile, f"{path} at key {DS4.config}")
    sizes = _sizes(
        header, roles, layers, rows, whole, "the config" if config is not None else f"profile {profile.name}"
    )
    compressed, pad = int(roles["compressed"]), int(roles["pad_id"])
    ids = roles["token_map"].astype(np.uint32) if token_map is None else token_map.ids
    if token_map is not None:
        fitting_map(token_map, sizes, path)
        pad = int(ids[sizes.pad_token_id]) if config is not None else pad
    moduli = roles["moduli"].astype(np.uint64).reshape(len(layers), -1)
    offsets = np.zeros_like(moduli)
    offsets[:, 1:] = np.cumsum(moduli, axis=1)[:, :-1]  # ds4 keeps none: they are the moduli's running sum
    multipliers = roles["multipliers"].astype(np.uint64).reshape(len(layers), -1)
    params = HashParams(
        layers, rows, sizes.heads, compressed, pad, ids, multipliers, moduli, offsets, profile.rule
    ).check(str(path))
    return ContainerSource(path, profile, header, whole, sizes, config, params, token_map)


def read_roles(header: GgufHeader, dialect: Dialect) -> dict[str, Any]:
    """Each constant by its role: int, str, or an integer array of whatever width; an absent or odd one raises
    `FormatError`."""
    roles: dict[str, Any] = {}
    for role, key in dialect.keys.items():
        if key.name not in header.keys:
            raise FormatError(header.path, None, f"key {key.name}", "no such key")
        value = header.keys[key.name]
        found = value.value
        if key.type.endswith("[]"):
            good = (
                isinstance(found, np.ndarray)
                and found.size > 0
                and np.issubdtype(found.dtype, np.integer)
                and int(found.min()) >= 0
            )
        elif key.type == "string":
            good = isinstance(found, str)
        else:
            good = isinstance(found, int) and value.type != ValueType.BOOL and found >= 0
        if not good:
            raise FormatError(header.path, f"key {key.name}", key.type, describe(value.type, value.item))
        if key.type == "u32[]" and int(found.max()) >= 2**32:
            raise FormatError(header.path, f"key {key.name}", "numbers below 4294967296", f"{found.max()}")
        roles[role] = found
    if roles["encoding"] != dialect.encoding:
        raise FormatError(
            header.path, f"key {dialect.keys['encoding'].name}", dialect.encoding, f"{roles['encoding']!r:.60}"
        )
    return roles


def describe(kind: ValueType, item: ValueType | None) -> str:
    """A GGUF value's type in the contract's short words: u32, u32[], string."""
    short = {"UINT": "u", "INT": "i", "FLOAT": "f"}

    def word(one: ValueType) -> str:
        for long, letter in short.items():
            if one.name.startswith(long):
                return letter + one.name.removeprefix(long)
        return one.name.lower()

    return word(kind) if item is None else f"{word(item)}[]"


def read_config(header: GgufHeader, dialect: Dialect) -> dict[str, Any] | None:
    """The checkpoint's config.json that the container carries, parsed; None where there is none."""
    if dialect.config not in header.keys:
        return None
    text = header.keys[dialect.config].value
    if not isinstance(text, str):
        raise FormatError(
            header.path, f"key {dialect.config}", "string", describe(header.keys[dialect.config].type, None)
        )
    return configs.parse(text, f"{header.path} at key {dialect.config}")


def _ids(roles: dict[str, Any], role: str, header: GgufHeader) -> tuple[int, ...]:
    found = tuple(int(x) for x in roles[role])
    if (
        len(found) != len(roles["layers"])
        or len(found) > configs.MOST["layers"]
        or (role == "layers" and len(set(found)) != len(found))
    ):
        raise FormatError(
            header.path, f"key {DS4.keys[role].name}", f"{len(roles['layers'])} entries, one a layer", f"{len(found)}"
        )
    return found


def _check_table(header: GgufHeader, layer: int, rows: int, dialect: Dialect) -> None:
    tensor = header.tensor(dialect.tensors["table"].format(layer=layer))
    if (
        GGML_TYPES.get(tensor.type) is None
        or GGML_TYPES[tensor.type].name != "I8"
        or tensor.shape != (dialect.row_bytes, rows)
    ):
        found = f"{GGML_TYPES[tensor.type].name if tensor.type in GGML_TYPES else tensor.type} {list(tensor.shape)}"
        raise FormatError(header.path, f"tensor {tensor.name}", f"I8 [{dialect.row_bytes}, {rows}]", found)


def _sizes(
    header: GgufHeader, roles: dict[str, Any], layers: tuple[int, ...], rows: tuple[int, ...], whole: Sizes, origin: str
) -> Sizes:
    """The whole model's sizes cut to the layers that are here, if the keys agree with them."""
    strange = [layer for layer in layers if layer not in whole.layers]
    if strange:
        raise FormatError(
            header.path, f"key {DS4.keys['layers'].name}", f"layers among {list(whole.layers)}", f"{strange[0]}"
        )
    sizes, count = subset(whole, layers), len(layers)
    pairs = {
        "layers": (sizes.layers, layers),
        "rows": (sizes.rows, rows),
        "compressed": (sizes.compressed, int(roles["compressed"])),
        "token_map": (sizes.vocabulary, roles["token_map"].size),
        "moduli": (count * sizes.columns, roles["moduli"].size),
        "multipliers": (count * sizes.size, roles["multipliers"].size),
    }
    for role, (expected, found) in pairs.items():
        if expected != found:
            raise FormatError(header.path, f"key {DS4.keys[role].name}", f"{expected} as {origin} says", f"{found}")
    return sizes
