"""GGUF dialects of Qwen3.8's hashed table, as records (spec: ple_gguf.md).

`qwen4exp` is llama.cpp's (conversion/qwen4exp.py, src/models/qwen4exp.cpp); `ple-sidecar` is the table alone in a file
beside the model, as antirez/ds4 gguf-tools/qwen38_quantize.py writes it (9558ece2ef9c5fb580bcee07fa35754c577825b6).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from formats.dialects import Key
from formats.gguf_file import GgufHeader

TABLE = "per_layer_token_embd.weight"  # Gemma keeps a table of another kind under this name: the keys tell them apart

SCALE = Key("engramctl.ple.weight_scale", "f32")  # of the E4M3 table that the rows were made from; loaders pass it by


@dataclass(frozen=True)
class PleDialect:
    """Where constants and tensors lie. Keys that a loader does without are `optional`."""

    name: str
    architecture: str
    alignment: int
    keys: Mapping[str, Key]  # by role
    optional: tuple[str, ...]  # roles of keys
    tensors: Mapping[str, str]  # by role, `{layer}` being the decoder layer
    row_types: tuple[str, ...]  # ggml types that its table may have here; the first is the default


def _keys(prefix: str, names: Mapping[str, tuple[str, str]]) -> dict[str, Key]:
    return {role: Key(f"{prefix}.{name}", kind) for role, (name, kind) in names.items()}


_CONSTANTS = {
    "multipliers": ("ple.layer_multipliers", "u64[]"),
    "offsets": ("ple.head_offsets", "u64[]"),
    "moduli": ("ple.head_vocab_sizes", "u64[]"),
}
QWEN4EXP = PleDialect(
    name="qwen4exp",
    architecture="qwen4exp",
    alignment=32,
    keys=_keys(
        "qwen4exp",
        {
            "vocabulary": ("vocab_size", "u32"),
            "hidden": ("embedding_length", "u32"),
            "streams": ("hyper_connection.count", "u32"),
            "eps": ("attention.layer_norm_rms_epsilon", "f32"),
            "layers": ("ple.layers", "i32[]"),  # 0-based here
            "size": ("ple.ngram_size", "u32"),
            "heads": ("ple.heads_per_ngram", "u32"),
            "kernel": ("ple.conv_kernel", "u32"),
            "eos_token_id": ("ple.eos_token_id", "u32"),
            "image_token_id": ("ple.image_token_id", "u32"),
            "width": ("embedding_length_per_layer_input", "u32"),
            **_CONSTANTS,
        },
    ),
    optional=("image_token_id", "vocabulary"),
    tensors={
        "table": TABLE,
        "key": "blk.{layer}.ple_key.weight",
        "value": "blk.{layer}.ple_value.weight",
        "norm_key": "blk.{layer}.ple_norm_key.weight",
        "norm_query": "blk.{layer}.ple_norm_query.weight",
        "norm_conv": "blk.{layer}.ple_norm_conv.weight",
        "conv": "blk.{layer}.ple_conv1d.weight",
    },
    row_types=("BF16", "F32", "F16", "Q8_0"),
)
SIDECAR = PleDialect(
    name="ple-sidecar",
    architecture="qwen38-next-ple",
    alignment=32,
    keys=_keys(
        "qwen38-next",
        {
            "width": ("ple.row_length", "u32"),
            "total_rows": ("ple.total_rows", "u64"),
            "table_rows": ("ple.table_rows", "u64"),
            **_CONSTANTS,
        },
    ),
    optional=(),
    tensors={"table": TABLE},
    row_types=("Q8_0", "F32", "F16", "BF16"),
)
DIALECTS = (QWEN4EXP, SIDECAR)


def has_constants(header: GgufHeader) -> bool:
    """Does the file hold any of the table's constants, under whichever dialect's names? Gemma's have none."""
    return any(dialect.keys[role].name in header.keys for dialect in DIALECTS for role in _CONSTANTS)
