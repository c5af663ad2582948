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
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import rules
from engramctl.errors import EngramctlError
from engramctl.rules import HashRule

DEFAULT = "deepseek-v4.1-flash"


@dataclass(frozen=True)
class Sizes:
    """The numbers that fix every shape of a model's Engram."""

    layers: tuple[int, ...]  # decoder layers that hold a table, 0-based
    rows: tuple[int, ...]  # rows of each layer's table
    size: int  # largest n-gram order
    heads: int  # columns per order
    width: int  # values in a row
    base: int  # primes are drawn from here upwards
    vocabulary: int  # token ids the tokenizer gives
    compressed: int  # ids after the token map
    pad_token_id: int  # raw; hashing uses token_map[pad_token_id]
    hidden: int  # D, width of one residual stream
    streams: int  # S, residual streams
    eps: float  # added to both mean squares in the gate
    smallest: int = 2  # smallest n-gram order
    eos_token_id: int | None = None  # raw; ends a segment where the rule knows segments
    image_token_id: int | None = None  # raw; the placeholder that stands for a piece of an image
    ratio: float = 0.0  # of moduli to the vocabulary, where they come from it

    @property
    def columns(self) -> int:
        return (self.size - self.smallest + 1) * self.heads

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
class TensorName:
    """A tensor of the checkpoint: its name with `{layer}` (and for one of several `{i}`) in it, its published dtype."""

    name: str
    dtype: str

    def of(self, layer: int, number: int = 0) -> str:
        return self.name.format(layer=layer, i=number)


@dataclass(frozen=True)
class Storage:
    """How a checkpoint keeps the rows of a layer."""

    layout: str  # "joined": one tensor; "shards": numbered tensors one after another; "columns": a tensor per column
    encoding: str  # "e4m3_e8m0_32", "bf16", "f32"; "e4m3_scalar" may also stand in place of bf16
    shards: int = 1


@dataclass(frozen=True)
class Module:
    """What becomes of a token's rows."""

    projection: str  # "fused": keys and value in one; "key_value"; "columns": one per column; "none"
    bias: bool
    norm: str  # of the gate's weights: "product" (q times k), "plain", "one_plus", "none"
    gate: str  # "copysign" or "sign" at a dot product of 0; "none"
    kernel: int  # of the short convolution; 0 where there is none
    dilation: int
    conv_eps: float
    combine: str  # "add" to the streams, "mean" with the word embedding, "sum" onto it


@dataclass(frozen=True)
class Profile:
    """A model's published facts. L layers, C columns, N n-gram size."""

    name: str
    title: str
    sizes: Sizes
    clamp: float  # lower bound of |dot| in the gate, before the square root
    rule: HashRule
    storage: Storage
    module: Module
    derivation: Mapping[str, Any]  # how the constants are made: names of rules in `derivation.py`, and their numbers
    multipliers: NDArray[np.uint64]  # [L, N], or [L, C, N] where columns have their own
    moduli: NDArray[np.uint64]  # [L, C], primes in V4.1
    offsets: NDArray[np.uint64]  # [L, C]
    tensors: Mapping[str, TensorName]  # by role
    config_keys: Mapping[str, tuple[str, ...]]  # a size's spellings in config.json
    digests: Mapping[str, str]
    sources: Mapping[str, str]
    facts: Mapping[str, Any]  # the whole file, for `profiles NAME --json`

    unpublished: str = ""  # what a record without constants lacks; such a profile only tells

    def needs_constants(self) -> None:
        """Refuse a record without constants, by `EngramctlError`: no file can be held against it."""
        if self.unpublished:
            raise EngramctlError(f"profile {self.name}", "published constants", f"none: {self.unpublished}")

    @property
    def seed(self) -> int:
        """Of the multipliers' generator."""
        return int(self.derivation.get("seed", 0))

    def token_map(self) -> NDArray[np.uint32]:
        """[vocabulary] compressed id of each token id: the identity for raw ids, else as shipped with the package."""
        from_map = self.facts.get("token_map", {})
        if self.rule.id_space != "map":
            ids = np.arange(self.sizes.vocabulary, dtype=np.uint32)
            for token, stands_for in from_map.get("replaced", {}).items():
                ids[int(token)] = stands_for
            return ids
        name = from_map.get("of", self.name)
        packed = resources.files("engramctl").joinpath(f"data/{name}.token_map.u32le.gz")
        if not packed.is_file():
            shipped = "a token map, its own or the one of a shipped profile"
            raise EngramctlError(f"profile {self.name}", shipped, "none", "give --token-map FILE")
        return np.frombuffer(gzip.decompress(packed.read_bytes()), "<u4")[: self.sizes.vocabulary].astype(np.uint32)

    def real_rows(self) -> dict[int, list[dict[str, Any]]]:
        """Published digests of rows of the release, by layer."""
        file = resources.files("engramctl").joinpath(f"data/{self.name}.rows.json")
        text = file.read_text("utf-8") if file.is_file() else '{"rows": {}}'
        return {int(layer): rows for layer, rows in json.loads(text)["rows"].items()}


def names() -> list[str]:
    """The profiles that come with the package."""
    folder = resources.files("engramctl").joinpath("data")
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load(name: str = DEFAULT) -> Profile:
    """The profile of that name, `NAME:VARIANT` for one of its variants, or of a file.toml, which may
    have variants too.

    An unknown name raises `EngramctlError` with the known ones, a bad file one with the place in it.
    """
    from engramctl import profile_file

    file, _, variant = name.partition(f"{profile_file.SUFFIX}:")
    if name.endswith(profile_file.SUFFIX):
        file, variant = name.removesuffix(profile_file.SUFFIX), ""
    if file != name:
        facts = profile_file.read(Path(f"{file}{profile_file.SUFFIX}"))
        if variant:
            profile_file.check(facts, name)
            facts = with_variant(facts, variant)
        return build(facts, name)
    return _shipped(name)


@cache
def _shipped(name: str) -> Profile:
    base, _, variant = name.partition(":")
    if base not in names():
        raise EngramctlError("--profile", f"one of {', '.join(names())}, or a file.toml", repr(name))
    facts = tomllib.loads(resources.files("engramctl").joinpath(f"data/{base}.toml").read_text("utf-8"))
    return build(with_variant(facts, variant) if variant else facts, name)


def fitting(name: str | None, config: Mapping[str, Any] | None) -> Profile:
    """The profile that was asked for; else the one that knows the config's model type; else the default."""
    kind = None if config is None else config.get("model_type")
    if name is None and isinstance(kind, str):
        for known in map(load, (DEFAULT, *names())):  # the default first: it is the usual one
            if kind in known.facts.get("model_types", ()):
                return known
    return load(name or DEFAULT)


def with_variant(facts: dict[str, Any], variant: str) -> dict[str, Any]:
    """The facts with a variant's tables laid over them; an unknown one raises `EngramctlError`."""
    known = facts.get("variants", {})
    if variant not in known:
        named = ", ".join(f"{facts['name']}:{each}" for each in known) or "none"
        raise EngramctlError("--profile", f"a variant of {facts['name']}: {named}", repr(variant))
    changed = {key: value for key, value in known[variant].items() if isinstance(value, dict)}
    laid = {table: facts.get(table, {}) | values for table, values in changed.items()}
    return (
        facts | laid | {"name": f"{facts['name']}:{variant}", "title": f"{facts['title']}, {known[variant]['title']}"}
    )


def build(facts: dict[str, Any], where: str) -> Profile:
    """The profile of such facts; what is missing, odd or undefined raises `EngramctlError`."""
    from engramctl import profile_file

    profile_file.check(facts, where)
    sizes, constants = facts["sizes"], facts.get("constants", {})
    return Profile(
        name=facts["name"],
        title=facts["title"],
        sizes=Sizes(**_fields(sizes, layers=tuple(sizes["layers"]), rows=tuple(sizes["rows"]))),
        clamp=facts["module"]["clamp"],
        rule=rules.read(facts["rule"], where),
        storage=Storage(**_fields(facts["storage"])),
        module=Module(**_fields({k: v for k, v in facts["module"].items() if k != "clamp"})),
        derivation=_fields(facts["derivation"]),
        multipliers=_array(constants, "multipliers"),
        moduli=_array(constants, "moduli"),
        offsets=_array(constants, "offsets"),
        tensors={role: TensorName(**entry) for role, entry in _fields(facts["tensors"]).items()},
        config_keys={size: tuple(keys) for size, keys in _fields(facts.get("config_keys", {})).items()},
        digests=_fields(facts.get("digests", {})),
        sources=facts["sources"],
        facts=facts,
        unpublished=facts.get("unpublished", ""),
    )


def _array(constants: dict[str, Any], name: str) -> NDArray[np.uint64]:
    return np.array(constants.get(name, [[]]), np.uint64)


def _fields(table: dict[str, Any], **changed: object) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != "source"} | changed
