"""repack the other way: a GGUF of the `qwen4exp` dialect back into a safetensors checkpoint, shards and all.

What the GGUF rounds or adds must come back exactly: a norm's weight is the BF16 number that gives the stored one when
1 is added in F32 (below 2**-24 several do, and the least rounded is taken); anything else is refused with the count.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError
from engramctl.profiles import Profile, load
from engramctl.siblings import repack, tensors
from engramctl.siblings.container import PleContainer
from engramctl.siblings.synth import config
from engramctl.siblings.tensors import Key, Wanted
from formats import disk, safetensors_raw
from formats.disk import WriteFile
from formats.errors import FormatError
from formats.floats import exact_in_bf16, from_bf16, to_bf16
from formats.ple_gguf import SIDECAR

DIALECT = "hf"


def write(
    source: PleContainer, output: Path, force: bool = False, progress: Callable[[int], None] = lambda n: None
) -> None:
    """A checkpoint folder with config, index and shards: whole, or not at all."""
    if source.made_of is SIDECAR:
        raise EngramctlError(
            str(source.path), "a container with the module's weights", f"{SIDECAR.name}: a table alone"
        )
    disk.refuse_existing(output, force)
    if output.exists() and force:
        raise EngramctlError(str(output), "a new folder: --force does not remove one", "a folder that exists")
    partial = output.with_name(f"{output.name}.partial")
    if partial.exists():
        raise FormatError(partial, None, "nothing unfinished there", "an unfinished output: remove it")
    profile = _profile(source)
    layer = source.sizes.layers[0]
    wanted = tensors.wanted(profile, source.sizes, layer)
    wanted = {key: want for key, want in wanted.items() if key[1] != "table_scale"}
    parts = [{key: want} for key, want in wanted.items() if key[1] == "table"]
    parts.append({key: want for key, want in wanted.items() if key[1] != "table"})
    partial.mkdir(parents=True)
    try:
        shard_of: dict[str, str] = {}
        total = 0
        for number, part in enumerate(parts, 1):
            shard = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
            total += _shard(partial / shard, part, source, profile, progress)
            shard_of |= {want.name: shard for want in part.values()}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(shard_of.items()))}
        made = config(profile, source.sizes, 0)
        del made["engramctl_synthetic"], made["engramctl_seed"]
        for name, content in (("model.safetensors.index.json", index), ("config.json", made)):
            disk.write_whole(partial / name, [json.dumps(content, indent=2).encode() + b"\n"])
        disk.publish(partial, output, force=False)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _profile(source: PleContainer) -> Profile:
    """The profile with what the container decides, and its norms as a checkpoint keeps them."""
    known = load(source.profile.name)
    rows, used = source.sizes.rows[0], int(source.params().offsets[0, -1] + source.params().moduli[0, -1])
    shards = known.storage.shards if rows % known.storage.shards == 0 else 1
    padding = next((p for p in (known.derivation["padding"], rows - used or 1, rows) if -(-used // p) * p == rows), 0)
    if not padding:
        raise EngramctlError(str(source.path), f"rows that pad {used} to a multiple of something", f"{rows}")
    return replace(
        known,
        storage=replace(known.storage, shards=shards, encoding="bf16"),
        module=replace(known.module, kernel=source.profile.module.kernel, dilation=source.profile.module.dilation),
        derivation=dict(known.derivation) | {"padding": padding},
    )


def _shard(
    path: Path, part: dict[Key, Wanted], source: PleContainer, profile: Profile, progress: Callable[[int], None]
) -> int:
    """One file; returns the bytes of its tensors."""
    header, spans = safetensors_raw.header([(want.name, want.dtype, want.shape) for want in part.values()])
    with contextlib.closing(WriteFile.create(path)) as file:
        file.write(0, header)
        file.resize(max(end for _, end in spans.values()))
        for key, want in part.items():
            for at, data in _data(key, want, source, profile):
                file.write(spans[want.name][0] + at, data)
                progress(len(data))
        file.sync()
    return sum(end - start for start, end in spans.values())


def _data(key: Key, want: Wanted, source: PleContainer, profile: Profile) -> Iterator[tuple[int, bytes]]:
    layer, role, number = key
    if role == "table":
        first = number * want.shape[0]
        yield from _rows(source, layer, first, first + want.shape[0])
    elif role in tensors.CONSTANTS:
        yield 0, getattr(source.params(), role)[0].astype("<i8").tobytes()
    else:
        values = source.floats(role, layer)[0].reshape(-1)
        bits = less_one(values, want.name) if role.startswith("norm") else _exact(values, want.name)
        yield 0, bits.astype("<u2").tobytes()


def _rows(source: PleContainer, layer: int, first: int, last: int) -> Iterator[tuple[int, bytes]]:
    table = source.table(layer)
    row_bytes = source.sizes.width * 2
    for low, high in table.data_ranges():
        for start in range(max(low, first), min(high, last), repack.CHUNK_ROWS):
            numbers = np.arange(start, min(start + repack.CHUNK_ROWS, high, last))
            yield (start - first) * row_bytes, repack.converted(table, numbers, "BF16").tobytes()


def less_one(values: NDArray[np.float32], name: str) -> NDArray[np.uint16]:
    """BF16 weights that give these values when 1 is added in F32."""
    bits = to_bf16(values - np.float32(1))
    wrong = from_bf16(bits) + np.float32(1) != values
    if wrong.any():
        found = f"{int(np.count_nonzero(wrong))} of {values.size} that no BF16 weight gives"
        raise EngramctlError(name, "norm weights with the 1 added", found)
    return bits


def _exact(values: NDArray[np.float32], name: str) -> NDArray[np.uint16]:
    wrong = int(np.count_nonzero(~exact_in_bf16(values)))
    if wrong:
        raise EngramctlError(name, "values that BF16 holds exactly", f"{wrong} of {values.size} that it does not")
    return to_bf16(values)
