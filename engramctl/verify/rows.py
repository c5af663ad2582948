"""check hash: row numbers that an engine dumped, against the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engramctl import reference
from engramctl.errors import EngramctlError
from engramctl.hash_params import HashParams
from engramctl.mistakes.hash_probe_file import Probe
from engramctl.mistakes.hashing import HashPlan, Maps, no_maps
from engramctl.mistakes.history import SeenRows
from engramctl.row_dumps import Judge, Rows
from engramctl.rules import V41_RULE
from engramctl.verify import name_rows, row_structure
from engramctl.verify.result import MOST_FINDINGS, Coverage, Result

CHECK = "hash"
REFERENCE_TOKENS = 20_000  # up to here the reference does it all, in a few seconds
SAMPLE = 1000  # positions of a longer sequence at which the fast tier is held against the reference
CHUNK = 1 << 16
JUDGED = 48  # positions on which the readings of a dump's axes are told apart

Tokens = NDArray[np.int64]
Mask = NDArray[np.bool_]


class HashRows(Protocol):
    def __call__(
        self, tokens: Tokens, params: HashParams, mask: Mask | None = None, history: Sequence[int] = ()
    ) -> NDArray[np.int64]: ...


def check(
    found: Rows,
    tokens: Tokens,
    params: HashParams,
    mask: Mask | None = None,
    history: Sequence[int] = (),
    skip_dead: bool = False,
    maps: Maps = no_maps,
) -> Result:
    """Every row number of `found`; with `skip_dead`, those at dead positions are left out.

    What differs is held against the known mistakes; `maps` gives the token maps that some of them make.
    """
    text = np.ones(tokens.size, np.bool_) if mask is None else mask
    wanted = text if skip_dead else np.ones(tokens.size, np.bool_)
    if not wanted.any():
        raise EngramctlError("--skip-dead", "a position that is not dead", f"{tokens.size} dead ones")
    result = _compared(found, tokens, params, mask, history, wanted)
    result.notes += found.notes
    differs = result.total > len(found.absent)  # rows that differ, not only a layer that was not dumped
    if differs and params.rule == V41_RULE:
        search = name_rows.search_of(found, tokens, params, mask, history, wanted, maps)
        first, count = search.parts[0].case.first, search.parts[0].case.tokens.size
        if count < tokens.size:
            part = f"positions {first} to {first + count - 1} of {tokens.size}"
            result.notes.append(f"only {part} were searched for what is behind the differences")
        explain(search, found.layers, result)
    return result


def _compared(
    found: Rows,
    tokens: Tokens,
    params: HashParams,
    mask: Mask | None,
    history: Sequence[int],
    wanted: Mask,
    name: str = "",
) -> Result:
    """Each row number at the positions that count; `name` goes before a position where there are several sequences."""
    text = np.ones(tokens.size, np.bool_) if mask is None else mask
    each = len(found.layers) * params.columns
    every = tokens.size * (each + len(found.absent) * params.columns)
    result = Result(Coverage("row numbers", int(wanted.sum()) * each, every))
    for layer in found.absent:
        result.add(CHECK, f"{name}layer {layer}", f"rows of {tokens.size} positions (or --layer)", "none")
    if not wanted.all():
        result.notes.append(f"{tokens.size - int(wanted.sum())} dead positions were left out")
    if not name and len(found.layers) + len(found.absent) < len(params.layers):
        result.notes.append(f"only layers {list(found.layers)} of {list(params.layers)} were compared")
    whole = _reference_rows if tokens.size <= REFERENCE_TOKENS else _screened(tokens, params, mask, history, result)
    alive = result.total
    places = [params.layers.index(layer) for layer in found.layers]
    for start in range(0, tokens.size, CHUNK):
        stop = min(start + CHUNK, tokens.size)
        expected = _part(whole, tokens, params, mask, history, start, stop)[:, places]
        different = (expected != found.rows[start:stop]) & wanted[start:stop, None, None]
        count = int(np.count_nonzero(different))
        alive += int(np.count_nonzero(different[text[start:stop]]))
        named = np.argwhere(different)[: max(0, MOST_FINDINGS - len(result.findings))]
        for at, place, column in named.tolist():
            position, layer = start + at, found.layers[place]
            sure = at_position(tokens, params, mask, history, position)[places[place], column]
            where = f"{name}position {position} (token {tokens[position]}) layer {layer} column {column}"
            result.add(CHECK, where, f"row {sure}", f"row {found.rows[position, place, column]}")
        result.total += count - len(named)
    if result.total and not alive:
        result.notes.append("all differences are at dead positions: --skip-dead ignores them")
    return result


def judge(
    tokens: Tokens, params: HashParams, mask: Mask | None, history: Sequence[int], buckets: bool = False
) -> Judge:
    """What share of a dump's row numbers is right, at some positions: for dumps whose axes are not plain."""
    at = np.unique(np.linspace(0, tokens.size - 1, min(tokens.size, JUDGED)).astype(np.int64))
    right = np.array([at_position(tokens, params, mask, history, int(position)) for position in at])
    right = right - params.offsets.astype(np.int64) if buckets else right

    def share(found: Rows) -> float:
        places = [params.layers.index(layer) for layer in found.layers]
        return float((found.rows[at] == right[:, places]).mean())

    return share


def with_offsets(found: Rows, params: HashParams) -> Rows:
    """Buckets -> rows."""
    places = [params.layers.index(layer) for layer in found.layers]
    return replace(found, rows=found.rows + params.offsets[places].astype(np.int64))


def check_probe(found: Rows, probe: Probe, params: HashParams, skip_dead: bool = False, maps: Maps = no_maps) -> Result:
    """The rows of all sequences of a probe, one after another; what differs is named from all of them at once."""
    plan, places = HashPlan.of(params, maps), tuple(params.layers.index(layer) for layer in found.layers)
    result, parts, start = Result(Coverage("row numbers", 0, 0)), [], 0
    for each in probe.sequences:
        case, stop = each.case, start + each.case.tokens.size
        some = Rows(found.layers, found.rows[start:stop])
        text = np.ones(case.tokens.size, np.bool_) if case.mask is None or not skip_dead else case.mask
        one = _compared(some, case.tokens, params, case.mask, case.history, text, f"sequence {each.name} ")
        result.join(one)
        parts.append(name_rows.Part(plan, case, SeenRows(some.rows, places, text), each.name))
        start = stop
    result.notes += found.notes
    if not result.ok:
        explain(name_rows.Search(plan, parts), found.layers, result)
    return result


def explain(search: name_rows.Search, layers: Sequence[int], result: Result) -> None:
    """The mistake behind the differences, or what they have in common."""
    result.diagnosis = name_rows.diagnose(search, layers)
    if result.diagnosis is None:
        result.structure = row_structure.facts(search, layers)


def at_position(
    tokens: Tokens, params: HashParams, mask: Mask | None, history: Sequence[int], position: int
) -> NDArray[np.int64]:
    """[L, C] rows of one position by the reference."""
    rows: NDArray[np.int64] = _part(reference.hash_rows, tokens, params, mask, history, position, position + 1)[0]
    return rows


def _part(
    hash_rows: HashRows,
    tokens: Tokens,
    params: HashParams,
    mask: Mask | None,
    history: Sequence[int],
    start: int,
    stop: int,
) -> NDArray[np.int64]:
    """Rows of positions start..stop: look-back reaches size - 1 ids, so what came before them is their history."""
    reach = params.size - 1
    before = tokens[max(0, start - reach) : start]
    some = None if mask is None else mask[max(0, start - reach) : start]
    past = [*history, *params.compress(before, some).tolist()][-reach:] if start else list(history)
    return hash_rows(tokens[start:stop], params, None if mask is None else mask[start:stop], past)


def _reference_rows(
    tokens: Tokens, params: HashParams, mask: Mask | None = None, history: Sequence[int] = ()
) -> NDArray[np.int64]:
    return reference.hash_rows(tokens, params, mask, history)


def _screened(
    tokens: Tokens, params: HashParams, mask: Mask | None, history: Sequence[int], result: Result
) -> HashRows:
    """The fast tier, after it has given the reference's rows at seeded positions and around every dead one's edge."""
    from engramctl import fast

    positions = set(np.random.default_rng(0).choice(tokens.size, SAMPLE, replace=False).tolist())
    positions |= {*range(params.size), tokens.size - 1}
    if mask is not None:
        edges = np.flatnonzero(mask[1:] != mask[:-1])[:SAMPLE]
        positions |= {min(int(edge) + back, tokens.size - 1) for edge in edges for back in range(params.size + 1)}
    for position in sorted(positions):
        sure = at_position(tokens, params, mask, history, position)
        screened = _part(fast.hash_rows, tokens, params, mask, history, position, position + 1)[0]
        if not np.array_equal(sure, screened):
            raise EngramctlError("fast hash", f"the reference's rows at position {position}", "others")
    agreed = f"after it gave the reference's rows at {len(positions)} positions"
    result.notes.append(f"compared with the fast engine's rows, {agreed}")
    return fast.hash_rows
