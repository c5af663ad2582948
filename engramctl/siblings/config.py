"""A sibling's config.json: its sizes, and what else the config decides (shards, kernel, seed, padding).

Each model spells these its own way, and some say them by way of others; that is what a function per kind is for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engramctl import config as configs
from engramctl import derivation
from engramctl.config import MOST
from engramctl.hash_params import MOST_COLUMNS
from engramctl.profiles import Profile, Sizes
from formats.errors import FormatError, shown


class Reader:
    """One config: its keys by any of their spellings, each checked; what is missing or odd raises `FormatError`."""

    def __init__(self, config: dict[str, Any], profile: Profile, path: str) -> None:
        self.part, self.whole = configs.text_part(config, path), config
        self.keys, self.path = profile.config_keys, path

    def raw(self, size: str, default: Any = None) -> Any:  # noqa: ANN401 - whatever the config holds
        for part in (self.part, self.whole):
            for key in self.keys[size]:
                if part.get(key) is not None:
                    return part[key]
        if default is None:
            raise FormatError(self.path, "config", " or ".join(self.keys[size]), "no such key")
        return default

    def integer(self, size: str, least: int = 1, most: int = 1 << 24, default: int | None = None) -> int:
        value = self.raw(size, default)
        if type(value) is not int or not least <= value <= most:
            self.refuse(size, f"a whole number from {least} to {most}", value)
        return int(value)

    def integers(self, size: str, least: int, most: int) -> tuple[int, ...]:
        value = self.raw(size)
        if (
            not isinstance(value, list)
            or not 1 <= len(value) <= MOST["layers"]
            or not all(type(x) is int and least <= x <= most for x in value)
        ):
            self.refuse(size, f"a list of whole numbers from {least} to {most}", value)
        return tuple(value)

    def number(self, size: str) -> float:
        value = self.raw(size)
        if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value < 2**20:
            self.refuse(size, "a number from 0", value)
        return float(value)

    def refuse(self, size: str, expected: str, found: object) -> None:
        raise FormatError(self.path, f"config.{self.keys[size][0]}", expected, f"{shown(found):.40}")


def read(config: dict[str, Any], profile: Profile, path: str) -> tuple[Profile, Sizes]:
    """The sizes that a config states, and the profile with what else it decides."""
    return KINDS[profile.facts.get("config", "plain")](Reader(config, profile, path), profile)


def _with_rows(profile: Profile, sizes: Sizes, reader: Reader) -> tuple[Profile, Sizes]:
    if not 1 <= sizes.columns * len(sizes.layers) <= MOST_COLUMNS:
        raise FormatError(reader.path, "config", f"1 to {MOST_COLUMNS} hash columns", f"{sizes.columns}")
    return profile, replace(sizes, rows=derivation.rows(profile, sizes))


def _plain(reader: Reader, profile: Profile) -> tuple[Profile, Sizes]:
    """Keys that state each size as it is."""
    return profile, configs.read_sizes(dict(reader.whole), profile, reader.path)


def _ple(reader: Reader, profile: Profile) -> tuple[Profile, Sizes]:
    """Layers are counted from 1, a row's width follows from the inputs, rows from the primes and the padding."""
    layers = tuple(sorted({layer - 1 for layer in reader.integers("layers", 1, 4096)}))
    size, heads = reader.integer("size", 2, MOST["size"]), reader.integer("heads", 1, MOST["heads"])
    inputs, columns = reader.integer("inputs"), (size - 1) * heads
    if inputs % columns:
        reader.refuse("inputs", f"a multiple of the {columns} columns", inputs)
    vocabulary = reader.integer("vocabulary", 1, MOST["vocabulary"])
    eos = reader.raw("eos_token_id")
    eos = eos[0] if isinstance(eos, list) and eos else eos  # as transformers; llama.cpp's converter takes the last
    if type(eos) is not int or not 0 <= eos < vocabulary:
        reader.refuse("eos_token_id", f"a token id below {vocabulary}", eos)
    image = reader.raw("image_token_id", -1)
    if type(image) is not int or not -1 <= image < vocabulary:
        reader.refuse("image_token_id", f"a token id below {vocabulary}", image)
    padding, kernel = reader.integer("padding", default=1), reader.integer("kernel", 1, 64)
    made = replace(
        profile,
        storage=replace(profile.storage, shards=reader.integer("shards", 1, 4096)),
        module=replace(profile.module, kernel=kernel, dilation=size, conv_eps=reader.number("eps")),
        derivation=dict(profile.derivation)
        | {"padding": padding, "seed": reader.integer("seed", 0, 2**63, default=profile.seed)},
    )
    sizes = Sizes(
        layers, (), size, heads, inputs // columns, reader.integer("base", 1, MOST["base"]), vocabulary, vocabulary,
        pad_token_id=eos, hidden=reader.integer("hidden", 1, MOST["hidden"]),
        streams=reader.integer("streams", 1, MOST["streams"]), eps=reader.number("eps"), eos_token_id=eos,
        image_token_id=None if image < 0 else image,
    )  # fmt: skip
    made, sizes = _with_rows(made, sizes, reader)
    if any(rows % made.storage.shards for rows in sizes.rows):
        reader.refuse("shards", f"shards that share {sizes.rows[0]} rows evenly", made.storage.shards)
    return made, sizes


def _longcat(reader: Reader, profile: Profile) -> tuple[Profile, Sizes]:
    """Everything follows from the vocabulary, the ratio and the two counts."""
    size, heads = reader.integer("size", 2, MOST["size"]), reader.integer("heads", 1, MOST["heads"])
    vocabulary, hidden = (
        reader.integer("vocabulary", 1, MOST["vocabulary"]),
        reader.integer("hidden", 1, MOST["hidden"]),
    )
    columns, ratio = (size - 1) * heads, reader.number("ratio")
    if hidden % columns:
        reader.refuse("hidden", f"a multiple of the {columns} tables", hidden)
    if not 1 <= ratio * vocabulary < MOST["base"]:
        reader.refuse("ratio", "tables of at least one row: a ratio of 0 means none", ratio)
    sizes = Sizes(
        (-1,), (), size, heads, hidden // columns, int(ratio * vocabulary), vocabulary, vocabulary, pad_token_id=0,
        hidden=hidden, streams=1, eps=0.0, eos_token_id=reader.integer("eos_token_id", 0, vocabulary - 1), ratio=ratio,
    )  # fmt: skip
    return _with_rows(profile, sizes, reader)


def _peft(reader: Reader, profile: Profile) -> tuple[Profile, Sizes]:
    """An order's rows are stated as a total; the tokenizer is not in the adapter, only its compressed size."""
    if reader.part.get("engine", "deepseek") != "deepseek":
        found = f"{shown(reader.part['engine']):.40}"
        raise FormatError(reader.path, "config.engine", "deepseek: other engines are not defined here", found)
    orders, totals = reader.integers("orders", 2, MOST["size"]), reader.integers("totals", 1, MOST["base"])
    if list(orders) != list(range(orders[0], orders[0] + len(orders))) or orders[0] != 2:
        reader.refuse("orders", "orders 2, 3, ... without a gap: others are not defined here", list(orders))
    if len(set(totals)) != 1 or len(totals) != len(orders):
        reader.refuse("totals", f"{len(orders)} equal totals: others are not defined here", list(totals))
    heads, inputs = reader.integer("heads", 1, MOST["heads"]), reader.integer("inputs")
    if inputs % (len(orders) * heads):
        reader.refuse("inputs", f"a multiple of the {len(orders) * heads} columns", inputs)
    compressed, shipped = reader.integer("compressed", 1, MOST["compressed"]), profile.sizes
    dilation = reader.integer("dilation", 1, 4096, default=orders[-1])
    made = replace(
        profile,
        module=replace(profile.module, kernel=reader.integer("kernel", 1, 64), dilation=dilation),
        derivation=dict(profile.derivation) | {"seed": reader.integer("seed", 0, 2**63, default=0)},
    )
    sizes = Sizes(
        tuple(sorted(set(reader.integers("layers", 0, 4096)))), (), orders[-1], heads,
        inputs // (len(orders) * heads), totals[0] // heads,
        shipped.vocabulary if compressed == shipped.compressed else 0, compressed,
        pad_token_id=reader.integer("pad_token_id", 0, MOST["vocabulary"]),
        hidden=reader.integer("hidden", 1, MOST["hidden"]), streams=reader.integer("streams", 1, MOST["streams"]),
        eps=shipped.eps,
    )  # fmt: skip
    return _with_rows(made, sizes, reader)


def _blt(reader: Reader, profile: Profile) -> tuple[Profile, Sizes]:
    """Groups without a gap, one hash function."""
    orders = reader.integers("orders", 2, MOST["size"])
    if list(orders) != list(range(orders[0], orders[0] + len(orders))):
        reader.refuse("orders", "group sizes without a gap: others are not defined here", list(orders))
    if reader.integer("functions") != 1:
        reader.refuse("functions", "1: more hash functions are not defined here", reader.raw("functions"))
    encoder = reader.whole.get("encoder_config", {})
    hidden = encoder.get("hidden_size") if isinstance(encoder, dict) else None
    if type(hidden) is not int or not 1 <= hidden <= MOST["hidden"]:
        raise FormatError(reader.path, "config.encoder_config.hidden_size", "a whole number", f"{shown(hidden):.40}")
    base = reader.integer("base", 1, MOST["base"])
    sizes = replace(
        profile.sizes, rows=(), smallest=orders[0], size=orders[-1], heads=1, width=hidden, base=base, hidden=hidden
    )
    return _with_rows(profile, sizes, reader)


KINDS: dict[str, Callable[[Reader, Profile], tuple[Profile, Sizes]]] = {
    "plain": _plain,
    "ple": _ple,
    "longcat": _longcat,
    "peft": _peft,
    "blt": _blt,
}
