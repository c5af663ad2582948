"""Timing that means something on a machine that is not alone: in turns, warmed up, the best and the middle of several.

Every candidate of a case is called in each round, so the machine's drift meets all of them alike; a ratio is taken
within one case and never across.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

WARM_CALLS = 2  # untimed before each timed one: idle memory and sleeping threads are slow at first
SETTLE = 0.1  # seconds after a library's threads that go on spinning
SHORT = 2e-3  # seconds: of calls that take less, so many are timed together that they fill it
LONG = 2.0  # seconds from which on a candidate is called once a round, without warming up

Work = Callable[[], Any]


@dataclass(frozen=True)
class Line:
    """One candidate of one case. Rates are per second of the best round; the ratio is to the case's peer."""

    group: str
    case: str
    candidate: str
    amount: float
    unit: str
    best: float  # seconds
    middle: float
    peer: str
    ratio: float  # how many times as fast as the peer, best against best
    busy: float = 0.0  # seconds of all processors in the best round: what a busy machine changes least
    note: str = ""

    @property
    def rate(self) -> float:
        return self.amount / self.best if self.best else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "per_second": self.rate}


def compare(
    group: str,
    case: str,
    amount: float,
    unit: str,
    candidates: Mapping[str, Work],
    peer: str,
    rounds: int = 5,
    before: Work | None = None,
    notes: Mapping[str, str] | None = None,
) -> list[Line]:
    """Time the candidates against each other. `before` is done, untimed, before every call; then nothing warms up."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    busy = dict.fromkeys(candidates, float("inf"))
    for _ in range(rounds):
        for name, work in candidates.items():
            spent, used = _visit(work, before)
            times[name].append(spent)
            busy[name] = min(busy[name], used)
            if "torch" in name or "NumPy" in name:
                time.sleep(SETTLE)
    best = {name: min(each) for name, each in times.items()}
    return [
        Line(
            group, case, name, amount, unit, best[name], statistics.median(times[name]), peer, best[peer] / best[name],
            busy[name], (notes or {}).get(name, ""),
        )
        for name in candidates
    ]  # fmt: skip


def _visit(work: Work, before: Work | None) -> tuple[float, float]:
    if before is not None:
        before()
        return _timed(work, 1)
    for _ in range(WARM_CALLS):
        spent, used = _timed(work, 1)
        if spent > LONG:
            return spent, used
    return _timed(work, max(1, int(SHORT / max(spent, 1e-6))))


def _timed(work: Work, calls: int) -> tuple[float, float]:
    """Seconds of the wall and of all processors, a call."""
    start, used = time.perf_counter(), time.process_time()
    for _ in range(calls):
        work()
    return (time.perf_counter() - start) / calls, (time.process_time() - used) / calls
