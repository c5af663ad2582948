"""How much of a table lies in the page cache."""

from __future__ import annotations

import numpy as np

from engramctl.placement.place import Extent
from formats.page_cache import PAGE, Mapping

SAMPLES = 512  # places looked at where a table is too large to ask about every page
RUN = 64  # pages at each of them
EXACT = SAMPLES * RUN * 32  # pages up to which all are asked about: 4 GiB


def share(extent: Extent, exact: bool = False) -> tuple[float, int] | None:
    """The share of its pages in memory and how many were asked about; None where the system does not say."""
    known, there = 0, 0
    for part in extent.parts:
        start, end = extent.span(part)
        if end <= start:
            continue
        mapped = Mapping(part.file, start, end)
        try:
            pages = -(-mapped.length // PAGE)
            runs = [(0, end - start)] if exact or pages <= EXACT else _sampled(end - start)
            for first, last in runs:
                found = mapped.resident(first, last)
                if found is None:
                    return None
                known, there = known + found.size, there + int(found.sum())
        finally:
            mapped.close()
    return (there / known, known) if known else None


def _sampled(size: int) -> list[tuple[int, int]]:
    """Seeded, so that two looks at an unchanged table agree."""
    places = np.sort(np.random.default_rng(0).integers(0, max(1, size - RUN * PAGE), SAMPLES))
    return [(int(place), min(int(place) + RUN * PAGE, size)) for place in places]
