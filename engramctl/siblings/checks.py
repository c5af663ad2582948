"""check source, params and kv for siblings: each derives what is right anew and says what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import derivation, hash_params, telling
from engramctl.arrays import Array
from engramctl.checkpoint import read_config
from engramctl.errors import EngramctlError
from engramctl.profiles import Profile
from engramctl.siblings import checkpoint, module, run, tensors
from engramctl.siblings.checkpoint import SiblingCheckpoint
from engramctl.siblings.opened import Opened, as_sibling
from engramctl.siblings.table import PlainTable
from engramctl.source import FoundMap, Source, subset_params
from engramctl.verify import constants
from engramctl.verify.bounds import kv_bound
from engramctl.verify.constants import Expectation, Stored
from engramctl.verify.result import MOST_FINDINGS, Coverage, Result
from engramctl.verify.values import Looked, output_name
from formats import safetensors_raw
from formats.errors import FormatError
from formats.floats import from_bf16

SOURCE, PARAMS, KV = "source", "params", "kv"
CHUNK_ROWS = 4096
MOST_WEIGHT = 1 << 27  # numbers of a weight that are looked at: more is no model's


def source(
    path: Path, profile: Profile, named: bool, sample: int = 1000, seed: int = 0, all_rows: bool = False
) -> Result:
    """Config, index, tensors, stored constants and rows of a checkpoint; rows by sample, or all of them."""
    result = Result(Coverage("rows", 0, 0, not all_rows))
    text, config = read_config(path)
    try:
        made, sizes = checkpoint.read_sizes(path, profile, config, named)
    except (FormatError, EngramctlError) as error:
        result.add(SOURCE, error.where, error.expected, error.found)
        return result
    if differs := sizes.differences(profile.sizes):
        result.notes.append(f"not the sizes of profile {profile.name}: {', '.join(differs)}")
    wanted = {key: want for layer in sizes.layers for key, want in tensors.wanted(made, sizes, layer).items()}
    names = {want.name: want for want in wanted.values()}
    found = safetensors_raw.read_checkpoint(path, lambda name: name in names, strict=False)
    for where, expected, seen in found.problems:
        result.add(SOURCE, where, expected, seen)
    for want in wanted.values():
        tensor = found.tensors.get(want.name)
        if tensor is None and not want.optional:
            absent = found.missing.get(want.name)
            seen = "none" if absent is None else f"its shard {absent} is not there"
            result.add(SOURCE, str(path), f"a tensor {want.name}", seen)
        elif tensor is not None:
            _tensor(tensor, want, result)
    if not result.ok:
        return result
    try:
        with checkpoint.open_checkpoint(path, made, text, config, named=named) as opened:
            _stored(opened, result)
            for layer in sizes.layers:
                _rows(opened.table(layer), opened, layer, None if all_rows else (sample, seed), result)
                _weights(opened, layer, result)
    except (FormatError, EngramctlError) as error:
        result.add(SOURCE, error.where, error.expected, error.found)
    return result


def _tensor(tensor: safetensors_raw.Tensor, want: tensors.Wanted, result: Result) -> None:
    try:
        tensors.check(tensor, want)
    except FormatError as error:
        result.add(SOURCE, error.where, error.expected, error.found)


def _rows(
    table: PlainTable, opened: SiblingCheckpoint, layer: int, sample: tuple[int, int] | None, result: Result
) -> None:
    """Rows that hold no numbers are findings; the padding behind the last modulus is not demanded anything of."""
    params = opened.params()
    used = params.used(layer)
    if used < table.rows:
        result.notes.append(f"layer {layer}: the last {table.rows - used} rows are padding, which nothing addresses")
    picked = np.arange(used) if sample is None else _picked(table, opened, layer, used, sample)
    for start in range(0, picked.size, CHUNK_ROWS):
        numbers = picked[start : start + CHUNK_ROWS]
        raw = table.read(numbers)
        if table.layout.first_invalid(raw) is None:
            continue
        for number, row in zip(numbers.tolist(), raw, strict=True):
            if (bad := table.layout.first_invalid(row[None])) is not None:
                result.add(SOURCE, f"layer {layer} row {number} byte {bad.byte}", bad.expected, bad.found)
    result.coverage.of += used
    result.coverage.checked += int(picked.size)


def _picked(
    table: PlainTable, opened: SiblingCheckpoint, layer: int, used: int, sample: tuple[int, int]
) -> NDArray[np.int64]:
    """The telling rows of a layer, and as many seeded ones as asked for."""
    params = opened.params()
    edges = [*table.firsts().tolist(), *(int(x) for x in params.offsets[params.layers.index(layer)]), used]
    told = telling.plain_rows(used, edges, table.row_bytes)
    count, seed = sample
    drawn = np.random.default_rng([seed, layer + 1]).integers(0, used, count)
    return np.unique(np.concatenate([np.array(told, np.int64), drawn]))


def _weights(opened: SiblingCheckpoint, layer: int, result: Result) -> None:
    """Every number of every weight."""
    for (at, role, _), tensor in opened.tensors.items():
        if at != layer or role == "table" or role in tensors.CONSTANTS or int(np.prod(tensor.shape)) > MOST_WEIGHT:
            continue
        values = checkpoint.as_f32(opened.array(tensor), tensor.dtype)
        wrong = np.argwhere(~np.isfinite(values))
        for place in wrong[: max(0, MOST_FINDINGS - len(result.findings))].tolist():
            result.add(
                SOURCE, f"layer {layer} tensor {tensor.name} at {place}", "a finite number", f"{values[tuple(place)]}"
            )


def _stored(opened: SiblingCheckpoint, result: Result) -> None:
    stored, made = _as_stored(opened), constants.of_params(opened.expected())
    whose = "published" if opened.whole == opened.profile.sizes else "derived"
    constants.compare(SOURCE, stored, [Expectation(whose, made)], opened.sizes.layers, result)


def _as_stored(opened: Opened) -> Stored:
    """The constants in tensors or keys, under the names they have there."""
    made = Stored()
    for role, layers in opened.stored().items():
        made.constants[role] = [int(x) for layer in opened.sizes.layers for x in layers[layer]]
        made.names[role] = opened.stored_name(role)
    return made


def params(path: Path, profile: str | None, given: FoundMap | None = None) -> Result:
    """The constants that a checkpoint or container stores: against the derivation, and the published ones."""
    from engramctl.source import open_source

    with open_source(path, profile, given) as found:
        opened = as_sibling(found)
        stored, layers = _as_stored(opened), opened.sizes.layers
        if not stored.constants:
            what, found_none = "stored constants to compare", "none: they follow from its config"
            raise EngramctlError(str(path), what, found_none, f"check source {path} judges the config and the tensors")
        made = subset_params(derivation.derive(opened.profile, opened.whole, opened.token_map().ids), layers)
        derived = constants.of_params(made)
        expectations = [Expectation("derived", derived)]
        result = Result(Coverage("constants", len(stored.constants), len(stored.constants)))
        if opened.whole == opened.profile.sizes:
            public = subset_params(hash_params.published(opened.profile, opened.token_map().ids), layers)
            expectations.append(Expectation("published", constants.of_params(public)))
        else:
            result.notes.append(f"not the sizes of profile {opened.profile.name}: compared with the derivation alone")
        constants.compare(PARAMS, stored, expectations, layers, result)
        result.extra["constants"] = constants.statuses(stored, derived)
        return result


def kv(dump: Array, found: Source, layer: int, looked: Looked) -> Result:
    """Keys and values in float64, and the dump within what its type and F32 summation may cost."""
    opened = as_sibling(found)
    module.expect_keys(opened.profile, KV)
    sizes = opened.sizes
    if looked.rows.size % sizes.columns:
        raise EngramctlError("rows", f"{sizes.columns} for each token", f"{looked.rows.size}")
    rows = looked.rows.reshape(-1, sizes.columns)
    shape = (len(rows), sizes.streams + 1, sizes.hidden)
    loaded = dump.load(("uint16", "float32"), shape, (len(rows), sizes.outputs)).reshape(shape)
    have: NDArray[Any] = (from_bf16(loaded) if loaded.dtype == np.uint16 else loaded).astype(np.float64)
    made, table = module.weights(opened, layer), opened.table(layer)
    values = run.as_f64(run.table_values(table, rows)).reshape(len(rows), sizes.inputs)
    exact = module.project(values, made, sizes)
    size = module.project(np.abs(values), module.magnitudes(made), sizes)
    with np.errstate(invalid="ignore"):
        bound = kv_bound(exact, np.where(np.isfinite(have), have, exact), size, sizes.inputs)
        off = np.where(np.isfinite(have), np.abs(have - exact), np.inf)
    result = Result(Coverage("outputs", have.size, have.size))
    wrong = np.argwhere(off > bound)
    for t, s, d in wrong[:MOST_FINDINGS].tolist():
        where = f"position {t} {output_name(s * sizes.hidden + d, sizes.streams, sizes.hidden)}"
        result.add(KV, where, f"{exact[t, s, d]:.9g} within {bound[t, s, d]:.3g}", f"{have[t, s, d]:.9g}")
    result.total += max(0, len(wrong) - MOST_FINDINGS)
    worst = float((off / bound).max(initial=0.0)) if have.size else 0.0
    result.extra["largest_share_of_bound"] = worst if np.isfinite(worst) else None
    return result
