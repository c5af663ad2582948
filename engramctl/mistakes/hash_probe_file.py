"""The hash probe as a JSON file: sequences for an engine to hash, and with answers the right numbers of every stage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engramctl import reference
from engramctl.hash_params import DEAD, HashParams, digest
from engramctl.mistakes import catalogue, hash_probes
from engramctl.mistakes.hash_probes import ProbeSequence
from engramctl.mistakes.hashing import HashCase, HashPlan, Maps
from formats import strict_json
from formats.disk import ReadFile
from formats.errors import FormatError, shown

KIND = "engramctl/probe-hash-file/1"
MOST_BYTES = 64 << 20
USE = (
    "Hash every sequence from its own start and history. Tokens where the mask is 0 are dead. `chunks` are lengths of "
    "the calls to make; `history` is compressed, oldest first, -1 where dead; `history_tokens` are its token ids. Dump "
    "the rows of all sequences one after another, [tokens, layers, columns]: `engramctl check hash DUMP --probe FILE`."
)


@dataclass(frozen=True)
class Probe:
    """A probe file that was read: its sequences in order."""

    sequences: list[ProbeSequence]

    @property
    def tokens(self) -> int:
        return sum(each.case.tokens.size for each in self.sequences)


def encode(params: HashParams, maps: Maps, answers: bool) -> dict[str, Any]:
    """The file's content for a model's constants."""
    plan = HashPlan.of(params, maps)
    pairs = hash_probes.matrix(plan)
    absent = [name for name, varied in hash_probes.variations(plan).items() if varied is None]
    return {
        "kind": KIND,
        "use": USE,
        "constants": _constants(params),
        "sequences": [_sequence(each, params, answers) for each in hash_probes.sequences(plan)],
        "mistakes": [entry.name for entry in catalogue.HASHING if entry.name not in absent],
        "not_tried": {"names": absent, "reason": "no such map is known for this token map"} if absent else None,
        "pairs_told_apart": sum(pair.sequence is not None for pair in pairs),
        "pairs_alike": [pair.facts() for pair in pairs if pair.sequence is None],
    }


def _constants(params: HashParams) -> dict[str, Any]:
    return {
        "layers": list(params.layers),
        "heads": params.heads,
        "size": params.size,
        "compressed": params.compressed,
        "pad_id": params.pad_id,
        "token_map_sha256": digest(params.token_map, "<u4"),
        "multipliers": params.multipliers.tolist(),
        "moduli": params.moduli.tolist(),
        "offsets": params.offsets.tolist(),
    }


def _sequence(each: ProbeSequence, params: HashParams, answers: bool) -> dict[str, Any]:
    case = each.case
    made: dict[str, Any] = {
        "name": each.name,
        "why": each.why,
        "tokens": case.tokens.tolist(),
        "mask": None if case.mask is None else case.mask.astype(int).tolist(),
        "history": list(case.history),
        "history_tokens": list(case.past_tokens),
        "chunks": list(case.chunks) or [case.tokens.size],
    }
    if case.stale:
        made["parent_went_on_to"] = list(case.stale)
    return made | ({"answers": _answers(case, params)} if answers else {})


def _answers(case: HashCase, params: HashParams) -> dict[str, Any]:
    """Every stage by the reference. A mix may pass 2**53, so it is a string."""
    ids = params.compress(case.tokens, case.mask).tolist()
    past = params.past(case.history).tolist()
    windows = [reference.look_back(past + ids, len(past) + t, params) for t in range(len(ids))]
    rows = reference.hash_rows(case.tokens, params, case.mask, case.history)
    return {
        "compressed": ids,
        "windows": windows,
        "mixes": [[_mixes(window, layer, params) for layer in range(len(params.layers))] for window in windows],
        "buckets": (rows - params.offsets.astype(np.int64)).tolist(),
        "rows": rows.tolist(),
    }


def _mixes(window: list[int], layer: int, params: HashParams) -> list[str]:
    mixed, made = window[0] * int(params.multipliers[layer, 0]), []
    for n in range(1, params.size):
        mixed ^= window[n] * int(params.multipliers[layer, n])
        made.append(str(mixed))
    return made


def read(path: Path, params: HashParams) -> Probe:
    """A probe file's sequences; its constants must be `params`'."""
    with ReadFile.open(path) as file:
        if file.size > MOST_BYTES:
            raise FormatError(path, None, f"at most {MOST_BYTES} bytes", f"{file.size}")
        found = strict_json.read_object(path, file.read(0, file.size, "the probe"), 0)
    if found.get("kind") != KIND:
        raise FormatError(path, None, f"a hash probe of kind {KIND}", shown(found.get("kind")))
    if found.get("constants") != _constants(params):
        raise FormatError(path, "constants", "those of the check", "others: give --params or --profile")
    listed = found.get("sequences")
    if not isinstance(listed, list) or not listed or not all(isinstance(each, dict) for each in listed):
        raise FormatError(path, "sequences", "a list of sequences", shown(listed)[:60])
    return Probe([_read(each, path, params) for each in listed])


def _read(each: dict[str, Any], path: Path, params: HashParams) -> ProbeSequence:
    name = each.get("name")
    if not isinstance(name, str):
        raise FormatError(path, "sequences", "a name", shown(name))
    where, V = f"sequence {shown(name, 40)}", params.token_map.size
    tokens = _integers(each, "tokens", path, where, 0, V)
    mask = None if each.get("mask") is None else _integers(each, "mask", path, where, 0, 2)
    history = _integers(each, "history", path, where, DEAD, params.compressed)
    past = _integers(each, "history_tokens", path, where, DEAD, V)
    chunks = _integers(each, "chunks", path, where, 1, len(tokens) + 1)
    stale = _integers(each, "parent_went_on_to", path, where, DEAD, params.compressed)
    if not tokens or (mask is not None and len(mask) != len(tokens)) or sum(chunks) != len(tokens):
        raise FormatError(path, where, "tokens, a mask entry for each, and chunks of as many", "others")
    if len(past) not in (0, len(history)) or max(len(history), len(stale)) >= params.size:
        raise FormatError(path, where, f"at most {params.size - 1} ids of history", f"{len(history)}")
    alive = None if mask is None else np.array(mask, np.bool_)
    case = HashCase(np.array(tokens, np.int64), alive, tuple(history), tuple(chunks), tuple(stale), tuple(past))
    return ProbeSequence(name, str(each.get("why", "")), case)


def _integers(each: dict[str, Any], name: str, path: Path, where: str, low: int, high: int) -> list[int]:
    value = each.get(name, [])
    if not isinstance(value, list) or not all(type(item) is int and low <= item < high for item in value):
        raise FormatError(path, where, f"{name} as integers in {low}..{high - 1}", shown(value)[:60])
    return value
