"""A GGUF that holds Qwen3.8's hashed table, as a source: keys read by role, tensors by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import profiles
from engramctl.config import MOST
from engramctl.errors import EngramctlError
from engramctl.hash_params import HashParams, with_rule
from engramctl.profiles import Profile, Sizes
from engramctl.siblings import PLE_PROFILE
from engramctl.siblings.table import PlainTable
from engramctl.source import FoundMap, Weights, named
from engramctl.table import Part, Table
from formats.closing import Closing
from formats.disk import ReadFile
from formats.errors import FormatError
from formats.floats import from_bf16
from formats.gguf_file import GGML_TYPES, GgufHeader, TensorInfo, ValueType
from formats.ple_gguf import DIALECTS, SCALE, SIDECAR, PleDialect
from formats.recognise import describe
from formats.row_plain import PlainRows

NUMPY = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
MOST_KERNEL = 64


@dataclass
class PleContainer(Closing):
    """An opened container of one of the dialects."""

    path: Path
    profile: Profile  # its norms hold the 1 already
    sizes: Sizes
    header: GgufHeader
    made_of: PleDialect
    hash_params: HashParams
    config: Mapping[str, Any] | None = None
    whole: Sizes = field(init=False)
    dialect: str = field(init=False)
    _files: list[ReadFile] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.whole, self.dialect = self.sizes, self.made_of.name

    @property
    def table_alone(self) -> bool:
        """Are the module's weights somewhere else?"""
        return self.made_of is SIDECAR

    @property
    def scale(self) -> np.float32 | None:
        """Of the E4M3 table that the rows were made from, if they were."""
        entry = self.header.keys.get(SCALE.name)
        if entry is None:
            return None
        if type(entry.value) is not float or not 0 < entry.value < np.inf:
            raise FormatError(self.path, f"key {SCALE.name}", "a scale above 0", f"{entry.value!r:.40}")
        return np.float32(entry.value)

    def file(self) -> ReadFile:
        if not self._files:
            self._files.append(ReadFile.open(self.path))
        return self._files[0]

    def table(self, layer: int) -> PlainTable:
        tensor = self.header.tensor(self.made_of.tensors["table"])
        layout = PlainRows(type_of(tensor), self.sizes.width)
        part = Part(self.file(), tensor.start, layout.row_bytes)
        return PlainTable(layer, (Table(layer, tensor.shape[1], (part,)),), layout)

    def floats(self, role: str, layer: int) -> list[NDArray[np.float32]]:
        """A weight as F32; one that the dialect does not hold is refused, one that the module lacks is none."""
        if role not in self.made_of.tensors:
            if self.made_of is SIDECAR:
                raise FormatError(self.path, None, f"the module's {role}", "a table alone: the model file holds it")
            return []
        tensor = self.header.tensor(self.made_of.tensors[role].format(layer=layer))
        kind, want = type_of(tensor), self.shape_of(role)
        flat = (want[0] * want[1],)  # a norm's weights need not be in streams
        if kind not in NUMPY or tensor.shape not in ((want, flat) if role.startswith("norm") else (want,)):
            found = f"{kind} {list(tensor.shape)}"
            raise FormatError(self.path, f"tensor {tensor.name}", f"{' or '.join(NUMPY)} {list(want)}", found)
        array = np.frombuffer(self.file().read(tensor.start, tensor.size or 0, tensor.name), NUMPY[kind])
        return [from_bf16(array) if kind == "BF16" else array.astype(np.float32)]

    def shape_of(self, role: str) -> tuple[int, int]:
        """A weight's ne, as the loader asks for it; a norm may be flat."""
        S, D, K = self.sizes.streams, self.sizes.hidden, self.sizes.inputs
        shapes = {"key": (K, S * D), "value": (K, D), "conv": (self.profile.module.kernel, S * D)}
        return shapes.get(role, (D, S))

    def weights(self, layer: int) -> Weights:
        raise EngramctlError(f"profile {self.profile.name}", "a fused projection", "another module")

    def token_map(self) -> FoundMap:
        return FoundMap(self.hash_params.token_map, "none: ids are hashed as they are")

    def params(self) -> HashParams:
        return self.hash_params.check(str(self.path))

    def stored(self) -> dict[str, dict[int, NDArray[np.uint64]]]:
        """The constants in keys, by name and layer."""
        layer = self.sizes.layers[0]
        return {role: {layer: getattr(self.hash_params, role)[0]} for role in ("multipliers", "moduli", "offsets")}

    def stored_name(self, role: str) -> str:
        return f"key {self.made_of.keys[role].name}"

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._files.clear()


def dialect_of(header: GgufHeader) -> PleDialect | None:
    """The dialect whose architecture the file names and whose constants it has any of; Gemma's tables have none."""
    architecture = named(header)
    for dialect in DIALECTS:
        keys = [dialect.keys[role].name for role in ("multipliers", "offsets", "moduli")]
        if architecture == dialect.architecture and set(keys) & set(header.keys):
            return dialect
    return None


def type_of(tensor: TensorInfo) -> str:
    return GGML_TYPES[tensor.type].name if tensor.type in GGML_TYPES else f"type {tensor.type}"


def open_container(path: Path, profile: Profile, header: GgufHeader, dialect: PleDialect) -> PleContainer:
    """Open for use; keys that are absent, odd, or contradict each other raise `FormatError`."""
    roles = _Keys(header, dialect)
    module, own = profile.module, profile.sizes
    if dialect is SIDECAR:
        sizes = own
    else:
        layers = roles.array("layers", MOST["layers"])
        if layers.size != 1:
            raise FormatError(path, f"key {dialect.keys['layers'].name}", "one layer", f"{layers.size}")
        eos = roles.number("eos_token_id", MOST["vocabulary"], 0)
        vocabulary = roles.number("vocabulary", MOST["vocabulary"], 1, own.vocabulary)
        image = roles.number("image_token_id", MOST["vocabulary"], 0, -1)
        sizes = Sizes(
            (int(layers[0]),), (), roles.number("size", MOST["size"], 2), roles.number("heads", MOST["heads"]), 0,
            own.base, vocabulary, vocabulary, pad_token_id=eos, hidden=roles.number("hidden", MOST["hidden"]),
            streams=roles.number("streams", MOST["streams"]), eps=roles.real("eps"), eos_token_id=eos,
            image_token_id=None if image < 0 else image,
        )  # fmt: skip
        kernel = roles.number("kernel", MOST_KERNEL)
        module = replace(module, kernel=kernel, dilation=sizes.size, conv_eps=sizes.eps)
    table = header.tensor(dialect.tensors["table"])
    width = roles.number("width", MOST["width"])
    if type_of(table) not in dialect.row_types or len(table.shape) != 2 or table.shape[0] != width:
        want = f"{' or '.join(dialect.row_types)} [{width}, rows]"
        raise FormatError(path, f"tensor {table.name}", want, f"{type_of(table)} {list(table.shape)}")
    rows = table.shape[1]
    if dialect is SIDECAR and roles.number("table_rows", MOST["rows"]) != rows:
        raise FormatError(path, f"key {dialect.keys['table_rows'].name}", f"{rows} rows as the table has", "others")
    constants = {role: roles.array(role, 4096)[None] for role in ("multipliers", "moduli", "offsets")}
    if constants["moduli"].shape != constants["offsets"].shape:
        found = f"{constants['offsets'].size}"
        raise FormatError(path, f"key {dialect.keys['offsets'].name}", f"{constants['moduli'].size} entries", found)
    sizes = replace(sizes, width=width, rows=(rows,))
    if dialect is SIDECAR:  # it says neither orders nor heads: the counts of its constants do
        size = constants["multipliers"].shape[1]
        heads, rest = divmod(constants["moduli"].shape[1], max(1, size - 1))
        if size < 2 or rest:
            raise FormatError(path, f"key {dialect.keys['moduli'].name}", f"a multiple of {size - 1} entries", "others")
        sizes = replace(sizes, size=size, heads=heads)
    sizes = replace(sizes, base=_base(profile, sizes, constants["moduli"]))
    profile = replace(profile, module=replace(module, norm="plain"))
    ids = replace(profile, sizes=sizes).token_map()
    made = HashParams(
        sizes.layers, sizes.rows, sizes.heads, sizes.compressed, 0, ids,
        constants["multipliers"], constants["moduli"], constants["offsets"],
    )  # fmt: skip
    params = with_rule(made, profile, sizes)
    if dialect is SIDECAR:  # it says no vocabulary: whether that fits the multipliers shows when ids are hashed
        _check_columns(params, path)
    else:
        params.check(str(path))
    return PleContainer(path, profile, sizes, header, dialect, params)


def _check_columns(params: HashParams, path: Path) -> None:
    """Each column ends within the table."""
    ends = [int(o) + int(m) for o, m in zip(params.offsets[0], params.moduli[0], strict=True)]
    if max(ends) > params.rows[0] or not params.moduli.all():
        raise FormatError(path, None, f"columns that end within {params.rows[0]} rows", f"{max(ends)}")


def _base(profile: Profile, sizes: Sizes, moduli: NDArray[np.uint64]) -> int:
    """From where the primes were drawn: a file does not say, but any number up to the first of them gives the same."""
    if sizes.columns == profile.sizes.columns and np.array_equal(moduli, profile.moduli):
        return profile.sizes.base
    return max(1, min(int(moduli[0, 0]), MOST["base"]))


class _Keys:
    """Keys by role, tolerant of integer widths; an absent or odd one raises `FormatError`."""

    def __init__(self, header: GgufHeader, dialect: PleDialect) -> None:
        self.header, self.dialect = header, dialect

    def raw(self, role: str) -> Any:  # noqa: ANN401 - whatever the key holds
        name = self.dialect.keys[role].name
        if name not in self.header.keys:
            raise FormatError(self.header.path, None, f"key {name}", "no such key")
        return self.header.keys[name].value

    def number(self, role: str, most: int, least: int = 1, default: int | None = None) -> int:
        if default is not None and self.dialect.keys[role].name not in self.header.keys:
            return default
        value = self.raw(role)
        if type(value) is not int or not least <= value <= most:
            self.refuse(role, f"a whole number from {least} to {most}")
        return int(value)

    def real(self, role: str) -> float:
        value = self.raw(role)
        if type(value) is not float or not 0 <= value < 1:
            self.refuse(role, "a number from 0 up to 1")
        return float(str(np.float32(value)))  # 1e-6 as the config has it, not what F32 makes of it

    def array(self, role: str, most: int) -> NDArray[np.uint64]:
        value = self.raw(role)
        good = isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.integer) and 0 < value.size <= most
        if not good or int(value.min()) < 0:
            self.refuse(role, "an array of whole numbers")
        return np.asarray(value).astype(np.uint64)

    def refuse(self, role: str, expected: str) -> None:
        name = self.dialect.keys[role].name
        value = self.header.keys[name]
        what = describe(value)
        shown = f"{what} {value.value!r:.40}" if value.type != ValueType.ARRAY else f"{what} of {len(value.value)}"
        raise FormatError(self.header.path, f"key {name}", expected, shown)


def open_named(path: Path, name: str | None, header: GgufHeader) -> PleContainer:
    """A container whose architecture is one of these; one without the constants raises `FormatError`."""
    profile, dialect = profiles.load(name or PLE_PROFILE), dialect_of(header)
    if dialect is None:
        keys = " or ".join(each.keys["multipliers"].name for each in DIALECTS)
        raise FormatError(path, None, f"key {keys}", "no such key: its table, if any, is not a hashed one")
    if profile.storage.layout != "shards":
        raise EngramctlError("--profile", f"{PLE_PROFILE} for such a container", profile.name)
    return open_container(path, profile, header, dialect)
