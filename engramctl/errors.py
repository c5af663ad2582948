"""Three ways to say no: `FormatError` (the bytes, in formats), `EngramctlError` (the request), `Finding` (they
differ)."""

from __future__ import annotations

from dataclasses import dataclass


class EngramctlError(Exception):
    """A request that cannot be met: an option, an argument or an input that does not fit. Exit code 2."""

    def __init__(self, where: str, expected: str, found: str, hint: str | None = None) -> None:
        self.where, self.expected, self.found, self.hint = where, expected, found, hint
        super().__init__(f"{where}: expected {expected}, found {found}")


@dataclass(frozen=True)
class Finding:
    """Two things differ: which check saw it, where, and both values. Not an exception; exit code 1."""

    check: str
    where: str
    expected: str
    found: str
