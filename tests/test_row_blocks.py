"""Spans cover a table's rows once, in order, and hold exactly the ranges of data; work keeps its order."""

from __future__ import annotations

import itertools
import random
import threading
import time

import pytest

from engramctl import packer
from engramctl.ordered import in_order
from engramctl.row_blocks import SPAN_BLOCKS, spans
from formats.tree_digest import LEAF_ROWS


def drawn(seed: int) -> tuple[int, int, list[tuple[int, int]]]:
    """A range of rows and ascending ranges of data in it, some of which touch."""
    rng = random.Random(seed)
    last = rng.choice([1, 100, 5000, 3 * LEAF_ROWS, 70_000, 300_000])
    first = rng.choice([0, rng.randrange(last)])
    points = sorted(rng.choices(range(first, last + 1), k=rng.choice([0, 2, 4, 12])))
    return first, last, [(a, b) for a, b in zip(points[::2], points[1::2], strict=True) if a < b]


@pytest.mark.parametrize("seed", range(400))
def test_spans_cover_every_row_once_and_know_all_data(seed: int) -> None:
    first, last, data = drawn(seed)
    at, kept = first, list[tuple[int, int]]()
    for span in spans(iter(data), first, last):
        assert span.first == at < span.last
        assert span.last == last or span.last % LEAF_ROWS == 0
        assert span.data or span.first % LEAF_ROWS == 0 or span.first == first
        if span.data:
            assert span.last - span.first <= SPAN_BLOCKS * LEAF_ROWS
        inside = list(span.blocks())
        assert [span.first, *(end for _, end, _ in inside)] == [*(start for start, _, _ in inside), span.last]
        assert all(a <= start < end <= b for a, b, held in inside for start, end in held)
        assert sum(b - a for *_, held in inside for a, b in held) == sum(b - a for a, b in span.data)
        at = span.last
        kept += span.data
    assert at == last
    assert set(itertools.chain.from_iterable(range(*pair) for pair in kept)) == {
        row for pair in data for row in range(*pair)
    }


def test_a_hole_of_any_length_is_one_span() -> None:
    (span,) = spans(iter([]), 0, 384_006_168)
    assert span.data == ()


# order


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_the_order_of_the_jobs(threads: int) -> None:
    def work(job: int) -> int:
        time.sleep(random.random() / 200)
        return job * job

    assert list(in_order(range(50), work, threads)) == [(job, job * job) for job in range(50)]


def test_the_first_failing_job_is_the_one_that_is_told() -> None:
    def work(job: int) -> int:
        if job in (7, 8, 9):
            time.sleep(0.05 if job == 7 else 0)
            raise ValueError(job)
        return job

    taken: list[int] = []
    with pytest.raises(ValueError, match="7"):
        taken.extend(job for job, _ in in_order(range(50), work, 4))
    assert taken == list(range(7))


def test_no_more_is_begun_than_a_few_jobs_ahead_and_none_after_the_end() -> None:
    begun, threads, others = [], 2, set(threading.enumerate())
    pool = in_order(iter(range(1000)), begun.append, threads)
    next(pool)
    time.sleep(0.05)
    assert len(begun) <= 3 * threads
    pool.close()
    before = len(begun)
    time.sleep(0.05)
    assert len(begun) == before
    assert set(threading.enumerate()) <= others


# one rule, two codes


def test_numba_is_chosen_where_it_pays_and_numpy_where_it_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    from engramctl.fast import pack
    from formats import row264

    assert packer.choose(packer.PAYS_FROM - 1) is row264.pack_valid
    assert packer.choose(packer.PAYS_FROM) is pack.pack_valid

    def broken() -> None:
        raise RuntimeError("no code for this processor")

    monkeypatch.setattr(pack, "ready", broken)
    assert packer.choose(packer.PAYS_FROM) is row264.pack_valid
