"""The pipeline: token ids -> rows -> values -> key and value -> gated hidden state, with either engine, equal bits.

T tokens, C columns, K = C * width inputs, S streams, D hidden width. BF16 is its bits in uint16.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError
from engramctl.source import Source

Stage = Literal["rows", "values", "kv", "gate", "out"]
Engine = Literal["fast", "reference"]
Activation = Literal["plain", "official"]

CHUNK_TOKENS = 512  # bounds what is in memory at once: a projection of 512 tokens at real width takes 52 MB


def engine_of(name: Engine, threads: int | None = None) -> ModuleType:
    """The module whose hash_rows, lookup, project and gate do the work."""
    if name == "reference":
        from engramctl import reference

        return reference
    from engramctl import fast

    if threads is not None:
        fast.use_threads(threads)
    return fast


def run(
    source: Source,
    layer: int,
    tokens: NDArray[np.int64],
    hidden: NDArray[np.uint16] | None = None,
    mask: NDArray[np.bool_] | None = None,
    history: Sequence[int] = (),
    stop_at: Stage = "out",
    engine: Engine = "fast",
    activation: Activation = "plain",
    threads: int | None = None,
) -> NDArray[Any]:
    """What `layer`'s Engram does to [T] token ids and, from the gate on, hidden [T, S, D].

    Returns by `stop_at`: rows int64 [T, C]; values uint16 [T, C, width]; kv uint16 [T, S + 1, D], keys first;
    gate float32 [T, S], 0 where dead; out uint16 [T, S, D]. An activation other than plain needs the reference.
    """
    if activation != "plain" and engine != "reference":
        raise EngramctlError("--activation official", "--engine reference", f"--engine {engine}")
    sizes = source.sizes
    if stop_at in ("gate", "out"):
        if hidden is None:
            raise EngramctlError("--hidden", f"hidden states for --stop-at {stop_at}", "none")
        want = (tokens.size, sizes.streams, sizes.hidden)
        if hidden.shape != want:
            raise EngramctlError("hidden states", f"shape {list(want)}", f"{list(hidden.shape)}")
    tier = engine_of(engine, threads)
    params = source.params()
    rows = tier.hash_rows(tokens, params, mask, history)[:, params.layers.index(layer)]
    if stop_at == "rows":
        return np.asarray(rows)
    table = source.table(layer)
    weights = None if stop_at == "values" else source.weights(layer)
    parts = []
    for start in range(0, max(tokens.size, 1), CHUNK_TOKENS):
        some = slice(start, start + CHUNK_TOKENS)
        values = tier.lookup(table.read_valid(rows[some]))
        if weights is None:
            parts.append(values)
            continue
        inputs = values.reshape(len(values), sizes.inputs)
        if activation == "official":
            inputs = tier.official_activation(inputs)
        kv = tier.project(inputs, weights.projection).reshape(-1, sizes.streams + 1, sizes.hidden)
        if stop_at == "kv":
            parts.append(kv)
            continue
        assert hidden is not None
        key, value = np.ascontiguousarray(kv[:, :-1]), np.ascontiguousarray(kv[:, -1])
        dead = None if mask is None else mask[some]
        gates, out = tier.gate(
            hidden[some], key, value, weights.q_weight, weights.k_weight, dead, sizes.eps, source.profile.clamp
        )
        parts.append(gates if stop_at == "gate" else out)
    return np.concatenate(parts)
