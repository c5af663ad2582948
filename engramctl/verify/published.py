"""The release's own digests: 48 rows that token id 42 selects, wherever a full-size table lies."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from engramctl.profiles import Profile
from engramctl.table import Table
from engramctl.verify.result import Result
from formats import row264


def real_rows(tables: Mapping[int, Table], profile: Profile, check: str, result: Result) -> int:
    """Compare the published rows that the tables have; how many were compared."""
    compared = 0
    for layer, published in profile.real_rows().items():
        for entry in published:
            row = int(entry["row"])
            if layer not in tables or row >= tables[layer].rows:
                result.add(check, f"layer {layer} row {row}", "the release's row", "no such row")
                continue
            raw = tables[layer].read(np.array([row], np.int64))[0]
            compared += 1
            for part, name in zip(row264.split(raw), ("codes", "scales"), strict=True):
                found = hashlib.sha256(part.tobytes()).hexdigest()
                if found != entry[f"{name}_sha256"]:
                    where = f"layer {layer} row {row} {name}"
                    result.add(check, where, f"SHA-256 {entry[f'{name}_sha256']} as published", found)
    return compared
