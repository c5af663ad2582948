"""Row-sharded tables: part i of n holds some rows and answers zeros for the others, so that the parts add up."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError

if TYPE_CHECKING:
    from engramctl.source import Source
    from engramctl.tables import Tables

By = Literal["rows", "heads"]
SPEC = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


def parse(text: str) -> tuple[int, int]:
    """ "2/4" -> (2, 4): the second of four."""
    match = SPEC.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise EngramctlError("--shard", "i/n with i from 1 to n", f"{text!r:.40}")
    return int(match[1]), int(match[2])


def rows_of(i: int, n: int, rows: int, by: By = "rows", offsets: NDArray[np.uint64] | None = None) -> tuple[int, int]:
    """The first row of part i of n, from 1, and the row after its last; by heads no column is cut in two.

    `offsets` are the layer's [C], where each column's rows begin.
    """
    if by == "rows":
        if n > rows:
            raise EngramctlError("--shard", f"at least {n} rows, one for each part", f"{rows}")
        return rows * (i - 1) // n, rows * i // n
    if offsets is None or n > offsets.size:
        found = "none known" if offsets is None else f"{offsets.size}"
        raise EngramctlError("--shard-by heads", f"at least {n} columns, one for each part", found)
    edges = [*np.sort(offsets).astype(np.int64).tolist(), rows]
    edges[0] = 0
    return edges[offsets.size * (i - 1) // n], edges[offsets.size * i // n]


def held(shard: str, by: str, layer: int, rows: int, source: Source | Tables) -> tuple[int, int]:
    """The rows of a layer's table that part `shard` ("i/n") holds, by "rows" or by "heads"."""
    if by not in ("rows", "heads"):
        raise EngramctlError("--shard-by", "rows or heads", f"{by!r:.40}")
    if by == "rows":
        return rows_of(*parse(shard), rows)
    params = source.params()
    return rows_of(*parse(shard), rows, "heads", params.offsets[params.layers.index(layer)])
