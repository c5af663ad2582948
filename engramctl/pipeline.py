"""The pipeline: token ids -> rows -> values -> key and value -> gated hidden state, with either engine, equal bits.

    with Pipeline(source, io="mmap") as pipeline:
        with pipeline.prepare(tokens) as work:             # hashes, reads and projections begin
            gates, hidden1 = work.gate(1, hidden1)         # as soon as the model has got there
            gates, hidden14 = work.gate(14, hidden14)

T tokens, C columns, K = C * width inputs, S streams, D hidden width. BF16 is its bits in uint16.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from engramctl.ahead import Ahead, Bits, Lane, Times, pieces
from engramctl.errors import EngramctlError
from engramctl.placement.place import Io
from engramctl.projection import Projection
from engramctl.source import Source, Weights
from engramctl.table import Table
from formats import row264

Stage = Literal["rows", "values", "kv", "gate", "out"]
Engine = Literal["fast", "reference"]
Activation = Literal["plain", "official"]

CHUNK_TOKENS = 512  # bounds what is in memory at once: a projection of 512 tokens at real width takes 26 MB
FIRST_ROWS = 256  # of each layer, asked for before anything else: ten tokens' worth


def engine_of(name: Engine, threads: int | None = None) -> ModuleType:
    """The module whose hash_rows, lookup, project and gate do the work."""
    if name == "reference":
        from engramctl import reference

        return reference
    from engramctl import fast

    if threads is not None:
        fast.use_threads(threads)
    return fast


class Pipeline:
    """A source's layers, ready to serve sequences: tables placed, weights loaded."""

    def __init__(
        self,
        source: Source,
        layers: Sequence[int] | None = None,
        io: Io = "auto",
        engine: Engine = "fast",
        activation: Activation = "plain",
        threads: int | None = None,
        prewarm: bool = False,
        wanted: int | None = None,
        tables: Mapping[int, Table] | None = None,
        kernel: str = "auto",
    ) -> None:
        """`kernel` is how the fast engine projects: auto, or a path that can run here. `wanted` is how many rows of a
        layer will be asked for in all, if that is known. `tables` that are given are
        used as they are placed, and stay the caller's."""
        if activation != "plain" and engine != "reference":
            raise EngramctlError("--activation official", "--engine reference", f"--engine {engine}")
        self.source, self.tier, self.activation = source, engine_of(engine, threads), activation
        self.params, self.sizes = source.params(), source.sizes
        self.layers = tuple(self.sizes.layers if layers is None else layers)
        self.tables: dict[int, Table] = dict(tables or {})
        self._own: list[Table] = []
        self._reader = ThreadPoolExecutor(1, "engramctl-read")
        self._projector = ThreadPoolExecutor(1, "engramctl-project")
        try:
            for layer in self.layers:
                if layer not in self.tables:
                    self._own.append(source.table(layer).placed(io, wanted, prewarm, threads))
                    self.tables[layer] = self._own[-1]
            self.weights: dict[int, Weights] = {layer: source.weights(layer) for layer in self.layers}
            self._projections = {
                layer: self._held(weights.projection, kernel) for layer, weights in self.weights.items()
            }
            self._load()
        except BaseException:
            self.close()
            raise

    def _held(self, weight: Projection, kernel: str) -> Any:  # noqa: ANN401  (whatever the engine's `project` takes)
        """In memory: as it is stored where the engine can read that, else BF16."""
        return self.tier.hold(weight, kernel) if hasattr(self.tier, "hold") else weight.bits()

    def _load(self) -> None:
        """Have every kernel compiled or read from the cache by one small call, so that no sequence waits for it."""
        tier, some = self.tier, self.weights[self.layers[0]]
        if not hasattr(tier, "hold"):
            return
        tier.hash_rows(np.zeros(1, np.int64), self.params)
        tier.lookup(np.zeros((1, row264.ROW_BYTES), np.uint8))
        tier.project(np.zeros((1, self.sizes.inputs), np.uint16), self._projections[self.layers[0]])
        state = np.zeros((1, self.sizes.streams, self.sizes.hidden), np.uint16)
        tier.gate(state, state, state[:, 0], some.q_weight, some.k_weight)

    @property
    def said(self) -> list[str]:
        """What the placements have to say."""
        return [line for table in self.tables.values() if table.place is not None for line in table.place.said]

    def prepare(
        self, tokens: NDArray[np.int64], mask: NDArray[np.bool_] | None = None, history: Sequence[int] = ()
    ) -> Prepared:
        """Hash [T] tokens, begin the reads of every layer, and project ahead of the hidden states."""
        return Prepared(self, tokens, mask, history)

    def project(self, layer: int, values: Bits) -> Bits:
        """values [t, C, width] -> keys and value [t, S + 1, D]."""
        inputs = values.reshape(len(values), self.sizes.inputs)
        if self.activation == "official":
            inputs = self.tier.official_activation(inputs)
        kv: Bits = self.tier.project(inputs, self._projections[layer])
        return kv.reshape(-1, self.sizes.streams + 1, self.sizes.hidden)

    def close(self) -> None:
        self._reader.shutdown()
        self._projector.shutdown()
        for table in self._own:
            table.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Prepared:
    """One sequence on its way: `gate` takes each layer's hidden states, whole or a piece at a time, in order."""

    def __init__(
        self, owner: Pipeline, tokens: NDArray[np.int64], mask: NDArray[np.bool_] | None, history: Sequence[int]
    ) -> None:
        self.times, self._owner, self._mask = Times(), owner, mask
        self.begun = time.perf_counter()
        self.rows: NDArray[np.int64] = owner.tier.hash_rows(tokens, owner.params, mask, history)  # [T, L, C]
        self.times.hash = time.perf_counter() - self.begun
        self._at = dict.fromkeys(owner.layers, 0)  # tokens each layer has been through
        self._held: dict[int, deque[Bits]] = {layer: deque() for layer in owner.layers}
        self._rows = {layer: self.rows[:, owner.params.layers.index(layer)] for layer in owner.layers}
        for layer, rows in self._rows.items():
            owner.tables[layer].want(rows.reshape(-1)[:FIRST_ROWS])
        chunks = -(-tokens.size // CHUNK_TOKENS)
        lanes = {layer: Lane(chunks, self._reads(layer), self._projects(layer)) for layer in owner.layers}
        self._ahead = Ahead(lanes, owner._reader, owner._projector, self.times)

    def _reads(self, layer: int) -> Any:  # noqa: ANN401  (a function of a chunk's number)
        table, rows, tier = self._owner.tables[layer], self._rows[layer], self._owner.tier
        return lambda chunk: table.values(rows[chunk * CHUNK_TOKENS : (chunk + 1) * CHUNK_TOKENS], tier)

    def _projects(self, layer: int) -> Any:  # noqa: ANN401
        return lambda values: self._owner.project(layer, values)

    def kv(self, layer: int, count: int | None = None) -> Bits:
        """Keys and value [count, S + 1, D] of the layer's next tokens, all that are left where it is None."""
        count = self._count(layer, count)
        sizes = self._owner.sizes
        empty = np.empty((0, sizes.streams + 1, sizes.hidden), np.uint16)
        made = list(pieces(lambda: self._ahead.take(layer), self._held[layer], count))
        self._at[layer] += count
        self.times.total = time.perf_counter() - self.begun
        return np.concatenate(made) if made else empty

    def gate(self, layer: int, hidden: Bits) -> tuple[NDArray[np.float32], Bits]:
        """Hidden states [t, S, D] of the layer's next t tokens -> gates [t, S], 0 where dead, and new hidden states."""
        owner, sizes = self._owner, self._owner.sizes
        want = (self._count(layer, len(hidden)), sizes.streams, sizes.hidden)
        if hidden.shape != want:
            raise EngramctlError("hidden states", f"shape {list(want)}", f"{list(hidden.shape)}")
        gates, out = np.empty(want[:2], np.float32), np.empty(want, np.uint16)
        weights, done = owner.weights[layer], 0
        for kv in pieces(lambda: self._ahead.take(layer), self._held[layer], len(hidden)):
            start = time.perf_counter()
            some, at = slice(done, done + len(kv)), self._at[layer]
            key, value = kv[:, :-1], kv[:, -1]
            dead = None if self._mask is None else self._mask[at : at + len(kv)]
            gates[some], out[some] = owner.tier.gate(
                hidden[some],
                key,
                value,
                weights.q_weight,
                weights.k_weight,
                dead,
                sizes.eps,
                owner.source.profile.clamp,
            )
            done, self._at[layer] = done + len(kv), at + len(kv)
            self.times.gate += time.perf_counter() - start
        self.times.total = time.perf_counter() - self.begun
        return gates, out

    def _count(self, layer: int, count: int | None) -> int:
        if layer not in self._at:
            raise EngramctlError("layer", f"one of {', '.join(map(str, self._at))}", f"{layer}")
        left = len(self.rows) - self._at[layer]
        if count is not None and count > left:
            raise EngramctlError("hidden states", f"at most the {left} tokens that layer {layer} has left", f"{count}")
        return left if count is None else count

    def close(self) -> None:
        """Stop working ahead; needed only where not everything was used."""
        self._ahead.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def run(
    source: Source,
    layer: int,
    tokens: NDArray[np.int64],
    hidden: Bits | None = None,
    mask: NDArray[np.bool_] | None = None,
    history: Sequence[int] = (),
    stop_at: Stage = "out",
    engine: Engine = "fast",
    activation: Activation = "plain",
    threads: int | None = None,
    table: Table | None = None,
    report: Times | None = None,
    kernel: str = "auto",
) -> NDArray[Any]:
    """What `layer`'s Engram does to [T] token ids and, from the gate on, hidden [T, S, D].

    Returns by `stop_at`: rows int64 [T, C]; values uint16 [T, C, width]; kv uint16 [T, S + 1, D], keys first;
    gate float32 [T, S], 0 where dead; out uint16 [T, S, D]. An activation other than plain needs the reference.
    """
    if activation != "plain" and engine != "reference":
        raise EngramctlError("--activation official", "--engine reference", f"--engine {engine}")
    if stop_at in ("gate", "out"):
        if hidden is None:
            raise EngramctlError("--hidden", f"hidden states for --stop-at {stop_at}", "none")
        want = (tokens.size, source.sizes.streams, source.sizes.hidden)
        if hidden.shape != want:
            raise EngramctlError("hidden states", f"shape {list(want)}", f"{list(hidden.shape)}")
    start, times = time.perf_counter(), report or Times()
    tier, table = engine_of(engine, threads), table or source.table(layer)
    if stop_at in ("rows", "values"):
        return _looked_up(source, table, tier, tokens, mask, history, stop_at, times)
    with (
        Pipeline(
            source, (layer,), engine=engine, activation=activation, tables={layer: table}, kernel=kernel
        ) as pipeline,
        pipeline.prepare(tokens, mask, history) as work,
    ):
        times.load = work.times.load = work.begun - start
        made: NDArray[Any]
        if stop_at == "kv" or hidden is None:
            made = work.kv(layer)
        else:
            gates, out = work.gate(layer, hidden)
            made = gates if stop_at == "gate" else out
        vars(times).update(vars(work.times))
        return made


def _looked_up(
    source: Source,
    table: Table,
    tier: ModuleType,
    tokens: NDArray[np.int64],
    mask: NDArray[np.bool_] | None,
    history: Sequence[int],
    stop_at: Stage,
    times: Times,
) -> NDArray[Any]:
    """The stages before any weight: rows, or what is in them."""
    params, start = source.params(), time.perf_counter()
    rows = np.asarray(tier.hash_rows(tokens, params, mask, history)[:, params.layers.index(table.layer)])
    times.hash = time.perf_counter() - start
    made: NDArray[Any] = rows
    if stop_at == "values":
        table.want(rows.reshape(-1)[:FIRST_ROWS])
        chunks = range(0, max(tokens.size, 1), CHUNK_TOKENS)
        made = np.concatenate([table.values(rows[at : at + CHUNK_TOKENS], tier) for at in chunks])
    times.total = time.perf_counter() - start
    times.read = times.wait = times.total - times.hash
    return made
