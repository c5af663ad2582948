"""hash, projection, gate and the whole pipeline, beside the same in NumPy and torch; each peer is checked first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import fast
from engramctl.bench import peers
from engramctl.bench.measure import Line, Work, compare
from engramctl.errors import EngramctlError
from engramctl.pipeline import Pipeline
from engramctl.placement.place import Io
from engramctl.source import Source
from engramctl.table import Table
from formats import page_cache
from formats.floats import from_bf16
from formats.row264 import ROW_BYTES

SEED = 11
NEAR = 0.02  # of the largest: peers round their outputs to BF16, some also between


def tokens_of(source: Source, count: int) -> NDArray[np.int64]:
    return np.random.default_rng(SEED).integers(0, source.sizes.vocabulary, count)


def bits(shape: tuple[int, ...], seed: int = SEED) -> NDArray[np.uint16]:
    """BF16 numbers between 0.5 and 2, either sign."""
    drawn = np.random.default_rng(seed).integers(0, 1 << 16, shape, np.uint16)
    return (drawn & np.uint16(0x80FF)) | np.uint16(0x3F00)


def _near(name: str, got: NDArray[Any], want: NDArray[Any]) -> None:
    most = float(np.abs(want).max(initial=0))
    if not np.allclose(got, want, rtol=NEAR, atol=NEAR * most):
        off = float(np.abs(got - want).max())
        raise EngramctlError(f"bench: {name}", "the same numbers as ours", f"{off:g} off, of up to {most:g}")


def hashing(source: Source, count: int, rounds: int) -> Iterator[Line]:
    params, tokens = source.params(), tokens_of(source, count)
    ids = params.compress(tokens, None)
    want = fast.hash_rows(tokens, params)
    candidates: dict[str, Work] = {"engramctl": partial(fast.hash_rows, tokens, params)}
    found: dict[str, Work] = {"NumPy": partial(peers.numpy_hash, ids, params)}
    t = peers.torch()
    if t is not None:
        run, given = peers.torch_hash(t, params), t.from_numpy(ids)
        found["torch"] = partial(run, given)
    for name, work in found.items():
        if not np.array_equal(np.asarray(work()), want):
            raise EngramctlError(f"bench: hash by {name}", "the same rows", "others")
        candidates[name] = work
    yield from compare("hash", f"{count:,} tokens, all layers", count, "tokens", candidates, "NumPy", rounds)


def projection(
    source: Source, layer: int, counts: tuple[int, ...], rounds: int, kernel: str = "auto"
) -> Iterator[Line]:
    given = source.weights(layer).projection
    weight, packed = given.bits(), fast.hold(given, kernel)
    wide = from_bf16(weight)
    t = peers.torch()
    theirs = None if t is None else peers.as_torch(t, weight)
    for count in counts:
        values = bits((count, weight.shape[1]))
        narrow = from_bf16(values)
        candidates: dict[str, Work] = {
            "engramctl": partial(fast.project, values, packed),
            "NumPy F32": partial(np.matmul, narrow, wide.T),
        }
        want = from_bf16(fast.project(values, packed))
        _near("projection by NumPy", narrow @ wide.T, want)
        if t is not None:
            inputs = peers.as_torch(t, values)
            candidates["torch BF16"] = partial(t.nn.functional.linear, inputs, theirs)
            _near("projection by torch", t.nn.functional.linear(inputs, theirs).float().numpy(), want)
        peer = "NumPy F32" if t is None else "torch BF16"
        yield from compare("projection", f"{count:,} tokens", count, "tokens", candidates, peer, rounds)


def gating(source: Source, layer: int, counts: tuple[int, ...], rounds: int) -> Iterator[Line]:
    weights, sizes, clamp = source.weights(layer), source.sizes, source.profile.clamp
    t = peers.torch()
    for count in counts:
        hidden, kv = bits((count, sizes.streams, sizes.hidden)), bits((count, sizes.streams + 1, sizes.hidden), 5)
        key, value = np.ascontiguousarray(kv[:, :-1]), np.ascontiguousarray(kv[:, -1])
        given: tuple[Any, ...] = (hidden, key, value, weights.q_weight, weights.k_weight, None, sizes.eps, clamp)
        wide = from_bf16(hidden), from_bf16(kv)
        candidates: dict[str, Work] = {
            "engramctl": partial(fast.gate, *given),
            "NumPy": partial(peers.numpy_gate, *wide, weights, sizes.eps, clamp),
        }
        want = from_bf16(fast.gate(*given)[1])
        _near("gate by NumPy", peers.numpy_gate(*wide, weights, sizes.eps, clamp), want)
        if t is not None:
            run = peers.torch_gate(t, weights, sizes.eps, clamp)
            theirs = peers.as_torch(t, hidden), peers.as_torch(t, kv)
            candidates["torch eager"] = partial(run, *theirs)
            _near("gate by torch", run(*theirs).float().numpy(), want)
        peer = "NumPy" if t is None else "torch eager"
        yield from compare("gate", f"{count:,} tokens", count, "tokens", candidates, peer, rounds)


def whole(
    source: Source, layers: Sequence[int], counts: tuple[int, ...], rounds: int, kernel: str = "auto", io: Io = "mmap"
) -> Iterator[Line]:
    """Tokens and hidden states in, new hidden states of each layer out; the table warm, mapped or in memory."""
    t, params, sizes, clamp = peers.torch(), source.params(), source.sizes, source.profile.clamp
    with Pipeline(source, layers, io=io, prewarm=True, kernel=kernel) as pipe, ExitStack() as kept:
        tables = {layer: _rows(pipe.tables[layer], kept) for layer in layers}
        given = tables, params, pipe.weights, sizes.eps, clamp
        there = all(table.shape[1:] == (ROW_BYTES,) for table in tables.values())
        by_numpy = peers.numpy_pipeline(*given) if there else None
        by_torch = peers.torch_pipeline(t, *given) if there and t is not None else None
        for count in counts:
            tokens, hidden = tokens_of(source, count), bits((count, sizes.streams, sizes.hidden))
            ids, ours = params.compress(tokens, None), partial(_through, pipe, tokens, hidden)
            candidates: dict[str, Work] = {f"engramctl --io {io}": ours}
            if by_numpy is not None:
                candidates["NumPy"] = partial(by_numpy, ids, from_bf16(hidden))
            if t is not None and by_torch is not None:
                candidates["torch eager"] = partial(by_torch, t.from_numpy(ids), peers.as_torch(t, hidden))
            for name, work in list(candidates.items())[1:]:
                for got, want in zip(work(), ours(), strict=True):
                    _near(f"pipeline by {name}", got if name == "NumPy" else got.float().numpy(), from_bf16(want))
            yield from compare(
                "pipeline", f"{count:,} tokens", count, "tokens", candidates, list(candidates)[-1], rounds
            )


def _rows(table: Table, kept: ExitStack) -> NDArray[np.uint8]:
    """The table's rows for a peer: a copy where ours are one, else the file's first part mapped as ours is."""
    if table.place is not None and table.place.name == "ram":
        return table.read(np.arange(table.rows))
    part = table.parts[0]
    mapped = kept.enter_context(page_cache.Mapping(part.file, part.start, part.start + table.rows * part.stride))
    return mapped.bytes.reshape(-1, part.stride)


def _through(pipe: Pipeline, tokens: NDArray[np.int64], hidden: NDArray[np.uint16]) -> list[NDArray[np.uint16]]:
    with pipe.prepare(tokens) as work:
        return [work.gate(layer, hidden)[1] for layer in pipe.layers]
