"""Rows: published ones, digests made by the released code, and any constants at all, by both tiers."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import numba
import numpy as np
import pytest
from hashing import constants, formula, pasts, sequences
from hypothesis import example, given, settings
from hypothesis import strategies as st
from published import fixture, release, sha256, shipped_map
from tiers import TIERS

from engramctl import fast, reference, rows_out
from engramctl.errors import EngramctlError
from engramctl.fast import cache, reciprocal
from engramctl.hash_params import HashParams
from engramctl.history import History
from formats import npy

PUBLISHED, GENERATED = fixture("rows_published"), fixture("rows_generated")
LLAMA, NEMO = PUBLISHED["llama_fork_F1_F2_F3"], PUBLISHED["nemo_frozen_official_tiny"]
OFFICIAL = fixture("official_cases")
VOCABULARY = 129_280


def ids(numbers: list[int]) -> np.ndarray:
    return np.array(numbers, np.int64)


def mask_of(numbers: list[int] | None) -> np.ndarray | None:
    return None if numbers is None else np.array(numbers, bool)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", ["F1", "F2", "F3a", "F3b"])
def test_rows_of_the_llama_fork_over_a_map_of_ten(tier: ModuleType, name: str) -> None:
    case = LLAMA[name]
    want = LLAMA[case.get("same_rows_as", name)]["rows"]
    got = tier.hash_rows(
        ids(case["tokens"]), release(np.array(LLAMA["token_map"], np.uint32)), mask_of(case.get("mask"))
    )
    np.testing.assert_array_equal(got, want)


def nemo() -> HashParams:
    sizes, moduli = NEMO["config"], np.array(NEMO["primes"], np.uint64)
    return HashParams(
        layers=tuple(sizes["layers"]),
        rows=tuple(sizes["num_embeddings"]),
        heads=sizes["heads"],
        compressed=sizes["compressed_vocab"],
        pad_id=NEMO["token_map"][sizes["pad_token"]],
        token_map=np.array(NEMO["token_map"], np.uint32),
        multipliers=np.array(NEMO["multipliers"], np.uint64),
        moduli=moduli,
        offsets=np.cumsum(moduli, axis=1) - moduli,
    ).check()


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", ["sequence_a", "sequence_b"])
def test_rows_of_nemos_tiny_model_whose_tables_are_higher_than_its_primes_add_up_to(
    tier: ModuleType, name: str
) -> None:
    params = nemo()
    assert [int(total) for total in params.moduli.sum(axis=1)] == [112, 252]
    assert params.rows == (113, 253)
    assert params.pad_id == 1  # raw 2: a loader that takes the raw pad differs here
    got = tier.hash_rows(ids(NEMO[name]["ids"]), params, mask_of(NEMO[name].get("mask")))
    np.testing.assert_array_equal(got, NEMO[name]["rows"])


@pytest.mark.parametrize("tier", TIERS)
def test_the_48_rows_of_token_42(tier: ModuleType) -> None:
    case = PUBLISHED["real_token_42"]
    np.testing.assert_array_equal(tier.hash_rows(ids(case["token_ids"]), release()), [case["rows"]])


@pytest.mark.parametrize("tier", TIERS)
def test_the_rows_of_tokens_0_and_3_have_the_published_digests(tier: ModuleType) -> None:
    case = PUBLISHED["real_tokens_0_3"]
    rows = tier.hash_rows(ids(case["token_ids"]), release())
    np.testing.assert_array_equal(rows, case["rows"])
    assert sha256(rows, "<i8") == case["sha256_i64le_B1S2L2C24"]
    assert sha256(rows[:, 0], "<i8") == case["sha256_layer1_i64le"]
    assert sha256(rows[:, 1], "<i8") == case["sha256_layer14_i64le"]


def test_what_tokens_0_and_3_look_back_on() -> None:
    case, params = PUBLISHED["real_tokens_0_3"], release()
    compressed = [int(shipped_map()[token]) for token in case["token_ids"]]
    assert [reference.look_back(compressed, at, params) for at in range(2)] == case["lookback_matrix"]


@pytest.mark.parametrize("tier", TIERS)
def test_every_look_back_blocked_gives_the_published_rows(tier: ModuleType) -> None:
    facts = fixture("constants")
    blocked = facts["row_ids_all_lookbacks_blocked"]
    rows = tier.hash_rows(ids([facts["image_token_id"]] * 3), release(), np.zeros(3, bool))
    np.testing.assert_array_equal(rows, [[blocked["layer1"], blocked["layer14"]]] * 3)


@pytest.mark.parametrize("tier", TIERS)
def test_a_dead_span_changes_itself_and_what_looks_back_on_it(tier: ModuleType) -> None:
    case, params = fixture("prompt"), release()
    tokens, mask = ids(case["ids"]), np.ones(len(case["ids"]), bool)
    mask[3:5] = False
    plain, dead = tier.hash_rows(tokens, params), tier.hash_rows(tokens, params, mask)
    for layer, name in enumerate(("1", "14")):
        np.testing.assert_array_equal(plain[:, layer], case["rows"][name])
        np.testing.assert_array_equal(plain[:, layer] - params.offsets[layer].astype(np.int64), case["buckets"][name])
        np.testing.assert_array_equal(dead[:, layer], case["rows_dead_3_4"][name])
    changed = (plain != dead).any(axis=(0, 1)), (plain != dead).sum(axis=2)
    assert changed[0].all()
    assert changed[1].tolist() == [[n, n] for n in (0, 0, 0, 24, 24, 24, 16, 8, 0, 0, 0, 0, 0)]


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", sorted(GENERATED["probes"]))
def test_rows_of_real_text(tier: ModuleType, name: str) -> None:
    probe, params = GENERATED["probes"][name], release()
    rows = tier.hash_rows(ids(probe["token_ids"]), params)
    assert params.token_map[ids(probe["token_ids"])].tolist() == probe["compressed"]
    assert sha256(rows, "<i8") == probe["rows_i64le_sha256"]
    assert sha256(rows[:, 0], "<i8") == probe["layer1_sha256"]
    assert sha256(rows[:, 1], "<i8") == probe["layer14_sha256"]
    for part, want in (("rows", rows), ("rows_first4", rows[:4]), ("rows_last", rows[-1])):
        np.testing.assert_array_equal(probe.get(part, want), want)


def mistaken(name: str, params: HashParams) -> HashParams:
    """The constants as someone holds them who made the mistake."""
    side = GENERATED["mistake_signatures"]["side"]
    changes: dict[str, Any] = {
        "correct": {},
        "multipliers_reversed_over_full_window": {"multipliers": params.multipliers[:, ::-1]},
        "start_filled_with_0_instead_of_pad2": {"pad_id": 0},
        "offsets_not_added": {"offsets": np.zeros_like(params.offsets)},
        "layer14_primes_restart_at_16000057": {"moduli": params.moduli[[0, 0]], "offsets": params.offsets[[0, 0]]},
        "multipliers_from_raw_vocab_129280": {"multipliers": side["multipliers_from_raw_vocab"]},
        "seed_by_engram_index_0_1": {"multipliers": side["multipliers_seed_index"]},
    }[name]
    return replace(
        params, **{key: np.array(value, np.uint64) if key != "pad_id" else value for key, value in changes.items()}
    )


@pytest.mark.parametrize("tier", TIERS)
def test_every_constant_reaches_the_rows_as_published_mistakes_show(tier: ModuleType) -> None:
    facts = GENERATED["mistake_signatures"]
    tokens, columns = ids(GENERATED["probes"][facts["probe"]]["token_ids"]), facts["columns_listed"]
    seen = {}
    for name, want in facts["signatures"].items():
        rows = tier.hash_rows(tokens, mistaken(name, release()))
        got = {
            f"pos{at}": {f"l{layer}": rows[at, i, columns].tolist() for i, layer in enumerate((1, 14))} for at in (5, 1)
        }
        assert got == want, name
        seen[name] = rows.tobytes()
    assert len(set(seen.values())) == len(seen) == 7


@pytest.mark.parametrize("tier", TIERS)
def test_rows_of_ds4s_synthetic_sequence(tier: ModuleType) -> None:
    case, i = fixture("ds4_synthetic"), np.arange(513)
    multipliers = [[35184372088831 - 2 * (j + 4 * layer) for j in range(4)] for layer in range(2)]
    moduli = np.full((2, 24), 16_000_057, np.uint64)
    params = HashParams(
        layers=(1, 14),
        rows=(24 * 16_000_057,) * 2,
        heads=8,
        compressed=128,
        pad_id=1,
        token_map=np.arange(256, dtype=np.uint32) // 2,
        multipliers=np.array(multipliers, np.uint64),
        moduli=moduli,
        offsets=np.cumsum(moduli, axis=1) - moduli,
    ).check()
    tokens, mask = (97 * i + i // 3) % 256, (i % 17 != 0) & ((i < 125) | (i > 131))
    plain, masked = tier.hash_rows(tokens, params), tier.hash_rows(tokens, params, mask)
    assert sha256(plain, "<u4") == case["sha256_u32le_unmasked"]
    assert sha256(masked, "<u4") == case["sha256_u32le_masked"]
    np.testing.assert_array_equal(plain[:3], case["rows_first3_unmasked"])
    np.testing.assert_array_equal(masked[15:22], case["rows_15_to_21_masked"])


# The released code's own digests. A batch is one History a sequence.


def digest(batch: list[np.ndarray]) -> str:
    return hashlib.sha256(b"".join(rows.astype("<u8").tobytes() for rows in batch)).hexdigest()


class Batch:
    """Sequences of equal length, hashed side by side as the released code does."""

    def __init__(self, tier: ModuleType, histories: list[History]) -> None:
        self.tier, self.histories = tier, histories

    def append(self, tokens: np.ndarray, mask: np.ndarray | None = None) -> list[np.ndarray]:
        masks = [None] * len(tokens) if mask is None else list(mask.astype(bool))
        return [
            history.append(row, alive, self.tier.hash_rows)
            for history, row, alive in zip(self.histories, tokens, masks, strict=True)
        ]

    def fork(self) -> Batch:
        return Batch(self.tier, [history.fork() for history in self.histories])

    def rollback(self, length: int) -> None:
        for history in self.histories:
            history.rollback(length)

    def reset(self) -> None:
        for history in self.histories:
            history.reset()


Case = tuple[str, int, np.ndarray | None, np.ndarray | None, list[np.ndarray]]  # label, start, ids, mask, rows


def official_cases(tier: ModuleType, params: HashParams) -> Iterator[Case]:
    """Every published case from its recipe, in the order in which the inputs are drawn."""

    def new(count: int) -> Batch:
        return Batch(tier, [History(params) for _ in range(count)])

    drawn = np.random.default_rng(20260910)
    for length in (1, 2, 3, 4, 7, 31, 129, 4096):
        for count in (1, 3):
            tokens = drawn.integers(0, VOCABULARY, (count, length))
            mask = drawn.integers(0, 2, (count, length), np.uint8)
            batch, label = new(count), f"random-{count}x{length}"
            yield f"{label}-unmasked", 0, tokens, None, batch.append(tokens)
            batch.reset()  # the state is used again from 0
            yield f"{label}-image-boundaries", 0, tokens, mask, batch.append(tokens, mask)
    for bits in range(16):
        tokens, mask = drawn.integers(0, VOCABULARY, (1, 4)), np.array([[bits >> at & 1 for at in range(4)]])
        yield f"all-four-token-masks-{bits}", 0, tokens, mask, new(1).append(tokens, mask)
    tokens, mask = drawn.integers(0, VOCABULARY, (3, 17)), drawn.integers(0, 2, (3, 17), np.uint8)
    for cut in range(1, 17):
        batch = new(3)
        for name, part in (("prefill", slice(0, cut)), ("decode", slice(cut, None))):
            rows = batch.append(tokens[:, part], mask[:, part])
            yield f"split-{cut}-{name}", part.start, tokens[:, part], mask[:, part], rows
    yield from chunks(drawn, new(3))
    yield from branches(drawn, new(3))
    batch = new(3)
    batch.append(np.arange(3 * 40).reshape(3, 40))
    batch.reset()
    tokens, mask = np.array([[2, 129264, 0], [1, 2, 3], [4, 5, 6]]), np.array([[1, 0, 1], [1, 1, 1], [0, 0, 1]])
    yield "request-reset-after-longer-sequence", 0, tokens, mask, batch.append(tokens, mask)
    batch = new(3)
    batch.append(np.array([[2, 7], [1, 8], [4, 9]]), np.array([[1, 1], [1, 1], [0, 1]]))
    for refused in ([5, -1], [5, VOCABULARY]):
        for history in batch.histories:
            with pytest.raises(EngramctlError, match=r"token ids: expected ids in 0\.\.129279"):
                history.append(ids(refused), None, tier.hash_rows)
    tokens = np.array([[11], [12], [13]])
    yield "state-after-rejected-calls", 2, tokens, None, batch.append(tokens)
    batch, whole = new(1), np.arange(VOCABULARY)[None]
    pieces = [batch.append(whole[:, at : at + 50_000])[0] for at in range(0, VOCABULARY, 50_000)]
    yield "entire-vocabulary-in-sequence", 0, None, None, pieces


def chunks(drawn: np.random.Generator, batch: Batch) -> Iterator[Case]:
    tokens, mask = drawn.integers(0, VOCABULARY, (3, 512)), drawn.integers(0, 11, (3, 512)) != 0
    at = 0
    while at < 512:
        part = slice(at, at + int(drawn.integers(1, 37)))
        yield f"variable-chunks-{at}", at, tokens[:, part], mask[:, part], batch.append(tokens[:, part], mask[:, part])
        at = part.stop


def branches(drawn: np.random.Generator, batch: Batch) -> Iterator[Case]:
    prefix, mask = drawn.integers(0, VOCABULARY, (3, 25)), np.ones((3, 25), bool)
    one, other = drawn.integers(0, VOCABULARY, (3, 12)), drawn.integers(0, VOCABULARY, (3, 5))
    mask[:, 22] = False
    yield "fork-prefix", 0, prefix, mask, batch.append(prefix, mask)
    fork = batch.fork()
    yield "fork-original", 25, one, None, batch.append(one)
    batch.rollback(25)
    replayed, forked = batch.append(other), fork.append(other)
    np.testing.assert_array_equal(replayed, forked)
    yield "rollback-and-replay", 25, other, None, replayed


@pytest.mark.parametrize("tier", TIERS)
def test_all_digests_made_by_the_released_code(tier: ModuleType) -> None:
    published = {(case["label"], case["start"]): case for case in OFFICIAL["cases"]}
    assert len(published) == len(OFFICIAL["cases"]) == 80
    for label, start, tokens, mask, rows in official_cases(tier, release()):
        case = published.pop((label, start), None)
        if case is None:  # 40 of the 120 cases have no digest here
            continue
        if tokens is not None:
            assert list(tokens.shape) == case["shape"], label
            assert case.get("ids") in (None, tokens.tolist()), f"{label}: not the ids that were hashed"
            assert case.get("mask") in (None, [[int(x) for x in m] for m in mask] if mask is not None else None), label
        assert digest(rows) == case["sha"], label
    assert not published


# Any constants at all.


@pytest.mark.parametrize("tier", TIERS)
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_rows_are_the_formulas_for_any_constants(tier: ModuleType, data: st.DataObject) -> None:
    params = data.draw(constants())
    tokens, mask = data.draw(sequences(params))
    past = data.draw(pasts(params))
    rows = tier.hash_rows(tokens, params, mask, past)
    assert rows.dtype == np.int64
    np.testing.assert_array_equal(rows, formula(params, tokens, mask, past))


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_any_number_of_threads_gives_the_references_rows(threads: int) -> None:
    drawn, params = np.random.default_rng(5), release()
    tokens, mask = drawn.integers(0, VOCABULARY, 8001), drawn.integers(0, 4, 8001) != 0
    before = cache._threads.count
    fast.use_threads(threads)
    try:
        got = fast.hash_rows(tokens, params, mask, (7, -1, 9))
    finally:
        fast.use_threads(before)
    np.testing.assert_array_equal(got, reference.hash_rows(tokens, params, mask, (7, -1, 9)))


@pytest.mark.parametrize("kind", ["i1", "u1", "<i2", "<u2", "<i4", ">i4", "<u4", "<i8", ">i8", "<u8"])
@pytest.mark.parametrize("tier", TIERS)
def test_ids_of_every_integer_type_and_stride_hash_alike(tier: ModuleType, kind: str) -> None:
    params, numbers = release(), [7, 0, 100, 3, 42]
    want = tier.hash_rows(ids(numbers), params)
    np.testing.assert_array_equal(tier.hash_rows(np.array(numbers, kind), params), want)
    np.testing.assert_array_equal(tier.hash_rows(np.array(numbers[::-1], kind)[::-1], params), want)


@pytest.mark.parametrize("tier", TIERS)
def test_no_tokens_give_no_rows(tier: ModuleType) -> None:
    for empty in (np.empty(0, np.int64), np.array([])):
        assert tier.hash_rows(empty, release(), np.empty(0, bool), (5, 6)).shape == (0, 2, 24)


TOKENS = [
    ([5, -1], "ids in 0..129279", "-1 at position 1"),
    ([VOCABULARY], "ids in 0..129279", "129280 at position 0"),
    (np.array([1, 2**63 + 5], np.uint64), "ids in 0..129279", f"{2**63 + 5} at position 1"),
    ([-(2**63)], "ids in 0..129279", f"{-(2**63)} at position 0"),
    ([1.0, 2.0], "a row of integers", r"float64 \[2\]"),
    ([True, False], "a row of integers", r"bool \[2\]"),
    ([[1, 2]], "a row of integers", r"int64 \[1, 2\]"),
    (5, "a row of integers", r"int64 \[\]"),
    (np.array([1, 2], "m8[s]"), "a row of integers", r"timedelta64\[s\] \[2\]"),
    (np.array(["1"]), "a row of integers", r"<U1 \[1\]"),
    (np.array([None]), "a row of integers", r"object \[1\]"),
]


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(("tokens", "expected", "found"), TOKENS)
def test_tokens_that_are_no_ids_are_refused(tier: ModuleType, tokens: object, expected: str, found: str) -> None:
    with pytest.raises(EngramctlError, match=f"^token ids: expected {expected}, found {found}$"):
        tier.hash_rows(np.asarray(tokens), release())


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    ("mask", "found"),
    [
        (np.ones(2, bool), r"one entry for each of 3 token ids, found \[2\]"),
        (np.ones((3, 1), bool), r"one entry for each of 3 token ids, found \[3, 1\]"),
        (np.array(True), r"one entry for each of 3 token ids, found \[\]"),
        (np.array([1, 0, 2]), "booleans, True for text, found int64"),
        (np.array([1.0, 0.5, 0.0]), "booleans, True for text, found float64"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(tier: ModuleType, mask: np.ndarray, found: str) -> None:
    with pytest.raises(EngramctlError, match=f"^mask: expected {found}$"):
        tier.hash_rows(ids([1, 2, 3]), release(), mask)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    ("history", "message"),
    [
        ((1, 2, 3, 4), "at most 3 compressed ids, found 4"),
        ((99_092,), "compressed ids in 0..99091, or -1 for a dead position, found 99092"),
        ((5, -2), "compressed ids in 0..99091, or -1 for a dead position, found -2"),
        ((2**70,), f"compressed ids in 0..99091, or -1 for a dead position, found {2**70}"),
        ((1.5,), "compressed ids in 0..99091, or -1 for a dead position, found 1.5"),
        ((True,), "compressed ids in 0..99091, or -1 for a dead position, found True"),
        (("5",), "compressed ids in 0..99091, or -1 for a dead position, found '5'"),
    ],
)
def test_a_history_that_is_none_is_refused(tier: ModuleType, history: tuple[Any, ...], message: str) -> None:
    with pytest.raises(EngramctlError, match=f"^history: expected {message}$"):
        tier.hash_rows(ids([1]), release(), None, history)


def test_a_history_may_be_an_array() -> None:
    want = reference.hash_rows(ids([1]), release(), None, (5, -1, 7))
    for tier in (reference, fast):
        np.testing.assert_array_equal(tier.hash_rows(ids([1]), release(), None, np.array([5, -1, 7])), want)


U64 = np.uint64
BROKEN: list[tuple[dict[str, Any], str]] = [
    (
        {"rule": replace(release().rule, sticky=False)},
        "expected a combination that is defined for xor_mul: .* not sticky",
    ),
    ({"multipliers": np.ones(4, U64)}, r"at least one layer, order and head, found .* multipliers \[4\]"),
    ({"multipliers": np.ones((2, 1), U64)}, r"at least one layer, order and head, found .* multipliers \[2, 1\]"),
    ({"multipliers": np.ones((2, 0), U64)}, "at least one layer, order and head"),
    ({"multipliers": np.array(1, U64)}, "at least one layer, order and head"),
    ({"layers": (), "rows": ()}, "at least one layer, order and head, found 0 layers"),
    ({"rows": (384_006_168,)}, "at least one layer, order and head, found 2 layers, 1 row counts"),
    ({"heads": 0}, "at least one layer, order and head, found .* 0 heads"),
    ({"heads": -8}, "at least one layer, order and head"),
    ({"heads": 7}, r"moduli uint64 \[2, 21\], found uint64 \[2, 24\]"),
    ({"layers": (1, 1)}, r"each layer once, found \[1, 1\]"),
    ({"multipliers": np.ones((3, 4), U64)}, r"multipliers uint64 \[2, 4\], found uint64 \[3, 4\]"),
    ({"multipliers": np.ones((2, 4), np.int64)}, r"multipliers uint64 \[2, 4\], found int64 \[2, 4\]"),
    ({"moduli": np.ones((2, 24))}, r"moduli uint64 \[2, 24\], found float64 \[2, 24\]"),
    ({"moduli": np.ones((2, 0), U64)}, r"moduli uint64 \[2, 24\], found uint64 \[2, 0\]"),
    ({"offsets": np.ones(48, U64)}, r"offsets uint64 \[2, 24\], found uint64 \[48\]"),
    ({"compressed": 0}, "a pad id below the 0 compressed ids, found 2"),
    ({"compressed": 2**32 + 1}, "a pad id below the"),
    ({"pad_id": 99_092}, "a pad id below the 99092 compressed ids, found 99092"),
    ({"pad_id": -1}, "a pad id below the 99092 compressed ids, found -1"),
    ({"token_map": np.empty(0, np.uint32)}, r"a token map, uint32 \[token ids\], found uint32 \[0\]"),
    ({"token_map": np.zeros((2, 2), np.uint32)}, r"a token map, uint32 \[token ids\], found uint32 \[2, 2\]"),
    ({"token_map": np.zeros(5)}, r"a token map, uint32 \[token ids\], found float64 \[5\]"),
    ({"token_map": np.array([0, -1])}, r"a token map, uint32 \[token ids\], found int64 \[2\]"),
    ({"token_map": np.array([0, 99_092], np.uint32)}, "token map entries below 99092, found 99092"),
    ({"multipliers": np.full((2, 4), 2, U64)}, "odd multipliers up to 93078876567783"),
    ({"multipliers": np.full((2, 4), 93_078_876_567_785, U64)}, "odd multipliers up to 93078876567783"),
    ({"multipliers": np.full((2, 4), 2**64 - 1, U64)}, "odd multipliers up to 93078876567783"),
    ({"moduli": np.zeros((2, 24), U64)}, "layer 1 column 0: a modulus of at least 1"),
    ({"moduli": np.full((2, 24), 2**64 - 1, U64)}, "layer 1 column 0: .* ends within 384006168 rows, found offset 0"),
    ({"offsets": np.full((2, 24), 2**64 - 1, U64)}, f"layer 1 column 0: .* found offset {2**64 - 1}"),
    ({"rows": (384_006_168, 384_016_681)}, "layer 14 column 23: .* ends within 384016681 rows"),
    ({"rows": (2**63, 2**63)}, "layer 1 column 0: "),
]


@pytest.mark.parametrize(("changes", "message"), BROKEN)
def test_constants_that_cannot_be_hashed_with_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EngramctlError, match=f"^here: .*{message}"):
        replace(release(), **changes).check("here")


# Rows as bytes, chunk by chunk.


def test_the_whole_vocabulary_in_chunks_has_the_official_digest() -> None:
    official = {case["label"]: case["sha"] for case in OFFICIAL["cases"]}["entire-vocabulary-in-sequence"]
    pieces = list(rows_out.chunks(np.arange(VOCABULARY), release(), None, ()))
    assert [len(piece) for piece in pieces] == [16384] * 7 + [14592]
    assert rows_out.sha256(iter(pieces)) == official


def test_chunks_look_back_across_their_edges_and_into_the_history() -> None:
    drawn, params = np.random.default_rng(11), release()
    tokens, mask = drawn.integers(0, VOCABULARY, 40_000), drawn.integers(0, 9, 40_000) != 0
    mask[16382:16386] = [True, False, True, True]
    got = np.concatenate(list(rows_out.chunks(tokens, params, mask, (5, -1, 7))))
    np.testing.assert_array_equal(got, fast.hash_rows(tokens, params, mask, (5, -1, 7)))
    for some in (slice(0, 5), slice(16380, 16390), slice(32764, 32774)):
        past = (5, -1, 7) if some.start == 0 else tuple(params.compress(tokens, mask)[some.start - 3 : some.start])
        np.testing.assert_array_equal(got[some], formula(params, tokens[some], mask[some], past))


def test_a_bad_id_in_a_later_chunk_is_refused_before_the_first_row() -> None:
    tokens = np.zeros(40_000, np.int64)
    tokens[39_999] = VOCABULARY
    with pytest.raises(EngramctlError, match="found 129280 at position 39999"):
        next(rows_out.chunks(tokens, release(), None, ()))


def test_every_form_holds_the_rows() -> None:
    params, tokens = release(), ids([671, 4787, 13769])
    rows = reference.hash_rows(tokens, params)

    def written(form: str) -> bytes:
        return b"".join(rows_out.write(iter([rows[:2], rows[2:]]), form, params, 3))

    np.testing.assert_array_equal(np.load(io.BytesIO(written("npy"))), rows)
    assert written("npy") == b"".join([npy.encode_header((3, 2, 24), np.dtype("<i8")), rows.astype("<i8").tobytes()])
    assert written("u32") == rows.astype("<u4").tobytes()
    lines = [(t, layer, rows[t, i].tolist()) for t in range(3) for i, layer in enumerate((1, 14))]
    assert written("tsv").decode() == "".join("\t".join(map(str, (t, layer, *row))) + "\n" for t, layer, row in lines)
    assert [json.loads(line) for line in written("jsonl").splitlines()] == [
        {"position": t, "layer": layer, "rows": row} for t, layer, row in lines
    ]


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
@example([0, 9, 10, -1, 2**32 - 1, 2**32])
def test_decimals_are_python_s(numbers: list[int]) -> None:
    text = rows_out.decimals(np.array(numbers, np.int64), np.full(len(numbers), ord(","), np.uint8))
    assert text.decode() == "".join(f"{number}," for number in numbers)


def test_rows_that_do_not_fit_32_bits_are_refused_not_cut() -> None:
    params = replace(release(), rows=(2**32 + 1, 2**32)).check()
    with pytest.raises(EngramctlError, match=r"^--to u32: expected tables of at most 2\*\*32 rows, found 4294967297$"):
        list(rows_out.write(iter([]), "u32", params, 0))
    list(rows_out.write(iter([]), "u32", replace(release(), rows=(2**32, 2**32)).check(), 0))


@numba.njit
def _remainders(xs: np.ndarray, p: np.ndarray, inverse: np.ndarray, offsets: np.ndarray, out: np.ndarray) -> None:
    for i in range(xs.size):
        reciprocal.eight_rows(xs[i], p, inverse, offsets, 0, out, i * reciprocal.LANES)


def test_reciprocals_give_every_remainder_where_a_wrong_quotient_would_show() -> None:
    """Around multiples of every prime of the release and of moduli at the proof's edges, up to 2**63 and at it."""
    random, top = np.random.default_rng(2), 2**63
    edges = [2**14 + 1, 2**14 + 27, 2**15, 65521, 2**24 - 3, 2**30, 2**31 - 1, 2**31 - 2]
    moduli = [*release().moduli.reshape(-1).tolist(), *edges]
    assert len(moduli) % reciprocal.LANES == 0
    for start in range(0, len(moduli), reciprocal.LANES):
        some = moduli[start : start + reciprocal.LANES]
        xs = {0, 1, top - 1, top - 2, 2**53 - 1, 2**53, 2**53 + 1, *(2**n - 1 for n in range(1, 64))}
        for p in some:
            most = top // p
            factors = [0, 1, 2, most - 1, most, *(most >> n for n in range(1, 50, 3))]
            factors += random.integers(0, most, 300, endpoint=True).tolist()
            xs |= {k * p + step for k in factors for step in (-1, 0, 1, p - 1)}
        drawn = np.array(sorted(x for x in xs if 0 <= x < top), np.uint64)
        p = np.array(some, np.uint64)
        assert reciprocal.fits(p)
        offsets = np.arange(reciprocal.LANES, dtype=np.uint64) * np.uint64(1000)
        want = (drawn[:, None] % p + offsets).astype(np.int64)
        for kind in (np.int64, np.int32):
            if int(want.max()) > np.iinfo(kind).max:
                continue
            out = np.empty(want.size, kind)
            _remainders(drawn, p.astype(np.uint32), reciprocal.inverses(p), offsets, out)
            np.testing.assert_array_equal(out.reshape(want.shape), want)


@pytest.mark.parametrize("moduli", [(2**14, 70001), (70001, 2**31), (3, 2**40)])
def test_moduli_outside_the_proof_take_the_other_path(moduli: tuple[int, int]) -> None:
    assert not reciprocal.fits(np.array(moduli, np.uint64))
    base = release()
    few = np.resize(np.array(moduli, np.uint64), base.moduli.shape)
    offsets = np.zeros_like(few)
    offsets[:, 1:] = np.cumsum(few, axis=1)[:, :-1]
    rows = tuple(int(each.sum()) for each in few)
    params = replace(base, moduli=few, offsets=offsets, rows=rows).check()
    tokens = np.random.default_rng(4).integers(0, VOCABULARY, 300)
    np.testing.assert_array_equal(fast.hash_rows(tokens, params), reference.hash_rows(tokens, params))


def test_rows_go_where_they_are_asked_to_as_int64_or_int32() -> None:
    params, tokens = release(), np.random.default_rng(6).integers(0, VOCABULARY, 500)
    want = reference.hash_rows(tokens, params)
    for kind in (np.int64, np.int32):
        out = np.empty(want.shape, kind)
        assert fast.hash_rows(tokens, params, out=out) is out
        np.testing.assert_array_equal(out, want)
        strided = np.empty((2 * len(tokens), *want.shape[1:]), kind)[::2]
        np.testing.assert_array_equal(fast.hash_rows(tokens, params, out=strided), want)
    big = replace(params, rows=(2**31 + 1, *params.rows[1:]))
    with pytest.raises(EngramctlError, match=f"out: expected int64 for {2**31 + 1} rows, found int32"):
        fast.hash_rows(tokens, big, out=np.empty(want.shape, np.int32))
    with pytest.raises(EngramctlError, match="out: expected int64 or int32"):
        fast.hash_rows(tokens, params, out=np.empty((3, 2, 24), np.int64))
