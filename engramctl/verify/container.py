"""check file: a container against its dialect's loader rules, and against the release where it says it is that."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import config as configs
from engramctl import kinds
from engramctl.container import read_config
from engramctl.errors import EngramctlError
from engramctl.profiles import Profile, Sizes
from engramctl.source import is_container
from engramctl.table import Part, Table
from engramctl.verify import constants, published
from engramctl.verify.loader_facts import Facts
from engramctl.verify.loader_rules import LOADERS
from engramctl.verify.packing import seeded_rows
from engramctl.verify.result import Coverage, Result
from engramctl.verify.sides import kind_of
from engramctl.verify.tensor_rules import readable
from formats.dialects import DS4
from formats.disk import ReadFile
from formats.errors import FormatError
from formats.gguf_file import GgufHeader, read_header

ENGRAM = ".engram_"  # in the name of every tensor of an Engram
PUBLISHED = ("layers", "rows", "compressed", "pad_id", "token_map", "multipliers", "moduli")


def check(path: Path, profile: Profile, loader: str = DS4.name, release: bool = False) -> Result:
    """Every rule of the loader; with the release's constants and sizes, or `release`, the published rows as well."""
    if loader not in LOADERS:
        raise EngramctlError("--loader", f"one of {', '.join(LOADERS)}, which this version knows", loader)
    kinds.refuse_other(path, kinds.GGUF, (kinds.GGUF, kinds.UNFINISHED))
    result = Result(Coverage("rules", 0, len(LOADERS[loader])))
    if (why := kinds.unfinished(path)) is not None:
        result.add("unfinished", str(path), "a finished output", f"{why}: repack --resume finishes it")
        if not is_container(path):
            return result
    header = read_header(path, strict=False)
    config, sizes = _config(header, profile, result)
    facts = _facts(header, profile, config, sizes)
    ran, before = [], result.total
    for rule in LOADERS[loader]:
        broken = list(rule.broken(facts))
        for where, expected, found in broken:
            result.add(f"{loader}.{rule.id}", where, expected, found)
        ran.append({"id": rule.id, "demands": rule.demands, "source": rule.source, "ok": not broken})
    result.coverage.checked = len(ran)
    accepts = result.total == before
    _notes(facts, result)
    why_not = _not_release(facts, profile, config)
    if release or not why_not:
        _real_rows(facts, profile, result)
    if why_not:
        result.notes.append(f"not the release: {why_not}")
    result.extra |= {"dialect": DS4.name, "loader": loader, "accepts": accepts, "release": not why_not, "rules": ran}
    return result


def refusals(header: GgufHeader, profile: Profile, loader: str = DS4.name) -> list[dict[str, str]]:
    """The rules of a loader that a header breaks, in the loader's words; no row is read."""
    config, sizes = _config(header, profile, Result(Coverage("rules", 0, 0)))
    facts = _facts(header, profile, config, sizes)
    return [
        {"rule": rule.id, "demands": rule.demands, "where": where, "expected": expected, "found": found}
        for rule in LOADERS[loader]
        if not rule.reads_rows
        for where, expected, found in rule.broken(facts)
    ]


def _config(header: GgufHeader, profile: Profile, result: Result) -> tuple[Mapping[str, Any] | None, Sizes]:
    """The file's own config and sizes; where it has none, or a bad one, those of the profile."""
    try:
        config = read_config(header, DS4)
        if config is None:
            result.notes.append(f"no {DS4.config}: sizes of profile {profile.name}")
            return None, profile.sizes
        return config, configs.read_sizes(config, profile, f"{header.path} at key {DS4.config}")
    except FormatError as error:
        result.add("config", error.where, error.expected, error.found)
        return None, profile.sizes


def _facts(header: GgufHeader, profile: Profile, config: Mapping[str, Any] | None, sizes: Sizes) -> Facts:
    def tell(layer: int) -> NDArray[np.int64]:
        tensor = facts.tensor("table", layer)
        return seeded_rows(profile, sizes, layer, 0 if tensor is None else tensor.shape[1], 0, 0)

    text = None if config is None else configs.text_part(dict(config), str(header.path))
    facts = Facts(header.path, header, DS4, constants.of_container(header, DS4), sizes, text, tell)
    return facts


def _notes(facts: Facts, result: Result) -> None:
    result.notes.append("weights' numbers are in no loader's rules: check source and check packing look at them")
    if facts.header.tensors and all(ENGRAM in tensor.name for tensor in facts.header.tensors):
        result.notes.append("engram-only: no main weights")
    for layer in facts.sizes.layers:
        tensor = facts.tensor("projection", layer)
        if tensor is not None and kind_of(tensor) in ("BF16", "F32"):
            result.notes.append(f"{tensor.name} is {kind_of(tensor)}; ds4's own converter writes F16")
        start = facts.tensor("table", layer)
        if (
            layer == facts.sizes.layers[0]
            and start is not None
            and start.start % DS4.alignment
            and not start.start % 4096
        ):
            result.notes.append(f"{start.name} is aligned to 4096: loaders on machines with pages of 4096 take it")


def _not_release(facts: Facts, profile: Profile, config: Mapping[str, Any] | None) -> str | None:
    """Why this cannot be the release; None where everything says that it is."""
    if published.is_synthetic(config):
        return "its config says that it is synthetic"
    if not constants.same_model(facts.sizes, profile):
        other = facts.sizes.differences(profile.sizes)
        return f"other sizes than profile {profile.name}: {', '.join(name for name in other if name != 'eps')}"
    public = constants.published(facts.sizes, facts.sizes.layers, profile)
    expected = {} if public is None else constants.of_params(public)
    other_constants = [role for role in PUBLISHED if facts.stored.constants.get(role) != expected.get(role)]
    return f"other constants than are published: {', '.join(other_constants)}" if other_constants else None


def _real_rows(facts: Facts, profile: Profile, result: Result) -> None:
    """The published digests of 48 rows; a table that cannot be read was a finding before."""
    with ExitStack() as stack:
        file = stack.enter_context(ReadFile.open(facts.path))
        tables = {
            layer: Table(layer, tensor.shape[1], (Part(file, tensor.start, tensor.shape[0]),))
            for layer, tensor in readable(facts).items()
        }
        count = published.real_rows(tables, profile, "release", result)
    result.notes.append(f"{count} published rows were compared")
