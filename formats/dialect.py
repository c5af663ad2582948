"""What a container dialect is, as data: names, types, and where its tables lie. The records are in `dialects.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Placement = Literal["tail", "anywhere", "external", "none"]

FLOATS = ("F32", "F16", "BF16")
QUANTS = (  # types that the gguf library decodes (ggml-org/llama.cpp gguf-py/gguf/quants.py; a test compares)
    *("Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K", "Q5_0", "Q5_1", "Q4_0", "Q4_1", "MXFP4", "NVFP4"),
    *("IQ4_XS", "IQ4_NL", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0"),
)
LLAMA_WEIGHTS = {
    "q_weight": "blk.{layer}.engram_q.weight",
    "k_weight": "blk.{layer}.engram_k.weight",
    "projection": "blk.{layer}.engram_wkv.weight",
}
ANY = {"q_weight": FLOATS + QUANTS, "k_weight": FLOATS + QUANTS, "projection": ("F16", "BF16", "F32", *QUANTS)}
EITHER = {"u32[]": ("i32[]",), "i32[]": ("u32[]",)}  # llama.cpp's arrays: signed or not is the same to the reader


@dataclass(frozen=True)
class Key:
    """A constant's place and the type its loader demands, in GGUF's words: u32, u32[], u64[], f32, string, bool.

    `{number}` in the name counts the tables: one key for each. A constant may be held as a tensor instead of a key.
    """

    name: str
    type: str
    also: tuple[str, ...] = ()  # types that the loader takes beside the one that is written
    tensor: bool = False

    def takes(self, found: str) -> bool:
        return found == self.type or found in self.also


@dataclass(frozen=True)
class Dialect:
    """One way to keep Engram tables and constants in files. `{layer}` in tensor names is the decoder layer.

    Roles of keys: layers, rows, heads, width, size (largest n-gram), base, vocabulary, compressed, token_map, moduli,
    multipliers, offsets, encoding, pad_id (compressed) or pad_token_id (raw). Others are the dialect's own.
    """

    name: str
    title: str  # who writes and reads it
    source: str  # repository and path
    layout: str  # of a row, a name in row_layouts; "ggml" where the tensor's type says it
    keys: Mapping[str, Key] = field(default_factory=dict)  # by role
    tensors: Mapping[str, str] = field(default_factory=dict)  # by role
    types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by role: ggml types; the first is written
    marks: tuple[str, ...] = ()  # keys and tensors that this dialect alone has
    row: int = 256  # ne[0] of the table tensor
    architecture: str = "deepseek41"
    alignment: int = 32
    placement: Placement = "anywhere"
    encoding: str = ""  # what the encoding key says about the rows
    config: str = "deepseek41.config"  # key of the checkpoint's config.json, verbatim, where there is one
    hyperparameters: tuple[Key, ...] = ()  # published config names under the architecture's prefix; arrays last
    before: tuple[str, ...] = ()  # prefixes that older files have in the architecture's place
    magic: bytes = b""  # of a file that is no GGUF
    loses: str = ""  # what writing it would lose, or why it is not written; empty where it is

    def earlier(self, key: Key) -> tuple[str, ...]:
        """Names that the key had in older files."""
        return tuple(key.name.replace(self.architecture, prefix, 1) for prefix in self.before)


def under(prefix: str, words: str, also: Mapping[str, tuple[str, ...]] | None = None) -> dict[str, Key]:
    """Keys by role from "role name type, role name type, ..."; `also` widens what an exact type takes."""
    keys = {}
    for each in words.split(","):
        role, name, kind = each.split()
        keys[role] = Key(f"{prefix}{name}", kind, (also or {}).get(kind, ()))
    return keys


def hyperparameters(prefix: str) -> tuple[Key, ...]:
    """What ds4 stores of the config (antirez/ds4 gguf-tools/deepseek41_metadata.py)."""
    integers = """vocab_size hidden_size moe_intermediate_size num_hidden_layers num_attention_heads
    num_key_value_heads head_dim
        qk_rope_head_dim q_lora_rank o_lora_rank o_groups n_routed_experts n_shared_experts num_experts_per_tok
        max_position_embeddings sliding_window index_n_heads index_head_dim index_topk candidate_source_layer_id
        candidate_topk_blocks candidate_block_size hc_mult hc_sinkhorn_iters rope_theta compress_rope_theta"""
    floats = """rms_norm_eps hc_eps swiglu_limit routed_scaling_factor rope_scaling.factor rope_scaling.beta_fast
        rope_scaling.beta_slow rope_scaling.original_max_position_embeddings"""
    typed = [
        (integers, "u32"),
        (floats, "f32"),
        ("scoring_func hidden_act topk_method", "string"),
        ("norm_topk_prob", "bool"),
        ("compress_ratios kv_source_layer_ids index_source_layer_ids", "u32[]"),
    ]
    return tuple(Key(f"{prefix}.{name}", kind) for names, kind in typed for name in names.split())
