"""repack the other way: a container of Qwen3.8's table back into a safetensors checkpoint, shards and all.

What the GGUF rounds or adds must come back exactly: a norm's weight is the BF16 number that gives the stored one when
1 is added in F32 (below 2**-24 several do, and the least rounded is taken); rows that came from E4M3 are those codes
again, by the scale that was kept; anything else is refused with the count. A sidecar gives the table and its constants:
it does not say what a config would.
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

from engramctl import identity, unfinished
from engramctl.errors import EngramctlError
from engramctl.extents import chunks
from engramctl.profiles import Profile, load
from engramctl.siblings import repack, tensors
from engramctl.siblings.container import PleContainer
from engramctl.siblings.synth import config
from engramctl.siblings.tensors import SCALED, Key, Wanted
from formats import disk, safetensors_raw
from formats.disk import WriteFile
from formats.floats import E4M3_VALUES, exact_in_bf16, from_bf16, to_bf16
from formats.ple_gguf import SCALE
from formats.row_plain import PlainRows

DIALECT = "hf"
MOST_SHARDS = 4096


def write(
    source: PleContainer,
    output: Path,
    row_type: str | None = None,
    shards: int | None = None,
    force: bool = False,
    progress: Callable[[int], None] = lambda n: None,
) -> str:
    """A checkpoint folder with index, shards and config: whole, or not at all. Returns the dtype of its rows."""
    output = output if output.name not in ("", "..") else output.resolve()
    output.parent.mkdir(parents=True, exist_ok=True)
    with unfinished.alone(unfinished.lock_of(output)):
        who = _identity(source)
        if not (output / unfinished.JOURNAL).is_file():  # else a run was killed after the folder got its name
            disk.refuse_existing(output, force)
            if output.exists():
                raise EngramctlError(str(output), "a new folder: --force does not remove one", "a folder that exists")
        left = unfinished.require(output, who, False, force, "--force starts again: this way there is no --resume")
        codes = _codes(source, row_type)
        kind = "BF16" if codes is None else SCALED
        profile = _profile(source, shards)
        partial = unfinished.begin(output, who, False, left)
        try:
            _write(partial, source, profile, codes, progress)
            identity.require_same(source.path, who, _identity(source), identity.UNCHANGED)
        except BaseException:
            unfinished.remove(partial)
            raise
        unfinished.finish(output)
    return kind


def _identity(source: PleContainer) -> identity.Identity:
    status = disk.system.status(source.path)
    return {"dialect": DIALECT, "of": source.path.name, "size": status.st_size, "time": status.st_mtime_ns}


def _write(
    partial: Path, source: PleContainer, profile: Profile, codes: Codes | None, progress: Callable[[int], None]
) -> None:
    """Shards, index and config into the folder, durable."""
    parts = _parts(source, profile, "BF16" if codes is None else SCALED)
    shard_of: dict[str, str] = {}
    total = 0
    for number, part in enumerate(parts, 1):
        shard = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        total += _shard(partial / shard, part, source, profile, codes, progress)
        shard_of |= {want.name: shard for want in part.values()}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(shard_of.items()))}
    files: dict[str, dict[str, Any]] = {"model.safetensors.index.json": index}
    if not source.table_alone:
        files["config.json"] = config(profile, source.sizes, 0)
        del files["config.json"]["engramctl_synthetic"], files["config.json"]["engramctl_seed"]
    for name, content in files.items():
        disk.write_whole(partial / name, [json.dumps(content, indent=2).encode() + b"\n"])


def _parts(source: PleContainer, profile: Profile, kind: str) -> list[dict[Key, Wanted]]:
    """The tensors of each file: a file for each piece of the table, one for what else the container holds."""
    wanted = tensors.wanted(profile, source.sizes, source.sizes.layers[0])
    left_out = tensors.module_roles(profile) if source.table_alone else set[str]()
    left_out |= {"table_scale"} if kind != SCALED else set[str]()
    tables = [{key: replace(want, dtype=kind)} for key, want in wanted.items() if key[1] == "table"]
    return [*tables, {key: want for key, want in wanted.items() if key[1] not in {"table", *left_out}}]


@dataclass(frozen=True)
class Codes:
    """E4M3 codes by the values that a table of them under one scale gives."""

    scale: np.float32
    bits: NDArray[np.uint32]  # F32 bits of the values, ascending
    codes: NDArray[np.uint8]

    def of(self, values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """[n, width] values -> codes; a value that no code gives is refused with the count."""
        bits = np.ascontiguousarray(values).view(np.uint32)
        at = np.minimum(np.searchsorted(self.bits, bits), self.bits.size - 1)
        wrong = int(np.count_nonzero(self.bits[at] != bits))
        if wrong:
            found = f"{wrong} of {values.size} in {len(values)} rows that are none"
            raise EngramctlError("--row-type e4m3", f"values of E4M3 codes under the scale {self.scale}", found)
        return self.codes[at]


def _codes(source: PleContainer, row_type: str | None) -> Codes | None:
    """How rows become E4M3 again; None where they shall be BF16."""
    scale = source.scale
    if row_type not in (None, "BF16", SCALED):
        raise EngramctlError("--row-type", "bf16, or e4m3 for what was E4M3", row_type.lower())
    if row_type == "BF16" or (row_type is None and scale is None):
        return None
    if scale is None:
        hint = "--row-type bf16 gives the rows as they are looked up"
        raise EngramctlError("--row-type e4m3", f"a key {SCALE.name}: the scale that rows were made with", "none", hint)
    rows = PlainRows(SCALED, E4M3_VALUES.size, scale)
    codes = np.arange(E4M3_VALUES.size, dtype=np.uint8)
    values = rows.decode(codes)
    if source.table(source.sizes.layers[0]).layout.dtype == "BF16":
        values = from_bf16(to_bf16(values))
    good = np.isfinite(values)
    bits, order = np.unique(values[good].view(np.uint32), return_index=True)
    if bits.size != np.count_nonzero(good):
        raise EngramctlError(f"key {SCALE.name}", "a scale under which all codes differ", f"{scale}")
    return Codes(scale, bits, codes[good][order])


def _profile(source: PleContainer, shards: int | None) -> Profile:
    """The profile with what the container decides, its norms as a checkpoint keeps them, and so many shards."""
    known = load(source.profile.name)
    rows, used = source.sizes.rows[0], source.hash_params.used(source.sizes.layers[0])
    if shards is not None and (not 1 <= shards <= MOST_SHARDS or rows % shards):
        raise EngramctlError("--shards", f"1 to {MOST_SHARDS} shards that share {rows} rows evenly", f"{shards}")
    shards = shards or (known.storage.shards if rows % known.storage.shards == 0 else 1)
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
    path: Path,
    part: dict[Key, Wanted],
    source: PleContainer,
    profile: Profile,
    codes: Codes | None,
    progress: Callable[[int], None],
) -> int:
    """One file; returns the bytes of its tensors."""
    header, spans = safetensors_raw.header([(want.name, want.dtype, want.shape) for want in part.values()])
    with contextlib.closing(WriteFile.create(path)) as file:
        file.write(0, header)
        file.resize(max(end for _, end in spans.values()))
        for key, want in part.items():
            for at, data in _data(key, want, source, codes):
                file.write(spans[want.name][0] + at, data)
                progress(len(data))
        file.sync()
    return sum(end - start for start, end in spans.values())


def _data(key: Key, want: Wanted, source: PleContainer, codes: Codes | None) -> Iterator[tuple[int, bytes]]:
    layer, role, number = key
    if role == "table":
        first = number * want.shape[0]
        yield from _rows(source, layer, first, first + want.shape[0], codes)
    elif role == "table_scale":
        assert codes is not None
        yield 0, _exact(np.array([codes.scale]), want.name).astype("<u2").tobytes()
    elif role in tensors.CONSTANTS:
        yield 0, getattr(source.hash_params, role)[0].astype("<i8").tobytes()
    else:
        values = source.floats(role, layer)[0].reshape(-1)
        bits = less_one(values, want.name) if role.startswith("norm") else _exact(values, want.name)
        yield 0, bits.astype("<u2").tobytes()


def _rows(source: PleContainer, layer: int, first: int, last: int, codes: Codes | None) -> Iterator[tuple[int, bytes]]:
    table = source.table(layer)
    row_bytes = source.sizes.width * (2 if codes is None else 1)
    for low, high in table.data_ranges():
        for start, stop in chunks(max(low, first), min(high, last)):
            numbers = np.arange(start, stop)
            if codes is None:
                rows = repack.converted(table, numbers, "BF16")
            else:
                rows = codes.of(table.decode(table.read_valid(numbers)))
            yield (start - first) * row_bytes, rows.tobytes()


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
