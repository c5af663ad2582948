"""What the loaders of Qwen3.8's table demand of a GGUF, rule by rule, and where a file breaks one.

llama.cpp: src/models/qwen4exp.cpp and llama-model-loader.cpp, as in PyPI llama-cpp-python 0.3.36. The sidecar: what
antirez/ds4 gguf-tools/qwen38_quantize.py writes; its reader was not seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from engramctl.siblings.container import dialect_of, type_of
from engramctl.source import named
from engramctl.verify.result import Coverage, Result
from formats.errors import shown
from formats.gguf_file import GgufHeader, ValueType, read_header
from formats.ple_gguf import QWEN4EXP, SIDECAR, PleDialect
from formats.recognise import describe

CHECK = "file"
MOST_ORDERS, MOST_HEADS = 8, 64  # LLAMA_MAX_PLE_NGRAM, LLAMA_MAX_PLE_HEADS
INT32_MAX = 2**31 - 1
LOADERS = {QWEN4EXP.name: "llamacpp", SIDECAR.name: "ds4"}
ALSO = {"i32[]": ("i32[]", "u32[]")}  # types that are read alike

Finding = tuple[str, str, str]  # where, expected, found


def reasons(header: GgufHeader, dialect: PleDialect) -> list[Finding]:
    """Every rule of the dialect's loader that the file breaks."""
    found = [(shown(name), expected, seen) for name, expected, seen in header.span_errors()]
    found += _keys(header, dialect)
    if not found:
        found += _meaning(header, dialect)
    return found


def _keys(header: GgufHeader, dialect: PleDialect) -> Iterator[Finding]:
    for role, key in dialect.keys.items():
        value = header.keys.get(key.name)
        if value is None:
            if role not in dialect.optional:
                yield f"key {key.name}", key.type, "no such key"
        elif (kind := describe(value)) not in ALSO.get(key.type, (key.type,)):
            yield f"key {key.name}", key.type, kind


def _meaning(header: GgufHeader, dialect: PleDialect) -> Iterator[Finding]:
    """Counts, ranges and shapes, once every key is there with its type."""

    def value(role: str) -> Any:  # noqa: ANN401 - an integer or an array, as `_keys` has made sure
        key = header.keys.get(dialect.keys[role].name)
        return None if key is None else key.value

    def name(role: str) -> str:
        return f"key {dialect.keys[role].name}"

    moduli, offsets = (np.asarray(value(role)).astype(object) for role in ("moduli", "offsets"))
    if dialect is QWEN4EXP:
        size, heads, kernel = value("size"), value("heads"), value("kernel")
        columns = (size - 1) * heads
        if len(value("layers")) != 1:
            yield name("layers"), "one layer", f"{len(value('layers'))}"
        if not 2 <= size <= MOST_ORDERS:
            yield name("size"), f"2 to {MOST_ORDERS}", f"{size}"
        if not 1 <= columns <= MOST_HEADS:
            yield name("heads"), f"up to {MOST_HEADS} columns in all", f"{columns}"
        if not kernel:
            yield name("kernel"), "at least 1", "0"
        for role, count in (("multipliers", size), ("offsets", columns), ("moduli", columns)):
            if len(value(role)) != count:
                yield name(role), f"{count} entries", f"{len(value(role))}"
    if len(moduli) != len(offsets):
        yield name("offsets"), f"{len(moduli)} entries", f"{len(offsets)}"
        return
    for column, (offset, modulus) in enumerate(zip(offsets, moduli, strict=True)):
        if modulus < 1 or offset + modulus > INT32_MAX:
            yield f"{name('moduli')}, column {column}", f"1 to {INT32_MAX} rows in all", f"{offset} + {modulus}"
    yield from _tensors(header, dialect, max((o + m for o, m in zip(offsets, moduli, strict=True)), default=0))


def _tensors(header: GgufHeader, dialect: PleDialect, used: int) -> Iterator[Finding]:
    there = header.named
    width = header.keys[dialect.keys["width"].name].value
    layer = int(header.keys[dialect.keys["layers"].name].value[0]) if dialect is QWEN4EXP else 0
    for role, pattern in dialect.tensors.items():
        tensor = there.get(pattern.format(layer=layer))
        if tensor is None:
            yield f"tensor {pattern.format(layer=layer)}", "a tensor", "none"
        elif role == "table":
            if len(tensor.shape) != 2 or tensor.shape[0] != width or tensor.shape[1] < used:
                yield f"tensor {tensor.name}", f"[{width}, {used} or more rows]", f"{list(tensor.shape)}"
            elif dialect is SIDECAR and tensor.shape[1] != header.keys[dialect.keys["table_rows"].name].value:
                yield f"tensor {tensor.name}", "as many rows as ple.table_rows says", f"{tensor.shape[1]}"
            if type_of(tensor) not in dialect.row_types:
                yield f"tensor {tensor.name}", " or ".join(dialect.row_types), type_of(tensor)
        else:
            yield from _shape(header, dialect, role, tensor.name, tensor.shape)


def _shape(header: GgufHeader, dialect: PleDialect, role: str, name: str, shape: tuple[int, ...]) -> Iterator[Finding]:
    number = {
        r: header.keys[dialect.keys[r].name].value for r in ("hidden", "streams", "kernel", "width", "size", "heads")
    }
    D, S = number["hidden"], number["streams"]
    inputs = number["width"] * (number["size"] - 1) * number["heads"]
    wanted: dict[str, tuple[tuple[int, ...], ...]] = {
        "key": ((inputs, S * D),), "value": ((inputs, D),), "conv": ((number["kernel"], S * D),),
    }  # fmt: skip
    if shape not in wanted.get(role, ((S * D,), (D, S))):
        yield f"tensor {name}", f"{list(wanted.get(role, ((D, S),))[0])}", f"{list(shape)}"


def check(path: Path, loader: str) -> Result:
    """`check file` for such a container: the rules of its dialect's loader decide."""
    header = read_header(path, strict=False)
    dialect = dialect_of(header)
    result = Result(Coverage("rules", 1, 1))
    if dialect is None:
        architecture = named(header)
        keys = f"the ple. keys of {QWEN4EXP.name} or {SIDECAR.name}"
        result.add(CHECK, str(path), keys, f"none in architecture {shown(architecture)}")
        return result
    result.coverage = Coverage("keys and tensors", *(len(dialect.keys) + len(dialect.tensors),) * 2)
    for where, expected, seen in reasons(header, dialect):
        result.add(CHECK, where, expected, seen)
    result.notes += notes(header, dialect)
    if loader not in ("ds4", "all", LOADERS[dialect.name]):  # ds4 is the option's default, which is V4.1's
        result.notes.append(
            f"judged as {LOADERS[dialect.name]} reads it: {loader} has no rules for dialect {dialect.name}"
        )
    return result


def verdict(header: GgufHeader, dialect: PleDialect, broken: list[Finding]) -> dict[str, Any]:
    """Whether a loader takes the file, no stronger than the rules that were run: None where its reader is unknown."""
    why = [{"where": where, "expected": expected, "found": found} for where, expected, found in broken]
    if dialect is SIDECAR:
        return {"accepts": None, "why": why, "said": f"{'not ' if broken else ''}as its converter writes it"}
    alone = len(header.tensors) == len(dialect.tensors)
    said = "accepts the table, its keys and its module" + (": no model file yet" if alone else "")
    return {"accepts": not broken, "why": why, "said": "refuses it" if broken else said}


def notes(header: GgufHeader, dialect: PleDialect) -> list[str]:
    """What is no fault, and should be known."""
    said = ["rows and weights are in no loader's rules, only their places: check packing looks at them"]
    if dialect is QWEN4EXP and dialect.keys["image_token_id"].name not in header.keys:
        said.append("no image token id: llama.cpp hashes images as EOS, transformers does not (profile :image-as-eos)")
    if dialect is QWEN4EXP and len(header.tensors) == len(dialect.tensors):
        said.append("the memory alone: a model file has its other tensors too")
    if dialect is SIDECAR:
        said.append("judged by what ds4's converter writes: its reader was not seen")
        said.append("vocabulary, EOS, hidden width, streams and eps are the profile's: a sidecar does not say them")
    for role in ("multipliers", "offsets", "moduli"):
        value = header.keys.get(dialect.keys[role].name)
        if value is not None and value.item == ValueType.FLOAT32:
            said.append(f"{role} are F32, which cannot hold them")
    return said
