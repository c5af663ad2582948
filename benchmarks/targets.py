"""What was asked of the kernels, and what a run found: ratios within a case, and what bounds ours there.

The targets are for a machine with AMX; on others they are shown all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ceilings import Ceilings

from engramctl.bench.measure import Line

BOUND = 0.7  # of the time: what takes less of it is not what bounds


@dataclass(frozen=True)
class Work:
    """What a case has to do, whoever does it: bytes and FLOP for each unit of its amount, and once."""

    reads: float = 0
    writes: float = 0
    sums: float = 0
    once: float = 0  # bytes read however many units there are


@dataclass(frozen=True)
class Target:
    """`ours` is to be `least` times as fast as `peer` in each of the cases; without a peer, `least` of a ceiling."""

    what: str
    against: str
    group: str
    cases: tuple[str, ...]
    ours: str
    peer: str | None
    least: float
    work: Work = Work()
    threads: int | None = None  # None: all


def found(targets: list[Target], lines: list[Line], ceilings: Ceilings) -> Iterator[dict[str, Any]]:
    """One line for each target whose cases were measured: asked, found in the worst case, and what bounds that one."""
    timed = {(line.group, line.case, line.candidate): line for line in lines}
    for target in targets:
        each = []
        for case in target.cases:
            ours, peer = (timed.get((target.group, case, name or "")) for name in (target.ours, target.peer))
            if ours is None or (target.peer and peer is None):
                continue
            shares = _shares(target, ours, ceilings)
            if peer is not None:
                each.append((peer.best / ours.best, peer.middle / ours.middle, ours, shares))
            elif target.peer is None and shares:
                share = max(shares.values())
                each.append((share, share * ours.best / ours.middle, ours, shares))
        if each:
            best, middle, ours, shares = min(each, key=lambda one: one[0])
            yield {
                "work": target.what, "against": target.against, "asked": target.least, "found": best,
                "found_middle": middle, "met": best >= target.least, "case": ours.case, "milliseconds": ours.best * 1e3,
                "shares": shares, "bound": _bound(shares),
            }  # fmt: skip


def _shares(target: Target, ours: Line, ceilings: Ceilings) -> dict[str, float]:
    """Of our time, what each ceiling would take for the work at least."""
    work, amount = target.work, ours.amount
    least = ceilings.allow(work.reads * amount + work.once, work.writes * amount, work.sums * amount, target.threads)
    return {name: seconds / ours.best for name, seconds in least.items()}


def _bound(shares: dict[str, float]) -> str:
    """In words: the ceiling that most of the time goes to, or that there is none, and how much of it that is."""
    if not shares:
        return "instructions, in cache"
    name = max(shares, key=lambda one: shares[one])
    return f"{name}, {shares[name]:.2f}" if shares[name] >= BOUND else f"instructions; {name} {shares[name]:.2f}"


HEADINGS = ["work", "against", "asked", "found", "middles", "", "in", "ours, ms", "bound by, share of the time"]


def shown(verdicts: list[dict[str, Any]]) -> list[list[str]]:
    return [
        [one["work"], one["against"], f"{one['asked']:g}", f"{one['found']:.2f}", f"{one['found_middle']:.2f}",
         "met" if one["met"] else "MISSED", one["case"], f"{one['milliseconds']:,.3f}", one["bound"]]
        for one in verdicts
    ]  # fmt: skip
