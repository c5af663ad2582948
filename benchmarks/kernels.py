"""The compiled kernels beside NumPy and torch, in one process: every path this machine can run, and its ceilings.

    .venv/bin/python benchmarks/kernels.py --json kernels.json

Real width: 25,600 outputs, 6,144 inputs, 4 streams of 5,120. Each peer is compared with ours before it is timed. Every
call is warmed up twice, since memory that was idle is slow at first, and every library's threads are let settle.
"""

# ruff: noqa: ANN401 - torch may not be there, and has no types here
from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from engramctl import fast, profiles, threads
from engramctl.bench import peers
from engramctl.bench.measure import Line, Work, compare
from engramctl.bench.stages import bits
from engramctl.fast import cpu, gather
from engramctl.fast.weights import Packed
from engramctl.hash_params import published
from engramctl.projection import Projection, held
from engramctl.reference import dequantise
from engramctl.source import Weights
from formats.floats import from_bf16
from formats.row264 import ROW_BYTES, WIDTH, decode_bf16

sys.path.insert(0, str(Path(__file__).parent))
from measuring import table

N, K, S, D = 25_600, 6_144, 4, 5_120
TOKENS = (1, 4, 16, 32, 64, 128, 512)
SLOW = {"portable": 64, "NumPy F32": 512}  # tokens from which on these are left out
NEAR = 0.02  # of the largest


def near(name: str, got: NDArray[Any], want: NDArray[Any]) -> None:
    most = float(np.abs(want).max())
    if not np.allclose(got, want, rtol=NEAR, atol=NEAR * most):
        raise SystemExit(f"{name} computes something else: {np.abs(got - want).max():g} off, of up to {most:g}")


@numba.njit(nogil=True)
def _read(words: NDArray[np.uint64], first: int, last: int, seen: NDArray[np.uint64]) -> None:
    for i in range(first, last):
        for j in range(64):
            seen[j] ^= words[i, j]


def ceilings(rounds: int) -> Iterator[Line]:
    """What memory gives: a weight's bytes read by all threads, and copied by one."""
    words = np.ones((N * K // 512, 64), np.uint64)
    copy, count = np.empty_like(words), threads.count()
    with ThreadPoolExecutor(count) as pool:

        def read(parts: int) -> None:
            edges = [len(words) * i // parts for i in range(parts + 1)]
            jobs = [pool.submit(_read, words, edges[i], edges[i + 1], np.zeros(64, np.uint64)) for i in range(parts)]
            for job in jobs:
                job.result()

        work: dict[str, Work] = {f"read, {count} threads": partial(read, count), "read, 1 thread": partial(read, 1)}
        work["memcpy, 1 thread"] = lambda: np.copyto(copy, words)
        yield from compare(
            "memory", f"{words.nbytes / 1e6:.0f} MB", words.nbytes, "bytes", work, next(iter(work)), rounds
        )


def projections(rounds: int, t: Any) -> Iterator[Line]:
    random = np.random.default_rng(1)
    codes = random.integers(0, 0x7F, (N, K), np.uint8) | random.integers(0, 2, (N, K), np.uint8) << np.uint8(7)
    scales = random.integers(118, 121, (N // 32, K // 32), np.uint8)
    packed = fast.hold(Projection((N, K), lambda first, last: codes[first:last], scales))
    bf16 = dequantise(codes, scales)
    kept = fast.hold(bf16)
    wide = from_bf16(bf16)
    theirs = None if t is None else peers.as_torch(t, bf16)
    prepacked = None if theirs is None else _prepacked(t, theirs)
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
            if prepacked is not None and count <= 64:
                candidates["torch BF16 prepacked"] = partial(prepacked, given)
        yield from compare("projection", f"{count} tokens", count, "tokens", candidates, peer, rounds)


def _by(values: NDArray[np.uint16], packed: Packed, path: str) -> Work:
    return partial(fast.project, values, replace(packed, path=path))


def _quick(name: str, count: int) -> bool:
    return count < SLOW.get(name, 1 << 30)


def _prepacked(t: Any, weight: Any) -> Any:
    """torch's own best: the weight reordered once, where this build can do that."""
    try:
        once = t.ops.mkldnn._reorder_linear_weight(weight, None)
        run = partial(t.ops.mkldnn._linear_pointwise, attr="none", scalars=[], algorithm="")
        run(t.zeros((1, K), dtype=t.bfloat16), once, None)
    except (AttributeError, RuntimeError):
        return None
    return lambda given: run(given, once, None)


def rows(rounds: int, t: Any) -> Iterator[Line]:
    random = np.random.default_rng(2)

    def made(count: int) -> NDArray[np.uint8]:
        table = random.integers(0, 0x7F, (count, ROW_BYTES), np.uint8)
        table[:, WIDTH:] = 119
        return table

    for case, count in (("768 rows in cache", 768), ("200,000 rows", 200_000)):
        some = made(count)
        out, numbers = np.empty((count, WIDTH), np.uint16), np.arange(count)
        yield from _decoded("decode", case, some, numbers, out, rounds, t, gathered=False)
    big = np.tile(made(100_000), (40, 1))  # a gigabyte, so that every row is a miss
    numbers = random.integers(0, len(big), 100_000)
    out = np.empty((len(numbers), WIDTH), np.uint16)
    yield from _decoded("gather, decode", "100,000 of 4,000,000 rows", big, numbers, out, rounds, t, gathered=True)


def _decoded(
    group: str, case: str, raw: NDArray[np.uint8], numbers: NDArray[np.int64], out: NDArray[np.uint16], rounds: int,
    t: Any, gathered: bool,
) -> Iterator[Line]:  # fmt: skip
    flat = raw.reshape(-1)

    def ours() -> None:
        gather.values(flat, ROW_BYTES, flat[WIDTH:], ROW_BYTES, numbers, out)

    ours()
    some = slice(0, 500)
    if not np.array_equal(out[some], decode_bf16(raw[numbers[some]])):
        raise SystemExit("our rows are not the reference's")
    candidates: dict[str, Work] = {"engramctl": ours, "NumPy": lambda: decode_bf16(raw[numbers] if gathered else raw)}
    peer = "NumPy"
    if t is not None:
        tensor, index, peer = t.from_numpy(raw), t.from_numpy(numbers), "torch"
        candidates[peer] = lambda: peers.torch_decode(t, tensor.index_select(0, index) if gathered else tensor)
    yield from compare(group, case, len(numbers), "rows", candidates, peer, rounds)


def hashing(rounds: int, t: Any) -> Iterator[Line]:
    profile = profiles.load()
    params = published(profile, profile.token_map())
    tokens = np.random.default_rng(3).integers(0, params.token_map.size, 200_000)
    ids = params.compress(tokens, None)
    outs = {kind: np.zeros((tokens.size, 2, 24), kind) for kind in (np.int64, np.int32)}
    candidates: dict[str, Work] = {}
    for kind, out in outs.items():
        candidates[f"engramctl {kind.__name__}"] = partial(fast.hash_rows, tokens, params, out=out)
    candidates["NumPy"] = partial(peers.numpy_hash, ids, params)
    if not np.array_equal(fast.hash_rows(tokens, params), peers.numpy_hash(ids, params)):
        raise SystemExit("NumPy hashes something else")
    if t is not None:
        candidates["torch"] = partial(peers.torch_hash(t, params), t.from_numpy(ids))
    yield from compare("hash", "200,000 tokens, 48 rows each", tokens.size, "tokens", candidates, "NumPy", rounds)


def gating(rounds: int, t: Any) -> Iterator[Line]:
    weights = Weights(held(np.empty((0, K), np.uint16)), bits((S, D), 4), bits((S, D), 5))
    for count in (1, 16, 512):
        hidden, kv = bits((count, S, D)), bits((count, S + 1, D), 6)
        key, value = np.ascontiguousarray(kv[:, :-1]), np.ascontiguousarray(kv[:, -1])
        run = partial(fast.gate, hidden, key, value, weights.q_weight, weights.k_weight)
        candidates: dict[str, Work] = {"engramctl": run}
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


GROUPS = ("memory", "projection", "rows", "hash", "gate")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=threads.count())
    parser.add_argument("--only", choices=GROUPS, action="append")
    asked = parser.parse_args()
    threads.use(asked.threads)
    fast.use_threads(asked.threads)
    t = peers.torch()
    if t is not None:
        t.set_num_threads(asked.threads)
    cases = {
        "memory": lambda: ceilings(asked.rounds),
        "projection": lambda: projections(asked.rounds, t),
        "rows": lambda: rows(asked.rounds, t),
        "hash": lambda: hashing(asked.rounds, t),
        "gate": lambda: gating(asked.rounds, t),
    }
    lines: list[Line] = []
    for name in asked.only or GROUPS:
        lines += cases[name]()
        time.sleep(0.3)
    machine = {
        "processor": cpu.target()[0],
        "features": sorted(f for f in cpu.features() if f.startswith(("avx", "amx", "fma", "f16c"))),
        "threads": asked.threads,
        "kernel": cpu.choose("auto"),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "torch": None if t is None else str(t.__version__),
    }
    print(
        "; ".join(
            f"{name} {value if not isinstance(value, list) else ' '.join(value)}" for name, value in machine.items()
        )
    )
    shown = [
        [line.group, line.case, line.candidate, f"{line.best * 1e3:,.3f}", f"{line.middle * 1e3:,.3f}", _rate(line),
         f"{line.ratio:,.2f} x {line.peer}"]
        for line in lines
    ]  # fmt: skip
    print(table(["work", "case", "by", "best ms", "middle ms", "rate", "as fast as"], shown))
    if asked.json:
        facts = {"machine": machine, "lines": [line.as_dict() for line in lines]}
        asked.json.write_text(json.dumps(facts, indent=1) + "\n")


def _rate(line: Line) -> str:
    if line.group == "projection":
        return f"{2 * line.amount * N * K / line.best / 1e9:,.0f} GF/s"
    return f"{line.rate / 1e9:,.1f} GB/s" if line.unit == "bytes" else f"{line.rate / 1e6:,.3f} M {line.unit}/s"


if __name__ == "__main__":
    main()
