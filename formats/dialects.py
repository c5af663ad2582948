"""Container dialects, as records: where each constant and table lies, under which name, with which type.

`ds4` is what antirez/ds4 writes and reads (gguf-tools/deepseek41_quantize.py, deepseek41_metadata.py; ds4.c,
ds4_engram.c).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from formats import row264


@dataclass(frozen=True)
class Key:
    """A metadata key and the type its loader demands, in GGUF's words: u32, u32[], u64[], f32, string, bool."""

    name: str
    type: str


@dataclass(frozen=True)
class Dialect:
    """One way to keep Engram tables and constants in a GGUF. `{layer}` in tensor names is the decoder layer."""

    name: str
    architecture: str
    alignment: int
    encoding: str  # what the encoding key says about the rows
    row_bytes: int
    config: str  # the checkpoint's config.json, verbatim
    keys: Mapping[str, Key]  # by role
    tensors: Mapping[str, str]  # by role
    hyperparameters: tuple[Key, ...]  # published config names under the architecture's prefix; arrays last


def _hyperparameters(prefix: str) -> tuple[Key, ...]:
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
    ]
    typed.append(("compress_ratios kv_source_layer_ids index_source_layer_ids", "u32[]"))
    return tuple(Key(f"{prefix}.{name}", kind) for names, kind in typed for name in names.split())


DS4 = Dialect(
    name="ds4",
    architecture="deepseek41",
    alignment=16384,  # Apple's page size: the tables can be mapped, and unmapped, apart from the weights
    encoding="e4m3_e8m0_32_row264",
    row_bytes=row264.ROW_BYTES,
    config="deepseek41.config",
    keys={
        "encoding": Key("deepseek41.engram.encoding", "string"),
        "layers": Key("deepseek41.engram.layer_ids", "u32[]"),
        "rows": Key("deepseek41.engram.rows", "u32[]"),
        "compressed": Key("deepseek41.engram.compressed_vocab_size", "u32"),
        "pad_id": Key("deepseek41.engram.pad_id", "u32"),  # compressed
        "token_map": Key("deepseek41.engram.token_map", "u32[]"),
        "moduli": Key("deepseek41.engram.primes", "u32[]"),
        "multipliers": Key("deepseek41.engram.multipliers", "u64[]"),
    },
    tensors={
        "q_weight": "blk.{layer}.engram_q_norm.weight",
        "k_weight": "blk.{layer}.engram_k_norm.weight",
        "projection": "blk.{layer}.engram_kv.weight",
        "table": "blk.{layer}.engram_embd.weight",
    },
    hyperparameters=_hyperparameters("deepseek41"),
)

DIALECTS = (DS4,)
