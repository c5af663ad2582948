"""One body over both tiers: for any shape and any operands, `fast` gives the reference's bits or its refusal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import bits, outcome

from engramctl import fast, reference
from engramctl.fast import amx, cache, cpu, decode, gather
from engramctl.fast.cache import in_parts
from engramctl.fast.project import _fused
from engramctl.fast.rows import LEAST_SCALE, MOST_SCALE
from engramctl.fast.weights import Packed, range_of
from engramctl.projection import Projection
from formats.floats import E4M3_VALUES, E8M0_VALUES, exact_in_bf16, from_bf16, to_bf16
from formats.row264 import BLOCK, ROW_BYTES, SURE_BELOW, WIDTH, pack

SEEDED = settings(max_examples=100, deadline=None, derandomize=True, database=None)

# Windows of BF16 exponents: usual numbers; products among the subnormals, where a fused multiply-add rounds otherwise;
# sums that overflow; everything at once, where most results are refused.
WINDOWS = {"usual": (118, 130), "subnormal": (0, 60), "huge": (180, 192), "any": (0, 254)}
WAYS = [path for path in decode.WAYS if path in cpu.paths()]
PATHS = [*cpu.paths(), "tiles"]  # tiles that are written out: AMX's kernel on any processor
windows, seeds = st.sampled_from(sorted(WINDOWS)), st.integers(0, 2**32 - 1)


def numbers(random: np.random.Generator, window: str, *shape: int) -> np.ndarray:
    """BF16 bits with exponents from a window; one in eight is a zero of either sign."""
    low, high = WINDOWS[window]
    made = random.integers(low, high + 1, shape) << 7 | random.integers(0, 1 << 7, shape)
    made[random.integers(0, 8, shape) == 0] = 0
    return (made | random.integers(0, 2, shape) << 15).astype(np.uint16)


def hold(weight: Projection | np.ndarray, path: str) -> Packed:
    return replace(fast.hold(weight), path=path) if path == "tiles" else fast.hold(weight, path)


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = cache._threads.count
    yield
    fast.use_threads(before)


@contextmanager
def forced(path: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "vectors", lambda: path)
        yield


@pytest.mark.parametrize("path", WAYS)
@SEEDED
@given(seeds, st.integers(0, 40), st.booleans(), st.booleans())
def test_lookup_has_equal_bits_on_any_bytes(path: str, seed: int, count: int, usual: bool, strided: bool) -> None:
    random = np.random.default_rng(seed)
    rows = random.integers(0, 256, (count, 2, ROW_BYTES), dtype=np.uint8)
    if usual:  # but for one row in four
        rows[..., :WIDTH] = codes(random, count * 2, WIDTH).reshape(count, 2, WIDTH)
        rows[..., WIDTH:] = random.integers(LEAST_SCALE, MOST_SCALE + 1, (count, 2, ROW_BYTES - WIDTH))
        rows[random.integers(0, 4, (count, 2)) == 0, random.integers(0, ROW_BYTES)] = 0xFF
    if strided:
        rows = rows[::-1, 1:]
    with forced(path):
        assert outcome(fast.lookup, rows) == outcome(reference.lookup, rows)


@pytest.mark.parametrize("path", WAYS)
def test_every_code_under_every_scale_is_decoded_to_its_value(path: str) -> None:
    """At every place of a row, as the only row of its kind and on the way out of a table."""
    every = np.arange(256, dtype=np.uint8)
    for first in range(256):  # the code in a row's first place
        stored = np.broadcast_to(every + np.uint8(first), (256, WIDTH)).copy()
        stored[:, np.isnan(E4M3_VALUES[stored[0]])] = 0 if first % 2 else 0x7F
        scales = np.repeat(every[:, None], WIDTH // BLOCK, 1)
        rows = pack(stored, scales)
        flat, out, order = rows.reshape(-1), np.empty((256, WIDTH), np.uint16), every[::-1].astype(np.int64)
        with forced(path):
            found = fast.lookup(rows)
            doubtful = gather.values(flat, ROW_BYTES, flat[WIDTH:], ROW_BYTES, order, out)
        want = reference.lookup(rows)
        np.testing.assert_array_equal(found, want)
        np.testing.assert_array_equal(out, want[order])
        np.testing.assert_array_equal(doubtful, (stored == 0x7F).any(1) | (order >= SURE_BELOW))


@pytest.mark.parametrize("path", PATHS)
@SEEDED
@given(seeds, windows, windows, st.integers(0, 40), st.integers(0, 140), st.integers(0, 100), st.booleans())
def test_projection_has_equal_bits(
    path: str, seed: int, inputs: str, weights: str, T: int, K: int, N: int, plain: bool
) -> None:
    random = np.random.default_rng(seed)
    values, weight = numbers(random, inputs, T, K), numbers(random, weights, N, K)
    if not plain:  # read-only and in another order
        values, weight = np.asfortranarray(values), np.asfortranarray(weight)
        values.flags.writeable = weight.flags.writeable = False
    assert outcome(fast.project, values, hold(weight, path)) == outcome(reference.project, values, weight)


# Scale bytes: usual; the least exact ones, whose products are lost below F32's numbers; some whose sums overflow.
SCALES = {"real": (118, 122), "least": (3, 40), "subnormal": (60, 80), "most": (200, 246), "any": (3, 246)}


def codes(random: np.random.Generator, N: int, K: int) -> np.ndarray:
    """E4M3 codes that are numbers; one in eight is a zero of either sign, one in sixteen a subnormal."""
    made = random.integers(0, 0x7F, (N, K))
    made[random.integers(0, 8, (N, K)) == 0] = 0
    return (made | random.integers(0, 2, (N, K)) << 7).astype(np.uint8)


@pytest.mark.parametrize("path", PATHS)
@SEEDED
@given(seeds, windows, st.sampled_from(sorted(SCALES)), st.integers(0, 40), st.integers(0, 140), st.integers(0, 100))
def test_weights_kept_as_e4m3_give_the_bits_of_bf16(
    path: str, seed: int, inputs: str, scale: str, T: int, K: int, N: int
) -> None:
    random = np.random.default_rng(seed)
    stored, values = codes(random, N, K), numbers(random, inputs, T, K)
    low, high = SCALES[scale]
    scales = random.integers(low, high + 1, (-(-N // BLOCK), -(-K // BLOCK)), dtype=np.uint8)
    held = hold(Projection((N, K), lambda first, last: stored[first:last], scales), path)
    assert held.e4m3
    assert outcome(fast.project, values, held) == outcome(
        reference.project, values, reference.dequantise(stored, scales)
    )


@pytest.mark.parametrize("path", PATHS)
def test_every_code_under_every_scale_is_widened_to_its_value(path: str) -> None:
    """An input of 1 alone: the sum is the weight. Scale bytes beyond what is kept as E4M3 become BF16."""
    one = np.zeros((1, 32), np.uint16)
    one[0, 5] = 0x3F80
    numbers = np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8)
    for scale in range(255):
        with np.errstate(over="ignore"):
            value = E4M3_VALUES[numbers] * E8M0_VALUES[scale]
        some = numbers[exact_in_bf16(value)]
        stored = np.zeros((len(some), 32), np.uint8)
        stored[:, 5] = some
        scales = np.full((-(-len(some) // 32), 1), scale, np.uint8)
        held = hold(Projection(stored.shape, lambda first, last, s=stored: s[first:last], scales), path)
        assert held.e4m3 == (3 <= scale <= 246)
        want = to_bf16(value[exact_in_bf16(value)] + np.float32(0))  # of zeros, the positive one
        np.testing.assert_array_equal(fast.project(one, held)[0], want)


@pytest.mark.parametrize("path", PATHS)
def test_bits_are_equal_on_both_sides_of_where_sums_may_be_fused(path: str) -> None:
    """Inputs as powers of two around the limits, against weights that use every bit."""
    random = np.random.default_rng(3)
    stored = codes(random, 64, 64)
    sides = set()
    for scale, exponents in ((119, range(1, 255, 7)), (3, range(100, 140)), (246, range(1, 60)), (30, range(70, 110))):
        scales = np.full((2, 2), scale, np.uint8)
        for held in (
            hold(Projection((64, 64), lambda first, last: stored[first:last], scales), path),
            hold(reference.dequantise(stored, scales), path),
        ):
            for exponent in exponents:
                values = exponent << 7 | random.integers(0, 128, (3, 64)) | random.integers(0, 2, (3, 64)) << 15
                values = values.astype(np.uint16)
                within = range_of(values)
                sides.add(amx.exact(within, held.range) if path == "tiles" else _fused(within, held))
                want = outcome(reference.project, values, reference.dequantise(stored, scales))
                assert outcome(fast.project, values, held) == want, (scale, exponent, held.e4m3)
    assert sides == {True, False}


def test_weights_that_are_no_numbers_are_refused_in_the_reference_s_words() -> None:
    stored, scales = np.full((40, 70), 0x38, np.uint8), np.full((2, 3), 120, np.uint8)
    for code, scale in ((0xFF, 120), (0x38, 255), (0x38, 0), (0x01, 2), (0x7E, 250)):
        stored[33, 65], scales[1, 2] = code, scale
        given = Projection(stored.shape, lambda first, last: stored[first:last], scales)
        want = outcome(reference.dequantise, stored, scales)
        assert outcome(fast.project, np.zeros((1, 70), np.uint16), given)[0] == want[0] or not isinstance(want[0], str)


@pytest.mark.parametrize("path", WAYS)
@SEEDED
@given(
    seeds, windows, windows, st.integers(0, 4), st.integers(1, 4), st.integers(1, 200), st.booleans(),
    st.sampled_from(["BF16", "F32", "both"]), st.booleans(), st.sampled_from([1e-20, 1e-6, 0.0]),
)  # fmt: skip
def test_gate_has_equal_bits(
    path: str, seed: int, window: str, weights: str, T: int, S: int, D: int, masked: bool, kind: str, strided: bool,
    eps: float,
) -> None:  # fmt: skip
    random = np.random.default_rng(seed)
    hidden, kv = numbers(random, window, T, S, D), numbers(random, window, T, S + 1, D)
    key, value, (q, k) = kv[:, :-1], kv[:, -1], (numbers(random, weights, S, D) for _ in range(2))
    mask = random.integers(0, 2, T) == 1 if masked else None
    if masked:  # whatever a masked token holds does not matter
        key[~mask], value[~mask], hidden[~mask, :, :1] = 0x7FC0, 0xFF80, 0x8000
    if strided:
        key, hidden = key[::-1], np.asfortranarray(hidden)
    else:
        key, value = key.copy(), value.copy()
    if kind != "BF16":
        q, k = q if kind == "both" else from_bf16(q), from_bf16(k) * np.float32(1 / 3)
    arguments = (hidden, key, value, q, k, mask, eps)
    with forced(path):
        found = outcome(fast.gate, *arguments)
    assert found == outcome(reference.gate, *arguments)
    if masked and len(found) == 2:
        assert np.array_equal(np.array(found[1], np.uint16).reshape(T, S, D)[~mask], hidden[~mask])


def test_operands_between_the_extremes_are_mostly_accepted_and_the_extremes_mostly_refused() -> None:
    """What the properties above compare is bits in some windows and refusals in others, neither alone."""
    random = np.random.default_rng(0)
    kinds = {
        window: isinstance(outcome(reference.project, *(numbers(random, window, n, 64) for n in (3, 50)))[0], str)
        for window in WINDOWS
    }
    assert kinds == {"usual": False, "subnormal": False, "huge": True, "any": True}


def wide() -> dict[str, tuple[np.ndarray, ...]]:
    """Operands large enough that every function shares its work among threads."""
    random = np.random.default_rng(7)
    S, D = 3, 2500
    return {
        "lookup": (random.integers(0, 256, (9001, ROW_BYTES), dtype=np.uint8),),
        "project": (numbers(random, "usual", 9, 3000), numbers(random, "usual", 333, 3000)),
        "gate": (
            numbers(random, "usual", 77, S, D), numbers(random, "usual", 77, S, D), numbers(random, "usual", 77, D),
            numbers(random, "usual", S, D), numbers(random, "usual", S, D), random.integers(0, 4, 77) > 0,
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["lookup", "project", "gate"])
def test_bits_do_not_depend_on_threads(name: str) -> None:
    arguments = wide()[name]
    want = outcome(getattr(reference, name), *arguments)
    for threads in (1, 2, 3, 8):
        fast.use_threads(threads)
        if name == "project":
            for path in PATHS:
                assert outcome(fast.project, arguments[0], hold(arguments[1], path)) == want, (threads, path)
        else:
            for path in WAYS:
                with forced(path):
                    assert outcome(getattr(fast, name), *arguments) == want, (threads, path)


def test_bits_do_not_depend_on_the_batch() -> None:
    values, weight = wide()["project"]
    hidden, key, value, q, k, mask = wide()["gate"]
    together, (gates, out) = fast.project(values, weight), fast.gate(hidden, key, value, q, k, mask)
    for t in range(len(values)):
        np.testing.assert_array_equal(fast.project(values[t : t + 1], weight[:100]), together[t : t + 1, :100])
        one = slice(t, t + 1)
        alone = fast.gate(hidden[one], key[one], value[one], q, k, mask[one])
        np.testing.assert_array_equal(bits(alone[0]), bits(gates[one]))
        np.testing.assert_array_equal(alone[1], out[one])


class Recorder:
    """Stands in for a kernel: remembers the parts it is asked for."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, int]] = []

    def ready(self) -> None:
        """Nothing to compile."""

    def __call__(self, first: int, last: int) -> None:
        self.parts.append((first, last))


@pytest.mark.parametrize(
    ("threads", "count", "least", "parts"),
    [(1, 100, 1, 1), (4, 100, 1, 4), (4, 100, 40, 2), (4, 3, 1, 3), (4, 0, 1, 1)],
)
def test_parts_cover_the_work_once_and_are_not_too_small(threads: int, count: int, least: int, parts: int) -> None:
    fast.use_threads(threads)
    record = Recorder()
    in_parts(record, count, least)
    assert len(record.parts) == parts
    assert sorted(i for first, last in record.parts for i in range(first, last)) == list(range(count))


def test_a_failure_in_another_thread_is_raised() -> None:
    class Failing(Recorder):
        def __call__(self, first: int, last: int) -> None:
            if first:
                raise RuntimeError(f"part {first} to {last}")

    fast.use_threads(2)
    with pytest.raises(RuntimeError, match="part 5 to 10"):
        in_parts(Failing(), 10, 1)
