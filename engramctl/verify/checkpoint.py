"""check source: a checkpoint's shards, index, config and tensors against each other, the profile, published digests."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engramctl import config as configs
from engramctl import kinds, shapes
from engramctl.checkpoint import read_config
from engramctl.profiles import Profile, Sizes
from engramctl.source import FoundMap, fitting_map
from engramctl.table import Part, Table
from engramctl.verify import constants, numbers, published, token_map
from engramctl.verify.numbers import Progress
from engramctl.verify.params import tokenizer_map
from engramctl.verify.result import Coverage, Result
from engramctl.verify.sides import Weight, quantised
from formats import disk, safetensors_raw
from formats.disk import ReadFile
from formats.errors import FormatError, shown
from formats.safetensors_raw import Checkpoint, Tensor

CHECK = "source"
ENGRAM = ".engram."  # in the name of every tensor of an Engram
SAMPLE = 1000
PIECE = 1 << 24


@dataclass
class _State:
    """What the steps of one check share."""

    path: Path
    profile: Profile
    sizes: Sizes | None  # None: the config states none that hold together
    config: Mapping[str, Any] | None
    found: Checkpoint
    result: Result
    files: dict[Path, ReadFile] = field(default_factory=dict)

    def file(self, path: Path) -> ReadFile:
        if path not in self.files:
            self.files[path] = ReadFile.open(path)
        return self.files[path]

    def whole(self, tensor: Tensor) -> bool:
        """Are the tensor's bytes in its file?"""
        size = safetensors_raw.byte_size(tensor.dtype, tensor.shape)
        return tensor.end <= self.file(tensor.path).size and size == tensor.end - tensor.start


def check(
    path: Path,
    profile: Profile,
    profile_named: bool = False,
    sample: int = SAMPLE,
    seed: int = 0,
    all_rows: bool = False,
    release: bool = False,
    progress: Progress = lambda n: None,
    given: FoundMap | None = None,
) -> Result:
    """Everything that can be said of a checkpoint without another; rows by sample, or all of them.

    `given` is the token map that will be used where the checkpoint has no tokenizer.
    """
    kinds.refuse_other(path, kinds.CHECKPOINT)
    result = Result(Coverage("rows", 0, 0, not all_rows))
    _, config = read_config(path)
    sizes = _sizes(path, config, profile, profile_named, result)
    found = safetensors_raw.read_checkpoint(path, lambda name: True, strict=False)
    state = _State(path, profile, sizes, config, found, result)
    try:
        _shards(state, all_rows)
        tensors = _tensors(state)
        tables = _tables(state, tensors)
        for layer, table in tables.items():
            numbers.rows(table, layer, profile, sizes, None if all_rows else (sample, seed), result, progress)
        for (layer, role), tensor in tensors.items():
            numbers.tensor(state.file(tensor.path), tensor, layer, role, result)
            scales = tensors.get((layer, "projection_scale"))
            if role == "projection" and scales is not None:
                band = quantised(lambda each: state.file(each.path), tensor, scales)
                numbers.projection(Weight(tensor.name, (tensor.shape[0], tensor.shape[1]), band), layer, result)
        if sizes is None:
            result.notes.append("without sizes, shapes and rows were not checked")
        else:
            _constants(state, sizes, given)
        if release or _is_release(state):
            count = published.real_rows(tables, profile, CHECK, result)
            result.notes.append(f"{count} published rows were compared")
    finally:
        for file in state.files.values():
            file.close()
    return result


def bytes_to_read(path: Path) -> int:
    """At most, if every row is looked at: the size of all shards there are."""
    files = path.glob("*.safetensors") if path.is_dir() else [path]
    return sum(disk.system.status(file).st_size for file in files if file.exists())


def _sizes(
    path: Path, config: dict[str, Any] | None, profile: Profile, profile_named: bool, result: Result
) -> Sizes | None:
    """What the config says; one that contradicts itself is a finding, and then no size is relied on."""
    if config is None:
        if not profile_named:
            result.add(CHECK, str(path), "a config.json (or --profile NAME)", "none")
        return profile.sizes if profile_named else None
    try:
        sizes = configs.read_sizes(config, profile, str(path / safetensors_raw.CONFIG_NAME))
    except FormatError as error:
        result.add(CHECK, error.where, error.expected, error.found)
        return None
    _blocks(config, result)
    if differs := sizes.differences(profile.sizes):
        listed = "; ".join(f"{name} {_short(mine)} for {_short(theirs)}" for name, (mine, theirs) in differs.items())
        result.notes.append(f"not the sizes of profile {profile.name}: {listed}")
    return sizes


def _blocks(config: Mapping[str, Any], result: Result) -> None:
    """Where the config says how the projection is quantised, it has to be what the tensors are."""
    said = config.get("quantization_config")
    blocks = said.get("weight_block_size") if isinstance(said, dict) else None
    if blocks is not None and blocks != [shapes.PROJECTION_BLOCK] * 2:
        result.add(CHECK, "config weight_block_size", f"{[shapes.PROJECTION_BLOCK] * 2}", f"{blocks!r}"[:60])


def _short(value: object) -> str:
    return str(list(value) if isinstance(value, tuple) else value)


def _shards(state: _State, whole: bool) -> None:
    """Index against files, spans against file sizes, headers, and if asked for whole shards, against published ones."""
    found, result = state.found, state.result
    for where, expected, got in found.problems:
        result.add(CHECK, where, expected, got)
    absent = Counter(shard for name, shard in found.missing.items() if ENGRAM in name)
    for shard, count in absent.items():
        result.add(CHECK, str(state.path / shard), f"the shard that holds {count} Engram tensors", "nothing there")
    others = {*found.missing.values()} - {*absent}
    if others:
        result.notes.append(f"{len(others)} shards without Engram tensors are not there")
    if state.path.is_dir() and not (state.path / safetensors_raw.INDEX_NAME).exists():
        result.notes.append(f"no {safetensors_raw.INDEX_NAME}: every shard in the folder was read")
    for file in found.shards if (state.path / safetensors_raw.INDEX_NAME).exists() else ():
        for name in safetensors_raw.read_header(file).tensors:
            if name not in found.tensors:
                result.add(CHECK, str(file), "only tensors that the index places here", shown(name))
    for entry in state.profile.facts.get("shards", {}).values():
        if isinstance(entry, dict):
            _published_header(state, entry, whole)


def _published_header(state: _State, entry: Mapping[str, Any], whole: bool) -> None:
    """The release's shards are known by name and size; then the header has to be the published one, and all bytes."""
    path = state.path / entry["file"]
    if path not in state.found.shards or state.file(path).size != entry["bytes"] or configs.is_synthetic(state.config):
        return
    shard = safetensors_raw.read_header(path)
    length = safetensors_raw.LENGTH_BYTES
    raw = state.file(path).read(length, shard.data_start - length, "header")
    digest = hashlib.sha256(raw).hexdigest()
    if digest != entry["header_sha256"]:
        state.result.add(CHECK, f"{path} header", f"SHA-256 {entry['header_sha256']} as published", digest)
    else:
        state.result.notes.append(f"{entry['file']}: the published header")
    if whole and "file_sha256" in entry:
        found = file_digest(state.file(path))
        if found != entry["file_sha256"]:
            state.result.add(CHECK, str(path), f"SHA-256 {entry['file_sha256']} as published", found)
        else:
            state.result.notes.append(f"{entry['file']}: the published SHA-256")


def file_digest(file: ReadFile) -> str:
    """SHA-256 of a whole file, a piece at a time."""
    digest, buffer = hashlib.sha256(), bytearray(PIECE)
    for start in range(0, file.size, PIECE):
        view = memoryview(buffer)[: min(PIECE, file.size - start)]
        file.read_into(view, start, "the shard")
        file.done_with(start, start + len(view))
        digest.update(view)
    return digest.hexdigest()


Tensors = dict[tuple[int, str], Tensor]


def _tensors(state: _State) -> Tensors:
    """By layer and role, those whose dtype and shape are right; others of an Engram are findings."""
    result, profile = state.result, state.profile
    layers = profile.sizes.layers if state.sizes is None else state.sizes.layers
    names = {profile.tensors[role].of(layer): (layer, role) for layer in layers for role in profile.tensors}
    tensors: Tensors = {}
    for name, (layer, role) in names.items():
        tensor = state.found.tensors.get(name)
        if tensor is None:
            if name not in state.found.missing:
                result.add(CHECK, str(state.path), f"a tensor {name}", "none")
            continue
        if state.sizes is not None:
            try:
                shapes.check(tensor, role, state.sizes, layer, profile)
            except FormatError as error:
                result.add(CHECK, error.where, error.expected, error.found)
                continue
            if state.whole(tensor):
                tensors[layer, role] = tensor
    for name, tensor in state.found.tensors.items():
        if ENGRAM in name and name not in names:
            expected = f"Engram tensors of layers {list(layers)} under the profile's names"
            result.add(CHECK, str(tensor.path), expected, shown(name))
    return tensors


def _tables(state: _State, tensors: Tensors) -> dict[int, Table]:
    tables = {}
    for layer in () if state.sizes is None else state.sizes.layers:
        pair = [tensors[layer, role] for role in ("codes", "scales") if (layer, role) in tensors]
        if len(pair) == 2:
            parts = tuple(Part(state.file(tensor.path), tensor.start, tensor.shape[1]) for tensor in pair)
            tables[layer] = Table(layer, pair[0].shape[0], parts)
    return tables


def _constants(state: _State, sizes: Sizes, given: FoundMap | None) -> None:
    """Row counts against the primes, the tokenizer's map against the config, and against the published digest."""
    own = tokenizer_map(state.path / "tokenizer.json") if state.path.is_dir() else None
    ids = (own or given or FoundMap(state.profile.token_map(), state.profile.name)).ids
    made = constants.derived(sizes, sizes.layers, ids, state.profile)
    for layer, stated, summed in zip(sizes.layers, sizes.rows, made.rows, strict=True):
        if stated != summed:
            state.result.add(CHECK, f"config rows of layer {layer}", f"{summed}, the sum of its primes", f"{stated}")
    if own is None:
        if given is not None:
            fitting_map(given, sizes, given.origin)
        elif not _same_map(state, sizes):
            what = f"tokenizer.json, as profile {state.profile.name}'s token map has other sizes"
            state.result.add(CHECK, str(state.path), what, "none (or --token-map FILE)")
        return
    mapped = token_map.check(own, None, state.profile, (sizes.vocabulary, sizes.compressed), _same_map(state, sizes))
    for finding in mapped.findings:
        state.result.add(CHECK, f"tokenizer.json: {finding.where}", finding.expected, finding.found)
    state.result.total += mapped.total - len(mapped.findings)


def _same_map(state: _State, sizes: Sizes) -> bool:
    """Is the tokenizer to give the published map?"""
    own = state.profile.sizes
    return (sizes.vocabulary, sizes.compressed) == (own.vocabulary, own.compressed)


def _is_release(state: _State) -> bool:
    if state.sizes is None or configs.is_synthetic(state.config):
        return False
    return constants.same_model(state.sizes, state.profile)
