"""Each kernel's case beside NumPy and torch, at the real width: 25,600 outputs, 6,144 inputs, 4 streams of 5,120."""

# ruff: noqa: ANN401 - torch may not be there, and has no types here
from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import fast, profiles, threads
from engramctl.bench import peers, stages
from engramctl.bench.measure import Line, Work, compare
from engramctl.bench.stages import bits
from engramctl.fast import cpu, gather
from engramctl.fast.weights import Packed
from engramctl.hash_params import published
from engramctl.projection import Projection, held
from engramctl.reference import dequantise
from engramctl.source import Weights, open_source
from formats.floats import from_bf16
from formats.row264 import ROW_BYTES, WIDTH, decode_bf16

sys.path.insert(0, str(Path(__file__).parent))
import large

N, K, S, D = 25_600, 6_144, 4, 5_120
TOKENS = (1, 2, 4, 16, 32, 64, 128, 512)
PREPACKED = 64  # tokens up to which torch's prepacked weights are asked for
CHAINED = 512  # tokens through both layers
ROWS, IN_CACHE, MANY = 768, 3_000, 200_000  # 0.2, 0.8 and 53 MB
BIG, DRAWN = 4_000_000, 100_000  # a gigabyte, so that every row is a miss
HASHED, COLUMNS = 200_000, 48  # of both layers together
SLOW = {"portable": 64, "NumPy F32": 512}  # tokens from which on these are left out
NEAR = 0.02  # of the largest


def near(name: str, got: NDArray[Any], want: NDArray[Any]) -> None:
    most = float(np.abs(want).max())
    if not np.allclose(got, want, rtol=NEAR, atol=NEAR * most):
        raise SystemExit(f"{name} computes something else: {np.abs(got - want).max():g} off, of up to {most:g}")


def _alone(work: Work) -> Work:
    """The same on one thread of ours; the peers keep theirs."""

    def run() -> None:
        fast.use_threads(1)
        try:
            work()
        finally:
            fast.use_threads(threads.count())

    return run


def _by_path(work: Work) -> Iterator[tuple[str, Work]]:
    """The same by each path that this machine can run, the fastest aside: it is taken by itself."""

    def run(path: str) -> None:
        chosen, cpu.vectors = cpu.vectors, lambda: path
        try:
            work()
        finally:
            cpu.vectors = chosen

    for path in cpu.paths():
        if path not in ("amx", cpu.vectors()):
            yield f"engramctl, {path}", partial(run, path)


def projections(rounds: int, t: Any) -> Iterator[Line]:
    random = np.random.default_rng(1)
    codes = random.integers(0, 0x7F, (N, K), np.uint8) | random.integers(0, 2, (N, K), np.uint8) << np.uint8(7)
    scales = random.integers(118, 121, (N // 32, K // 32), np.uint8)
    packed = fast.hold(Projection((N, K), lambda first, last: codes[first:last], scales))
    bf16 = dequantise(codes, scales)
    kept = fast.hold(bf16)
    wide = from_bf16(bf16)
    theirs = None if t is None else peers.as_torch(t, bf16)
    for count in TOKENS:
        values = bits((count, K))
        candidates: dict[str, Work] = {f"{p} E4M3": _by(values, packed, p) for p in cpu.paths() if _quick(p, count)}
        candidates[f"{packed.path} BF16"] = _by(values, kept, packed.path)
        want = from_bf16(fast.project(values, packed))
        narrow = from_bf16(values)
        if _quick("NumPy F32", count):
            candidates["NumPy F32"] = partial(np.matmul, narrow, wide.T)
            near("NumPy's projection", narrow @ wide.T, want)
        peer = "NumPy F32"
        if t is not None:
            given, peer = peers.as_torch(t, values), "torch BF16"
            candidates[peer] = partial(t.nn.functional.linear, given, theirs)
            near("torch's projection", t.nn.functional.linear(given, theirs).float().numpy(), want)
            prepacked = _prepacked(t, theirs, given) if count <= PREPACKED else None
            if prepacked is not None:
                candidates["torch BF16 prepacked"] = prepacked
                near("torch's prepacked projection", prepacked().float().numpy(), want)
        yield from compare("projection", f"{count} tokens", count, "tokens", candidates, peer, rounds)


def _by(values: NDArray[np.uint16], packed: Packed, path: str) -> Work:
    return partial(fast.project, values, replace(packed, path=path))


def _quick(name: str, count: int) -> bool:
    return count < SLOW.get(name, 1 << 30)


def _prepacked(t: Any, weight: Any, given: Any) -> Work | None:
    """torch's own best: the weight reordered once, for this many tokens, where this build can do that."""
    try:
        once = t.ops.mkldnn._reorder_linear_weight(weight, len(given))
        run = partial(t.ops.mkldnn._linear_pointwise, given, once, None, "none", [], "")
        run()
    except (AttributeError, RuntimeError) as error:
        print(f"torch has no prepacked BF16 projection here: {error}", file=sys.stderr)
        return None
    return run


def rows(rounds: int, t: Any) -> Iterator[Line]:
    random = np.random.default_rng(2)

    def made(count: int) -> NDArray[np.uint8]:
        table = random.integers(0, 0x7F, (count, ROW_BYTES), np.uint8)
        table[:, WIDTH:] = 119
        return table

    for case, count in ((rows_of(ROWS, "in cache"), ROWS), (rows_of(MANY), MANY)):
        some, numbers = made(count), np.arange(count)
        yield from _decoded("decode", case, some, numbers, rounds, t, gathered=False)
    near_by, big = made(IN_CACHE), np.tile(made(BIG // 40), (40, 1))
    for case, raw, count in (
        (rows_of(ROWS, f"of {IN_CACHE:,} in cache"), near_by, ROWS),
        (rows_of(DRAWN, f"of {BIG:,}"), big, DRAWN),
    ):
        yield from _decoded("gather, decode", case, raw, random.integers(0, len(raw), count), rounds, t, gathered=True)


def rows_of(count: int, more: str = "") -> str:
    return f"{count:,} rows {more}".strip()


def _decoded(
    group: str, case: str, raw: NDArray[np.uint8], numbers: NDArray[np.int64], rounds: int, t: Any, gathered: bool
) -> Iterator[Line]:
    flat, out = raw.reshape(-1), np.empty((len(numbers), WIDTH), np.uint16)

    def ours() -> None:
        gather.values(flat, ROW_BYTES, flat[WIDTH:], ROW_BYTES, numbers, out)

    ours()
    some = slice(0, 500)
    if not np.array_equal(out[some], decode_bf16(raw[numbers[some]])):
        raise SystemExit("our rows are not the reference's")
    candidates: dict[str, Work] = {"engramctl": ours, "engramctl, 1 thread": _alone(ours), **dict(_by_path(ours))}
    candidates["NumPy"] = lambda: decode_bf16(raw[numbers] if gathered else raw)
    peer = "NumPy"
    if t is not None:
        tensor, index, peer = t.from_numpy(raw), t.from_numpy(numbers), "torch"
        candidates[peer] = lambda: peers.torch_decode(t, tensor.index_select(0, index) if gathered else tensor)
    yield from compare(group, case, len(numbers), "rows", candidates, peer, rounds)


def hashing(rounds: int, t: Any) -> Iterator[Line]:
    profile = profiles.load()
    params = published(profile, profile.token_map())
    tokens = np.random.default_rng(3).integers(0, params.token_map.size, HASHED)
    ids = params.compress(tokens, None)
    outs = {kind: np.zeros((tokens.size, 2, COLUMNS // 2), kind) for kind in (np.int64, np.int32)}
    candidates: dict[str, Work] = {}
    for kind, out in outs.items():
        name, run = f"engramctl {kind.__name__}", partial(fast.hash_rows, tokens, params, out=out)
        candidates |= {name: run, f"{name}, 1 thread": _alone(run)}
    candidates["NumPy"] = partial(peers.numpy_hash, ids, params)
    if not np.array_equal(fast.hash_rows(tokens, params), peers.numpy_hash(ids, params)):
        raise SystemExit("NumPy hashes something else")
    if t is not None:
        candidates["torch"] = partial(peers.torch_hash(t, params), t.from_numpy(ids))
    yield from compare(
        "hash", f"{HASHED:,} tokens, {COLUMNS} rows each", tokens.size, "tokens", candidates, "NumPy", rounds
    )


def gating(rounds: int, t: Any) -> Iterator[Line]:
    weights = Weights(held(np.empty((0, K), np.uint16)), bits((S, D), 4), bits((S, D), 5))
    for count in (1, 16, 512):
        hidden, kv = bits((count, S, D)), bits((count, S + 1, D), 6)
        key, value = np.ascontiguousarray(kv[:, :-1]), np.ascontiguousarray(kv[:, -1])
        run = partial(fast.gate, hidden, key, value, weights.q_weight, weights.k_weight)
        candidates: dict[str, Work] = {"engramctl": run, "engramctl, 1 thread": _alone(run), **dict(_by_path(run))}
        wide = from_bf16(hidden), from_bf16(kv)
        candidates["NumPy"] = partial(peers.numpy_gate, *wide, weights, 1e-20, 1e-6)
        peer = "NumPy"
        if t is not None:
            theirs, peer = (peers.as_torch(t, hidden), peers.as_torch(t, kv)), "torch eager"
            candidates[peer] = partial(peers.torch_gate(t, weights, 1e-20, 1e-6), *theirs)
            candidates["torch by hand"] = partial(_by_hand(t, weights), *theirs)
            for name in (peer, "torch by hand"):
                near("torch's gate", candidates[name]().float().numpy(), from_bf16(run()[1]))
        yield from compare("gate", f"{count} tokens", count, "tokens", candidates, peer, rounds)


def _by_hand(t: Any, weights: Weights) -> Any:
    """The same with as few passes as torch has operations for."""
    w = t.from_numpy(from_bf16(weights.q_weight) * from_bf16(weights.k_weight))

    def run(hidden: Any, kv: Any) -> Any:
        h, key, value = hidden.float(), kv[:, :-1].float(), kv[:, -1:].float()
        norms = t.linalg.vector_norm(h, dim=-1) * t.linalg.vector_norm(key, dim=-1)
        dot = (h * w).mul_(key).sum(-1) * (D**0.5) / norms
        gate = t.sigmoid(t.copysign(dot.abs().clamp_min_(1e-6).sqrt_(), dot))
        return h.addcmul_(gate[..., None], value).to(t.bfloat16)

    return run


def chained(rounds: int) -> Iterator[Line]:
    """Both layers of many tokens, weights in E4M3, tables in memory: hash, gather and decode, projection, gate."""
    with tempfile.TemporaryDirectory(prefix="engramctl-kernels-") as name:
        large.wide(Path(name) / "ckpt")
        with open_source(Path(name) / "ckpt") as source:
            yield from stages.whole(source, source.sizes.layers, (CHAINED,), rounds, io="ram")
