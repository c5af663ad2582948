"""A side of a comparison: tables, weights and constants of a checkpoint or a container, as they are.

Nothing here goes through `repack` or the weights that `run` uses: they are dequantised once more, from the definition.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engramctl import container_sizes, kinds, shapes, sidecars
from engramctl import tables as opened
from engramctl.checkpoint import CheckpointSource, open_checkpoint, read_config
from engramctl.errors import EngramctlError
from engramctl.profiles import Profile, Sizes
from engramctl.shapes import PROJECTION_BLOCK
from engramctl.source import FoundMap, is_container
from engramctl.table import Table
from engramctl.verify import constants
from engramctl.verify.constants import Expectation, Stored
from engramctl.verify.params import tokenizer_map
from formats import row264, row_layouts, safetensors_raw
from formats.dialects import DS4
from formats.disk import ReadFile
from formats.errors import FormatError
from formats.gguf_file import TensorInfo, Value
from formats.gguf_split import read_model
from formats.recognise import type_of as kind_of
from formats.safetensors_raw import Tensor

WEIGHTS = ("q_weight", "k_weight", "projection")
BAND = 8 * PROJECTION_BLOCK  # rows of a weight that are in memory at once
FLOATS = {"F16": "<f2", "BF16": "<u2", "F32": "<f4"}

Band = Callable[[int, int], NDArray[np.float64] | None]  # first row, rows -> [rows, columns]; None where all is a hole


@dataclass(frozen=True)
class Weight:
    """A weight by its tensor's name: [rows, columns], read a band at a time as exact float64."""

    name: str
    shape: tuple[int, int]
    band: Band
    exact: bool = True  # False: re-encoded, compared within its type's bound
    kind: str = ""


@dataclass(frozen=True)
class Side:
    """One of the two things that are compared."""

    path: Path
    tables: Mapping[int, Table]
    weights: Mapping[tuple[int, str], Weight]
    expected: Callable[[tuple[int, ...]], list[Expectation]]  # what the other's constants must be, for these layers
    stored: Stored | None  # None: a checkpoint stores none
    texts: Mapping[str, str] | None  # config and encoding, where the dialect has them
    sizes: Sizes | None  # the whole model's
    kind: str = ""  # a container's dialect
    needs_texts: bool = True  # or they are compared only where the other side has them too
    sizes_as_keys: Mapping[str, Value] = field(default_factory=dict)  # what of the config stands in keys of its own


def open_side(
    stack: ExitStack, path: Path, profile: Profile, profile_name: str | None = None, token_map: FoundMap | None = None
) -> Side:
    """The checkpoint, container or file of rows at `path`; `stack` closes it."""
    if not path.is_dir() and is_container(path):
        return of_container(stack, path, profile)
    if path.suffix != ".safetensors" and (rows := sidecars.opened(stack, path)) is not None:
        return Side(path, rows[1], {}, lambda layers: [], Stored(), None, None)  # no weights and no constants
    kinds.refuse_other(path, kinds.SOURCES)
    if tables := tables_alone(stack, path, profile):
        return Side(path, tables, {}, lambda layers: [], Stored(), None, None)
    return of_checkpoint(stack.enter_context(open_checkpoint(path, profile_name, token_map)))


def tables_alone(stack: ExitStack, path: Path, profile: Profile) -> dict[int, Table]:
    """Tables of a checkpoint that has nothing else, as `unpack` makes one of files of rows: their layers are in their
    names, and no sizes are needed. Empty where there is a config, or any weight."""
    if read_config(path)[0] is not None or not {"codes", "scales"} <= profile.tensors.keys():
        return {}
    patterns = {
        role: re.escape(tensor.name).replace(r"\{layer\}", r"([0-9]{1,4})") for role, tensor in profile.tensors.items()
    }

    def place(name: str) -> tuple[int, str] | None:
        fits = ((role, re.fullmatch(pattern, name)) for role, pattern in patterns.items())
        return next(((int(match[1]), role) for role, match in fits if match), None)

    found = safetensors_raw.read_checkpoint(path, lambda name: place(name) is not None).tensors
    every = {at: tensor for name, tensor in found.items() if (at := place(name)) is not None}
    layers = tuple(sorted({layer for layer, _ in every}))
    if not layers or every.keys() != {(layer, role) for layer in layers for role in ("codes", "scales")}:
        return {}
    rows = tuple(every[layer, "codes"].shape[0] if every[layer, "codes"].shape else 0 for layer in layers)
    sizes = replace(profile.sizes, layers=layers, rows=rows)
    for (layer, role), tensor in every.items():
        shapes.check(tensor, role, sizes, layer, profile)
    source = stack.enter_context(CheckpointSource(path, profile, sizes, sizes, None, None, every))
    return {layer: source.table(layer) for layer in layers}


def of_checkpoint(source: CheckpointSource) -> Side:
    if source.sizes.width != row264.WIDTH:
        raise EngramctlError(str(source.path), f"rows of {row264.WIDTH} values", f"{source.sizes.width}")
    tables = {layer: source.table(layer) for layer in source.sizes.layers}
    weights = {}
    for layer in source.sizes.layers:
        for role in WEIGHTS:
            tensor = source.tensors[layer, role]
            band = (
                quantised(source.file, source.tensors[layer, role], source.tensors[layer, "projection_scale"])
                if role == "projection"
                else _plain(source.file(tensor), tensor.start, tensor.shape, "BF16")
            )
            weights[layer, role] = Weight(tensor.name, (tensor.shape[0], tensor.shape[1]), band)

    def expected(layers: tuple[int, ...]) -> list[Expectation]:
        whole, ids = source.whole, _map_of(source)
        stated = {"layers": list(layers), "compressed": [whole.compressed]}
        stated["rows"] = [tables[layer].rows for layer in layers]
        made = [Expectation("the checkpoint has it", stated)]
        made.append(Expectation("derived", constants.of_params(constants.derived(whole, layers, ids, source.profile))))
        made.append(Expectation("the checkpoint has it", constants.of_sizes(whole)))
        public = constants.published(whole, layers, source.profile)
        return made if public is None else [*made, Expectation("published", constants.of_params(public))]

    texts = {"encoding": DS4.encoding} | ({} if source.config_text is None else {"config": source.config_text})
    return Side(source.path, tables, weights, expected, None, texts, source.whole)


def _map_of(source: CheckpointSource) -> NDArray[np.uint32]:
    """The tokenizer's map derived a second way, unless another was given or there is no tokenizer."""
    own = None if source.given_map is not None else tokenizer_map(source.path / "tokenizer.json")
    return source.token_map().ids if own is None else own.ids


def of_container(stack: ExitStack, path: Path, profile: Profile) -> Side:
    """A container of any dialect whose tensors are where its header says; constants may be anything."""
    header = read_model(path)
    files = stack.enter_context(opened.Files(header))
    dialect, tables = opened.of_header(files)
    stored = constants.of_container(header, dialect)
    weights = {}
    for layer in tables:
        for role in WEIGHTS:
            name = dialect.tensors.get(role, "").format(layer=layer)
            tensor = header.named.get(name)
            if tensor is not None:
                weights[layer, role] = _weight_of(files.of(tensor), path, tensor)
    texts: dict[str, str] | None = None
    needed = dialect.layout == "row264" and "encoding" in dialect.keys
    if needed:
        named = (("encoding", dialect.keys["encoding"].name), ("config", dialect.config))
        texts = {role: str(header.keys[key].value) for role, key in named if key in header.keys}
    elif dialect.config in header.keys:  # of its own accord: compared where it is there
        texts = {"config": str(header.keys[dialect.config].value)}
    whole = container_sizes.of_container(header, dialect, stored.constants, profile)

    def expected(layers: tuple[int, ...]) -> list[Expectation]:
        return [Expectation(f"in {path}", stored.constants)]

    keys = {key.name: header.keys[key.name] for key in dialect.hyperparameters if key.name in header.keys}
    return Side(path, tables, weights, expected, stored, texts, whole, dialect.name, needed, keys)


def _weight_of(file: ReadFile, path: Path, tensor: TensorInfo) -> Weight:
    kind = kind_of(tensor)
    layout = None if kind in FLOATS or not tensor.shape else row_layouts.ggml(kind, tensor.shape[0])
    if (kind not in FLOATS and layout is None) or len(tensor.shape) != 2:
        wanted = f"{' or '.join(FLOATS)} in two dimensions"
        raise FormatError(path, f"tensor {tensor.name}", wanted, f"{kind} {list(tensor.shape)}")
    shape = (tensor.shape[1], tensor.shape[0])
    if layout is None:
        return Weight(tensor.name, shape, _plain(file, tensor.start, shape, kind))
    return Weight(tensor.name, shape, _decoded(file, tensor.start, layout), exact=False, kind=kind)


def _decoded(file: ReadFile, start: int, layout: row_layouts.RowLayout) -> Band:
    def band(first: int, rows: int) -> NDArray[np.float64] | None:
        raw = file.read(start + first * layout.stored, rows * layout.stored, "a weight")
        return layout.decode(np.frombuffer(raw, np.uint8).reshape(rows, layout.stored)).astype(np.float64)

    return band


def _plain(file: ReadFile, start: int, shape: tuple[int, ...], kind: str) -> Band:
    dtype, columns = np.dtype(FLOATS[kind]), shape[1]

    def band(first: int, rows: int) -> NDArray[np.float64] | None:
        at, size = start + first * columns * dtype.itemsize, rows * columns * dtype.itemsize
        if not any(True for _ in file.data(at, at + size)):
            return None
        raw = np.frombuffer(file.read(at, size, "a weight"), dtype)
        if kind == "BF16":
            raw = (raw.astype("<u4") << np.uint32(16)).view("<f4")
        with np.errstate(invalid="ignore"):  # a signalling NaN
            return raw.astype(np.float64).reshape(rows, columns)

    return band


def _e4m3(code: int) -> float:
    """An E4M3 code's value, from the definition: bias 7, three fraction bits, no infinity."""
    exponent, fraction = code >> 3 & 15, code & 7
    if exponent == 15 and fraction == 7:
        return math.nan
    size = math.ldexp(8 + fraction, exponent - 10) if exponent else math.ldexp(fraction, -9)
    return -size if code & 128 else size


def quantised(opened: Callable[[Tensor], ReadFile], codes: Tensor, scales: Tensor) -> Band:
    """The projection: E4M3 codes, each PROJECTION_BLOCK x PROJECTION_BLOCK under one power of two."""
    file, columns, blocks = opened(codes), codes.shape[1], scales.shape[1]
    values = np.array([_e4m3(code) for code in range(256)])
    powers = np.array([math.ldexp(1.0, byte - 127) for byte in range(255)] + [math.nan])

    def band(first: int, rows: int) -> NDArray[np.float64] | None:
        if first % PROJECTION_BLOCK:
            raise EngramctlError("projection", "bands of whole scale blocks", f"row {first}")
        at, size = codes.start + first * columns, rows * columns
        if not any(True for _ in file.data(at, at + size)):
            return None
        raw = np.frombuffer(file.read(at, size, codes.name), np.uint8).reshape(rows, columns)
        under = -(-rows // PROJECTION_BLOCK)
        start = scales.start + first // PROJECTION_BLOCK * blocks
        scale = np.frombuffer(opened(scales).read(start, under * blocks, scales.name), np.uint8)
        spread = np.repeat(powers[scale.reshape(under, blocks)], PROJECTION_BLOCK, axis=1)[:, :columns]
        exact: NDArray[np.float64] = values[raw] * np.repeat(spread, PROJECTION_BLOCK, axis=0)[:rows]
        return exact

    return band


def bands(rows: int) -> Iterator[tuple[int, int]]:
    yield from ((first, min(BAND, rows - first)) for first in range(0, rows, BAND))
