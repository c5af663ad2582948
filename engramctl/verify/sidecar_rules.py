"""Files of rows against the model whose tables they are: as many rows as it has, cut where a column begins."""

from __future__ import annotations

from collections.abc import Iterator

from engramctl.profiles import Profile
from engramctl.sidecars import Sidecar

Broken = tuple[str, str, str]  # where, expected, found


def against_model(found: Sidecar, profile: Profile) -> Iterator[Broken]:
    """What its engine would refuse, or read wrong rows from."""
    profile.needs_constants()
    ours = dict(zip(profile.sizes.layers, profile.sizes.rows, strict=True))
    for entry in found.facts.get("table_entries", []):
        layer, rows = entry["layer"], entry["rows"]
        if layer in ours and rows != ours[layer]:  # its engine refuses any other number: a conversion with a limit
            yield f"table of layer {layer}", f"{ours[layer]} rows as {profile.title} has", f"{rows}"
    for layer in found.layers:
        if layer not in ours or found.facts.get("rows") != ours[layer]:
            continue
        number = profile.sizes.layers.index(layer)
        begins = {int(offset) for offset in profile.offsets[number]} | {ours[layer]}
        for edge in _edges(found):
            if edge not in begins:
                nearest = min(begins, key=lambda each: abs(each - edge))
                yield (
                    f"row {edge}",
                    f"a part that ends where a column does, such as {nearest}",
                    "the middle of a column",
                )


def _edges(found: Sidecar) -> list[int]:
    """Rows at which the file's part begins and ends."""
    facts = found.facts
    ranges = [[facts["first"], facts["rows_end"]]] if "rows_end" in facts else facts.get("ranges")
    edges = [edge for each in ranges if isinstance(each, list) for edge in each] if isinstance(ranges, list) else []
    return sorted({edge for edge in edges if type(edge) is int})
