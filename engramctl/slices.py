"""Slices of a conversion: rows first..last of all tables laid end to end, in the order of the layers.

    layer 1             layer 14
    | 0 ... rows of 1 | ... rows of 1 + rows of 14 |

The slice that holds a layer's row 0 also writes that layer's weights, so that slices which cover the rows cover all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from engramctl import rowsets
from engramctl.errors import EngramctlError
from engramctl.profiles import Sizes
from formats import tree_digest

MOST_PARTS = 1000  # that are tried, to say of how many a part is one
LEAVES_TO_ALIGN = 16  # parts at least this many leaves long are cut between leaves, so that none is hashed twice


@dataclass(frozen=True, order=True)
class Slice:
    """Rows of the whole job; `whole` is a conversion that is not shared."""

    first: int
    last: int
    whole: bool = False

    @property
    def suffix(self) -> str:
        """What stands between the output's name and `.journal` or `.lock`."""
        return "" if self.whole else f".part-{self.first}-{self.last}"

    def overlaps(self, other: Slice) -> bool:
        return self.whole or other.whole or max(self.first, other.first) < min(self.last, other.last) or self == other

    def tables(self, sizes: Sizes) -> Iterator[tuple[int, int, int]]:
        """(layer, first row, row after the last) of each table that the slice touches."""
        start = 0
        for layer, rows in zip(sizes.layers, sizes.rows, strict=True):
            first, last = max(self.first - start, 0), min(self.last - start, rows)
            if first < last:
                yield layer, first, last
            start += rows

    def words(self, sizes: Sizes) -> str:
        """For messages: `layer 1 rows 0:100`."""
        return (
            " and ".join(f"layer {layer} rows {first}:{last}" for layer, first, last in self.tables(sizes)) or "no rows"
        )


def whole(sizes: Sizes) -> Slice:
    return Slice(0, sum(sizes.rows), whole=True)


def of_suffix(suffix: str) -> Slice | None:
    """The slice whose files have that suffix; None where it is no slice's."""
    words = suffix.removeprefix(".part-").split("-")
    if not suffix.startswith(".part-") or len(words) != 2 or not all(word.isdecimal() for word in words):
        return None
    return Slice(int(words[0]), int(words[1]))


def of_rows(sizes: Sizes, layer: int, text: str | None) -> Slice:
    """`--layer L --rows A:B`: a range of one table, or all of it."""
    if layer not in sizes.layers:
        raise EngramctlError("--layer", f"one of {', '.join(map(str, sizes.layers))}", f"{layer}")
    number = sizes.layers.index(layer)
    start, rows = sum(sizes.rows[:number]), sizes.rows[number]
    if text is None:
        return Slice(start, start + rows)
    ranges = rowsets.parse(text, "--rows")
    if len(ranges) != 1:
        raise EngramctlError("--rows", "one range A:B", f"{text!r:.40}")
    first, last = ranges[0]
    if last > rows:
        raise EngramctlError("--rows", f"rows in 0..{rows - 1} of layer {layer}", f"{last - 1}")
    return Slice(start + first, start + last)


def of_part(sizes: Sizes, text: str) -> Slice:
    """`--part i/n`: the i-th of n parts of the whole job, about equally long; the n parts cover it exactly."""
    words = text.split("/")
    if len(words) != 2 or not all(word.isascii() and word.isdecimal() and len(word) < 10 for word in words):
        raise EngramctlError("--part", "i/n, such as 2/8", f"{text!r:.40}")
    i, n = int(words[0]), int(words[1])
    if not 1 <= i <= n:
        raise EngramctlError("--part", "i/n with i from 1 to n", f"{text!r:.40}")
    return Slice(_edge(sizes, i - 1, n), _edge(sizes, i, n))


def count_of(part: Slice, sizes: Sizes) -> int | None:
    """The least n of which it is a part i/n; None where it is none of the first thousand."""
    for n in range(1, MOST_PARTS + 1):
        i = part.first * n // max(sum(sizes.rows), 1) + 1  # of evenly cut parts; edges lie up to a leaf before
        if any(
            1 <= each <= n and (_edge(sizes, each - 1, n), _edge(sizes, each, n)) == (part.first, part.last)
            for each in (i, i + 1)
        ):
            return n
    return None


def _edge(sizes: Sizes, i: int, n: int) -> int:
    total = sum(sizes.rows)
    edge, start = total * i // n, 0
    if total // n < LEAVES_TO_ALIGN * tree_digest.LEAF_ROWS:
        return edge
    for rows in sizes.rows:
        if edge < start + rows:
            return start + (edge - start) // tree_digest.LEAF_ROWS * tree_digest.LEAF_ROWS
        start += rows
    return total


def require_cover(parts: list[Slice], sizes: Sizes, where: str) -> None:
    """Refuse parts that leave a row out or write one twice, naming the rows."""
    ends = Slice(0, 0), Slice(sum(sizes.rows), sum(sizes.rows))
    filled = sorted(part for part in parts if part.first < part.last)
    for before, after in pairwise([ends[0], *filled, ends[1]]):
        if before.last < after.first:
            gap = Slice(before.last, after.first)
            raise EngramctlError(where, f"a part that holds {gap.words(sizes)}", "none", "run that part, then merge")
        if before.last > after.first:
            both = Slice(after.first, min(before.last, after.last))
            raise EngramctlError(where, f"{both.words(sizes)} in one part", "in two parts")
