"""History: however a sequence is cut, forked, rolled back or replayed, its rows are those of the whole."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest
from hashing import constants, formula, pasts, sequences
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from published import fixture, release
from tiers import TIERS

from engramctl import reference
from engramctl.errors import EngramctlError
from engramctl.hash_params import DEAD
from engramctl.history import History

Tokens = tuple[np.ndarray, np.ndarray | None]
BOTH = pytest.mark.parametrize("tier", TIERS)
EXAMPLES = settings(deadline=None, max_examples=40)


def part(sequence: Tokens, start: int, end: int | None) -> Tokens:
    tokens, mask = sequence
    return tokens[start:end], None if mask is None else mask[start:end]


@BOTH
@EXAMPLES
@given(data=st.data())
def test_chunks_and_single_tokens_hash_as_one_shot(tier: ModuleType, data: st.DataObject) -> None:
    params = data.draw(constants())
    tokens, mask = data.draw(sequences(params))
    past = data.draw(pasts(params))
    whole = tier.hash_rows(tokens, params, mask, past)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=6)))
    for edges in ([0, *cuts, len(tokens)], range(len(tokens) + 1)):
        history = History(params, past)
        rows = [history.append(*part((tokens, mask), a, b), tier.hash_rows) for a, b in pairwise(edges)]
        np.testing.assert_array_equal(np.concatenate([whole[:0], *rows]), whole)
        assert len(history) == len(past) + len(tokens)


@BOTH
@EXAMPLES
@given(data=st.data())
def test_a_fork_and_its_origin_know_nothing_of_each_other(tier: ModuleType, data: st.DataObject) -> None:
    params = data.draw(constants())
    prefix, one, other = (data.draw(sequences(params)) for _ in range(3))
    history = History(params)
    history.append(*prefix, tier.hash_rows)
    fork, tail, count = history.fork(), history.tail(), len(history)
    want = [tier.hash_rows(tokens, params, mask, tail) for tokens, mask in (one, other)]
    np.testing.assert_array_equal(history.append(*one, tier.hash_rows), want[0])
    assert (fork.tail(), len(fork)) == (tail, count)
    np.testing.assert_array_equal(fork.append(*other, tier.hash_rows), want[1])
    fork.reset()
    assert len(history) == count + len(one[0])


@BOTH
@EXAMPLES
@given(data=st.data())
def test_rollback_and_replay_is_as_if_nothing_had_been_there(tier: ModuleType, data: st.DataObject) -> None:
    params = data.draw(constants())
    kept, rejected, accepted = (data.draw(sequences(params)) for _ in range(3))
    straight, history = History(params), History(params)
    for each in (straight, history):
        each.append(*kept, tier.hash_rows)
    history.append(*rejected, tier.hash_rows)
    history.rollback(len(straight))
    np.testing.assert_array_equal(history.append(*accepted, tier.hash_rows), straight.append(*accepted, tier.hash_rows))
    assert history.snapshot() == straight.snapshot()


@EXAMPLES
@given(data=st.data())
def test_a_rollback_to_any_length_is_that_prefix(data: st.DataObject) -> None:
    params = data.draw(constants())
    sequence = data.draw(sequences(params))
    length = data.draw(st.integers(0, len(sequence[0])))
    history, prefix = History(params), History(params)
    history.append(*sequence)
    prefix.append(*part(sequence, 0, length))
    history.rollback(length)
    assert (history.snapshot(), history.tail(), len(history)) == (prefix.snapshot(), prefix.tail(), length)


class Moves(RuleBasedStateMachine):
    """Any moves in any order: the history always answers as a list of what was said to it does."""

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.params = data.draw(constants())
        self.history, self.said = History(self.params), []
        self.snapshots: list[tuple[tuple[int, ...], list[int]]] = [((), [])]

    def says(self, tokens: np.ndarray, mask: np.ndarray | None, rows: np.ndarray) -> None:
        reach = max(0, len(self.said) - self.params.size + 1)
        want = formula(self.params, tokens, mask, tuple(self.said[reach:]))
        np.testing.assert_array_equal(rows, want)
        ids = self.params.token_map[tokens].tolist()
        self.said += ids if mask is None else [i if alive else DEAD for i, alive in zip(ids, mask, strict=True)]

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        tokens, mask = data.draw(sequences(self.params, most=6))
        self.says(tokens, mask, self.history.append(tokens, mask))

    @rule(count=st.integers(0, 5))
    def mask(self, count: int) -> None:
        self.says(np.zeros(count, np.int64), np.zeros(count, bool), self.history.mask(count))

    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        length = data.draw(st.integers(0, len(self.said)))
        self.history.rollback(length)
        del self.said[length:]

    @rule()
    def snapshot(self) -> None:
        self.snapshots.append((self.history.snapshot(), list(self.said)))

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        snapshot, said = data.draw(st.sampled_from(self.snapshots))
        self.history.restore(snapshot)
        self.said = list(said)

    @rule()
    def fork(self) -> None:
        left, self.history = self.history, self.history.fork()
        left.mask(2)

    @rule()
    def reset(self) -> None:
        self.history.reset()
        self.said = []

    @rule(odd=st.sampled_from([-1, 2**40]))
    def refused(self, odd: int) -> None:
        with pytest.raises(EngramctlError):
            self.history.append(np.array([0, odd]))

    @invariant()
    def remembers(self) -> None:
        if hasattr(self, "said"):
            assert self.history.snapshot() == tuple(self.said)
            assert len(self.history) == len(self.said)


Moves.TestCase.settings = settings(deadline=None, max_examples=30, stateful_step_count=12)
TestMoves = Moves.TestCase


@BOTH
def test_a_mask_of_count_appends_dead_positions_with_the_fillers_rows(tier: ModuleType) -> None:
    blocked = fixture("constants")["row_ids_all_lookbacks_blocked"]
    history = History(release())
    history.append(np.array([5, 6, 7]))
    rows = history.mask(4, tier.hash_rows)
    np.testing.assert_array_equal(rows, [[blocked["layer1"], blocked["layer14"]]] * 4)
    assert history.tail() == (DEAD, DEAD, DEAD)
    assert history.snapshot() == (5, 6, 7, DEAD, DEAD, DEAD, DEAD)
    assert history.mask(0).shape == (0, 2, 24)
    fresh = History(release()).append(np.array([8, 9]))
    np.testing.assert_array_equal(history.append(np.array([8, 9])), fresh)  # nothing shows through a dead span


@BOTH
def test_a_fresh_history_a_reset_one_and_none_are_one(tier: ModuleType) -> None:
    params, tokens = release(), np.array([4, 8, 15, 16, 23, 42])
    history = History(params)
    first = history.append(tokens, None, tier.hash_rows)
    history.reset()
    assert (len(history), history.tail(), history.snapshot()) == (0, (), ())
    np.testing.assert_array_equal(history.append(tokens, None, tier.hash_rows), first)
    np.testing.assert_array_equal(tier.hash_rows(tokens, params), first)


def test_the_tail_is_what_hash_rows_takes_as_history() -> None:
    params, history = release(), History(release())
    for length in range(6):
        assert len(history.tail()) == min(length, 3)
        want = reference.hash_rows(np.array([9]), params, None, history.tail())
        np.testing.assert_array_equal(history.fork().append(np.array([9])), want)
        history.append(np.array([100 + length]), np.array([length != 2]))


@BOTH
@pytest.mark.parametrize(
    ("tokens", "mask"),
    [
        (np.array([1, -1]), None),
        (np.array([1, 129_280]), None),
        (np.array([1.0]), None),
        (np.array([True]), None),
        (np.array([[1]]), None),
        (np.array([1, 2]), np.array([True])),
        (np.array([1, 2]), np.array([1, 0])),
    ],
)
def test_what_is_refused_leaves_the_history_as_it_was(
    tier: ModuleType, tokens: np.ndarray, mask: np.ndarray | None
) -> None:
    history = History(release())
    history.append(np.array([11, 12, 13, 14]), np.array([True, True, False, True]))
    before = history.snapshot()
    with pytest.raises(EngramctlError):
        history.append(tokens, mask, tier.hash_rows)
    assert history.snapshot() == before
    want = reference.hash_rows(np.array([7]), release(), None, before[-3:])
    np.testing.assert_array_equal(history.append(np.array([7]), None, tier.hash_rows), want)


def test_a_tier_that_fails_leaves_the_history_as_it_was() -> None:
    def fails(*_: object) -> np.ndarray:
        raise KeyboardInterrupt

    history = History(release(), (5, 6))
    with pytest.raises(KeyboardInterrupt):
        history.append(np.array([1]), None, fails)
    assert history.snapshot() == (5, 6)


@pytest.mark.parametrize("length", [-1, 4, 2**70])
def test_a_rollback_beyond_the_sequence_is_refused(length: int) -> None:
    history = History(release(), (5, 6, 7))
    with pytest.raises(EngramctlError, match=rf"^rollback: expected a length in 0\.\.3, found {length}$"):
        history.rollback(length)
    assert len(history) == 3


@pytest.mark.parametrize("past", [(99_092,), (5, -2), (2**70,), (0,) * 9 + (-(2**70),)])
def test_a_past_or_snapshot_of_other_ids_is_refused(past: tuple[int, ...]) -> None:
    with pytest.raises(EngramctlError, match=r"^history: expected compressed ids in 0\.\.99091, or -1"):
        History(release(), past)
    history = History(release(), (5, 6, 7))
    with pytest.raises(EngramctlError, match=r"^history: "):
        history.restore(past)
    assert history.snapshot() == (5, 6, 7)


def test_a_negative_count_of_dead_positions_is_refused() -> None:
    with pytest.raises(EngramctlError, match=r"^mask: expected a count of at least 0, found -1$"):
        History(release()).mask(-1)


def test_a_past_longer_than_look_back_may_be_given_and_rolled_back_into() -> None:
    past = tuple(range(50))
    history, other = History(release(), past), History(release())
    other.append(np.arange(50))
    assert history.snapshot() == other.snapshot()  # ids below 200 are their own compressed ids
    history.rollback(10)
    other.rollback(10)
    np.testing.assert_array_equal(history.append(np.array([3])), other.append(np.array([3])))
