"""Working ahead changes no bit, does first what is waited for, holds a bounded amount, passes on what went wrong."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from engramctl import pipeline, reference
from engramctl.ahead import PROJECT_AHEAD, READ_AHEAD, Ahead, Lane, Times, pieces
from engramctl.errors import EngramctlError
from engramctl.pipeline import Pipeline
from engramctl.source import Source, open_source
from formats.errors import FormatError

T = 150
CHUNK = 32


@pytest.fixture
def source(container: Path) -> Iterator[Source]:
    with open_source(container) as opened:
        yield opened


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "CHUNK_TOKENS", CHUNK)


def sequence(source: Source) -> tuple[np.ndarray, np.ndarray, dict[int, np.ndarray]]:
    rng = np.random.default_rng(3)
    sizes = source.sizes
    states = {
        layer: (rng.integers(0, 256, (T, sizes.streams, sizes.hidden)) | 0x3F00).astype(np.uint16)
        for layer in sizes.layers
    }
    return rng.integers(0, sizes.vocabulary, T), rng.random(T) > 0.1, states


def expected(source: Source, layer: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """kv, gates and new hidden states, by the reference, stage by stage."""
    tokens, mask, states = sequence(source)
    params, weights, sizes = source.params(), source.weights(layer), source.sizes
    rows = reference.hash_rows(tokens, params, mask)[:, params.layers.index(layer)]
    values = reference.lookup(source.table(layer).read(rows))
    kv = reference.project(values.reshape(T, -1), weights.projection.bits()).reshape(T, sizes.streams + 1, -1)
    args = (states[layer], np.ascontiguousarray(kv[:, :-1]), np.ascontiguousarray(kv[:, -1]))
    return kv, *reference.gate(*args, weights.q_weight, weights.k_weight, mask, sizes.eps, source.profile.clamp)


@pytest.mark.parametrize("io", ["mmap", "pread", "ram", "direct", "auto"])
def test_a_prepared_sequence_gives_the_reference_s_bits_in_every_layer(io: str, source: Source) -> None:
    tokens, mask, states = sequence(source)
    with Pipeline(source, io=io) as pipe, pipe.prepare(tokens, mask) as work:
        for layer in source.sizes.layers:
            gates, out = work.gate(layer, states[layer])
            _, want_gates, want_out = expected(source, layer)
            assert np.array_equal(gates, want_gates)
            assert np.array_equal(out, want_out)


@pytest.mark.parametrize("step", [1, 7, CHUNK, CHUNK + 1, T])
def test_hidden_states_may_come_in_pieces_of_any_length_and_layers_in_any_order(step: int, source: Source) -> None:
    tokens, mask, states = sequence(source)
    with Pipeline(source) as pipe, pipe.prepare(tokens, mask) as work:
        for layer in reversed(source.sizes.layers):
            out = [work.gate(layer, states[layer][at : at + step])[1] for at in range(0, T, step)]
            assert np.array_equal(np.concatenate(out), expected(source, layer)[2])


def test_one_token_after_another_is_as_good_as_all_at_once(source: Source) -> None:
    tokens, _, states = sequence(source)
    layer, params = source.sizes.layers[0], source.params()
    with Pipeline(source) as pipe:
        with pipe.prepare(tokens[:40]) as work:
            want = work.gate(layer, states[layer][:40])[1]
        got, past = [], []
        for t in range(40):
            with pipe.prepare(tokens[t : t + 1], history=past[-params.size + 1 :]) as work:
                got.append(work.gate(layer, states[layer][t : t + 1])[1])
            past += params.compress(tokens[t : t + 1], None).tolist()
    assert np.array_equal(np.concatenate(got), want)


def test_more_hidden_states_than_tokens_and_unknown_layers_are_refused(source: Source) -> None:
    tokens, _, states = sequence(source)
    layer = source.sizes.layers[0]
    with Pipeline(source) as pipe, pipe.prepare(tokens[:10]) as work:
        work.gate(layer, states[layer][:8])
        with pytest.raises(EngramctlError, match=f"at most the 2 tokens that layer {layer} has left, found 3"):
            work.gate(layer, states[layer][:3])
        with pytest.raises(EngramctlError, match=r"layer: expected one of .*, found 99"):
            work.gate(99, states[layer][:1])
        with pytest.raises(EngramctlError, match="hidden states: expected shape"):
            work.gate(layer, states[layer][:2, :1])
        assert work.kv(layer).shape[0] == 2
        assert work.kv(layer).shape[0] == 0


def test_no_tokens_are_no_work(source: Source) -> None:
    layer = source.sizes.layers[0]
    with Pipeline(source) as pipe, pipe.prepare(np.empty(0, np.int64)) as work:
        assert work.gate(layer, sequence(source)[2][layer][:0])[0].shape == (0, source.sizes.streams)


def test_what_is_not_used_up_stops_the_work_and_can_be_left(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, _, states = sequence(source)
    done: list[int] = []
    truth = Pipeline.project
    monkeypatch.setattr(
        Pipeline, "project", lambda self, layer, values: done.append(layer) or truth(self, layer, values)
    )
    layers = source.sizes.layers
    with Pipeline(source) as pipe, pipe.prepare(tokens) as work:
        deadline = time.monotonic() + 10
        while len(done) < 2 * PROJECT_AHEAD and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        assert sorted(done) == sorted(list(layers) * PROJECT_AHEAD)  # though there are five chunks a layer
        work.gate(layers[1], states[layers[1]][:CHUNK])
        deadline = time.monotonic() + 10
        while len(done) < 2 * PROJECT_AHEAD + 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert done.count(layers[1]) == PROJECT_AHEAD + 1


def test_an_invalid_row_is_raised_where_its_layer_is_used(container: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    data = bytearray(container.read_bytes())
    with open_source(container) as source:
        tokens, _, states = sequence(source)
        layer = source.sizes.layers[1]
        part = source.table(layer).parts[0]
        for row in range(source.table(layer).rows):
            data[part.start + row * part.stride + 260] = 255
    damaged.write_bytes(data)
    with open_source(damaged) as source, Pipeline(source) as pipe, pipe.prepare(tokens) as work:  # noqa: SIM117
        with pytest.raises(FormatError, match=rf"layer {layer} row \d+ byte 260: expected an E8M0 scale below 255"):
            [work.gate(each, states[each]) for each in source.sizes.layers]


def lanes(count: int, layers: int, slow: float = 0.0) -> tuple[dict[int, Lane], list[tuple[str, int, int]]]:
    """Lanes whose stages only note what they did."""
    log: list[tuple[str, int, int]] = []

    def make(layer: int) -> Lane:
        def read(chunk: int) -> np.ndarray:
            time.sleep(slow)
            log.append(("read", layer, chunk))
            return np.full(1, chunk, np.uint16)

        def project(values: np.ndarray) -> np.ndarray:
            time.sleep(slow)
            log.append(("project", layer, int(values[0])))
            return values

        return Lane(count, read, project)

    return {layer: make(layer) for layer in range(layers)}, log


def test_chunks_arrive_in_order_each_once_however_layers_are_asked_for() -> None:
    rng = np.random.default_rng(0)
    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as projector:
        for _ in range(60):
            made, log = lanes(6, 3)
            ahead = Ahead(made, reader, projector, Times())
            asked = rng.permutation(np.repeat(np.arange(3), 6)).tolist()
            got: dict[int, list[int]] = {0: [], 1: [], 2: []}
            for layer in asked:
                got[layer].append(int(ahead.take(layer)[0]))
            assert all(each == list(range(6)) for each in got.values())
            ahead.close()
            assert sorted(log) == sorted(
                (what, layer, c) for what in ("read", "project") for layer in range(3) for c in range(6)
            )


def test_never_more_is_held_than_the_bounds_say() -> None:
    made, log = lanes(50, 2, slow=0.0005)
    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as projector:
        ahead = Ahead(made, reader, projector, Times())
        for taken in range(20):
            ahead.take(0)
            projected = sum(what == "project" and layer == 0 for what, layer, _ in log)
            read = sum(what == "read" and layer == 0 for what, layer, _ in log)
            assert projected <= taken + 1 + PROJECT_AHEAD
            assert read <= projected + 1 + READ_AHEAD + 1
        ahead.close()


def test_leaving_in_the_middle_ends_what_is_under_way() -> None:
    for _ in range(20):
        made, _ = lanes(50, 2, slow=0.001)
        with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as projector:
            ahead = Ahead(made, reader, projector, Times())
            ahead.take(0)
            ahead.close()
    assert threading.active_count() < 20


def test_times_say_what_was_hidden() -> None:
    made, _ = lanes(8, 1, slow=0.01)
    times = Times()
    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as projector:
        ahead = Ahead(made, reader, projector, times)
        time.sleep(0.15)  # the model is busy elsewhere: two chunks get ready meanwhile
        for _ in range(PROJECT_AHEAD):
            ahead.take(0)
        assert times.wait < 0.008
        for _ in range(8 - PROJECT_AHEAD):
            ahead.take(0)
        ahead.close()
    assert times.read >= 0.08
    assert times.project >= 0.08
    assert 0 < times.hidden() < 1


def test_pieces_of_chunks_add_up() -> None:
    chunks = iter([np.arange(5), np.arange(5, 10), np.arange(10, 12)])
    held: deque[np.ndarray] = deque()
    taken = [np.concatenate([*pieces(lambda: next(chunks), held, count), np.empty(0, int)]) for count in (2, 0, 4, 6)]
    assert [each.tolist() for each in taken] == [[0, 1], [], [2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
