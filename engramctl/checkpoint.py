"""A safetensors checkpoint as a source: config, index and shards checked against each other and against the sizes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import config as configs
from engramctl import kinds, profiles, shapes
from engramctl.errors import EngramctlError
from engramctl.hash_params import HashParams, derive, published
from engramctl.profiles import Profile, Sizes
from engramctl.projection import Projection
from engramctl.source import FoundMap, Weights, fitting_map, profile_map, subset, subset_params
from engramctl.table import Part, Table
from formats import safetensors_raw
from formats.closing import Closing
from formats.disk import ReadFile
from formats.errors import FormatError
from formats.safetensors_raw import Tensor

DIALECT = "hf"


@dataclass
class CheckpointSource(Closing):
    """An opened checkpoint. Only shards that hold a needed tensor were looked at."""

    path: Path
    profile: Profile
    sizes: Sizes
    whole: Sizes  # as the config states them, whatever layers were asked for
    config: Mapping[str, Any] | None
    config_text: str | None
    tensors: Mapping[tuple[int, str], Tensor]  # by layer and role
    given_map: FoundMap | None = None
    dialect: str = DIALECT
    _files: dict[Path, ReadFile] = field(default_factory=dict)
    _params: HashParams | None = None

    def file(self, tensor: Tensor) -> ReadFile:
        if tensor.path not in self._files:
            self._files[tensor.path] = ReadFile.open(tensor.path)
        return self._files[tensor.path]

    def table(self, layer: int) -> Table:
        parts = []
        for role in ("codes", "scales"):
            tensor = self.tensors[layer, role]
            parts.append(Part(self.file(tensor), tensor.start, tensor.shape[1]))
        return Table(layer, self.tensors[layer, "codes"].shape[0], tuple(parts))

    def array(self, layer: int, role: str, dtype: str = "u1") -> NDArray[Any]:
        """A tensor's numbers, whole, in memory."""
        tensor = self.tensors[layer, role]
        data = self.file(tensor).read(tensor.start, tensor.end - tensor.start, tensor.name)
        return np.frombuffer(data, dtype).reshape(tensor.shape)

    def weights(self, layer: int) -> Weights:
        tensor = self.tensors[layer, "projection"]
        N, K = tensor.shape

        def rows(first: int, last: int) -> NDArray[np.uint8]:
            codes = np.empty((last - first, K), np.uint8)
            self.file(tensor).read_into(codes.data, tensor.start + first * K, tensor.name)
            return codes

        projection = Projection((N, K), rows, self.array(layer, "projection_scale"))
        return Weights(projection, self.array(layer, "q_weight", "<u2"), self.array(layer, "k_weight", "<u2"))

    def token_map(self) -> FoundMap:
        if self.given_map is not None:
            return fitting_map(self.given_map, self.whole, self.path)
        tokenizer = self.path / "tokenizer.json"
        if self.path.is_dir() and os.path.lexists(tokenizer):  # a link that leads nowhere is an error, not none
            from engramctl import vocabulary

            ids = vocabulary.build(vocabulary.load_tokenizer(tokenizer), tokenizer)
            return fitting_map(FoundMap(ids, "the checkpoint's tokenizer.json"), self.whole, tokenizer)
        return profile_map(self.profile, self.whole, self.path)

    def params(self) -> HashParams:
        """Derived from the config's sizes, or the published constants where the sizes are the profile's; checked."""
        if self._params is None:
            token_map = self.token_map().ids
            if self.whole == self.profile.sizes:
                whole = published(self.profile, token_map)
            else:
                whole = derive(self.whole, token_map, self.profile.seed)
            self._params = subset_params(whole, self.sizes.layers).check(str(self.path))
        return self._params

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


def open_checkpoint(
    path: Path,
    profile_name: str | None = None,
    token_map: FoundMap | None = None,
    layers: tuple[int, ...] | None = None,
) -> CheckpointSource:
    """Open a folder or one safetensors file; whatever does not fit together raises `FormatError`.

    Without a config the sizes are those of the profile, which then must be asked for by name.
    """
    profile = profiles.load(profile_name or profiles.DEFAULT)
    refuse = kinds.refuse_other if path.suffix == ".safetensors" else kinds.refuse_unknown
    refuse(path, kinds.CHECKPOINT)
    config_text, config = read_config(path)
    if config is None and profile_name is None:
        raise EngramctlError(str(path), "a config.json", "none", "give --profile NAME to take the sizes from a profile")
    config_path = str(path / safetensors_raw.CONFIG_NAME)
    whole = profile.sizes if config is None else configs.read_sizes(config, profile, config_path)
    for layer in layers or ():
        if layer not in whole.layers:
            raise EngramctlError("--layers", f"layers among {', '.join(map(str, whole.layers))}", f"{layer}")
    sizes = subset(whole, layers or whole.layers)
    names = {profile.tensors[role].of(layer): (layer, role) for layer in sizes.layers for role in profile.tensors}
    found = safetensors_raw.read_checkpoint(path, lambda name: name in names)
    tensors: dict[tuple[int, str], Tensor] = {}
    for name, (layer, role) in names.items():
        if name not in found.tensors:
            raise FormatError(path, None, f"a tensor {name}", "none in its shards")
        tensors[layer, role] = shapes.check(found.tensors[name], role, sizes, layer, profile)
    return CheckpointSource(path, profile, sizes, whole, config, config_text, tensors, token_map)


def read_config(path: Path) -> tuple[str | None, dict[str, Any] | None]:
    """A checkpoint folder's config.json, verbatim and parsed; a single file has none."""
    if not path.exists():
        raise FormatError(path, None, "a checkpoint folder or a safetensors file", "nothing there")
    text = safetensors_raw.read_config(path) if path.is_dir() else None
    return (None, None) if text is None else (text, configs.parse(text, str(path / safetensors_raw.CONFIG_NAME)))


def profile_of(path: Path | None, name: str | None) -> Profile:
    """The profile that was asked for; else the one whose model a checkpoint folder's config names; else the default."""
    return profiles.fitting(name, read_config(path)[1] if path is not None and path.is_dir() else None)
