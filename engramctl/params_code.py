"""params --to c, --to rust: the hash constants as source text that a compiler takes, and nothing else in it.

The token map is another file; its digest is here, so that the two are not mixed up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from engramctl.hash_params import HashParams, digest

SCALARS = ("layers", "size", "heads", "columns", "vocabulary", "compressed", "pad_id")
ABOUT = {
    "layers": "layers that hold a table",
    "size": "largest n-gram order; orders run from 2",
    "heads": "columns of each order",
    "columns": "row numbers a token and layer",
    "vocabulary": "token ids, entries of the token map",
    "compressed": "ids after the map are below this",
    "pad_id": "compressed filler: already mapped, do not map it again",
}
RULE = (
    "row[layer][column] = (xor over i <= order(column) - 1 of id[i] * multiplier[layer][i]) % modulus + offset,",
    "in unsigned 64-bit arithmetic; id[0] is the current compressed id, id[1] the one before it.",
)


def _scalars(params: HashParams) -> dict[str, int]:
    every = (len(params.layers), params.size, params.heads, params.columns, params.token_map.size)
    return dict(zip(SCALARS, (*every, params.compressed, params.pad_id), strict=True))


def to_c(params: HashParams) -> str:
    """A C99 header."""
    map_sha = digest(params.token_map, "<u4")
    lines = ["/* Engram hash constants, written by engramctl params.", "", *(f"   {line}" for line in RULE), "*/"]
    lines += ["#ifndef ENGRAM_PARAMS_H", "#define ENGRAM_PARAMS_H", "", "#include <stdint.h>", ""]
    lines += [f"#define ENGRAM_{name.upper()} {value} /* {ABOUT[name]} */" for name, value in _scalars(params).items()]
    lines += [f'#define ENGRAM_TOKEN_MAP_SHA256 "{map_sha}" /* of its entries as little-endian u32 */', ""]
    layers = ", ".join(map(str, params.layers))
    rows = ", ".join(f"UINT64_C({count})" for count in params.rows)
    lines.append(f"static const uint32_t ENGRAM_LAYER_IDS[ENGRAM_LAYERS] = {{{layers}}};")
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
    lines = ["//! Engram hash constants, written by `engramctl params`.", "//!", *(f"//! {line}" for line in RULE), ""]
    for name, value in _scalars(params).items():
        kind = "u64" if name in ("compressed", "pad_id") else "usize"
        lines += [f"/// {ABOUT[name]}", f"pub const {name.upper()}: {kind} = {value};"]
    lines += ["/// SHA-256 of the token map's entries as little-endian u32", "pub const TOKEN_MAP_SHA256: &str ="]
    lines += [f'    "{map_sha}";', "/// decoder layers, 0-based"]
    lines.append(f"pub const LAYER_IDS: [u32; LAYERS] = [{', '.join(map(str, params.layers))}];")
    lines.append("/// rows of each layer's table")
    lines.append(f"pub const ROWS: [u64; LAYERS] = [{', '.join(map(str, params.rows))}];")
    said = {"multipliers": "one a position, the current token's first", "moduli": "one a column", "offsets": "likewise"}
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
