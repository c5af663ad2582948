"""Raw rows as a plan reads them: the right ones, a neighbour's, another layer's, or those at a wrapped offset."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engramctl.mistakes.rowplan import Raw, RowPlan
from engramctl.table import Table
from formats.row264 import ROW_BYTES

WRAP = 2**32
NOTHING = 0xFF  # fills rows that are in no table: such codes and scales are no numbers


class Reader:
    """A source's tables, read once per distinct question."""

    def __init__(self, own: Table, other: Table | None) -> None:
        self._own, self._other = own, other
        self._held: dict[tuple[object, ...], Raw] = {}

    def raw(self, plan: RowPlan, rows: NDArray[np.int64]) -> Raw | None:
        """[...] row numbers -> [n, ROW_BYTES]; None where there is no other table to read."""
        table = self._other if plan.other_table else self._own
        if table is None:
            return None
        flat = rows.reshape(-1) + plan.row_step
        key = (plan.other_table, plan.wrapped, flat.tobytes())
        if key not in self._held:
            inside = (flat >= 0) & (flat < table.rows)
            made = np.full((flat.size, ROW_BYTES), NOTHING, np.uint8)
            read = _wrapped(table, flat[inside]) if plan.wrapped else table.read(flat[inside])
            made[inside] = read
            self._held[key] = made
        return self._held[key]


def _wrapped(table: Table, rows: NDArray[np.int64]) -> Raw:
    """Each part's bytes at its offset modulo 2**32; [n, ROW_BYTES]."""
    made, column = np.empty((rows.size, ROW_BYTES), np.uint8), 0
    for part in table.parts:
        for i, row in enumerate(rows.tolist()):
            place = made[i, column : column + part.stride]
            part.file.read_into(place.data, part.start + row * part.stride % WRAP, f"layer {table.layer} row {row}")
        column += part.stride
    return made
