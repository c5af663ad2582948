"""Container dialects, one record each: where every constant and table lies, under which name, with which type.

Adding one is adding its record here, and its loader's rules in `engramctl/verify/loader_rules.py`; nothing else.
"""

from __future__ import annotations

from dataclasses import replace

from formats import row264
from formats.dialect import ANY, EITHER, FLOATS, LLAMA_WEIGHTS, QUANTS, Dialect, Key, hyperparameters, under

__all__ = ["DIALECTS", "DS4", "Dialect", "Key", "by_name"]

ENGRAM = "deepseek41.engram."
TABLE = "blk.{layer}.engram_embd.weight"

DS4 = Dialect(
    name="ds4",
    title="antirez/ds4 and its ports",
    source="antirez/ds4 gguf-tools/deepseek41_metadata.py, ds4.c",
    layout="row264",
    row=row264.ROW_BYTES,
    alignment=16384,  # Apple's page size: the tables can be mapped, and unmapped, apart from the weights
    placement="tail",
    encoding="e4m3_e8m0_32_row264",
    keys=under(
        ENGRAM,
        """encoding encoding string, layers layer_ids u32[], rows rows u32[],
        compressed compressed_vocab_size u32, pad_id pad_id u32, token_map token_map u32[],
        moduli primes u32[], multipliers multipliers u64[]""",
    ),
    tensors={
        "q_weight": "blk.{layer}.engram_q_norm.weight",
        "k_weight": "blk.{layer}.engram_k_norm.weight",
        "projection": "blk.{layer}.engram_kv.weight",
        "table": TABLE,
    },
    types={"q_weight": ("F32",), "k_weight": ("F32",), "projection": ("F16", "BF16", "F32"), "table": ("I8",)},
    marks=(f"{ENGRAM}encoding",),
    hyperparameters=hyperparameters("deepseek41"),
)

DS4_LLOYD4 = replace(
    DS4,
    name="ds4-lloyd4",
    title="dongnh311/ds4-metal-qwen: ds4's file, its rows re-encoded in place",
    source="dongnh311/ds4-metal-qwen gguf-tools/deepseek41_engram_q4.c",
    layout="lloyd136",
    row=136,
    encoding="lloyd4_e5m3_32_r136",
    loses="its rows have 4 bits a value: the FP8 codes are not recoverable",
)

DS4_Q4K = replace(
    DS4,
    name="ds4-q4k",
    title="ishikawa/ds4: ds4's file with Q4_K rows, here or in files beside it",
    source="ishikawa/ds4 gguf-tools/deepseek41_metadata.py",
    layout="ggml",
    row=row264.WIDTH,
    encoding="q4_k_row144",
    keys={**DS4.keys, "storage": Key(f"{ENGRAM}storage", "string")},
    types={**DS4.types, "table": ("Q4_K",)},
    marks=(f"{ENGRAM}encoding", f"{ENGRAM}storage"),
    loses="its rows are Q4_K: the FP8 codes are not recoverable",
)

DS4_HLWQ = Dialect(
    name="ds4-hlwq",
    title="TripleSparkleAI/ds4: a file of 4-bit rows beside ds4's",
    source="TripleSparkleAI/ds4 gguf-tools/engram-4bit/engram_hlwq_quantize.py",
    layout="hlwq132",
    placement="external",
    magic=b"DS4ENG4B",
    loses="its rows are rotated and have 4 bits a value: the FP8 codes are not recoverable",
)

LLAMACPP = Dialect(
    name="llamacpp",
    title="llama.cpp PR 28696 and ik_llama.cpp; TensorSharp, gmlx and fak read it",
    source="ggml-org/llama.cpp src/models/deepseek41.cpp",
    layout="ggml",
    keys=under(
        ENGRAM,
        """layers layer_ids i32[], heads head_count u32, width key_length u32, size max_ngram_size u32,
        multipliers multipliers u64[], moduli primes u64[], offsets offsets u64[],
        token_map token_map i32[], pad_id pad_id u32""",
        EITHER,
    ),
    tensors={**LLAMA_WEIGHTS, "table": TABLE},
    types={**ANY, "table": QUANTS + FLOATS},
    marks=(f"{ENGRAM}key_length", f"{ENGRAM}offsets"),
    before=("deepseek4",),
    loses="its rows would be Q8_0 at best: an F16 scale and linear codes do not hold E4M3 values exactly",
)

SPLIT_I8 = Dialect(
    name="split-i8",
    title="a llama.cpp fork that keeps codes and scales as two I8 tensors",
    source="a llama.cpp fork's src/models/deepseek41.cpp, conversion/deepseek_v41.py",
    layout="split264",
    keys=under(
        ENGRAM,
        """layers layers u32[], size ngram_size u32, heads head_count u32, width head_dim u32,
        compressed compressed_vocab_size u32, pad_token_id pad_token_id u32, rows embedding_counts u32[],
        moduli head_bucket_sizes u32[], offsets head_offsets u32[], multipliers multipliers u64[],
        token_map token_map u32[]""",
        EITHER,
    ),
    tensors={
        "q_weight": "blk.{layer}.engram_q_weight.weight",
        "k_weight": "blk.{layer}.engram_k_weight.weight",
        "projection": "blk.{layer}.engram_kv.weight",
        "table": TABLE,
        "scales": "blk.{layer}.engram_embd_scale.weight",
    },
    types={**ANY, "table": ("I8",), "scales": ("I8",)},
    marks=(f"{ENGRAM}embedding_counts", f"{ENGRAM}head_bucket_sizes"),
)

SPLIT_TABLE = replace(
    LLAMACPP,
    name="split-table",
    title="a llama.cpp fork with ordinary table types and its own key names",
    source="a llama.cpp fork's src/models/deepseek41.cpp",
    keys=under(
        ENGRAM,
        """layers layers u32[], size max_ngram_size u32, heads head_count u32, width head_dim u32,
        pad_token_id pad_token_id u32, compressed compressed_vocab_size u32, rows table_rows u32[],
        multipliers hash_multipliers u64[], offsets head_offsets u64[], moduli head_bucket_sizes u64[],
        token_map token_map i32[]""",
        EITHER,
    ),
    marks=(f"{ENGRAM}table_rows", f"{ENGRAM}hash_multipliers"),
    before=(),
)

TENSOR_CONSTANTS = Dialect(
    name="tensor-constants",
    title="JigSawPT/llama.cpp: hash constants as tensors, codes and scales as two",
    source="JigSawPT/llama.cpp conversion/deepseek_v41.py",
    layout="split264",
    keys={
        **under(ENGRAM, "present present bool, layers layer_ids i32[], rows num_embeddings i32[]", EITHER),
        **under(
            "deepseek41.engram_",
            """width head_dim u32, heads n_heads u32, size max_ngram_size u32, base vocab_size u32,
        compressed compressed_vocab_size u32, pad_token_id pad_token_id u32""",
        ),
        "token_map": Key("engram_token_map.weight", "I32", tensor=True),
        "moduli": Key("engram_primes.weight", "I64", ("I32",), tensor=True),
        "offsets": Key("engram_offsets.weight", "I64", ("I32",), tensor=True),
        "multipliers": Key("engram_multipliers.weight", "I64", tensor=True),
    },
    tensors={**LLAMA_WEIGHTS, "table": TABLE, "scales": "blk.{layer}.engram_embd_scale.weight"},
    types={**ANY, "table": ("I8",), "scales": ("I8",)},
    marks=(f"{ENGRAM}present",),
    loses="nothing of the rows, but a loader that nobody else has wants its constants as tensors: split-i8 has them",
)

SIDECAR_CONTRACT = Dialect(
    name="sidecar-contract",
    title="2-fly-4-ai/ds4: a digest of the hash contract; codes and scales in a GGUF beside the model's",
    source="2-fly-4-ai/ds4 gguf-tools/deepseek41_plan.py and its converter",
    layout="split264",
    placement="external",
    keys=under(
        ENGRAM,
        """size max_ngram_size u32, heads head_count u32, width head_dim u32, compressed compressed_vocab_size u32,
        pad_token_id pad_token_id u32, layers layers u32[], rows num_embeddings u32[], token_map token_map u32[],
        moduli hash_primes u32[], offsets hash_offsets u64[], multipliers hash_multipliers u64[],
        contract hash_contract_sha256 string""",
    ),
    tensors={
        "q_weight": "blk.{layer}.engram.q.weight",
        "k_weight": "blk.{layer}.engram.k.weight",
        "projection": "blk.{layer}.engram.wkv.weight",
        "table": "engram.{layer}.weight.fp8",
        "scales": "engram.{layer}.scale.e8m0",
    },
    types={**ANY, "table": ("I8",), "scales": ("I8",)},
    marks=(f"{ENGRAM}hash_contract_sha256",),
    loses="nothing of the rows, but its loader wants a digest of its own contract: split-i8 has the same bytes",
)

DEEPSTRIX = Dialect(
    name="deepstrix",
    title="XMPPwocky/deepstrix: the tables stay in the checkpoint's shards",
    source="XMPPwocky/deepstrix to_gguf.py",
    layout="split264",
    architecture="deepseek4",
    placement="external",
    config="deepseek4.config",
    keys=under(
        "deepseek4.engram.",
        """layers layer_ids i32[], rows num_embeddings i32[], size max_ngram_size u32, base vocab_size u32,
        heads head_count u32, width head_dim u32, pad_token_id pad_id u32,
        compressed compressed_vocab_size u32, shards table_shards string[]""",
        EITHER,
    ),
    tensors=LLAMA_WEIGHTS,
    types=ANY,
    marks=("deepseek4.engram.table_shards",),
    loses="it names the checkpoint's shards by absolute path, and holds no rows",
)

DEEPSEEK4_EXTERNAL = Dialect(
    name="deepseek4-external",
    title="a ds4 fork that reads the tables out of other files at given offsets",
    source="a ds4 fork's core_validate_v41.c",
    layout="split264",
    architecture="deepseek4",
    placement="external",
    config="deepseek4.config",
    keys=under(
        "deepseek4.engram.",
        """layers layer_ids i32[], rows num_embeddings u64[], paths {number}.table_path string,
        weight_offset {number}.weight_offset u64, scale_offset {number}.scale_offset u64,
        size max_ngram_size u32, heads head_count u32, width head_dim u32, base vocab_size u32,
        compressed compressed_vocab_size u32, pad_id pad_id_compressed u32""",
        EITHER,
    ),
    marks=("deepseek4.engram.0.table_path",),
    loses="it names other files by absolute path, and holds no rows",
)

ENGRAM_SIDECAR = Dialect(
    name="engram-sidecar",
    title="kernelpool/ds4: a GGUF of the Engram alone; its rows are 8 blocks of a scale and 32 codes",
    source="kernelpool/ds4 gguf-tools/deepseek_v41_engram.py",
    layout="block264",
    architecture="deepseek4-engram",
    keys={
        **under(
            "deepseek4-engram.",
            """layers layers u32[], rows row_counts u32[], size max_ngram_size u32, heads head_count u32,
            width head_dim u32, base vocab_size u32, compressed compressed_vocab_size u32,
            pad_token_id pad_token_id u32, pad_id compressed_pad_id u32""",
        ),
        "token_map": Key("engram.token_map", "I32", tensor=True),
        "multipliers": Key("engram.hash_multipliers", "I64", tensor=True),
        "moduli": Key("engram.hash_primes", "I64", tensor=True),
        "offsets": Key("engram.hash_offsets", "I64", tensor=True),
    },
    tensors={
        "q_weight": "layers.{layer}.engram.q_weight",
        "k_weight": "layers.{layer}.engram.k_weight",
        "projection": "layers.{layer}.engram.wkv.weight",
        "table": "layers.{layer}.engram.embed.weight",
    },
    types={"q_weight": ("BF16",), "k_weight": ("BF16",), "projection": ("BF16",), "table": ("type 64",)},  # its own
    marks=("deepseek4-engram.row_counts",),
    loses="nothing of the rows, but their tensor type is one that only this fork of ds4 has",
)

TENSORSHARP = Dialect(
    name="tensorsharp",
    title="zhongkaifu/TensorSharp: constants in a file beside a llama.cpp GGUF",
    source="zhongkaifu/TensorSharp's script that prepares deepseek41.engram.bin",
    layout="none",
    placement="none",
    magic=b"TSD41E01",
    loses="it holds no rows: its constants go beside a llamacpp file",
)

ROW264_BARE = Dialect(
    name="row264-bare",
    title="FujitsuPolycom/sparkring: rows and nothing else, a .json beside them",
    source="FujitsuPolycom/sparkring tools/pack_engram_rows.py",
    layout="row264",
    placement="external",
)

ROW264_PAGED = replace(
    ROW264_BARE,
    name="row264-paged",
    title="MiaAI's packing: 15 rows a page of 4096 bytes, one file a rank",
    source="MiaAI's packed Engram, manifest format ds41_engram_page15_release_v1",
    magic=(0x3247504531345344).to_bytes(8, "little"),
    loses="nothing, but it is one file for each of two ranks: row264-bare is the same rows in one",
)

VLLM_PARTS = replace(
    ROW264_BARE,
    name="vllm-parts",
    title="vllm-project/vllm PR 56757, which was not merged: codes and scales of a range of rows in two files",
    source="vllm-project/vllm PR 56757",
    layout="split264",
    loses="nothing of the rows, but no release of vLLM reads it: row264-bare is the same rows in one file",
)

DIALECTS: tuple[Dialect, ...] = (
    *(DS4, DS4_LLOYD4, DS4_Q4K, DS4_HLWQ, LLAMACPP, SPLIT_I8, SPLIT_TABLE, TENSOR_CONSTANTS, SIDECAR_CONTRACT),
    *(DEEPSTRIX, DEEPSEEK4_EXTERNAL, ENGRAM_SIDECAR, TENSORSHARP, ROW264_BARE, ROW264_PAGED, VLLM_PARTS),
)


def by_name(name: str) -> Dialect | None:
    return next((dialect for dialect in DIALECTS if dialect.name == name), None)
