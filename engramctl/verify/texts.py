"""check packing: encoding and config of two holders. A config counts by what it says, not by how it is written.

ds4's converter writes config.json anew, with sorted keys and without blanks
(antirez/ds4 gguf-tools/deepseek41_metadata.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from engramctl import config as configs
from engramctl import dialect_keys
from engramctl.verify.result import Result
from formats import dialects
from formats.errors import FormatError, shown
from formats.gguf_file import Value

CHECK = "constants"
CONFIG = "config"
Names = tuple[str, str]  # of the two holders


def compare(
    roles: Iterable[str], want: Mapping[str, str], have: Mapping[str, str], names: Names, result: Result, whole: bool
) -> None:
    """Findings for each text of `roles` that the two do not share; of a config that need not be `whole`, those for
    what both say."""
    for role in roles:
        expected, found = want.get(role), have.get(role)
        if expected == found:
            continue
        for entry, ours, theirs in _differences(role, expected, found, names, whole):
            result.add(CHECK, entry, ours, theirs)


def compare_keys(dialect: str, config: str | None, stored: Mapping[str, Value], name: str, result: Result) -> None:
    """Findings for each key of `stored` that does not say what the other holder's config says."""
    known = dialects.by_name(dialect)
    if known is None or config is None:
        return
    try:
        wanted = dialect_keys.hyperparameters(known, configs.parse(config, name), name)
    except FormatError:  # no config to take anything from, which is told as a text
        return
    for key, value in wanted:
        if key in stored and not dialect_keys.same(stored[key], value):
            result.add(CHECK, f"key {key}", f"{_said(value)} as in the config", _said(stored[key]))


def _said(value: Value) -> str:
    return shown(value.value.tolist() if isinstance(value.value, np.ndarray) else value.value)


def _differences(
    role: str, want: str | None, have: str | None, names: Names, whole: bool
) -> list[tuple[str, str, str]]:
    if role == CONFIG and want is not None and have is not None:
        try:
            return list(_entries(CONFIG, configs.parse(want, names[0]), configs.parse(have, names[1]), whole))
        except (FormatError, RecursionError):  # one of them is no config: a text like any other
            return [(role, f"that of {names[0]}", f"that of {names[1]}")]
    return [(role, _text(role, want, names[0]), _text(role, have, names[1]))]


def _entries(where: str, want: object, have: object, whole: bool) -> Iterator[tuple[str, str, str]]:
    """Entries of two JSON values that differ, by name."""
    if isinstance(want, dict) and isinstance(have, dict):
        for key in dict.fromkeys([*want, *have]):
            entry = f"{where}.{key if key.isidentifier() else shown(key)}"
            if key in want and key in have:
                yield from _entries(entry, want[key], have[key], whole)
            elif whole:
                yield entry, shown(want[key]) if key in want else "none", shown(have[key]) if key in have else "none"
    elif isinstance(want, list) and isinstance(have, list) and len(want) == len(have):
        for i, (ours, theirs) in enumerate(zip(want, have, strict=True)):
            yield from _entries(f"{where}[{i}]", ours, theirs, whole)
    elif json.dumps(want) != json.dumps(have):
        yield where, shown(want), shown(have)


def _text(role: str, text: str | None, name: str) -> str:
    """A text in a finding: a config is too long to be shown."""
    return f"none in {name}" if text is None else f"that of {name}" if role == CONFIG else text[:60]
