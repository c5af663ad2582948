"""The door from the `check` commands: a sibling's result, or None where V4.1's own check has to answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engramctl import siblings
from engramctl.arrays import STDIN, Array
from engramctl.errors import EngramctlError
from engramctl.hash_params import HashParams
from engramctl.profiles import Profile
from engramctl.row_dumps import Rows
from engramctl.rules import V41_RULE, HashRule
from engramctl.source import V41_ROWS, FoundMap, Source, open_source
from engramctl.verify.result import Result
from engramctl.verify.values import Looked


def expect_v41(rule: HashRule, what: str) -> None:
    """Refuse, by name, what rests on the catalogue of V4.1's mistakes."""
    if rule != V41_RULE:
        raise EngramctlError(what, "deepseek-v4.1-flash, whose mistakes are catalogued", "another model's rule")


def params(file: Path, profile: str | None, given: FoundMap | None) -> Result | None:
    """Constants in tensors or keys."""
    if file == STDIN or siblings.profile_of(file, profile) is None:
        return None
    from engramctl.siblings import checks

    return checks.params(file, profile, given)


def source(path: Path, profile: str | None, sample: int, seed: int, all_rows: bool) -> Result | None:
    """A checkpoint."""
    sibling = siblings.profile_of(path, profile)
    if sibling is None:
        return None
    from engramctl.siblings import checks

    return checks.source(path, sibling, profile is not None, sample, seed, all_rows)


def file(path: Path, loader: str) -> Result | None:
    """A container."""
    if siblings.profile_of(path, None) is None:
        return None
    from engramctl.siblings import loader as rules

    return rules.check(path, loader)


def expect_whole(options: Mapping[str, object]) -> None:
    """Refuse options that belong to V4.1's own pass."""
    for option, value in options.items():
        if value is not None:
            raise EngramctlError(option, "deepseek-v4.1-flash, whose check has it", "another model")


def packing(
    want: Path, have: Path, profile: str | None, ranges: Sequence[tuple[int, int]] | None,
    sample: tuple[int, int] | None,
) -> Result:  # fmt: skip
    """Two sources of the same table."""
    from engramctl.siblings import packing as check

    with open_source(want, profile) as one, open_source(have, profile) as other:
        return check.check(one, other, ranges, sample)


def kv(dump: Array, opened: Source, layer: int, looked: Looked) -> Result | None:
    """Projections that an engine dumped."""
    if opened.profile.storage.encoding == V41_ROWS:
        return None
    from engramctl.siblings import checks

    return checks.kv(dump, opened, layer, looked)


def expect_gates(profile: Profile, out: object) -> None:
    """Refuse what a dump of a sibling's gates cannot say."""
    if profile.storage.encoding == V41_ROWS:
        return
    from engramctl.siblings import module

    module.expect_keys(profile, "gate")
    if out is not None:
        raise EngramctlError("array out", "gates alone: a convolution follows them", "new hidden states")


def hash_notes(
    result: Result, found: Rows, tokens: NDArray[np.int64], made: HashParams, mask: NDArray[np.bool_] | None,
    history: Sequence[int],
) -> None:  # fmt: skip
    """Say which rule was used, and whose rows they are if they differ."""
    if made.rule != V41_RULE:
        from engramctl.siblings import naming

        result.notes += naming.notes(found, tokens, made, mask, history, not result.ok)
