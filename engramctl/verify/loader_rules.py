"""What each engine's loader demands of a file, as a table: one record a rule, in the loader's words, with its source.

A rule never raises on a file whose header could be parsed. Another loader is another tuple of rules.
"""

from __future__ import annotations

from collections.abc import Mapping

from engramctl.verify import key_rules as keys
from engramctl.verify import tensor_rules as tensors
from engramctl.verify.loader_facts import Rule

FORMAT, LOADER, READER = "ggml-org/ggml docs/gguf.md", "antirez/ds4 ds4.c", "antirez/ds4 ds4_engram.c"
CONVERTER = "antirez/ds4 gguf-tools/deepseek41_quantize.py"

DS4_RULES = (
    Rule("version", "GGUF version 3", LOADER, keys.version),
    Rule("architecture", "general.architecture is deepseek41", LOADER, keys.architecture),
    Rule("spans", "tensors lie inside the file, aligned, apart from each other", FORMAT, tensors.spans),
    Rule("types", "every tensor is of a known type", LOADER, tensors.known_types),
    Rule("end", "nothing follows the last tensor but its padding", CONVERTER, tensors.file_end),
    Rule(
        "tables",
        "one table a layer, I8 with rows of 264 bytes: else invalid or duplicate V4.1 Engram tensor",
        LOADER,
        tensors.tables,
    ),
    Rule("rows", "the tables have the model's rows", LOADER, tensors.table_rows),
    Rule("page", "the first table is page-aligned: 16384 on Apple silicon, 4096 elsewhere", LOADER, tensors.page),
    Rule("tail", "V4.1 Engram tables must follow the page-aligned main weights", LOADER, tensors.tail),
    Rule("encoding", "the encoding is e4m3_e8m0_32_row264", LOADER, keys.encoding),
    Rule("keys", "every Engram key is there, of exactly its type", LOADER, keys.key_types),
    Rule("layers", "layer ids and row counts are the model's", LOADER, keys.layer_keys),
    Rule("counts", "map, primes and multipliers have the model's lengths", LOADER, keys.counts),
    Rule("map", "token map entries and pad are below compressed_vocab_size", READER, keys.map_range),
    Rule("multipliers", "multipliers are odd and at most INT64_MAX / compressed_vocab_size", READER, keys.multipliers),
    Rule("primes", "primes are at least 2 and add up to the layer's rows", READER, keys.moduli),
    Rule("hyperparameters", "what the config says is stored under its name and type", LOADER, keys.hyperparameters),
    Rule(
        "weights",
        "q and k norms are F32, and the projection is there, with the model's shapes",
        LOADER,
        tensors.weights,
    ),
    Rule(
        "numbers",
        "rows hold numbers: no NaN code, no scale 255, nothing that overflows",
        READER,
        tensors.readable_rows,
        reads_rows=True,
    ),
)

LOADERS: Mapping[str, tuple[Rule, ...]] = {"ds4": DS4_RULES}
