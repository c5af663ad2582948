"""What is published about a model, as data: sizes, constants, names and digests, each with its source.

The facts stand in `data/NAME.toml`; this module only reads them. A checkpoint's own config decides the sizes of a run
(`config.py`); the profile gives the names and rules, and the numbers that a derivation is compared with.
"""

from __future__ import annotations

import gzip
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError

DEFAULT = "deepseek-v4.1-flash"


@dataclass(frozen=True)
class Sizes:
    """The numbers that fix every shape of a model's Engram."""

    layers: tuple[int, ...]  # decoder layers that hold a table, 0-based
    rows: tuple[int, ...]  # rows of each layer's table
    size: int  # largest n-gram order; orders run from 2
    heads: int  # columns per order
    width: int  # values in a row
    base: int  # primes are drawn from here upwards
    vocabulary: int  # token ids the tokenizer gives
    compressed: int  # ids after the token map
    pad_token_id: int  # raw; hashing uses token_map[pad_token_id]
    hidden: int  # D, width of one residual stream
    streams: int  # S, residual streams
    eps: float  # added to both mean squares in the gate

    @property
    def columns(self) -> int:
        return (self.size - 1) * self.heads

    @property
    def inputs(self) -> int:
        """K: inputs of the projection, all columns' rows side by side."""
        return self.columns * self.width

    @property
    def outputs(self) -> int:
        """N: outputs of the projection, a key per stream and then the value."""
        return (self.streams + 1) * self.hidden

    def differences(self, other: Sizes) -> dict[str, tuple[Any, Any]]:
        """Names of the sizes in which the two differ, with (mine, theirs)."""
        pairs = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


@dataclass(frozen=True)
class HashRule:
    """Where a model stands on each axis along which hashed n-gram memories differ."""

    id_space: str  # "map": ids go through a token map first
    order: str  # "newest_first": multiplier 0 meets the current token
    align: str  # "current": a short n-gram ends at the current token
    boundary: tuple[str, ...]  # what look-back may not cross
    filler: str  # "pad": what stands in a blocked slot
    sticky: bool  # a blocked slot blocks every older one
    mix: str  # "xor_mul"
    mix_scope: str  # "order": one mix serves all heads of an n-gram order


@dataclass(frozen=True)
class TensorName:
    """A tensor of the checkpoint: its name with `{layer}` in it, and its published dtype."""

    name: str
    dtype: str

    def of(self, layer: int) -> str:
        return self.name.format(layer=layer)


@dataclass(frozen=True)
class Profile:
    """A model's published facts. L layers, C columns, N n-gram size."""

    name: str
    title: str
    sizes: Sizes
    clamp: float  # lower bound of |dot| in the gate, before the square root
    rule: HashRule
    seed: int  # of the multipliers' generator
    multipliers: NDArray[np.uint64]  # [L, N]
    moduli: NDArray[np.uint64]  # [L, C], primes in V4.1
    offsets: NDArray[np.uint64]  # [L, C]
    tensors: Mapping[str, TensorName]  # by role
    config_keys: Mapping[str, tuple[str, ...]]  # a size's spellings in config.json
    digests: Mapping[str, str]
    sources: Mapping[str, str]
    facts: Mapping[str, Any]  # the whole file, for `profiles NAME --json`

    def token_map(self) -> NDArray[np.uint32]:
        """[vocabulary] compressed id of each token id, as shipped with the package."""
        packed = resources.files("engramctl").joinpath(f"data/{self.name}.token_map.u32le.gz").read_bytes()
        return np.frombuffer(gzip.decompress(packed), "<u4").astype(np.uint32)

    def real_rows(self) -> dict[int, list[dict[str, Any]]]:
        """Published digests of rows of the release, by layer."""
        text = resources.files("engramctl").joinpath(f"data/{self.name}.rows.json").read_text("utf-8")
        return {int(layer): rows for layer, rows in json.loads(text)["rows"].items()}


def names() -> list[str]:
    """The profiles that come with the package."""
    folder = resources.files("engramctl").joinpath("data")
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


@cache
def load(name: str = DEFAULT) -> Profile:
    """The profile of that name; an unknown name raises `EngramctlError` with the known ones."""
    if name not in names():
        raise EngramctlError("--profile", f"one of {', '.join(names())}", repr(name))
    facts = tomllib.loads(resources.files("engramctl").joinpath(f"data/{name}.toml").read_text("utf-8"))
    sizes, rule, constants = facts["sizes"], facts["rule"], facts["constants"]
    return Profile(
        name=facts["name"],
        title=facts["title"],
        sizes=Sizes(**_fields(sizes, layers=tuple(sizes["layers"]), rows=tuple(sizes["rows"]))),
        clamp=facts["gate"]["clamp"],
        rule=HashRule(**_fields(rule, boundary=tuple(rule["boundary"]))),
        seed=facts["derivation"]["seed"],
        multipliers=np.array(constants["multipliers"], np.uint64),
        moduli=np.array(constants["moduli"], np.uint64),
        offsets=np.array(constants["offsets"], np.uint64),
        tensors={role: TensorName(**entry) for role, entry in facts["tensors"].items() if role != "source"},
        config_keys={size: tuple(keys) for size, keys in facts["config_keys"].items() if size != "source"},
        digests={what: digest for what, digest in facts["digests"].items() if what != "source"},
        sources=facts["sources"],
        facts=facts,
    )


def _fields(table: dict[str, Any], **changed: object) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != "source"} | changed
