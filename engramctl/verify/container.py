"""check file: a container against its dialect's loader rules, and against the release where it says it is that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import config as configs
from engramctl import container_sizes, kinds, mendable, repair_journal, sidecars, tables, workspace
from engramctl.errors import EngramctlError
from engramctl.profiles import Profile
from engramctl.source import is_container
from engramctl.verify import constants, published, sidecar_rules
from engramctl.verify.loader_facts import Facts, Rule
from engramctl.verify.loader_rules import LOADERS, READ_ONE_FILE, of_dialect
from engramctl.verify.packing import seeded_rows
from engramctl.verify.result import Coverage, Result
from formats.dialects import DS4, by_name
from formats.errors import FormatError
from formats.gguf_file import GgufHeader
from formats.gguf_split import read_model
from formats.recognise import Recognised, recognise
from formats.recognise import type_of as kind_of

ENGRAM = ".engram_"  # in the name of every tensor of an Engram
ALL = "all"
PUBLISHED = ("layers", "rows", "compressed", "pad_id", "token_map", "multipliers", "moduli")


def check(path: Path, profile: Profile, loader: str | None = None, release: bool = False) -> Result:
    """Every rule of the loader, which is the dialect's own if none is named; the published rows of the release."""
    if loader not in (None, ALL, *LOADERS):
        raise EngramctlError("--loader", f"one of {', '.join((*LOADERS, ALL))}, which this version knows", str(loader))
    if not is_container(path) and loader is None and sidecars.recognise(path) is not None:
        return _sidecar(path, profile)
    result = Result(Coverage("rules", 0, len(of_dialect(loader or DS4.name))))
    if (there := repair_journal.left(path)) is not None:  # its header may be half another
        result.add("unfinished", str(path), "no interrupted repair or append", f"{there[0]}; {there[1]}")
        return result
    kinds.refuse_other(path, kinds.GGUF, (kinds.GGUF, kinds.UNFINISHED))
    if (why := kinds.unfinished(path)) is not None:
        result.add("unfinished", str(path), "a finished output", f"{why}: {workspace.way_on(path)}")
        if not is_container(path):
            return result
    header = read_model(path, strict=False)
    seen = recognise(header)
    chosen = loader or (seen.best or DS4).name
    if chosen == ALL:
        return _all(path, header, profile, seen)
    result.coverage.of = len(of_dialect(chosen))
    facts, config = _facts(header, profile, chosen, result)
    ran, accepts = _judge(chosen, facts, result)
    result.coverage.checked = len(ran)
    _notes(facts, seen, result)
    if mend := mendable.note(path, header, seen, [each.where for each in result.findings], loader):
        result.notes.append(mend)
    why_not = _not_release(facts, profile, config)
    if release or not why_not:
        _real_rows(facts, profile, result)
    if why_not:
        result.notes.append(f"not the release: {why_not}")
    known = None if seen.best is None else seen.best.name
    result.extra |= {"dialect": known, "loader": chosen, "accepts": accepts, "release": not why_not, "rules": ran}
    return result


def _judge(loader: str, facts: Facts, result: Result) -> tuple[list[dict[str, Any]], bool]:
    """Run a loader's rules; what they were, and whether it takes the file."""
    before, ran = result.total, []
    for rule in of_dialect(loader):
        broken = list(rule.broken(facts))
        for where, expected, found in broken:
            result.add(f"{loader}.{rule.id}", where, expected, found)
        ran.append({"id": rule.id, "demands": rule.demands, "source": rule.source, "ok": not broken})
    return ran, result.total == before


def _all(path: Path, header: GgufHeader, profile: Profile, seen: Recognised) -> Result:
    """Every loader: findings only where none of them takes the file."""
    result = Result(Coverage("rules", 0, sum(len(rules) for rules in LOADERS.values())))
    loaders = {}
    for name, rules in LOADERS.items():
        own = Result(Coverage("rules", 0, len(rules)))
        facts, _ = _facts(header, profile, name, own)
        ran, accepts = _judge(name, facts, own)
        result.coverage.checked += len(ran)
        why = [{"where": f.where, "expected": f.expected, "found": f.found, "rule": f.check} for f in own.findings]
        loaders[name] = {"accepts": accepts, "findings_total": own.total, "why": why, "rules": ran}
        result.notes.append(f"loader {name}: {'accepts it' if accepts else f'refuses it, {own.total} findings'}")
        for finding in own.findings if not accepts else ():
            result.add(finding.check, finding.where, finding.expected, finding.found)
    if any(loader["accepts"] for loader in loaders.values()):
        result.findings, result.total = [], 0
    known = None if seen.best is None else seen.best.name
    result.extra |= {"dialect": known, "loader": ALL, "loaders": loaders}
    return result


def refusals(header: GgufHeader, profile: Profile, loader: str = DS4.name) -> Iterator[dict[str, str]]:
    """The rules of a loader that a header breaks, in the loader's words; no row is read."""
    facts, _ = _facts(header, profile, loader, Result(Coverage("rules", 0, 0)))
    rules: tuple[Rule, ...] = of_dialect(loader)
    return (
        {"rule": rule.id, "demands": rule.demands, "where": where, "expected": expected, "found": found}
        for rule in rules
        if not rule.reads_rows
        for where, expected, found in rule.broken(facts)
    )


def _sidecar(path: Path, profile: Profile) -> Result:
    """A file of rows or constants that is no GGUF: its header against its own size and the model's tables."""
    found = sidecars.recognise(path)
    if found is None:
        read_model(path)  # says what a GGUF would have
        raise FormatError(path, None, "a container", "none")
    result = Result(Coverage("rules", 2, 2))
    for where, expected, seen in found.problems:
        result.add(f"{found.dialect.name}.header", where, expected, seen)
    for where, expected, seen in sidecar_rules.against_model(found, profile):
        result.add(f"{found.dialect.name}.tables", where, expected, seen)
    result.notes += found.notes
    result.extra |= {"dialect": found.dialect.name, "loader": None, "accepts": result.ok, "release": False, "rules": []}
    return result


def _facts(header: GgufHeader, profile: Profile, loader: str, result: Result) -> tuple[Facts, Mapping[str, Any] | None]:
    """What rules look at; the file's own config and sizes, and where it has none, or a bad one, the profile's."""
    dialect = by_name(loader) or DS4
    header = header.alone if loader in READ_ONE_FILE else header
    stored = constants.of_container(header, dialect)
    config, sizes = None, None
    try:
        config = container_sizes.read_config(header, dialect)
        sizes = container_sizes.of_container(header, dialect, stored.constants, profile)
    except FormatError as error:
        result.add("config", error.where, error.expected, error.found)
    if config is None and dialect.keys.keys() >= {"encoding"}:
        sizes = sizes if sizes is not None and dialect.name != DS4.name else profile.sizes
        result.notes.append(f"no {dialect.config}: sizes of profile {profile.name}")
    text = None if config is None or sizes is None else configs.text_part(dict(config), str(header.path))
    whole = sizes or profile.sizes

    def tell(layer: int) -> NDArray[np.int64]:
        tensor = facts.tensor("table", layer)
        return seeded_rows(profile, whole, layer, 0 if tensor is None else tensor.shape[1], 0, 0)

    facts = Facts(header.path, header, dialect, stored, whole, text, tell)
    return facts, config


def _notes(facts: Facts, seen: Recognised, result: Result) -> None:
    result.notes += seen.notes
    result.notes.append("weights' numbers are in no loader's rules: check source and check packing look at them")
    if facts.header.tensors and all(ENGRAM in tensor.name for tensor in facts.header.tensors):
        result.notes.append("engram-only: no main weights")
    for layer in facts.sizes.layers:
        tensor, start = facts.tensor("projection", layer), facts.tensor("table", layer)
        if facts.dialect is DS4 and tensor is not None and kind_of(tensor) in ("BF16", "F32"):
            result.notes.append(f"{tensor.name} is {kind_of(tensor)}; ds4's own converter writes F16")
        for role in ("q_weight", "k_weight"):
            gate = facts.tensor(role, layer)
            if gate is not None and kind_of(gate) not in ("F32", "BF16"):
                result.notes.append(f"{gate.name} is {kind_of(gate)}: a gate weight that is not F32 or BF16 is inexact")
        first = facts.dialect.placement == "tail" and layer == facts.sizes.layers[0]
        if first and start is not None and start.start % facts.dialect.alignment and not start.start % 4096:
            result.notes.append(f"{start.name} is aligned to 4096: loaders on machines with pages of 4096 take it")


def _not_release(facts: Facts, profile: Profile, config: Mapping[str, Any] | None) -> str | None:
    """Why this cannot be the release; None where everything says that it is."""
    if configs.is_synthetic(config):
        return "its config says that it is synthetic"
    if not constants.same_model(facts.sizes, profile):
        other = facts.sizes.differences(profile.sizes)
        return f"other sizes than profile {profile.name}: {', '.join(name for name in other if name != 'eps')}"
    public = constants.published(facts.sizes, facts.sizes.layers, profile)
    expected = {} if public is None else constants.of_params(public)
    roles = [role for role in PUBLISHED if role in facts.dialect.keys]
    other_constants = [role for role in roles if facts.stored.constants.get(role) != expected.get(role)]
    return f"other constants than are published: {', '.join(other_constants)}" if other_constants else None


def _real_rows(facts: Facts, profile: Profile, result: Result) -> None:
    """The published digests of 48 rows; a table that cannot be read was a finding before."""
    with tables.Files(facts.header) as files:
        found = {}
        for layer in facts.sizes.layers:
            tensor = facts.tensor("table", layer)
            if tensor is None or tensor.start + (tensor.size or 0) > facts.header.home(tensor).file_size:
                continue
            try:
                found[layer] = tables.of_layer(files, facts.dialect, layer)
            except FormatError:
                continue
        if any(not table.layout.lossless for table in found.values()):
            result.notes.append("its rows are re-encoded: the published digests are of FP8 rows, and do not apply")
            return
        count = published.real_rows(found, profile, "release", result)
    result.notes.append(f"{count} published rows were compared")
