"""Rows that were read and will not be again: the page cache may drop them, a window at a time, behind the readers.

What is told page by page while others still read beside it mostly stays: pages just read are held for a moment.
"""

from __future__ import annotations

from engramctl.extents import Range
from engramctl.table import Table

WINDOW_ROWS = 1 << 18  # 69 MB


class LettingGo:
    """Follows the readers of rows first..last of a table."""

    def __init__(self, table: Table, rows: Range) -> None:
        self.table, (self.row, self.last) = table, rows

    def upto(self, row: int) -> None:
        """All rows before `row` have been read."""
        if row - self.row >= WINDOW_ROWS or row == self.last:
            for part in self.table.parts:
                part.file.done_with(part.start + self.row * part.stride, part.start + row * part.stride)
            self.row = row
