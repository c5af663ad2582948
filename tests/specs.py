"""Specs are read by tests: the tables and the hex of a page beside a module."""

from __future__ import annotations

import re
from pathlib import Path

FORMATS = Path(__file__).parent.parent / "formats"


def table(page: str, first_column: str) -> list[list[str]]:
    """The rows of the one table whose header starts with `first_column`."""
    blocks = (FORMATS / page).read_text().split("\n\n")
    found = [block.strip().splitlines() for block in blocks if block.strip().startswith(f"| {first_column} |")]
    assert len(found) == 1, f"{page} has {len(found)} tables of {first_column}"
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in found[0][2:]]


def number(cell: str) -> int:
    return int(cell.replace(",", ""))


def example(page: str) -> bytes:
    """The bytes of the page's hex block."""
    (block,) = re.findall(r"```\n(.*?)```", (FORMATS / page).read_text(), re.DOTALL)
    return bytes.fromhex(block)
