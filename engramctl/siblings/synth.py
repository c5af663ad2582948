"""A synthetic checkpoint of a sibling, in its real format: config, index, shards, and a tokenizer where it has a map.

Tiny by default; `full_size` has the profile's sizes as sparse files in which only marked rows (and the first block of
each weight) hold data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import derivation, telling, tiny_tokenizer
from engramctl.config import SYNTHETIC
from engramctl.derivation import EXPLICIT
from engramctl.errors import EngramctlError
from engramctl.hash_params import HashParams
from engramctl.profiles import Profile, Sizes
from engramctl.siblings import numbers, tensors
from engramctl.siblings.tensors import CONSTANTS, Key, Wanted
from engramctl.synth import Made, begun, random_u64, write_text
from formats import safetensors_raw
from formats.disk import WriteFile, fsync_folder
from formats.row_plain import SIZES

TINY_BASE, TINY_HIDDEN, TINY_RATIO, TINY_SHARDS, TINY_WIDTH = 61, 48, 0.3, 12, 8
EOS, IMAGE = 3, 5  # of the tiny vocabulary
CHUNK = 1 << 20  # numbers made at a time
FULL_WEIGHT = 1 << 16  # numbers of each weight that are made at full size; the rest is a hole
SCALE_BF16 = 0x3A00  # 2**-11: the scale of a made FP8 table
ADAPTER = "engram_adapters.safetensors"  # engram-peft's one file


def make(folder: Path, profile: Profile, seed: int, real_tokens: bool, full_size: bool, force: bool = False) -> Made:
    """Write config, index, shards and tokenizer into `folder`, which must be new or empty."""
    if not profile.tensors:
        raise EngramctlError(f"profile {profile.name}", "a model with public weights", profile.unpublished)
    if EXPLICIT in profile.derivation.values() and not full_size:
        raise EngramctlError("synth", f"--full-size: the constants of profile {profile.name} are explicit", "none")
    if real_tokens and not full_size and profile.rule.id_space == "byte":
        raise EngramctlError("--tokens", f"tiny: the token ids of profile {profile.name} are bytes", "real")
    with begun(folder, force):
        return _make(folder, profile, seed, real_tokens, full_size)


def _make(folder: Path, profile: Profile, seed: int, real_tokens: bool, full_size: bool) -> Made:
    if full_size:
        sizes = profile.sizes
    else:
        profile, sizes = tiny(profile, real_tokens)
    made = derivation.expected if full_size else derivation.derive
    params = made(profile, sizes, _map(profile, sizes, real_tokens or full_size))
    shard_of: dict[str, str] = {}
    marked: dict[int, tuple[int, ...]] = {}
    files = list(_files(profile, sizes))
    single = profile.facts.get("config") == "peft"
    everything = {key: want for _, part in files for key, want in part.items()}
    for number, (layer, part) in enumerate([(sizes.layers[0], everything)] if single else files, 1):
        firsts = np.cumsum([0, *tensors.pieces(profile, sizes, layer)]).tolist()
        if full_size:
            edges = [*firsts, *(int(x) for x in params.offsets[sizes.layers.index(layer)]), params.used(layer)]
            row_bytes = sizes.width * SIZES[_dtype(profile)]
            marked[layer] = tuple(telling.plain_rows(firsts[-1], edges, row_bytes))
        shard = ADAPTER if single else f"model-{number:05d}-of-{len(files):05d}.safetensors"
        writer = _Writer(profile, params, seed, {k: marked.get(k) for k in sizes.layers} if full_size else None)
        writer.write(folder / shard, part, {each: _firsts(profile, sizes, each) for each in sizes.layers})
        shard_of |= {want.name: shard for want in part.values()}
    total = sum(safetensors_raw.byte_size(w.dtype, w.shape) or 0 for _, part in files for w in part.values())
    if not single:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(shard_of.items()))}
        write_text(folder / "model.safetensors.index.json", json.dumps(index, indent=2) + "\n")
    if profile.rule.id_space == "map" and not (real_tokens or full_size):
        write_text(folder / "tokenizer.json", tiny_tokenizer.text())
    write_text(folder / "config.json", json.dumps(config(profile, sizes, seed), indent=2) + "\n")
    fsync_folder(folder)
    return Made(sizes, marked)


def tiny(profile: Profile, real_tokens: bool) -> tuple[Profile, Sizes]:
    """The same rules at sizes that fit anywhere."""
    sizes, module = replace(profile.sizes, hidden=TINY_HIDDEN), profile.module
    if profile.rule.id_space == "map":
        sizes = replace(sizes, width=TINY_WIDTH, base=TINY_BASE)
        if not real_tokens:
            vocabulary, compressed = tiny_tokenizer.COUNT, tiny_tokenizer.COMPRESSED
            sizes = replace(sizes, vocabulary=vocabulary, compressed=compressed, pad_token_id=tiny_tokenizer.PAD)
    elif profile.rule.id_space == "byte":
        sizes = replace(sizes, base=TINY_BASE, width=TINY_HIDDEN)
    else:
        count = sizes.vocabulary if real_tokens else tiny_tokenizer.COUNT
        eos, pad = (sizes.eos_token_id, sizes.pad_token_id) if real_tokens else (EOS, min(EOS, sizes.pad_token_id))
        image = IMAGE if sizes.image_token_id is not None and not real_tokens else sizes.image_token_id
        sizes = replace(
            sizes, vocabulary=count, compressed=count, eos_token_id=eos, pad_token_id=pad, image_token_id=image
        )
        if profile.storage.layout == "columns":  # widths and moduli follow from others
            ratio = TINY_RATIO * tiny_tokenizer.COUNT / count
            sizes = replace(sizes, ratio=ratio, base=int(ratio * count), width=TINY_HIDDEN // sizes.columns)
        else:
            sizes = replace(sizes, base=TINY_BASE)
    if profile.storage.layout == "shards":
        padding = TINY_SHARDS * 10
        storage = replace(profile.storage, shards=TINY_SHARDS)
        profile = replace(profile, storage=storage, derivation=dict(profile.derivation) | {"padding": padding})
    profile = replace(profile, module=module, sizes=sizes)
    return profile, replace(sizes, rows=derivation.rows(profile, sizes))


def _map(profile: Profile, sizes: Sizes, real: bool) -> NDArray[np.uint32]:
    if profile.rule.id_space != "map":
        return np.arange(sizes.vocabulary, dtype=np.uint32)
    if real:
        return replace(profile, sizes=sizes).token_map()
    from engramctl import vocabulary

    return vocabulary.build(
        vocabulary.parse(tiny_tokenizer.text().encode(), Path("tokenizer.json")), Path("tokenizer.json")
    )


def _firsts(profile: Profile, sizes: Sizes, layer: int) -> list[int]:
    return [int(x) for x in np.cumsum([0, *tensors.pieces(profile, sizes, layer)])]


def _dtype(profile: Profile) -> str:
    return tensors.SCALED if profile.storage.encoding == "e4m3_scalar" else profile.tensors["table"].dtype


def _files(profile: Profile, sizes: Sizes) -> Iterator[tuple[int, dict[Key, Wanted]]]:
    """(layer, tensors) of each file: a file for each piece of a table, one for the rest of the layer."""
    scaled = profile.storage.encoding == "e4m3_scalar"
    for layer in sizes.layers:
        wanted = tensors.wanted(profile, sizes, layer)
        if not scaled:
            wanted = {key: want for key, want in wanted.items() if key[1] != "table_scale"}
        for key, want in wanted.items():
            if key[1] == "table":
                yield layer, {key: replace(want, dtype=_dtype(profile))}
        rest = {key: want for key, want in wanted.items() if key[1] != "table"}
        if rest:
            yield layer, rest


class _Writer:
    """Writes one checkpoint's shards."""

    def __init__(
        self, profile: Profile, params: HashParams, seed: int, marked: dict[int, tuple[int, ...] | None] | None
    ) -> None:
        self.profile, self.params, self.seed, self.marked = profile, params, seed, marked

    def write(self, path: Path, part: dict[Key, Wanted], firsts: dict[int, list[int]]) -> None:
        header, spans = safetensors_raw.header([(want.name, want.dtype, want.shape) for want in part.values()])
        path.unlink(missing_ok=True)
        with WriteFile.create(path) as file:
            file.write(0, header)
            file.resize(max(end for _, end in spans.values()))
            for key, want in part.items():
                for first, data in self.data(key, want, firsts[key[0]]):
                    file.write(spans[want.name][0] + first, data)
            file.sync()

    def data(self, key: Key, want: Wanted, firsts: list[int]) -> Iterator[tuple[int, bytes]]:
        """(byte, bytes) of what a tensor holds."""
        layer, role, number = key
        if role in CONSTANTS:
            yield 0, getattr(self.params, role)[self.params.layers.index(layer)].astype("<i8").tobytes()
        elif role == "table_scale":
            yield 0, SCALE_BF16.to_bytes(2, "little")
        else:
            size, count = SIZES[want.dtype], int(np.prod(want.shape))
            stream = int(random_u64(self.seed * 4096 + layer + 1, sum(role.encode()) * 4096 + number, 1)[0])
            for first, some in self.pieces(key, want, count, firsts):
                if role.startswith("norm"):
                    made = numbers.near_one(want.dtype, self.profile.module.norm == "one_plus", stream, first, some)
                else:
                    made = numbers.made(want.dtype, stream, first, some)
                yield first * size, made.tobytes()

    def pieces(self, key: Key, want: Wanted, count: int, firsts: list[int]) -> Iterator[tuple[int, int]]:
        """(number, count) of the numbers of a tensor that are made: all, or at full size the marked rows."""
        layer, role, number = key
        marked = None if self.marked is None else self.marked.get(layer)
        if marked is not None and role == "table":
            width = want.shape[1]
            for row in marked:
                if firsts[number] <= row < firsts[number + 1]:
                    yield (row - firsts[number]) * width, width
            return
        if self.marked is not None:
            count = min(count, FULL_WEIGHT)
        yield from ((first, min(CHUNK, count - first)) for first in range(0, count, CHUNK))


def config(profile: Profile, sizes: Sizes, seed: int) -> dict[str, Any]:
    """config.json in the model's spelling, as far as its hashed memory goes."""
    made: dict[str, Any] = {
        "model_type": (profile.facts.get("model_types") or [profile.name])[0], SYNTHETIC: True, "engramctl_seed": seed
    }  # fmt: skip
    columns, kind = sizes.columns, profile.facts.get("config")
    say: dict[str, Any] = {
        "layers": [layer + 1 for layer in sizes.layers] if kind == "ple" else list(sizes.layers),
        "rows": list(sizes.rows),
        "orders": list(range(sizes.smallest, sizes.size + 1)),
        "totals": [sizes.base * sizes.heads] * (sizes.size - sizes.smallest + 1),
        "inputs": columns * sizes.width,
        "shards": profile.storage.shards,
        "kernel": profile.module.kernel,
        "dilation": profile.module.dilation,
        "padding": profile.derivation.get("padding", 1),
        "seed": profile.seed,
        "functions": 1,
    }
    for size, keys in profile.config_keys.items():
        made[keys[0]] = say[size] if size in say else getattr(sizes, size)
    if kind == "blt":
        made |= {"vocab_size": sizes.vocabulary, "encoder_config": {"hidden_size": sizes.hidden}}
    return made
