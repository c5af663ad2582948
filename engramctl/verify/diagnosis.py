"""The name of a mistake, how much of a difference it explains, and what else would explain it as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engramctl.mistakes.record import Mistake

LEAST = 0.5  # share of a difference that a mistake must explain to be named
PAIR_GAIN = 0.01  # what a second mistake must explain beyond the first to be named, if the two do not explain all


@dataclass(frozen=True)
class RunnerUp:
    """Another entry or pair that explains as much, or nearly, and the input that would tell the two apart."""

    name: str
    explains: float
    separated_by: str

    def facts(self) -> dict[str, Any]:
        return {"name": self.name, "explains": self.explains, "separated_by": self.separated_by}


@dataclass(frozen=True)
class Diagnosis:
    """One entry, or two that were made together."""

    entries: tuple[Mistake[Any], ...]
    explains: float  # 0 to 1
    of: str  # what `explains` is a share of
    detail: str = ""  # the parameter that was read off the dump
    decided_at: str = ""  # the first place where the dump follows the mistake
    runners_up: Sequence[RunnerUp] = field(default_factory=tuple)

    @property
    def name(self) -> str:
        return " + ".join(entry.name for entry in self.entries)

    def facts(self) -> dict[str, Any]:
        """For --json: `name` and `explains`, and the rest of what is known."""
        return {
            "name": self.name,
            "explains": self.explains,
            "of": self.of,
            "detail": self.detail,
            "decided_at": self.decided_at,
            "entries": [entry.facts() for entry in self.entries],
            "runners_up": [runner.facts() for runner in self.runners_up],
        }

    def lines(self) -> list[str]:
        """For people."""
        share = "all" if self.explains == 1 else f"{self.explains:.1%}"
        where = f", first at {self.decided_at}" if self.decided_at else ""
        detail = f" ({self.detail})" if self.detail else ""
        made = [f"diagnosis: {self.name}{detail} explains {share} of {self.of}{where}"]
        for entry in self.entries:
            made += [f"  {entry.name}: {entry.what}", f"  fix: {entry.fix}", f"  source: {entry.source}"]
        for runner in self.runners_up:
            share = "all" if runner.explains == 1 else f"{runner.explains:.1%}"
            made.append(f"  {runner.name} explains {share}, too; {runner.separated_by}")
        return made
