"""A profile as a TOML file, the shipped ones' form: every table, key, kind and range, checked before anything is made.

A user's own profile comes through here too: what is missing, unknown or odd is named with its place in the file.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

from engramctl import profile_fit
from engramctl.config import LEAST, MOST
from engramctl.errors import EngramctlError
from engramctl.rules import HashRule
from formats.disk import ReadFile
from formats.errors import FormatError, shown
from formats.row264 import WIDTH

SUFFIX = ".toml"
MOST_BYTES = 1 << 18  # 64 layers of 16 columns, each with 5 multipliers, take half of it
# tomllib takes time and memory in the square of a key's parts and of a decimal number's digits
MOST_DOTS, MOST_DIGITS = 64, 64  # in a line; the shipped ones have 8 dots
LONG_NUMBER = re.compile(rf"(?:[0-9]_?){{{MOST_DIGITS + 1}}}|0x(?:[0-9A-Fa-f]_?){{{MOST_DIGITS + 1}}}")
U64 = 2**64
MOST_LEVELS = 8  # of tables and lists in each other: the shipped ones have 5
MOST_LAYER = 4096

NUMBERS = ("size", "heads", "width", "base", "vocabulary", "compressed", "pad_token_id", "hidden", "streams")
OPTIONAL_NUMBERS = {"smallest": 2, "eos_token_id": 0, "image_token_id": 0}  # with the least of each
FLOATS = {"eps": True, "ratio": False}  # whether it must be there
MODULI = ("unused_primes", "odd_walk", "constant", "explicit")
MULTIPLIERS = ("pcg64", "splitmix64", "vocabulary", "powers", "explicit")
TABLES = {"name", "title", "sources", "sizes", "rule", "storage", "module", "derivation", "constants", "tensors"}
MORE_TABLES = {
    "config_keys",
    "digests",
    "shards",
    "token_map",
    "images",
    "variants",
    "unpublished",
    "config",
    "model_types",
}
CONFIGS = ("plain", "ple", "longcat", "peft", "blt")  # ways in which a config.json states the sizes

# What some implementation has: (layout, encoding) of storage; (projection, norm, gate, combine) of module.
STORAGES = {("joined", "e4m3_e8m0_32"), ("joined", "f32"), ("joined", "bf16"), ("shards", "bf16"), ("columns", "bf16")}
STORAGES |= {("shards", "e4m3_scalar")}
MODULES = {
    ("fused", "product", "copysign", "add"),
    ("key_value", "plain", "sign", "add"),
    ("key_value", "one_plus", "sign", "add"),
    ("columns", "none", "none", "mean"),
    ("none", "none", "none", "sum"),
}
STORAGE_KEYS = {"layout": str, "encoding": str, "shards": int}
MODULE_KEYS = {
    "projection": str, "bias": bool, "norm": str, "gate": str, "clamp": float, "kernel": int, "dilation": int,
    "conv_eps": float, "combine": str,
}  # fmt: skip
DIGEST_KEYS: dict[str, type] = {
    "token_map_u32": str, "token_map_i64": str, "moduli_i64": str, "offsets_i64": str, "multipliers_i64": str,
    "vocabulary_rows_u64": str, "tokenizer": str,
}  # fmt: skip
SHARD_DIGESTS = ("header_sha256", "file_sha256")
SHA256 = re.compile(r"[0-9a-f]{64}")
KINDS = {str: "a word", int: "a whole number from 0", bool: "true or false", float: "a number from 0 up to 1"}


def read(path: Path) -> dict[str, Any]:
    """A TOML file's tables; anything else raises `FormatError`."""
    with ReadFile.open(path) as file:
        if file.size > MOST_BYTES:
            raise FormatError(path, None, f"a profile of at most {MOST_BYTES} bytes", f"{file.size}")
        data = file.read(0, file.size, "the profile")
    try:
        text = data.decode("utf-8")
        for number, line in enumerate(text.split("\n"), 1):
            if (dots := line.count(".")) > MOST_DOTS:
                raise FormatError(path, f"line {number}", f"at most {MOST_DOTS} dots", f"{dots}")
            if LONG_NUMBER.search(line):
                raise FormatError(path, f"line {number}", f"numbers of at most {MOST_DIGITS} digits", "more")
        return tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise FormatError(path, error.start, "UTF-8 text", f"byte {data[error.start]:#04x}") from None
    except (ValueError, RecursionError) as error:
        raise FormatError(path, None, "TOML", shown(str(error))) from None


def check(facts: dict[str, Any], where: str) -> None:
    """Form and ranges of everything but the rule (`rules.read`) and what constants mean (`HashParams.check`)."""
    for name in facts:
        if name not in TABLES | MORE_TABLES:
            _refuse(where, name, f"one of the tables {', '.join(sorted(TABLES | MORE_TABLES))}", "a table nobody reads")
    _values(facts, where, 0)
    told = "unpublished" in facts
    if told and not _is_text(facts["unpublished"]):
        _refuse(where, "unpublished", "a text", _found(facts, "unpublished"))
    for name in sorted(TABLES - ({"constants"} if told else set())):
        kind = str if name in ("name", "title") else dict
        if not (_is_text(facts.get(name)) if kind is str else isinstance(facts.get(name), dict)):
            _refuse(where, name, "a text" if kind is str else "a table", _found(facts, name))
    if facts.get("config", "plain") not in CONFIGS:
        _refuse(where, "config", f"one of {', '.join(CONFIGS)}", _found(facts, "config"))
    for name in ("config_keys", "constants", "digests", "images", "shards", "token_map", "variants"):
        if not isinstance(facts.get(name, {}), dict):
            _refuse(where, name, "a table", _found(facts, name))
    for name, variant in facts.get("variants", {}).items():
        if not (isinstance(variant, dict) and _is_text(variant.get("title"))):
            _refuse(where, f"variants.{name}", "a table with a title", f"{variant!r:.60}")
        for table, laid in variant.items():
            if isinstance(laid, dict) and not isinstance(facts.get(table, {}), dict):
                _refuse(where, f"variants.{name}.{table}", "what lies over a table", "a table")
    types = facts.get("model_types", [])
    if not isinstance(types, list) or not all(map(_is_text, types)):
        _refuse(where, "model_types", "a list of texts", _found(facts, "model_types"))
    _sizes(facts["sizes"], f"{where} at sizes", told)
    _keys(facts["storage"], STORAGE_KEYS, f"{where} at storage", {"shards"})
    _keys(facts["module"], MODULE_KEYS, f"{where} at module")
    _read_by_somebody(facts["rule"], [axis.name for axis in fields(HashRule)], f"{where} at rule")
    _keys(facts.get("digests", {}), DIGEST_KEYS, f"{where} at digests", {*DIGEST_KEYS})
    _texts(facts, where)
    _derivation(facts["derivation"], f"{where} at derivation")
    _names(facts, where)
    if "constants" in facts:
        for name in ("multipliers", "moduli", "offsets"):
            if not _numbers(facts["constants"].get(name)):
                _refuse(where, f"constants.{name}", "lists of whole numbers below 2**64, all of one length", "others")
    _combinations(facts, where)
    if not told:
        profile_fit.check(facts, where)


def _values(value: object, where: str, level: int) -> None:
    """Whatever nobody reads is still printed as JSON, which has no dates, no nan and no numbers without end."""
    if isinstance(value, (dict, list)):
        if level > MOST_LEVELS:
            raise EngramctlError(where, f"at most {MOST_LEVELS} tables and lists in each other", "more")
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            _values(item, f"{where}.{name}" if level else f"{where} at {name}", level + 1)
    elif isinstance(value, int):
        if not -U64 < value < U64:
            raise EngramctlError(where, "a number of at most 64 bits", "a larger one")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise EngramctlError(where, "a finite number", f"{value}")
    elif not isinstance(value, str):
        raise EngramctlError(where, "a text, a number, true or false", f"{value}")


def _texts(facts: dict[str, Any], where: str) -> None:
    """Where each table is from, and the digests of files."""
    for table in (each for each in facts if isinstance(facts[each], dict) and "source" in facts[each]):
        if not _is_text(facts[table]["source"]):
            _refuse(where, f"{table}.source", "a text", _found(facts[table], "source"))
    for name in facts["sources"]:
        if not _is_text(facts["sources"][name]):
            _refuse(where, f"sources.{name}", "a text", _found(facts["sources"], name))
    for name, digest in facts.get("digests", {}).items():
        if name != "source" and not _is_digest(digest):
            _refuse(where, f"digests.{name}", "64 hex digits", f"{digest!r:.80}")
    for name, shard in facts.get("shards", {}).items():
        good = isinstance(shard, dict) and set(shard) == {"file", "bytes", *SHARD_DIGESTS}
        good = good and _is_text(shard["file"]) and type(shard["bytes"]) is int
        if name != "source" and not (good and all(_is_digest(shard[each]) for each in SHARD_DIGESTS)):
            _refuse(where, f"shards.{name}", f"a table of file, bytes, {', '.join(SHARD_DIGESTS)}", f"{shard!r:.60}")


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and SHA256.fullmatch(value) is not None


def _sizes(sizes: dict[str, Any], where: str, told: bool) -> None:
    known = {*NUMBERS, *OPTIONAL_NUMBERS, *FLOATS, "layers", "rows", "source"}
    for name in sizes:
        if name not in known:
            _refuse(where, name, f"one of {', '.join(sorted(known))}", "a size nobody reads")
    for name in (*NUMBERS, *(OPTIONAL_NUMBERS.keys() & sizes.keys())):
        least = 0 if told else OPTIONAL_NUMBERS.get(name, LEAST.get(name, 1))
        most = MOST.get(name, MOST["vocabulary"])
        if type(sizes.get(name)) is not int or not least <= int(sizes[name]) <= most:
            _refuse(where, name, f"a whole number from {least} to {most}", _found(sizes, name))
    for name, needed in FLOATS.items():
        value: Any = sizes.get(name, None if needed else 0.0)
        if type(value) not in (int, float) or not 0 <= value < 2**20:
            _refuse(where, name, "a number from 0", _found(sizes, name))
    for name, least, most in (("layers", -1, MOST_LAYER), ("rows", 1, MOST["rows"])):
        items = sizes.get(name)
        good = isinstance(items, list) and all(type(x) is int and least <= x <= most for x in items)
        if not good or (not items and not (told and name == "rows")):
            _refuse(where, name, f"a list of whole numbers from {least} to {most}", _found(sizes, name))
    if not told and len(sizes["layers"]) != len(sizes["rows"]):
        _refuse(where, "rows", f"{len(sizes['layers'])} row counts, one a layer", f"{len(sizes['rows'])}")
    if sizes.get("smallest", 2) > sizes["size"]:
        _refuse(where, "smallest", f"at most the largest order, {sizes['size']}", f"{sizes['smallest']}")


def _keys(table: dict[str, Any], keys: dict[str, type], where: str, optional: set[str] | None = None) -> None:
    _read_by_somebody(table, keys, where)
    for name, kind in keys.items():
        value = table.get(name)
        if value is None and name in (optional or set()):
            continue
        good = type(value) is kind or (kind is float and type(value) is int)
        small = {int: 1 << 16, float: 1.0}.get(kind)
        if not good or (small is not None and not 0 <= value < small):  # type: ignore[operator]
            _refuse(where, name, KINDS[kind], _found(table, name))


def _read_by_somebody(table: dict[str, Any], keys: Collection[str], where: str) -> None:
    for name in table:
        if name not in keys and name != "source":
            _refuse(where, name, f"one of {', '.join(keys)}", "a key nobody reads")


def _derivation(how: dict[str, Any], where: str) -> None:
    for name, known in (("moduli", MODULI), ("multipliers", MULTIPLIERS)):
        if how.get(name) not in known:
            _refuse(where, name, f"one of {', '.join(known)}", _found(how, name))
    for name in how:
        if name in ("seed", "padding", "prime"):
            if type(how[name]) is not int or not (name != "seed") <= how[name] < U64:
                _refuse(where, name, "a whole number below 2**64", _found(how, name))
        elif name not in ("moduli", "multipliers", "source"):
            _refuse(where, name, "moduli, multipliers, seed, padding, prime", "a key nobody reads")
    if how["multipliers"] == "powers" and "prime" not in how:
        _refuse(where, "prime", "a whole number below 2**64", "none")


def _names(facts: dict[str, Any], where: str) -> None:
    for role, entry in facts["tensors"].items():
        good = isinstance(entry, dict) and set(entry) == {"name", "dtype"} and all(map(_is_text, entry.values()))
        if role != "source" and not (good and _placeholders(entry["name"])):
            _refuse(
                where,
                f"tensors.{role}",
                "a name (with {layer} and {i} in it, no other braces) and a dtype",
                f"{entry!r:.60}",
            )
    for size, keys in facts.get("config_keys", {}).items():
        if size != "source" and not (isinstance(keys, list) and keys and all(map(_is_text, keys))):
            _refuse(where, f"config_keys.{size}", "a list of spellings", f"{keys!r:.60}")


def _placeholders(name: str) -> bool:
    bare = name.replace("{layer}", "").replace("{i}", "")
    return "{" not in bare and "}" not in bare


def _combinations(facts: dict[str, Any], where: str) -> None:
    storage = (facts["storage"]["layout"], facts["storage"]["encoding"])
    if storage not in STORAGES:
        _refuse(where, "storage", f"layout and encoding as {_spell(STORAGES)}", " ".join(storage))
    if storage[1] == "e4m3_e8m0_32" and facts["sizes"]["width"] != WIDTH:
        _refuse(where, "sizes.width", f"{WIDTH} for rows of e4m3_e8m0_32", f"{facts['sizes']['width']}")
    module = tuple(facts["module"][name] for name in ("projection", "norm", "gate", "combine"))
    if module not in MODULES:
        _refuse(where, "module", f"projection, norm, gate and combine as {_spell(MODULES)}", " ".join(module))
    if bool(facts["module"]["kernel"]) != bool(facts["module"]["dilation"]):
        _refuse(where, "module.dilation", "a kernel and a dilation, or 0 and 0", f"{facts['module']['dilation']}")


def _spell(known: set[Any]) -> str:
    return " or ".join(sorted(" ".join(each) for each in known))


def _numbers(value: object) -> bool:
    """Lists in lists of whole numbers below 2**64, of one shape."""

    def shape(item: object) -> tuple[int, ...] | None:
        if not isinstance(item, list):
            return () if type(item) is int and 0 <= item < U64 else None
        shapes = {shape(part) for part in item}
        inner = shapes.pop() if len(shapes) == 1 else None
        return None if inner is None else (len(item), *inner)

    found = shape(value)
    return found is not None and 2 <= len(found) <= 3


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value) and value.isprintable()


def _found(table: dict[str, Any], name: str) -> str:
    return f"{table[name]!r:.60}" if name in table else "none"


def _refuse(where: str, name: str, expected: str, found: str) -> None:
    raise EngramctlError(f"{where}.{name}" if " at " in where else f"{where} at {name}", expected, found)
