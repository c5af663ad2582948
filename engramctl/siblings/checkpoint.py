"""A sibling's safetensors checkpoint as a source: config, index, shards and stored constants, checked at the door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import derivation
from engramctl.errors import EngramctlError
from engramctl.hash_params import HashParams
from engramctl.profiles import Profile, Sizes
from engramctl.siblings import config as configs
from engramctl.siblings import tensors as shapes
from engramctl.siblings.table import PlainTable
from engramctl.source import FoundMap, Weights, fitting_map, profile_map, subset, subset_params
from engramctl.table import Part, Table
from formats import safetensors_raw
from formats.closing import Closing
from formats.disk import ReadFile
from formats.errors import FormatError
from formats.floats import from_bf16
from formats.row_plain import PlainRows
from formats.safetensors_raw import Tensor

DIALECT = "hf"
PICKLE = "engram_weights.pt"  # engram-peft's other form
NUMPY = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8"}


@dataclass
class SiblingCheckpoint(Closing):
    """An opened checkpoint of a model whose rows are plain numbers."""

    path: Path
    profile: Profile  # with what the config decides
    sizes: Sizes
    whole: Sizes  # as the config states them, whatever layers were asked for
    config: Mapping[str, Any] | None
    config_text: str | None
    tensors: Mapping[shapes.Key, Tensor]
    given_map: FoundMap | None = None
    dialect: str = DIALECT
    _files: dict[Path, ReadFile] = field(default_factory=dict)
    _params: HashParams | None = None

    def file(self, tensor: Tensor) -> ReadFile:
        if tensor.path not in self._files:
            self._files[tensor.path] = ReadFile.open(tensor.path)
        return self._files[tensor.path]

    def numbers(self, role: str, layer: int) -> list[Tensor]:
        """The tensors of a role, by their number."""
        found = {key[2]: tensor for key, tensor in self.tensors.items() if key[:2] == (layer, role)}
        return [found[number] for number in sorted(found)]

    def table(self, layer: int) -> PlainTable:
        pieces = self.numbers("table", layer)
        layout = PlainRows(pieces[0].dtype, self.sizes.width, self.scale(layer))
        return PlainTable(
            layer,
            tuple(Table(layer, t.shape[0], (Part(self.file(t), t.start, layout.row_bytes),)) for t in pieces),
            layout,
        )

    def scale(self, layer: int) -> np.float32:
        """The scale of an E4M3 table; without one, or with one that is no positive number, it is refused."""
        tables, scales = self.numbers("table", layer), self.numbers("table_scale", layer)
        if tables[0].dtype != shapes.SCALED:
            return np.float32(1)
        if not scales:
            name = self.profile.tensors["table_scale"].of(layer)
            raise FormatError(self.path, None, f"a tensor {name}: the scale of an F8_E4M3 table", "none")
        scale = np.float32(self.floats("table_scale", layer)[0].reshape(-1)[0])
        if not (np.isfinite(scale) and scale > 0):
            raise FormatError(scales[0].path, scales[0].name, "a scale above 0", f"{scale}")
        return scale

    @property
    def table_alone(self) -> bool:
        """Are the module's weights somewhere else?"""
        roles = shapes.module_roles(self.profile)
        return bool(roles) and not any(role in roles for _, role, _ in self.tensors)

    def floats(self, role: str, layer: int) -> list[NDArray[np.float32]]:
        """The tensors of a role as F32, which holds each exactly; a role that the model does not have gives none."""
        if role in shapes.module_roles(self.profile) and self.table_alone:
            name = self.profile.tensors[role].of(layer)
            raise FormatError(self.path, None, f"a tensor {name}", "none: this checkpoint holds the table alone")
        return [as_f32(self.array(tensor), tensor.dtype) for tensor in self.numbers(role, layer)]

    def array(self, tensor: Tensor) -> NDArray[Any]:
        """A tensor's numbers, whole, in memory."""
        data = self.file(tensor).read(tensor.start, tensor.end - tensor.start, tensor.name)
        return np.frombuffer(data, NUMPY[tensor.dtype]).reshape(tensor.shape)

    def weights(self, layer: int) -> Weights:
        raise EngramctlError(f"profile {self.profile.name}", "a fused projection", "another module")

    def token_map(self) -> FoundMap:
        sizes = self.whole
        if self.given_map is not None:
            found = self.given_map
            return fitting_map(found, replace(sizes, vocabulary=sizes.vocabulary or found.ids.size), self.path)
        tokenizer = self.path / "tokenizer.json"
        if self.profile.rule.id_space == "map" and self.path.is_dir() and tokenizer.exists():
            from engramctl import vocabulary

            ids = vocabulary.build(vocabulary.load_tokenizer(tokenizer), tokenizer)
            found = FoundMap(ids, "the checkpoint's tokenizer.json")
            return fitting_map(found, replace(sizes, vocabulary=sizes.vocabulary or ids.size), tokenizer)
        if self.profile.rule.id_space != "map":
            own = replace(self.profile, sizes=sizes)
            return FoundMap(own.token_map(), "none: ids are hashed as they are")
        return profile_map(self.profile, sizes, self.path)

    def params(self) -> HashParams:
        """The constants that the checkpoint stores, where it stores any; else published or derived ones; checked."""
        if self._params is None:
            made, stored = self.expected(), self.stored()
            for name, layers in stored.items():
                array = getattr(made, name).copy()
                for number, layer in enumerate(self.sizes.layers):
                    array[number] = layers[layer]
                made = replace(made, **{name: array})
            self._params = made.check(str(self.path))
        return self._params

    def expected(self) -> HashParams:
        """What the sizes give: the published constants where they are the profile's, else derived ones."""
        whole = derivation.expected(self.profile, self.whole, self.token_map().ids)
        return subset_params(whole, self.sizes.layers)

    def stored(self) -> dict[str, dict[int, NDArray[np.uint64]]]:
        """The constants in tensors, by name and layer; negative ones are refused."""
        found: dict[str, dict[int, NDArray[np.uint64]]] = {}
        for (layer, role, _), tensor in self.tensors.items():
            if role in shapes.CONSTANTS:
                array = self.array(tensor)
                if array.size and int(array.min()) < 0:
                    raise FormatError(tensor.path, tensor.name, "constants of at least 0", f"{array.min()}")
                found.setdefault(role, {})[layer] = array.astype(np.uint64)
        return found

    def stored_name(self, role: str) -> str:
        return self.profile.tensors[role].name.rpartition(".")[2]

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


def as_f32(array: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    return from_bf16(array) if dtype == "BF16" else array.astype(np.float32)


def read_sizes(path: Path, profile: Profile, config: dict[str, Any] | None, named: bool) -> tuple[Profile, Sizes]:
    """The sizes that the config states; without one, or without keys for them, those of the profile: then it must have
    been asked for."""
    if config is not None and (profile.config_keys or not named):
        return configs.read(config, profile, str(path / safetensors_raw.CONFIG_NAME))
    if not named:
        raise EngramctlError(str(path), "a config.json", "none", "give --profile NAME to take the sizes from a profile")
    return profile, profile.sizes


def open_checkpoint(
    path: Path,
    profile: Profile,
    config_text: str | None,
    config: dict[str, Any] | None,
    token_map: FoundMap | None = None,
    layers: tuple[int, ...] | None = None,
    named: bool = True,
) -> SiblingCheckpoint:
    """Open a folder or one safetensors file; whatever does not fit together raises `FormatError`."""
    if not profile.tensors:
        raise EngramctlError(f"profile {profile.name}", "a model with public weights", "none to read")
    if (path / PICKLE).exists() and not any(path.glob("*.safetensors")):
        hint = "save the adapter as safetensors"
        raise EngramctlError(str(path), "a safetensors file", f"{PICKLE} alone, a pickle: code, not data", hint)
    profile, whole = read_sizes(path, profile, config, named)
    for layer in layers or ():
        if layer not in whole.layers:
            raise EngramctlError("--layers", f"layers among {', '.join(map(str, whole.layers))}", f"{layer}")
    sizes = subset(whole, layers or whole.layers)
    wanted = {key: want for layer in sizes.layers for key, want in shapes.wanted(profile, whole, layer).items()}
    names = {want.name for want in wanted.values()}
    found = safetensors_raw.read_checkpoint(path, lambda name: name in names)
    tensors: dict[shapes.Key, Tensor] = {}
    module = {key for key in wanted if key[1] in shapes.module_roles(profile)}
    alone = not any(wanted[key].name in found.tensors for key in module)  # a table without its module has uses too
    for key, want in wanted.items():
        if want.name in found.tensors:
            tensors[key] = shapes.check(found.tensors[want.name], want)
        elif not want.optional and not (alone and key in module):
            raise FormatError(path, None, f"a tensor {want.name}", "none in its shards")
    _one_dtype(tensors)
    source = SiblingCheckpoint(path, profile, sizes, whole, config, config_text, tensors, token_map)
    try:
        for layer in sizes.layers:
            source.scale(layer)
    except BaseException:
        source.close()
        raise
    return source


def _one_dtype(tensors: Mapping[shapes.Key, Tensor]) -> None:
    """All pieces of a layer's table have the first one's dtype."""
    for (layer, role, number), tensor in tensors.items():
        first = tensors.get((layer, role, 0))
        if role == "table" and number and first is not None and tensor.dtype != first.dtype:
            raise FormatError(tensor.path, tensor.name, f"{first.dtype} as in {first.name}", tensor.dtype)
