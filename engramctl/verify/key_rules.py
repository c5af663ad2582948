"""Rules about keys and what they say: each says what does not hold, and never raises."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from engramctl.dialect_keys import F32_LIMIT
from engramctl.verify.loader_facts import Broken, Facts
from formats import recognise
from formats.dialects import Key
from formats.gguf_file import VERSION, Value
from formats.recognise import describe

INT64_MAX = 2**63 - 1
NAMED = 100  # entries of one key that are named; the others are counted


def version(facts: Facts) -> Iterator[Broken]:
    if facts.header.version != VERSION:
        yield "version", f"{VERSION}", f"{facts.header.version}"


def architecture(facts: Facts) -> Iterator[Broken]:
    yield from _text(facts, "general.architecture", facts.dialect.architecture)


def encoding(facts: Facts) -> Iterator[Broken]:
    name = facts.dialect.keys["encoding"].name
    if name in facts.header.keys:  # else the rule about keys says so
        yield from _text(facts, name, facts.dialect.encoding)


def _text(facts: Facts, key: str, expected: str) -> Iterator[Broken]:
    found = facts.header.keys.get(key)
    if found is None:
        yield f"key {key}", expected, "no such key"
    elif not isinstance(found.value, str):
        yield f"key {key}", expected, f"a value of type {describe(found)}"
    elif found.value != expected:
        yield f"key {key}", expected, f"{found.value!r}"[:60]


def key_types(facts: Facts) -> Iterator[Broken]:
    for key in facts.dialect.keys.values():
        for name in recognise.names_of(key, len(facts.sizes.layers)):
            yield from _type(facts, Key(name, key.type, key.also, key.tensor))


def _type(facts: Facts, key: Key) -> Iterator[Broken]:
    if key.tensor:
        held = facts.header.named.get(key.name)
        seen = None if held is None else recognise.type_of(held)
        if seen is None or not key.takes(seen):
            yield f"tensor {key.name}", f"a tensor of type {key.type}", seen or "no such tensor"
        return
    value = facts.header.keys.get(key.name)
    if value is None:
        yield f"key {key.name}", f"a key of type {key.type}", "no such key"
    elif not key.takes(found := describe(value)):
        yield f"key {key.name}", f"type {' or '.join((key.type, *key.also))}", f"{found}"


def present_types(facts: Facts) -> Iterator[Broken]:
    """As `key_types`, for the keys that are there."""
    for key in facts.dialect.keys.values():
        if key.name in facts.header.keys:
            yield from _type(facts, key)


def record(facts: Facts) -> Iterator[Broken]:
    """Whatever keeps the file from being the dialect's, as its record has it."""
    layers = recognise.layers_of(facts.header, facts.dialect)
    missing, wrong = recognise.difference(facts.header, facts.dialect, layers)
    yield from ((name, f"a key or tensor of dialect {facts.dialect.name}", "none") for name in missing)
    yield from wrong


def layer_keys(facts: Facts) -> Iterator[Broken]:
    for role, expected in (("layers", facts.sizes.layers), ("rows", facts.sizes.rows)):
        found = facts.stored.constants.get(role)
        if role in facts.dialect.keys and found is not None and found != list(expected):
            yield f"key {facts.dialect.keys[role].name}", f"{list(expected)}", f"{found[:8]}"[:80]


def counts(facts: Facts) -> Iterator[Broken]:
    sizes = facts.sizes
    counts = {
        "token_map": sizes.vocabulary,
        "moduli": len(sizes.layers) * sizes.columns,
        "multipliers": len(sizes.layers) * sizes.size,
    }
    for role, expected in counts.items():
        found = facts.stored.constants.get(role)
        if found is not None and len(found) != expected:
            yield f"key {facts.dialect.keys[role].name}", f"{expected} entries", f"{len(found)}"
    found = facts.stored.constants.get("compressed")
    if found is not None and found[0] != sizes.compressed:
        yield f"key {facts.dialect.keys['compressed'].name}", f"{sizes.compressed}", f"{found[0]}"


def _more(name: str, count: int) -> Iterator[Broken]:
    if count > NAMED:
        yield f"key {name}", "the same of every entry", f"{count - NAMED} more that are not"


def map_range(facts: Facts) -> Iterator[Broken]:
    compressed = facts.stored.constants.get("compressed", [facts.sizes.compressed])[0]
    name, listed = facts.dialect.keys["token_map"].name, facts.stored.constants.get("token_map", [])
    wrong = [(token, entry) for token, entry in enumerate(listed) if not 0 <= entry < compressed]
    for token, entry in wrong[:NAMED]:
        yield f"key {name}, token id {token}", f"a compressed id below {compressed}", f"{entry}"
    yield from _more(name, len(wrong))
    for pad in facts.stored.constants.get("pad_id", []):
        if not 0 <= pad < compressed:
            yield f"key {facts.dialect.keys['pad_id'].name}", f"a compressed id below {compressed}", f"{pad}"


def multipliers(facts: Facts) -> Iterator[Broken]:
    compressed = max(1, facts.stored.constants.get("compressed", [facts.sizes.compressed])[0])
    name = facts.dialect.keys["multipliers"].name
    listed, most = facts.stored.constants.get("multipliers", []), INT64_MAX // compressed
    wrong = [(i, number) for i, number in enumerate(listed) if number % 2 == 0 or not 0 < number <= most]
    for i, number in wrong[:NAMED]:
        yield f"key {name}, entry {i}", f"an odd number up to {most}", f"{number}"
    yield from _more(name, len(wrong))


def moduli(facts: Facts) -> Iterator[Broken]:
    name, listed = facts.dialect.keys["moduli"].name, facts.stored.constants.get("moduli", [])
    wrong = [(i, modulus) for i, modulus in enumerate(listed) if modulus < 2]
    for i, modulus in wrong[:NAMED]:
        yield f"key {name}, entry {i}", "at least 2", f"{modulus}"
    yield from _more(name, len(wrong))
    columns = facts.sizes.columns
    for number, rows in enumerate(facts.stored.constants.get("rows", [])):
        each = listed[number * columns : (number + 1) * columns]
        if len(each) == columns and sum(each) != rows:
            layer = facts.sizes.layers[number] if number < len(facts.sizes.layers) else f"number {number}"
            yield f"key {name}, layer {layer}", f"a sum of {rows}, the layer's rows", f"{sum(each)}"


def hyperparameters(facts: Facts) -> Iterator[Broken]:
    """Those that the file's own config has: each of its type and with its value."""
    if facts.text is None:
        return
    for key in facts.dialect.hyperparameters:
        expected: Any = facts.text
        for name in key.name.removeprefix(f"{facts.dialect.architecture}.").split("."):
            expected = expected.get(name) if isinstance(expected, Mapping) else None
        if expected is None:
            continue
        if key.name.endswith(".compress_ratios") and isinstance(expected, list):
            count = facts.text.get("num_hidden_layers")
            expected = expected[:count] if type(count) is int and count > 0 else expected  # the rest: draft blocks
        broken = list(_type(facts, key))
        yield from broken
        if not broken and not _same(facts.header.keys[key.name], expected):
            value = facts.header.keys[key.name].value
            shown = value.tolist() if isinstance(value, np.ndarray) else value
            yield f"key {key.name}", f"{expected!r} as in the config"[:120], f"{shown!r}"[:80]


def _same(stored: Value, expected: object) -> bool:
    value = stored.value
    if isinstance(value, np.ndarray):
        return isinstance(expected, list) and value.tolist() == expected
    if isinstance(value, float) and isinstance(expected, (int, float)):
        return abs(expected) < F32_LIMIT and bool(np.float32(value) == np.float32(expected))
    return bool(value == expected)
