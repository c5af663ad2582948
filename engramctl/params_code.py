"""params --to c, --to rust: the hash constants as source text that a compiler takes, and nothing else in it.

The token map is another file; its digest is here, so that the two are not mixed up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from engramctl.errors import EngramctlError
from engramctl.hash_params import HashParams, digest

ABOUT = {
    "layers": "layers that hold a table",
    "smallest": "smallest n-gram order, that of the first columns",
    "size": "largest n-gram order",
    "heads": "columns of each order",
    "columns": "row numbers a token and layer",
    "vocabulary": "token ids, entries of the token map",
    "compressed": "ids after the map are below this",
    "pad_id": "filler: a compressed id, do not map it again",
    "eos_id": "compressed id that ends a segment",
}
IDS = ("compressed", "pad_id", "eos_id")  # the rest counts entries


def _scalars(params: HashParams) -> dict[str, int]:
    every = (len(params.layers), params.smallest, params.size, params.heads, params.columns, params.token_map.size)
    found = dict(zip(ABOUT, (*every, params.compressed, params.pad_id), strict=False))
    return found if params.eos is None else found | {"eos_id": params.eos}


def _rule(params: HashParams, form: str) -> list[str]:
    """What the numbers mean, exactly. A hash that is no xor of products raises `EngramctlError`."""
    rule = params.rule
    if rule.mix != "xor_mul":
        what = "the constants of a multiply-xor hash"
        raise EngramctlError(f"--to {form}", what, f"those of a polynomial one ({rule.mix})", "--to json holds them")
    word = "token id" if np.array_equal(params.token_map, np.arange(params.token_map.size)) else "compressed id"
    if rule.align == "left":
        which = f"id[0] is the oldest of the last SIZE {word}s, id[SIZE - 1] the current one."
    else:
        which = f"id[0] is the current {word}, id[1] the one before it."
    blocks = ["an id from before the start"]
    blocks += ["a dead position and every one before it"] * ("dead" in rule.boundary)
    if "eos" in rule.boundary:
        earlier = "" if "eos_itself" in rule.boundary else " that is not the current id"
        blocks.append(f"an EOS_ID{earlier} and every one before it")
    return [
        "row[layer][column] = (xor over i < order of id[i] * multiplier[layer][i]) % modulus[layer][column]",
        "+ offset[layer][column], in unsigned 64-bit arithmetic, where order = SMALLEST + column / HEADS.",
        which,
        f"PAD_ID stands for {'; for '.join(blocks)}.",
    ]


def to_c(params: HashParams) -> str:
    """A C99 header."""
    map_sha = digest(params.token_map, "<u4")
    rule = [f"   {line}" for line in _rule(params, "c")]
    lines = ["/* Engram hash constants, written by engramctl params.", "", *rule, "*/"]
    lines += ["#ifndef ENGRAM_PARAMS_H", "#define ENGRAM_PARAMS_H", "", "#include <stdint.h>", ""]
    lines += [f"#define ENGRAM_{name.upper()} {value} /* {ABOUT[name]} */" for name, value in _scalars(params).items()]
    lines += [f'#define ENGRAM_TOKEN_MAP_SHA256 "{map_sha}" /* of its entries as little-endian u32 */', ""]
    layers = ", ".join(map(str, params.layers))
    rows = ", ".join(f"UINT64_C({count})" for count in params.rows)
    kind = "int32_t" if min(params.layers) < 0 else "uint32_t"
    lines.append(f"static const {kind} ENGRAM_LAYER_IDS[ENGRAM_LAYERS] = {{{layers}}};")
    lines.append(f"static const uint64_t ENGRAM_ROWS[ENGRAM_LAYERS] = {{{rows}}};")
    for name, count in (("multipliers", "SIZE"), ("moduli", "COLUMNS"), ("offsets", "COLUMNS")):
        lines.append(f"static const uint64_t ENGRAM_{name.upper()}[ENGRAM_LAYERS][ENGRAM_{count}] = {{")
        for row in getattr(params, name).tolist():
            lines += ["    {", *_wrapped((f"UINT64_C({value})" for value in row), 8), "    },"]
        lines.append("};")
    return "\n".join([*lines, "", "#endif", ""])


def to_rust(params: HashParams) -> str:
    """A Rust module."""
    map_sha = digest(params.token_map, "<u4")
    rule = [f"//! {line}" for line in _rule(params, "rust")]
    lines = ["//! Engram hash constants, written by `engramctl params`.", "//!", *rule, ""]
    for name, value in _scalars(params).items():
        kind = "u64" if name in IDS else "usize"
        lines += [f"/// {ABOUT[name]}", f"pub const {name.upper()}: {kind} = {value};"]
    lines += ["/// SHA-256 of the token map's entries as little-endian u32", "pub const TOKEN_MAP_SHA256: &str ="]
    lines += [f'    "{map_sha}";', "/// decoder layers, 0-based"]
    kind = "i32" if min(params.layers) < 0 else "u32"
    lines.append(f"pub const LAYER_IDS: [{kind}; LAYERS] = [{', '.join(map(str, params.layers))}];")
    lines.append("/// rows of each layer's table")
    lines.append(f"pub const ROWS: [u64; LAYERS] = [{', '.join(map(str, params.rows))}];")
    said = {"multipliers": "one a position of the n-gram", "moduli": "one a column", "offsets": "likewise"}
    for name, count in (("multipliers", "SIZE"), ("moduli", "COLUMNS"), ("offsets", "COLUMNS")):
        lines += [f"/// {said[name]}", f"pub const {name.upper()}: [[u64; {count}]; LAYERS] = ["]
        for row in getattr(params, name).tolist():
            lines += ["    [", *_wrapped(map(str, row), 8), "    ],"]
        lines.append("];")
    return "\n".join([*lines, ""])


def _wrapped(words: Iterable[str], indent: int, width: int = 100) -> Iterator[str]:
    line = " " * indent
    for word in words:
        if len(line) + len(word) + 1 > width:
            yield line.rstrip()
            line = " " * indent
        line += f"{word}, "
    yield line.rstrip()


FORMS: dict[str, Callable[[HashParams], str]] = {"c": to_c, "rust": to_rust}
