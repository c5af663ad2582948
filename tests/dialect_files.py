"""One model in every dialect, written with the gguf library from a checkpoint: nothing here is the code under test."""

from __future__ import annotations

import gc
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from checkpoints import read_tensors
from gguf import GGMLQuantizationType as Q
from gguf import GGUFReader, GGUFValueType, GGUFWriter, quants
from numpy.typing import NDArray

V = GGUFValueType
WORDS = {
    "u16": V.UINT16,
    "u32": V.UINT32,
    "i32": V.INT32,
    "u64": V.UINT64,
    "i64": V.INT64,
    "string": V.STRING,
    "bool": V.BOOL,
    "f32": V.FLOAT32,
}
NEW = "deepseek41.engram."
HYPERPARAMETERS = {"vocab_size": "u32", "hidden_size": "u32", "hc_mult": "u32", "rms_norm_eps": "f32"}
OLD = "deepseek4.engram."


@dataclass
class Model:
    """The numbers of a checkpoint, as the released code derives them."""

    layers: list[int]
    rows: list[int]
    primes: list[int]
    offsets: list[int]
    multipliers: list[int]
    token_map: list[int]
    compressed: int
    raw_pad: int
    base: int
    codes: dict[int, NDArray[np.uint8]]  # [rows, 256]
    scales: dict[int, NDArray[np.uint8]]  # [rows, 8]
    gates: dict[tuple[int, str], NDArray[np.float32]]  # [streams, hidden]
    projection: dict[int, NDArray[np.float32]]  # [outputs, inputs]
    config: dict[str, Any]  # of the language model: what an Engram needs of it

    @property
    def pad(self) -> int:
        return self.token_map[self.raw_pad]

    def values(self, layer: int) -> NDArray[np.float32]:
        """[rows, 256] exact values."""
        codes = self.codes[layer].view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        return codes * np.repeat(np.exp2(self.scales[layer].astype(np.float32) - 127), 32, axis=1)

    def rows264(self, layer: int) -> NDArray[np.uint8]:
        return np.concatenate([self.codes[layer], self.scales[layer]], axis=1)

    def blocks264(self, layer: int) -> NDArray[np.uint8]:
        codes = self.codes[layer].reshape(-1, 8, 32)
        return np.concatenate([self.scales[layer][:, :, None], codes], axis=2).reshape(-1, 264)


def read_model(checkpoint: Path, container: Path) -> Model:
    """The tiny checkpoint; its token map out of the container it was repacked to."""
    text = json.loads((checkpoint / "config.json").read_text())["text_config"]
    layers, columns = text["engram_layer_ids"], 24
    primes = [n for n in range(61, 400) if all(n % d for d in range(2, 20))][: columns * len(layers)]
    half = (2**63 - 1) // text["engram_compressed_vocab_size"] // 2
    drawn = [np.random.default_rng(10007 * layer).integers(0, half, 4) for layer in layers]
    tensors, codes, scales, gates, projection = read_tensors(checkpoint), {}, {}, {}, {}
    for layer in layers:
        name = f"layers.{layer}.engram."
        codes[layer] = np.frombuffer(tensors[name + "embed.weight"][2], np.uint8).reshape(-1, 256)
        scales[layer] = np.frombuffer(tensors[name + "embed.scale"][2], np.uint8).reshape(-1, 8)
        for role in ("q_weight", "k_weight"):
            _, shape, data = tensors[name + role]
            gates[layer, role] = np.frombuffer(data, ml_dtypes.bfloat16).astype(np.float32).reshape(shape)
        _, shape, data = tensors[name + "wkv.weight"]
        weight = np.frombuffer(data, ml_dtypes.float8_e4m3fn).astype(np.float32).reshape(shape)
        _, blocks, data = tensors[name + "wkv.scale"]
        powers = np.exp2(np.frombuffer(data, np.uint8).astype(np.float32).reshape(blocks) - 127)
        projection[layer] = weight * np.kron(powers, np.ones((32, 32), np.float32))
    ids = GGUFReader(container).fields["deepseek41.engram.token_map"].contents()
    gc.collect()  # a reader's memory map is an open file
    return Model(
        layers,
        text["engram_num_embeddings"],
        primes,
        [sum(primes[c - c % columns : c]) for c in range(len(primes))],
        [int(x) * 2 + 1 for x in np.concatenate(drawn)],
        ids,
        text["engram_compressed_vocab_size"],
        text["engram_pad_token_id"],
        61,
        *(codes, scales, gates, projection),
        {name: value for name, value in text.items() if name.startswith("engram_") or name in HYPERPARAMETERS},
    )


Keys = dict[str, tuple[str, Any]]  # name -> (type in short words, value)
Tensors = list[tuple[str, NDArray[Any], Q | None]]  # rows as they are written; the type of raw bytes


def write(path: Path, keys: Keys, tensors: Tensors, architecture: str = "deepseek41", alignment: int = 32) -> Path:
    """A GGUF by the gguf library, every key with exactly its type, tensors in this order."""
    writer = GGUFWriter(path, architecture)
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    for name, (kind, value) in keys.items():
        if kind.endswith("[]"):
            writer.add_key_value(name, value, V.ARRAY, WORDS[kind[:-2]])
        else:
            writer.add_key_value(name, value, WORDS[kind])
    for name, array, kind in tensors:
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def llama_weights(model: Model, layer: int) -> Tensors:
    return [
        (f"blk.{layer}.engram_q.weight", model.gates[layer, "q_weight"], None),
        (f"blk.{layer}.engram_k.weight", model.gates[layer, "k_weight"], None),
        (f"blk.{layer}.engram_wkv.weight", model.projection[layer].astype(np.float16), None),
    ]


def table(layer: int) -> str:
    return f"blk.{layer}.engram_embd.weight"


def llamacpp_keys(model: Model, prefix: str = NEW) -> Keys:
    return {
        f"{prefix}layer_ids": ("i32[]", model.layers),
        f"{prefix}head_count": ("u32", 8),
        f"{prefix}key_length": ("u32", 256),
        f"{prefix}max_ngram_size": ("u32", 4),
        f"{prefix}multipliers": ("u64[]", model.multipliers),
        f"{prefix}primes": ("u64[]", model.primes),
        f"{prefix}offsets": ("u64[]", model.offsets),
        f"{prefix}token_map": ("i32[]", model.token_map),
        f"{prefix}pad_id": ("u32", model.pad),
    }


def quantised(model: Model, kind: Q = Q.Q8_0) -> Tensors:
    made: Tensors = []
    for layer in model.layers:
        made += llama_weights(model, layer)
        made.append((table(layer), quants.quantize(model.values(layer), kind), kind))
    return made


def split_keys(model: Model) -> Keys:
    return {
        f"{NEW}layers": ("u32[]", model.layers),
        f"{NEW}ngram_size": ("u32", 4),
        f"{NEW}head_count": ("u32", 8),
        f"{NEW}head_dim": ("u32", 256),
        f"{NEW}compressed_vocab_size": ("u32", model.compressed),
        f"{NEW}pad_token_id": ("u32", model.raw_pad),
        f"{NEW}embedding_counts": ("u32[]", model.rows),
        f"{NEW}head_bucket_sizes": ("u32[]", model.primes),
        f"{NEW}head_offsets": ("u32[]", model.offsets),
        f"{NEW}multipliers": ("u64[]", model.multipliers),
        f"{NEW}token_map": ("u32[]", model.token_map),
    }


def split_tensors(model: Model, names: dict[str, str] | None = None) -> Tensors:
    made: Tensors = []
    renamed = names or {"q": "engram_q_weight", "k": "engram_k_weight", "wkv": "engram_kv"}
    for layer in model.layers:
        made.append((table(layer), model.codes[layer].view(np.int8), None))
        made.append((f"blk.{layer}.engram_embd_scale.weight", model.scales[layer].view(np.int8), None))
        for name, array, kind in llama_weights(model, layer):
            role = name.split("engram_")[1].removesuffix(".weight")
            made.append((f"blk.{layer}.{renamed[role]}.weight", array, kind))
    return made


def split_table_keys(model: Model) -> Keys:
    return {
        f"{NEW}layers": ("u32[]", model.layers),
        f"{NEW}max_ngram_size": ("u32", 4),
        f"{NEW}head_count": ("u32", 8),
        f"{NEW}head_dim": ("u32", 256),
        f"{NEW}pad_token_id": ("u32", model.raw_pad),
        f"{NEW}compressed_vocab_size": ("u32", model.compressed),
        f"{NEW}table_rows": ("u32[]", model.rows),
        f"{NEW}hash_multipliers": ("u64[]", model.multipliers),
        f"{NEW}head_offsets": ("u64[]", model.offsets),
        f"{NEW}head_bucket_sizes": ("u64[]", model.primes),
        f"{NEW}token_map": ("i32[]", model.token_map),
    }


def tensor_constants_keys(model: Model) -> Keys:
    return {
        f"{NEW}present": ("bool", True),
        f"{NEW}layer_ids": ("i32[]", model.layers),
        f"{NEW}num_embeddings": ("i32[]", model.rows),
        "deepseek41.engram_head_dim": ("u32", 256),
        "deepseek41.engram_n_heads": ("u32", 8),
        "deepseek41.engram_max_ngram_size": ("u32", 4),
        "deepseek41.engram_vocab_size": ("u32", model.base),
        "deepseek41.engram_compressed_vocab_size": ("u32", model.compressed),
        "deepseek41.engram_pad_token_id": ("u32", model.raw_pad),
    }


def tensor_constants(model: Model) -> Tensors:
    arrays: Tensors = [
        ("engram_token_map.weight", np.array(model.token_map, np.int32), None),
        ("engram_primes.weight", np.array(model.primes, np.int64).reshape(2, -1), None),
        ("engram_offsets.weight", np.array(model.offsets, np.int64).reshape(2, -1), None),
        ("engram_multipliers.weight", np.array(model.multipliers, np.int64).reshape(2, -1), None),
    ]
    return arrays + split_tensors(model, {"q": "engram_q", "k": "engram_k", "wkv": "engram_wkv"})


def deepstrix_keys(model: Model) -> Keys:
    return {
        f"{OLD}layer_ids": ("i32[]", model.layers),
        f"{OLD}num_embeddings": ("i32[]", model.rows),
        f"{OLD}max_ngram_size": ("u32", 4),
        f"{OLD}vocab_size": ("u32", model.base),
        f"{OLD}head_count": ("u32", 8),
        f"{OLD}head_dim": ("u32", 256),
        f"{OLD}pad_id": ("u32", model.raw_pad),
        f"{OLD}compressed_vocab_size": ("u32", model.compressed),
        f"{OLD}table_shards": ("string[]", ["/models/model-00047-of-00048.safetensors", "/models/x.safetensors"]),
    }


def external_keys(model: Model) -> Keys:
    keys: Keys = {
        f"{OLD}layer_ids": ("i32[]", model.layers),
        f"{OLD}num_embeddings": ("u64[]", model.rows),
        f"{OLD}max_ngram_size": ("u32", 4),
        f"{OLD}head_count": ("u32", 8),
        f"{OLD}head_dim": ("u32", 256),
        f"{OLD}vocab_size": ("u32", model.base),
        f"{OLD}compressed_vocab_size": ("u32", model.compressed),
        f"{OLD}pad_id_compressed": ("u32", model.pad),
    }
    for number in range(2):
        keys[f"{OLD}{number}.table_path"] = ("string", f"/models/{number}.safetensors")
        keys[f"{OLD}{number}.weight_offset"] = ("u64", 664)
        keys[f"{OLD}{number}.scale_offset"] = ("u64", 98_305_579_672)
    return keys


def contract_keys(model: Model) -> Keys:
    return {
        f"{NEW}max_ngram_size": ("u32", 4),
        f"{NEW}head_count": ("u32", 8),
        f"{NEW}head_dim": ("u32", 256),
        f"{NEW}compressed_vocab_size": ("u32", model.compressed),
        f"{NEW}pad_token_id": ("u32", model.raw_pad),
        f"{NEW}layers": ("u32[]", model.layers),
        f"{NEW}num_embeddings": ("u32[]", model.rows),
        f"{NEW}token_map": ("u32[]", model.token_map),
        f"{NEW}hash_primes": ("u32[]", model.primes),
        f"{NEW}hash_offsets": ("u64[]", model.offsets),
        f"{NEW}hash_multipliers": ("u64[]", model.multipliers),
        f"{NEW}hash_contract_sha256": ("string", "9a50b6f0ae6be53fa6aa7ea4c2c6c5e94b605b41241a00dbc2a1b5a4c2c81a18"),
    }


def ds4_keys(model: Model, encoding: str) -> Keys:
    stated = {f"deepseek41.{name}": (kind, model.config[name]) for name, kind in HYPERPARAMETERS.items()}
    return stated | {
        "deepseek41.config": ("string", json.dumps({"text_config": model.config})),
        f"{NEW}encoding": ("string", encoding),
        f"{NEW}layer_ids": ("u32[]", model.layers),
        f"{NEW}rows": ("u32[]", model.rows),
        f"{NEW}compressed_vocab_size": ("u32", model.compressed),
        f"{NEW}pad_id": ("u32", model.pad),
        f"{NEW}token_map": ("u32[]", model.token_map),
        f"{NEW}primes": ("u32[]", model.primes),
        f"{NEW}multipliers": ("u64[]", model.multipliers),
    }


def ds4_tensors(model: Model, rows: dict[int, NDArray[Any]], kind: Q | None = None) -> Tensors:
    made: Tensors = []
    for layer in model.layers:
        made.append((f"blk.{layer}.engram_q_norm.weight", model.gates[layer, "q_weight"], None))
        made.append((f"blk.{layer}.engram_k_norm.weight", model.gates[layer, "k_weight"], None))
        made.append((f"blk.{layer}.engram_kv.weight", model.projection[layer].astype(np.float16), None))
    return made + [(table(layer), rows[layer], kind) for layer in model.layers]


def sidecar_keys(model: Model) -> Keys:
    prefix = "deepseek4-engram."
    return {
        f"{prefix}layers": ("u32[]", model.layers),
        f"{prefix}row_counts": ("u32[]", model.rows),
        f"{prefix}max_ngram_size": ("u32", 4),
        f"{prefix}ngram_count": ("u32", 3),
        f"{prefix}head_count": ("u32", 8),
        f"{prefix}head_dim": ("u32", 256),
        f"{prefix}vocab_size": ("u32", model.base),
        f"{prefix}compressed_vocab_size": ("u32", model.compressed),
        f"{prefix}pad_token_id": ("u32", model.raw_pad),
        f"{prefix}compressed_pad_id": ("u32", model.pad),
    }


def engram_sidecar(path: Path, model: Model) -> Path:
    """kernelpool/ds4: constants as tensors, and rows of a tensor type that the gguf library does not know."""
    tensors: Tensors = [
        ("engram.token_map", np.array(model.token_map, np.int32), None),
        ("engram.hash_multipliers", np.array(model.multipliers, np.int64).reshape(2, -1), None),
        ("engram.hash_primes", np.array(model.primes, np.int64).reshape(2, -1), None),
        ("engram.hash_offsets", np.array(model.offsets, np.int64).reshape(2, -1), None),
    ]
    for layer in model.layers:
        name = f"layers.{layer}.engram."
        for role in ("q_weight", "k_weight"):
            tensors.append((name + role, _bf16(model.gates[layer, role]), Q.BF16))
        tensors.append((name + "wkv.weight", _bf16(model.projection[layer]), Q.BF16))
        tensors.append((name + "embed.weight", model.blocks264(layer).view(np.int8), None))
    data = bytearray(write(path, sidecar_keys(model), tensors, "deepseek4-engram").read_bytes())
    for layer, rows in zip(model.layers, model.rows, strict=True):
        name = f"layers.{layer}.engram.embed.weight".encode()
        at = data.index(name) + len(name)
        written = struct.pack("<IQQI", 2, 264, rows, Q.I8)
        assert data[at : at + len(written)] == written
        data[at : at + len(written)] = struct.pack("<IQQI", 2, 256, rows, 64)
    path.write_bytes(data)
    return path


def _bf16(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    return values.astype(ml_dtypes.bfloat16).view(np.uint8)


LEVELS = np.array([0, 0.095, 0.1901, 0.2944, 0.4126, 0.5586, 0.7484, 1], np.float32)


def lloyd4(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """[n, 256] values -> [n, 136] rows: the smallest scale byte at or above each group's largest value."""
    groups = values.reshape(len(values), 8, 32)
    steps = np.array([(8 + (b & 7)) / 16 * 2.0 ** ((b >> 3) - 16) for b in range(256)], np.float32)
    most = np.abs(groups).max(axis=2)
    scale = np.searchsorted(steps, most).astype(np.uint8)
    levels = np.abs(np.abs(groups)[..., None] / steps[scale][:, :, None, None] - LEVELS).argmin(axis=-1)
    nibbles = (levels + 8 * np.signbit(groups)).astype(np.uint8).reshape(len(values), 128, 2)
    return np.concatenate([nibbles[..., 0] | nibbles[..., 1] << 4, scale], axis=1)


def q4_k(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """[n, 256] values -> [n, 144] blocks, as ggml's Q4_K lays them out: d, dmin, 6-bit scales and mins, nibbles."""
    groups = values.reshape(len(values), 8, 32)
    low, high = np.minimum(groups.min(axis=2), 0), groups.max(axis=2)
    step, least = (high - low) / 15, -low
    d, dmin = (np.maximum(x.max(axis=1), 1e-8) / 63 for x in (step, least))
    d, dmin = d.astype(np.float16).astype(np.float32), dmin.astype(np.float16).astype(np.float32)
    sc = np.clip(np.rint(step / d[:, None]), 0, 63).astype(np.uint8)
    mn = np.clip(np.rint(least / dmin[:, None]), 0, 63).astype(np.uint8)
    real, floor = sc * d[:, None], mn * dmin[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.nan_to_num((groups + floor[..., None]) / real[..., None], posinf=0, neginf=0)
    q = np.clip(np.rint(q), 0, 15).astype(np.uint8)
    packed = np.zeros((len(values), 12), np.uint8)
    for j in range(4):
        packed[:, j] = sc[:, j] | (sc[:, j + 4] >> 4) << 6
        packed[:, j + 4] = mn[:, j] | (mn[:, j + 4] >> 4) << 6
        packed[:, j + 8] = (sc[:, j + 4] & 15) | (mn[:, j + 4] & 15) << 4
    nibbles = np.concatenate([q[:, j] | q[:, j + 1] << 4 for j in range(0, 8, 2)], axis=1)
    head = np.stack([d.astype("<f2"), dmin.astype("<f2")], axis=1).view(np.uint8)
    return np.concatenate([head, packed, nibbles], axis=1)


def make(name: str, folder: Path, model: Model) -> Path:
    """The model as a GGUF of that dialect."""
    path = folder / f"{name}.gguf"
    if name == "llamacpp":
        return write(path, llamacpp_keys(model), quantised(model))
    if name == "split-i8":
        return write(path, split_keys(model), split_tensors(model))
    if name == "engram-sidecar":
        return engram_sidecar(path, model)
    if name == "split-table":
        return write(path, split_table_keys(model), quantised(model))
    if name == "tensor-constants":
        return write(path, tensor_constants_keys(model), tensor_constants(model))
    if name == "deepstrix":
        tensors = [tensor for layer in model.layers for tensor in llama_weights(model, layer)]
        return write(path, deepstrix_keys(model), tensors, "deepseek4")
    if name == "deepseek4-external":
        return write(path, external_keys(model), [], "deepseek4")
    if name == "sidecar-contract":
        tensors = [
            (tensor.replace(".engram_", ".engram."), array, kind)
            for layer in model.layers
            for tensor, array, kind in llama_weights(model, layer)
        ]
        return write(path, contract_keys(model), tensors)
    rows: dict[int, NDArray[Any]] = {}
    if name == "ds4":
        rows = {layer: model.rows264(layer).view(np.int8) for layer in model.layers}
        return write(path, ds4_keys(model, "e4m3_e8m0_32_row264"), ds4_tensors(model, rows), alignment=16384)
    if name == "ds4-lloyd4":
        rows = {layer: lloyd4(model.values(layer)).view(np.int8) for layer in model.layers}
        return write(path, ds4_keys(model, "lloyd4_e5m3_32_r136"), ds4_tensors(model, rows), alignment=16384)
    assert name == "ds4-q4k"
    rows = {layer: q4_k(model.values(layer)) for layer in model.layers}
    keys = ds4_keys(model, "q4_k_row144") | {f"{NEW}storage": ("string", "embedded")}
    return write(path, keys, ds4_tensors(model, rows, Q.Q4_K), alignment=16384)


MADE = ("ds4", "ds4-lloyd4", "ds4-q4k", "llamacpp", "split-i8", "split-table", "tensor-constants", "deepstrix")
MADE += ("deepseek4-external", "sidecar-contract", "engram-sidecar")
