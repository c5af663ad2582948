"""What each engine's loader demands of a file, as a table: one record a rule, in the loader's words, with its source.

A rule never raises on a file whose header could be parsed. Another loader is another tuple of rules.
"""

from __future__ import annotations

from collections.abc import Mapping

from engramctl.verify import key_rules as keys
from engramctl.verify import llama_rules as llama
from engramctl.verify import split_rules as splits
from engramctl.verify import tensor_rules as tensors
from engramctl.verify.loader_facts import Rule
from formats.dialects import LLAMACPP, SPLIT_I8

FORMAT, LOADER, READER = "ggml-org/ggml docs/gguf.md", "antirez/ds4 ds4.c", "antirez/ds4 ds4_engram.c"
CONVERTER = "antirez/ds4 gguf-tools/deepseek41_quantize.py"

DS4_RULES = (
    Rule("version", "GGUF version 3", LOADER, keys.version),
    Rule("one file", "the model is in one file: another shard's tensors are not looked for", LOADER, splits.one_file),
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
    Rule("layout", "a row is 256 codes and then 8 scales", READER, tensors.layout, reads_rows=True),
    Rule(
        "numbers",
        "rows hold numbers: no NaN code, no scale 255, nothing that overflows",
        READER,
        tensors.readable_rows,
        reads_rows=True,
    ),
)

MODEL_LOADER = "ggml-org/llama.cpp src/llama-model-loader.cpp"
GGUF_READER, PR, FORK = "ggml-org/llama.cpp ggml/src/gguf.cpp", LLAMACPP.source, SPLIT_I8.source

LLAMACPP_RULES = (
    Rule("spans", "tensors lie inside the file, aligned, apart from each other", FORMAT, tensors.spans),
    Rule("shards", "of a split model every file is there, and the first one is loaded", MODEL_LOADER, splits.shards),
    Rule("contiguous", "every offset is the aligned end of the tensor before", GGUF_READER, llama.contiguous),
    Rule("types", "every tensor is of a known type", GGUF_READER, tensors.known_types),
    Rule("architecture", "general.architecture is deepseek41", PR, keys.architecture),
    Rule("keys", "all nine Engram keys are there: else key not found in model", PR, llama.has_keys),
    Rule("key types", "scalars are u32, hash constants u64, ids and map 32-bit", PR, keys.present_types),
    Rule("layers", "at least one layer, each below block_count", PR, llama.layer_ids),
    Rule("dimensions", "at least one head and a 2-gram", PR, llama.dimensions),
    Rule("counts", "multipliers have layers * ngram entries, primes and offsets layers * buckets", PR, llama.counts),
    Rule("primes", "no prime is zero", PR, llama.nonzero),
    Rule("map", "the token map covers the vocabulary; more entries are tolerated", PR, llama.map_covers),
    Rule("shapes", "a table [key_length, rows] in every layer", PR, llama.table_shapes),
    Rule("rows", "every bucket ends inside its table", PR, llama.buckets_fit),
    Rule("weights", "engram_wkv, engram_q and engram_k with the model's shapes", PR, llama.weights),
    Rule("left over", "the loader asks for every tensor: else wrong number of tensors", MODEL_LOADER, llama.left_over),
    Rule(
        "lookup",
        "the table's type can be looked up: the loader does not ask, the first lookup aborts",
        "ggml-org/llama.cpp ggml/src/ggml-cpu/ops.cpp",
        llama.row_getter,
    ),
)

SPLIT_I8_RULES = (
    Rule("spans", "tensors lie inside the file, aligned, apart from each other", FORMAT, tensors.spans),
    Rule("shards", "of a split model every file is there, and the first one is loaded", MODEL_LOADER, splits.shards),
    Rule("contiguous", "every offset is the aligned end of the tensor before", GGUF_READER, llama.contiguous),
    Rule("types", "every tensor is of a known type", GGUF_READER, tensors.known_types),
    Rule("architecture", "general.architecture is deepseek41", FORK, keys.architecture),
    Rule("keys", "all eleven Engram keys are there", FORK, llama.has_keys),
    Rule("key types", "scalars are u32, multipliers u64, other arrays 32-bit", FORK, keys.present_types),
    Rule("dimensions", "invalid Engram dimensions", FORK, llama.dimensions),
    Rule("order", "Engram layers must be distinct and increasing", FORK, llama.ascending),
    Rule("layers", "layers are below block_count: else invalid Engram layer or row count", FORK, llama.layer_ids),
    Rule("counts", "inconsistent Engram array lengths", FORK, llama.counts),
    Rule("map", "Engram token map contains an invalid ID; the pad is a raw token id", FORK, llama.map_entries),
    Rule("vocabulary", "Engram token map does not cover the tokenizer vocabulary", FORK, llama.map_equals),
    Rule("buckets", "Engram buckets do not cover the embedding table", FORK, llama.buckets_cover),
    Rule("shapes", "codes [256, rows] and scales [8, rows] in every layer", FORK, llama.table_shapes),
    Rule("bytes", "Engram tables must retain FP8 bytes", FORK, llama.types_kept),
    Rule("weights", "engram_kv, engram_k_weight and engram_q_weight with the model's shapes", FORK, llama.weights),
    Rule("left over", "the loader asks for every tensor: else wrong number of tensors", MODEL_LOADER, llama.left_over),
    Rule("numbers", "rows hold numbers", FORK, tensors.readable_rows, reads_rows=True),
)

# Where no loader's source is at hand, the record itself is the rule.
RECORD_RULES = (
    Rule("spans", "tensors lie inside the file, aligned, apart from each other", FORMAT, tensors.spans),
    Rule("shards", "of a split model every file is there, and the first one is loaded", MODEL_LOADER, splits.shards),
    Rule("record", "keys, types, tensors and rows are the dialect's", "formats/dialects.py", keys.record),
)

LOADERS: Mapping[str, tuple[Rule, ...]] = {
    "ds4": DS4_RULES,
    "llamacpp": LLAMACPP_RULES,
    "split-i8": SPLIT_I8_RULES,
}


READ_ONE_FILE = ("ds4",)  # loaders for which the tensors of other shards are not there


def of_dialect(name: str) -> tuple[Rule, ...]:
    """The rules that a container of that dialect is judged by."""
    return LOADERS.get(name, RECORD_RULES)
