"""What a check says: findings, how much it looked at, and notes that are no findings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engramctl.errors import Finding
from engramctl.verify.diagnosis import Diagnosis

MOST_FINDINGS = 100  # kept and printed; the rest is counted


@dataclass
class Coverage:
    """How many of what were looked at; `sampled` where not all of them on purpose."""

    unit: str
    checked: int
    of: int
    sampled: bool = False


@dataclass
class Result:
    """A check's report; `ok` is the exit code's whole truth."""

    coverage: Coverage
    findings: list[Finding] = field(default_factory=list)
    total: int = 0
    notes: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)  # more for --json, such as digests
    diagnosis: Diagnosis | None = None  # the known mistake behind the findings
    structure: list[str] = field(default_factory=list)  # facts about the differences, where no mistake is known

    @property
    def ok(self) -> bool:
        return self.total == 0

    def add(self, check: str, where: str, expected: str, found: str, times: int = 1) -> None:
        """One finding that stands for `times` of them."""
        self.total += times
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(Finding(check, where, expected, found))

    def join(self, part: Result) -> None:
        """Take over what was found in a part of what is checked."""
        self.coverage.checked += part.coverage.checked
        self.coverage.of += part.coverage.of
        self.findings += part.findings[: MOST_FINDINGS - len(self.findings)]
        self.total += part.total
        self.notes += part.notes
