"""A synthetic checkpoint in the real format: what a loader would take for the release, but for its sizes and its
numbers.

Every byte comes from a counter and a seed by splitmix64, so that one seed gives one checkpoint on every machine.
`--full-size` has the release's sizes: sparse files, in which only marked rows and marked projection blocks hold data.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import shapes, telling, tiny_tokenizer
from engramctl.checkpoint import read_config
from engramctl.config import SYNTHETIC, is_synthetic
from engramctl.errors import EngramctlError
from engramctl.hash_params import unused_primes
from engramctl.profiles import Profile, Sizes
from formats import row264, safetensors_raw
from formats.disk import WriteFile, fsync_folder
from formats.errors import FormatError

TINY_BASE, TINY_HIDDEN = 61, 64  # primes from 61 upwards: 24 and 24 columns in about 3,000 and 7,000 rows
SCALE_BYTES = (118, 121)  # about the release's own: 119 and 120
PROJECTION_SCALE_BYTES = (113, 117)  # products that F16 holds exactly
CHUNK_ROWS = 8192
NUMBER_NAN = 0x7F  # an E4M3 code with these bits is no number: such a byte is changed, never kept

Fill = Callable[[WriteFile, int, tuple[int, ...]], None]


@dataclass(frozen=True)
class Made:
    """What was written: the sizes, and the marked rows of a full-size checkpoint by layer."""

    sizes: Sizes
    marked: dict[int, tuple[int, ...]]


def make(
    folder: Path,
    profile: Profile,
    seed: int,
    real_tokens: bool,
    full_size: bool,
    force: bool = False,
    base: int = TINY_BASE,
    hidden: int = TINY_HIDDEN,
) -> Made:
    """Write config, index, shards and (unless the real map is used) tokenizer into `folder`, which must be new or
    empty. `base` and `hidden` are the sizes of what is not full-size."""
    with begun(folder, force):
        return _make(
            folder, profile, seed, choose_sizes(profile, real_tokens, full_size, base, hidden), real_tokens, full_size
        )


def _make(folder: Path, profile: Profile, seed: int, sizes: Sizes, real_tokens: bool, full_size: bool) -> Made:
    tokenizer = None if real_tokens or full_size else tiny_tokenizer.text()
    shard_of: dict[str, str] = {}
    marked: dict[int, tuple[int, ...]] = {}
    for number, layer in enumerate(sizes.layers):
        rows = sizes.rows[number]
        marked[layer] = tuple(telling.rows(rows, telling.heads(profile, sizes, number))) if full_size else ()
        for part, roles in enumerate(
            (("codes",), ("scales", "projection", "projection_scale", "q_weight", "k_weight"))
        ):
            index = 2 * number + part + 1
            shard = f"model-{index:05d}-of-{2 * len(sizes.layers):05d}.safetensors"
            tensors = [
                (role, profile.tensors[role].of(layer), profile.tensors[role].dtype, shapes.of_role(role, sizes, rows))
                for role in roles
            ]
            _write_shard(folder / shard, tensors, seed, layer, marked[layer] if full_size else None)
            shard_of |= {name: shard for _, name, _, _ in tensors}
    total = sum(
        safetensors_raw.byte_size(profile.tensors[role].dtype, shapes.of_role(role, sizes, rows)) or 0
        for rows in sizes.rows
        for role in profile.tensors
    )
    index_json = {"metadata": {"total_size": total}, "weight_map": dict(sorted(shard_of.items()))}
    write_text(folder / "model.safetensors.index.json", json.dumps(index_json, indent=2) + "\n")
    if tokenizer is not None:
        write_text(folder / "tokenizer.json", tokenizer)
    write_text(folder / "config.json", json.dumps(config(sizes, seed), indent=2) + "\n")
    fsync_folder(folder)
    return Made(sizes, marked)


@contextlib.contextmanager
def begun(folder: Path, force: bool) -> Iterator[None]:
    """The folder, made; one with files in it is refused unless `force`, a checkpoint of others always. On any failure
    what was written goes again, and after a crash the config, the last to be written, is missing: no checkpoint."""
    if folder.exists() and not folder.is_dir():
        raise FormatError(folder, None, "a folder", "a file")
    before = {path.name for path in folder.iterdir()} if folder.is_dir() else None
    if before and not force:
        raise EngramctlError(str(folder), "a new or empty folder (or --force)", "a folder with files in it")
    there = read_config(folder)[1] if before else None
    if there is not None and not is_synthetic(there):
        raise EngramctlError(str(folder), "a checkpoint that synth made, or none", f"one without {SYNTHETIC}")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors.index.json", "tokenizer.json"):
        (folder / name).unlink(missing_ok=True)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for path in folder.iterdir():
                if path.name not in (before or ()):
                    path.unlink()
            if before is None:
                folder.rmdir()
        raise


def choose_sizes(
    profile: Profile, real_tokens: bool, full_size: bool, base: int = TINY_BASE, hidden: int = TINY_HIDDEN
) -> Sizes:
    """The profile's sizes at full size; else small tables and streams, and the tiny tokenizer's ids unless real ones
    are asked for."""
    sizes = profile.sizes
    if full_size:
        return sizes
    if not real_tokens:
        vocabulary, compressed = tiny_tokenizer.COUNT, tiny_tokenizer.COMPRESSED
        sizes = replace(sizes, vocabulary=vocabulary, compressed=compressed, pad_token_id=tiny_tokenizer.PAD)
    primes = unused_primes(base, sizes.columns * len(sizes.layers))
    rows = tuple(sum(primes[i * sizes.columns : (i + 1) * sizes.columns]) for i in range(len(sizes.layers)))
    return replace(sizes, base=base, rows=rows, hidden=hidden)


def config(sizes: Sizes, seed: int) -> dict[str, Any]:
    """config.json in the published spelling. What the Engram does not need is plausible, and small where it counts
    layers' widths.

    Key names: deepseek-ai/DeepSeek-V4.1-Flash config.json.
    """
    text = {
        "model_type": "deepseek_v41_text",
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.hidden,
        "moe_intermediate_size": 2304,
        "num_hidden_layers": 40,
        "num_attention_heads": 64,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 1280,
        "o_lora_rank": 1024,
        "o_groups": 8,
        "hidden_act": "silu",
        "rms_norm_eps": sizes.eps,
        "max_position_embeddings": 1048576,
        "rope_theta": 10000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 65536,
        },
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "num_experts_per_tok": 6,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "swiglu_limit": 10.0,
        "sliding_window": 128,
        "compress_ratios": [0, 0] + [2] * 18 + [1] * 20 + [0] * 3,
        "compress_rope_theta": 160000,
        "kv_source_layer_ids": [2, 8, 14, 20],
        "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
        "index_n_heads": 32,
        "index_head_dim": 128,
        "index_topk": 512,
        "candidate_source_layer_id": 20,
        "candidate_topk_blocks": 2048,
        "candidate_block_size": 8,
        "hc_mult": sizes.streams,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "engram_layer_ids": list(sizes.layers),
        "engram_num_embeddings": list(sizes.rows),
        "engram_max_ngram_size": sizes.size,
        "engram_vocab_size": sizes.base,
        "engram_n_heads": sizes.heads,
        "engram_head_dim": sizes.width,
        "engram_pad_token_id": sizes.pad_token_id,
        "engram_compressed_vocab_size": sizes.compressed,
    }
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        SYNTHETIC: True,
        "engramctl_seed": seed,
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [shapes.PROJECTION_BLOCK, shapes.PROJECTION_BLOCK],
            "scale_fmt": "ue8m0",
            "expert_dtype": "fp4",
        },
        "text_config": text,
    }


def random_u64(seed: int, start: int, count: int) -> NDArray[np.uint64]:
    """splitmix64 of the counters start + 1 .. start + count (Steele, Lea, Flood 2014): any part of the stream alone."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed % 2**64) + np.arange(start + 1, start + count + 1, dtype=np.uint64) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _bytes(role: str, stream: int, start: int, count: int) -> NDArray[np.uint8]:
    """Bytes start .. start + count of a tensor of that role; both are whole draws."""
    if role in ("codes", "projection"):  # 8 codes a draw; NaN codes become the number beside them
        codes = random_u64(stream, start // 8, count // 8).astype("<u8").view(np.uint8)
        codes[codes & NUMBER_NAN == NUMBER_NAN] ^= 1
        return codes
    if role in ("scales", "projection_scale"):
        low, high = SCALE_BYTES if role == "scales" else PROJECTION_SCALE_BYTES
        drawn = random_u64(stream, start, count) >> np.uint64(32)
        return (low + drawn % np.uint64(high - low + 1)).astype(np.uint8)
    # BF16 weights between about 0.5 and 2: a random sign bit kept off, a random exponent of two, random fractions
    drawn = random_u64(stream, start // 2, count // 2)
    exponent, fraction = np.uint64(126) + (drawn >> np.uint64(63)), (drawn >> np.uint64(40)) & np.uint64(0x7F)
    return ((exponent << np.uint64(7)) | fraction).astype("<u2").view(np.uint8)


def _write_shard(
    path: Path,
    tensors: list[tuple[str, str, str, tuple[int, ...]]],
    seed: int,
    layer: int,
    marked: tuple[int, ...] | None,
) -> None:
    header, spans = safetensors_raw.header([(name, dtype, shape) for _, name, dtype, shape in tensors])
    path.unlink(missing_ok=True)
    with WriteFile.create(path) as file:
        file.write(0, header)
        file.resize(max(end for _, end in spans.values()))
        for role, name, _, shape in tensors:
            start, end = spans[name]
            stream = _stream(seed, layer, role)
            for first, count in _pieces(role, end - start, shape, marked):
                file.write(start + first, _bytes(role, stream, first, count).tobytes())
        file.sync()


def _pieces(role: str, size: int, shape: tuple[int, ...], marked: tuple[int, ...] | None) -> Iterator[tuple[int, int]]:
    """Byte ranges of a tensor that hold data: all of it, or at full size the marked rows and the projection's first
    block rows."""
    if marked is not None and role in ("codes", "scales"):
        yield from ((row * shape[1], shape[1]) for row in marked)
        return
    if marked is not None and role == "projection":
        size = shapes.PROJECTION_BLOCK * shape[1]
    piece = CHUNK_ROWS * row264.WIDTH
    yield from ((first, min(piece, size - first)) for first in range(0, size, piece))


def _stream(seed: int, layer: int, role: str) -> int:
    """A stream of its own for each tensor: mixed, so that neighbouring seeds do not share numbers."""
    return int(random_u64(seed * 4096 + layer, sum(role.encode()), 1)[0])


def write_text(path: Path, text: str) -> None:
    """A small file, replaced if it is there."""
    path.unlink(missing_ok=True)
    with WriteFile.create(path) as file:
        file.write(0, text.encode())
        file.sync()
