"""Checkpoints of a few hundred rows, written by hand: every byte is the test's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import deserialize

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]  # dtype, shape, bytes

PRIMES = {1: (7, 11), 14: (13, 17)}  # from 7 upwards, two columns a layer
ROWS = {layer: sum(primes) for layer, primes in PRIMES.items()}
TOKEN_MAP = [0, 1, 1, 2, 3, 0, 4, 5, 6, 6]
HIDDEN, STREAMS = 32, 2
INPUTS, OUTPUTS = 2 * 256, (STREAMS + 1) * HIDDEN


def shard(path: Path, tensors: Tensors) -> None:
    """A safetensors file."""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    write_shard(path, header, b"".join(data for _, _, data in tensors.values()))


def write_shard(path: Path, header: dict[str, Any], data: bytes) -> None:
    """A safetensors file whose header need not be true."""
    text = json.dumps(header).encode()
    path.unlink(missing_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def read_shard(path: Path) -> Tensors:
    """By the safetensors library, which knows nothing of this project."""
    entries = deserialize(path.read_bytes())
    return {name: (entry["dtype"], tuple(entry["shape"]), bytes(entry["data"])) for name, entry in entries}


def read_tensors(folder: Path) -> Tensors:
    return {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in read_shard(path).items()}


def config() -> dict[str, Any]:
    text = {
        "vocab_size": len(TOKEN_MAP),
        "hidden_size": HIDDEN,
        "hc_mult": STREAMS,
        "rms_norm_eps": 1e-20,
        "engram_layer_ids": list(ROWS),
        "engram_num_embeddings": list(ROWS.values()),
        "engram_max_ngram_size": 2,
        "engram_vocab_size": 7,
        "engram_n_heads": 2,
        "engram_head_dim": 256,
        "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": 7,
    }
    return {"text_config": text}


def tensors(layer: int, seed: int = 0) -> Tensors:
    """One layer's six tensors, valid and random."""
    rng, name = np.random.default_rng(seed + layer), f"layers.{layer}.engram."
    gate = (STREAMS, HIDDEN)
    return {
        name + "embed.weight": ("F8_E4M3", (ROWS[layer], 256), codes(rng, ROWS[layer] * 256)),
        name + "embed.scale": ("F8_E8M0", (ROWS[layer], 8), scales(rng, ROWS[layer] * 8)),
        name + "wkv.weight": ("F8_E4M3", (OUTPUTS, INPUTS), codes(rng, OUTPUTS * INPUTS)),
        name + "wkv.scale": ("F8_E8M0", (OUTPUTS // 32, INPUTS // 32), scales(rng, OUTPUTS * INPUTS // 1024)),
        name + "q_weight": ("BF16", gate, rng.integers(0x3F00, 0x4000, gate, np.uint16).tobytes()),
        name + "k_weight": ("BF16", gate, rng.integers(0x3F00, 0x4000, gate, np.uint16).tobytes()),
    }


def codes(rng: np.random.Generator, count: int) -> bytes:
    drawn = rng.integers(0, 256, count, np.uint8)
    return np.where(drawn & 0x7F == 0x7F, 0x38, drawn).astype(np.uint8).tobytes()


def scales(rng: np.random.Generator, count: int) -> bytes:
    return rng.integers(117, 122, count, np.uint8).tobytes()


@dataclass
class Mini:
    """A checkpoint before it is written: change what you like, then `write`."""

    config: dict[str, Any] = field(default_factory=config)
    tensors: Tensors = field(default_factory=lambda: {**tensors(1), **tensors(14)})

    @property
    def text(self) -> dict[str, Any]:
        return self.config["text_config"]

    def edit(self, name: str, at: int, byte: int) -> None:
        """One byte of one tensor."""
        dtype, shape, data = self.tensors[name]
        self.tensors[name] = (dtype, shape, data[:at] + bytes([byte]) + data[at + 1 :])

    def write(self, folder: Path) -> Path:
        """config.json, one shard, and beside the folder its token map."""
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(self.config))
        shard(folder / "model.safetensors", self.tensors)
        token_map_of(folder).write_text(json.dumps(TOKEN_MAP))
        return folder


def token_map_of(folder: Path) -> Path:
    """Where a mini checkpoint's token map lies."""
    return folder.with_name("map.json")


def rewrite(path: Path, change: Callable[[bytearray], None]) -> None:
    """Change a file's bytes in a file of its own: links to the old one keep theirs."""
    data = bytearray(path.read_bytes())
    change(data)
    path.unlink()
    path.write_bytes(data)
