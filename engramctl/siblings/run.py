"""run, for a sibling: token ids -> rows -> values -> keys, value, gates -> new hidden states, a chunk at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import array_files, dumps
from engramctl.arrays import Form
from engramctl.errors import EngramctlError
from engramctl.pipeline import CHUNK_TOKENS, Engine, Stage, engine_of
from engramctl.siblings import module
from engramctl.siblings.opened import Opened, as_sibling
from engramctl.siblings.table import PlainTable
from engramctl.source import Source
from engramctl.table import Table
from formats import safetensors_raw
from formats.errors import FormatError
from formats.floats import bf16_finite, from_bf16, to_bf16

TRUTH = "computed in float64 from the stored weights and rounded once, to F32: a truth, not an engine"


@dataclass(frozen=True)
class States:
    """Hidden states [T, S, D] as they are, and how they were written."""

    values: NDArray[np.float32]
    form: Form
    kind: str


def read_states(path: Path, shape: tuple[int, int, int]) -> States:
    """F32 or BF16 hidden states, all finite: a sibling's module needs no rounding to BF16."""
    found = array_files.read(path)
    if found.form == "npz":
        raise FormatError(found.where, None, "hidden states as npy or safetensors", "npz")
    array = found.arrays[""] if found.form == "npy" else found.named(dumps.TENSOR)
    loaded = array.load(dumps.DTYPES, shape)
    values = from_bf16(loaded) if loaded.dtype == np.uint16 else loaded.astype(np.float32)
    if not np.isfinite(values).all():
        raise EngramctlError(f"{found.where} at {dumps.TENSOR}", "finite values", "an infinity or a NaN")
    return States(values, found.form, array.kind)


def write_states(states: States, values: NDArray[np.float32]) -> Iterator[bytes]:
    """New hidden states in the form of the old ones."""
    array: NDArray[Any] = values.astype("<f4") if states.kind in ("float32", "F32") else to_bf16(values).astype("<u2")
    if states.form == "npy":
        yield from array_files.npy_chunks(array)
        return
    header, _ = safetensors_raw.header([(dumps.TENSOR, states.kind, values.shape)])
    yield header
    yield from array_files.pieces(array)


def looked_up(table: Table | PlainTable, rows: NDArray[np.int64], to: str) -> NDArray[Any]:
    """Rows as raw bytes, exact F32, or BF16 bits where those are what the model looks up."""
    if to == "raw":
        return table.read(rows)
    raw = table.read_valid(rows)
    return table.decode(raw) if to == "f32" else table.decode_bf16(raw)


@dataclass(frozen=True)
class Asked:
    """What the command line wants of a run."""

    layer: int
    hidden: Path | None
    stop_at: Stage
    engine: Engine
    threads: int | None


def results(
    source: Source,
    asked: Asked,
    table: Table | PlainTable,
    tokens: NDArray[np.int64],
    mask: NDArray[np.bool_] | None,
    history: Sequence[int],
) -> Iterable[bytes]:
    """The bytes that `run` writes: an npy of a stage, or new hidden states in the form of the old ones."""
    opened = as_sibling(source)
    states = None
    if asked.stop_at in ("gate", "out"):
        if asked.hidden is None:
            raise EngramctlError("--hidden", "a file of hidden states", "none", "--stop-at kv needs none")
        states = read_states(asked.hidden, (tokens.size, opened.sizes.streams, opened.sizes.hidden))
    hidden = None if states is None else states.values
    found = run(
        opened, asked.layer, tokens, hidden, mask, history, asked.stop_at, asked.engine, asked.threads, table
    )  # fmt: skip
    return array_files.npy_chunks(found) if states is None or asked.stop_at == "gate" else write_states(states, found)


def run(
    source: Opened,
    layer: int,
    tokens: NDArray[np.int64],
    hidden: NDArray[np.float32] | None = None,
    mask: NDArray[np.bool_] | None = None,
    history: Sequence[int] = (),
    stop_at: Stage = "out",
    engine: Engine = "fast",
    threads: int | None = None,
    table: Table | PlainTable | None = None,
) -> NDArray[Any]:
    """By `stop_at`: rows int64 [T, C]; values [T, C, width], BF16 bits or F32; kv and gate F32; out F32 [T, S, D]."""
    if stop_at in ("kv", "gate"):
        module.expect_keys(source.profile, stop_at)
    params = source.params()
    rows = engine_of(engine, threads).hash_rows(tokens, params, mask, history)[:, params.layers.index(layer)]
    if stop_at == "rows":
        return np.asarray(rows)
    table = table or source.table(layer)
    if stop_at == "values":
        parts = [table_values(table, rows[at : at + CHUNK_TOKENS]) for at in range(0, max(len(rows), 1), CHUNK_TOKENS)]
        return np.concatenate(parts)
    made = module.weights(source, layer)
    stream = module.Stream(made, source.profile, source.sizes)
    results = []
    for start in range(0, max(len(rows), 1), CHUNK_TOKENS):
        some = slice(start, start + CHUNK_TOKENS)
        values = as_f64(table_values(table, rows[some]))
        if stop_at == "kv":
            results.append(module.project(values.reshape(len(values), source.sizes.inputs), made, source.sizes))
            continue
        assert hidden is not None
        h = hidden[some].astype(np.float64)
        dead = None if mask is None else mask[some]
        if stop_at == "gate":
            kv = module.project(values.reshape(len(values), source.sizes.inputs), made, source.sizes)
            gate = module.gates(h, kv, made, source.profile, source.sizes)
            results.append(gate if dead is None else np.where(dead[:, None], gate, 0.0))
        else:
            results.append(stream.out(h, values, dead))
    return finite(np.concatenate(results), stop_at)


def table_values(table: Table | PlainTable, rows: NDArray[np.int64]) -> NDArray[Any]:
    """What the model looks up: BF16 bits, or the F32 or F16 numbers as F32."""
    raw = table.read_valid(rows)
    return table.decode_bf16(raw) if table.is_bf16 else table.decode(raw)


def as_f64(values: NDArray[Any]) -> NDArray[np.float64]:
    return (from_bf16(values) if values.dtype == np.uint16 else values).astype(np.float64)


def finite(values: NDArray[np.float64], stage: str) -> NDArray[np.float32]:
    """Rounded to F32; a number that is none, or that BF16 could not hold, is refused."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = values.astype(np.float32)
    if not bf16_finite(to_bf16(rounded)).all():
        raise EngramctlError(f"--stop-at {stage}", "finite values", "an infinity or a NaN")
    return rounded
