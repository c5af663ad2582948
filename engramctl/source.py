"""A source: whatever holds tables, opened once and checked at the door. Checkpoints and containers answer the same
questions.

The token map is, in this order: the one given; the container's own; the checkpoint's tokenizer.json; the one shipped
with
the profile, if its count and compressed size fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

import numpy as np
from numpy.typing import NDArray

from engramctl import kinds, profiles
from engramctl.errors import EngramctlError
from engramctl.hash_params import HashParams
from engramctl.profiles import Profile, Sizes
from engramctl.projection import Projection
from engramctl.table import Table
from formats import row264
from formats.disk import ReadFile
from formats.errors import FormatError

if TYPE_CHECKING:
    from formats.gguf_file import GgufHeader

V41_ROWS = "e4m3_e8m0_32"  # the encoding whose sources are `checkpoint` and `container`; others are in `siblings`


@dataclass(frozen=True)
class FoundMap:
    """A token map and where it came from."""

    ids: NDArray[np.uint32]
    origin: str


@dataclass(frozen=True)
class Weights:
    """One layer's projection, which stays in the file until it is used, and gate weights, BF16 bits [S, D]."""

    projection: Projection
    q_weight: NDArray[np.uint16]
    k_weight: NDArray[np.uint16]


class Source(Protocol):
    """What the pipeline and the checks need to know of a checkpoint or a container."""

    path: Path
    dialect: str
    profile: Profile
    whole: Sizes  # the model's, as this source states them
    sizes: Sizes  # the same, with only the layers that this source holds or that were asked for
    config: Mapping[str, Any] | None

    def table(self, layer: int) -> Table: ...
    def weights(self, layer: int) -> Weights: ...
    def token_map(self) -> FoundMap: ...
    def params(self) -> HashParams: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


def open_source(
    path: str | Path,
    profile: str | None = None,
    token_map: FoundMap | None = None,
    layers: tuple[int, ...] | None = None,
) -> Source:
    """The checkpoint (folder or safetensors file) or container (GGUF) at `path`.

    `profile` is the name that was asked for, None if none was: a checkpoint without a config needs one.
    """
    from engramctl.checkpoint import open_checkpoint, read_config
    from engramctl.container import open_container

    path = Path(path)
    kinds.refuse_other(path, kinds.SOURCES, (kinds.GGUF,))
    if path.is_dir() or not is_container(path):
        config_text, config = read_config(path)
        known = profiles.fitting(profile, config)
        if known.storage.encoding != V41_ROWS:
            from engramctl.siblings import checkpoint as siblings

            named_one = profile is not None
            made = siblings.open_checkpoint(path, known, config_text, config, token_map, layers, named_one)
            return cast(Source, made)  # its tables are plain ones: whoever wants one asks `siblings.opened`
        opened = open_checkpoint(path, profile, token_map, layers)
        if opened.sizes.width != row264.WIDTH:
            opened.close()
            raise EngramctlError(str(path), f"rows of {row264.WIDTH} values", f"{opened.sizes.width}")
        return opened
    from formats.gguf_split import read_model

    header = read_model(path)
    if is_ple(header):
        from engramctl.siblings import container as ple

        return cast(Source, ple.open_named(path, profile, header))
    return open_container(path, profiles.load(profile or profiles.DEFAULT), token_map, header)


def named(header: GgufHeader) -> str | None:
    """The architecture that a container names, if it names one."""
    value = header.keys.get("general.architecture")
    return value.value if value is not None and isinstance(value.value, str) else None


def is_ple(header: GgufHeader) -> bool:
    """Does a container name an architecture that keeps Qwen3.8's table?"""
    from formats import ple_gguf

    return named(header) in [dialect.architecture for dialect in ple_gguf.DIALECTS]


def is_container(path: Path) -> bool:
    """Does the file begin as a GGUF?"""
    from formats.gguf_write import MAGIC

    with ReadFile.open(path) as file:
        return file.size >= len(MAGIC) and file.read(0, len(MAGIC), "magic") == MAGIC


def the_layer(source: Source, layer: int | None) -> int:
    """The layer asked for, or the only one; otherwise `EngramctlError` with those there are."""
    have = source.sizes.layers
    if layer is None and len(have) == 1:
        return have[0]
    if layer is None or layer not in have:
        raise EngramctlError("--layer", f"one of {', '.join(map(str, have))}", "none" if layer is None else f"{layer}")
    return layer


def fitting_map(found: FoundMap, sizes: Sizes, path: str | Path) -> FoundMap:
    """The map, if its count and compressed size are the source's; else `FormatError`."""
    if found.ids.size != sizes.vocabulary:
        raise FormatError(
            path,
            None,
            f"{sizes.vocabulary} token map entries as the config says",
            f"{found.ids.size} in {found.origin}",
        )
    count = int(found.ids.max()) + 1
    if count != sizes.compressed:
        raise FormatError(
            path, None, f"{sizes.compressed} compressed ids as the config says", f"{count} in {found.origin}"
        )
    return found


def profile_map(profile: Profile, sizes: Sizes, path: Path) -> FoundMap:
    """The map shipped with the profile, where it fits; else `EngramctlError` that names the ways on."""
    if (sizes.vocabulary, sizes.compressed) == (profile.sizes.vocabulary, profile.sizes.compressed):
        return FoundMap(profile.token_map(), f"profile {profile.name}")
    want = f"a token map of {sizes.vocabulary} ids in {sizes.compressed} classes"
    raise EngramctlError(
        str(path),
        want,
        f"none, and profile {profile.name}'s has other sizes",
        "give --token-map FILE, or put tokenizer.json into the checkpoint",
    )


def subset(sizes: Sizes, layers: tuple[int, ...]) -> Sizes:
    """The sizes with only these layers, in the model's order."""
    kept = [i for i, layer in enumerate(sizes.layers) if layer in layers]
    return replace(sizes, layers=tuple(sizes.layers[i] for i in kept), rows=tuple(sizes.rows[i] for i in kept))


def subset_params(params: HashParams, layers: tuple[int, ...]) -> HashParams:
    """The constants of only these layers, in the model's order."""
    kept = [i for i, layer in enumerate(params.layers) if layer in layers]
    return replace(
        params,
        layers=tuple(params.layers[i] for i in kept),
        rows=tuple(params.rows[i] for i in kept),
        multipliers=params.multipliers[kept],
        moduli=params.moduli[kept],
        offsets=params.offsets[kept],
    )
