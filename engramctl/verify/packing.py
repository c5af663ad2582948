"""check packing: two holders of the same tables, byte by byte: a container and its checkpoint, or two containers.

Streams in file order with a few megabytes in memory. What is a hole on both sides is zeros on both sides, and not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engramctl import rowsets, telling, threads
from engramctl.errors import EngramctlError
from engramctl.extents import chunks
from engramctl.hash_params import MOST_COLUMNS
from engramctl.profiles import Profile, Sizes
from engramctl.rowsets import Range
from engramctl.table import Table
from engramctl.verify import confidence, constants, loose, packing_structure, quantised, texts
from engramctl.verify import progress as progresses
from engramctl.verify.result import MOST_FINDINGS, Coverage, Result
from engramctl.verify.sides import WEIGHTS, Side, Weight, bands
from engramctl.verify.streams import Compared, compare
from formats import row264, tree_digest

CHECK = "packing"
MOST_SAMPLE = 1 << 22
SAVE_BYTES = 1 << 30  # of each side, compared between two notes of the progress

Progress = Callable[[int], None]  # bytes compared since the last call
Rows = NDArray[np.uint8]


@dataclass(frozen=True)
class Asked:
    """Which part of the comparison is wanted; None is all of it."""

    layer: int | None = None
    rows: Sequence[Range] | None = None
    sample: int | None = None
    seed: int = 0
    digest: str | None = None  # "tree": of the second side's tables, in the same pass
    threads: int | None = None
    keep: Path | None = None  # where the progress is kept, for a later run to go on from


def check(want: Side, have: Side, profile: Profile, asked: Asked, progress: Progress = lambda n: None) -> Result:
    """Rows, weights and constants of `have` against those of `want`."""
    layers = _layers(want, have, asked.layer)
    result = Result(Coverage("rows", 0, 0, asked.sample is not None))
    tables = [*want.tables.values(), *have.tables.values()]
    plan = progresses.plan_of(tables, {"layer": asked.layer, "digest": asked.digest}) if asked.keep else {}
    state = progresses.resume(asked.keep, plan, result)
    begun = layers[layers.index(state.layer) :] if state.layer in layers else layers
    for layer in begun:
        if layer not in want.tables or layer not in have.tables:
            _lonely(want, have, layer, result)
        elif asked.sample is not None or asked.rows is not None:
            _some(want, have, profile, layer, asked, progress, result)
        else:
            _all(want, have, layer, asked, progress, result, state)
    if asked.digest == "tree":
        _digests(want, have, state, result)
    if state.unread:
        result.notes.append(f"{state.unread} rows lie in holes on both sides and count as zeros read")
    result.structure = packing_structure.facts(want.tables, have.tables, result)
    compared = [layer for layer in layers if layer in want.tables and layer in have.tables]
    rows_alone = any(side.stored is not None and not side.stored.names for side in (want, have))
    for layer in compared if not rows_alone else ():
        for role in WEIGHTS:
            _weight(want, have, layer, role, result)
    _constants(want, have, asked.layer, result)
    state.forget()
    return result


def bytes_to_read(want: Side, have: Side, asked: Asked) -> int:
    """At most: what is a hole on both sides is not known before."""
    both = [layer for layer in want.tables if layer in have.tables and asked.layer in (None, layer)]
    rows = [min(want.tables[layer].rows, have.tables[layer].rows) for layer in both]
    if asked.sample is not None:
        rows = [min(count, asked.sample) for count in rows]
    elif asked.rows is not None:
        rows = [sum(last - first for first, last in rowsets.joined(asked.rows, count)) for count in rows]
    return sum(rows) * row264.ROW_BYTES


def _lonely(want: Side, have: Side, layer: int, result: Result) -> None:
    """A layer that only one side has."""
    if layer in want.tables:
        result.add(CHECK, f"layer {layer}", f"a table as in {want.path}", f"none in {have.path}")
        result.coverage.of += want.tables[layer].rows
    else:
        result.add(CHECK, f"layer {layer}", f"no table as in {want.path}", f"one in {have.path}")
        result.coverage.of += have.tables[layer].rows


def _layers(want: Side, have: Side, layer: int | None) -> list[int]:
    every = sorted({*want.tables, *have.tables})
    if layer is None:
        return every
    if layer not in every:
        raise EngramctlError("--layer", f"one of {', '.join(map(str, every))}", f"{layer}")
    return [layer]


def _counted(expected: Table, found: Table, layer: int, result: Result) -> int:
    """How many rows both tables have; a difference is a finding."""
    if expected.whole != found.whole:
        result.add(CHECK, f"layer {layer}", f"{expected.whole} rows", f"{found.whole}")
    result.coverage.of += expected.rows
    return min(expected.rows, found.rows)


def _some(
    want: Side, have: Side, profile: Profile, layer: int, asked: Asked, progress: Progress, result: Result
) -> None:
    """Compare a sample of one layer's rows, or the rows asked for."""
    expected, found = want.tables[layer], have.tables[layer]
    count = _counted(expected, found, layer, result)
    if asked.rows is not None:
        if max(last for _, last in asked.rows) > expected.rows:
            last = max(last for _, last in asked.rows) - 1
            raise EngramctlError("--rows", f"rows in 0..{expected.rows - 1} of layer {layer}", f"{last}")
        wanted = rowsets.joined(asked.rows, count)
        if loose.needed(expected, found):
            wanted = loose.ranges(expected, found, wanted, count, result)
            loose.compare(expected, found, wanted, _rows, CHECK, progress, result)
            return
        for rows in wanted:
            for done in compare(expected, found, rows, False, asked.threads or threads.count()):
                _take(layer, done, progress, result)
        return
    picked = seeded_rows(profile, want.sizes, layer, count, asked.sample or 0, asked.seed)
    result.coverage.checked += picked.size
    before = result.total
    for first, last in chunks(0, picked.size):
        some = picked[first:last]
        loose.rows(expected, found, some, _rows, CHECK, result)
        progress(some.size * row264.ROW_BYTES)
    if picked.size < count:
        confidence.say(layer, count, min(asked.sample or 0, count), result.total - before, "differ", result)


def _all(
    want: Side, have: Side, layer: int, asked: Asked, progress: Progress, result: Result, state: progresses.Progress
) -> None:
    """Compare one layer's rows from where an earlier run stopped, and take the digest of what was found."""
    expected, found = want.tables[layer], have.tables[layer]
    if loose.needed(expected, found):
        count = _counted(expected, found, layer, result)
        wanted = loose.ranges(expected, found, None, count, result)
        loose.compare(expected, found, wanted, _rows, CHECK, progress, result)
        return
    if state.layer == layer:
        count, first = min(expected.rows, found.rows), state.row
    else:
        count, first = _counted(expected, found, layer, result), 0
        state.layer, state.row = layer, 0
    progress(first * row264.ROW_BYTES)
    leaves, unsaved = state.leaves.setdefault(layer, {}), 0
    try:
        for done in compare(expected, found, (first, count), asked.digest == "tree", asked.threads or threads.count()):
            _take(layer, done, progress, result)
            leaves.update(zip(tree_digest.blocks(done.span.first, done.span.last), done.leaves, strict=False))
            state.row = done.span.last
            state.unread += done.span.last - done.span.first - done.rows_read
            unsaved += done.rows_read * row264.ROW_BYTES
            if unsaved >= SAVE_BYTES:
                state.save(result)
                unsaved = 0
    except BaseException:
        state.save(result)
        raise


def _digests(want: Side, have: Side, state: progresses.Progress, result: Result) -> None:
    """Of the second side's tables that were read whole."""
    found = {}
    for layer, leaves in state.leaves.items():
        rows = have.tables[layer].rows
        if want.tables[layer].rows >= rows and len(leaves) == len(tree_digest.blocks(0, rows)):
            found[str(layer)] = tree_digest.root(0, rows, [leaves[block] for block in sorted(leaves)])
            result.notes.append(f"tree digest of layer {layer} in {have.path}: {found[str(layer)]}")
    result.extra["digests"] = found


def _take(layer: int, done: Compared, progress: Progress, result: Result) -> None:
    rows = done.span.last - done.span.first
    result.coverage.checked += rows
    if done.numbers:
        _rows(layer, np.array(done.numbers), np.stack(done.want), np.stack(done.have), result)
    result.total += done.differing - len(done.numbers)
    progress(rows * row264.ROW_BYTES)


def seeded_rows(
    profile: Profile, sizes: Sizes | None, layer: int, count: int, sample: int, seed: int
) -> NDArray[np.int64]:
    """The telling rows of a table of `count`, and `sample` others by the seed, ascending."""
    if sample > MOST_SAMPLE:
        raise EngramctlError("--sample", f"at most {MOST_SAMPLE} rows, or all of them", f"{sample}")
    boundaries = []
    if sizes is not None and layer in sizes.layers and sizes.columns * len(sizes.layers) <= MOST_COLUMNS:
        boundaries = telling.heads(profile, sizes, sizes.layers.index(layer))
    seeded = np.random.default_rng([seed, layer]).choice(count, min(sample, count), replace=False)
    return np.unique(np.concatenate([np.array(telling.rows(count, boundaries), np.int64), seeded.astype(np.int64)]))


def _rows(layer: int, numbers: NDArray[np.int64], want: Rows, have: Rows, result: Result) -> None:
    differs = want != have
    wrong = np.flatnonzero(differs.any(axis=1))
    named = wrong[: max(0, MOST_FINDINGS - len(result.findings))]
    for i in named.tolist():
        byte, others = int(differs[i].argmax()), int(np.count_nonzero(differs[i])) - 1
        more = f" (and {others} bytes more)" if others else ""
        where = f"layer {layer} row {numbers[i]} byte {byte}"
        result.add(CHECK, where, f"{want[i, byte]:#04x}", f"{have[i, byte]:#04x}{more}")
    result.total += int(wrong.size - named.size)


def _weight(want: Side, have: Side, layer: int, role: str, result: Result) -> None:
    """Equal numbers, signs of zeros included."""
    expected, found = want.weights.get((layer, role)), have.weights.get((layer, role))
    if expected is None or found is None:
        if expected is not None:
            result.add(CHECK, f"layer {layer} {role}", f"a tensor as {expected.name} in {want.path}", "none")
        elif found is not None:
            result.add(CHECK, f"tensor {found.name}", f"no such tensor, as in {want.path}", "one")
        return
    if expected.shape != found.shape:
        result.add(CHECK, f"tensor {found.name}", f"{list(expected.shape)} as {expected.name}", f"{list(found.shape)}")
        return
    for first, rows in bands(expected.shape[0]):
        _band(expected, found, first, rows, result)


def _band(expected: Weight, found: Weight, first: int, rows: int, result: Result) -> None:
    want, have = expected.band(first, rows), found.band(first, rows)
    if want is None and have is None:
        return
    zeros = np.zeros((rows, expected.shape[1]))
    want, have = zeros if want is None else want, zeros if have is None else have
    if not (expected.exact and found.exact):
        kind = found.kind if not found.exact else expected.kind
        for row, allowed, off in quantised.outside(want, have, kind):
            result.add(CHECK, f"tensor {found.name} row {first + row}", allowed, off)
        return
    odd = np.isnan(want) & np.isnan(have)  # neither is a number: nothing to compare
    if odd.any():
        result.notes.append(
            f"tensor {found.name} rows {first} to {first + rows}: {np.count_nonzero(odd)} NaNs, in both"
        )
    differs = ~odd & ((want != have) | (np.signbit(want) != np.signbit(have)))
    count = int(np.count_nonzero(differs))
    if not count:
        return
    named = np.argwhere(differs)[: max(0, MOST_FINDINGS - len(result.findings))]
    for row, column in named.tolist():
        where = f"tensor {found.name} row {first + row} column {column}"
        result.add(CHECK, where, f"{want[row, column]:.9g}", f"{have[row, column]:.9g}")
    result.total += count - len(named)


def _constants(want: Side, have: Side, layer: int | None, result: Result) -> None:
    """Keys and texts of a container, whichever side it is on; two checkpoints have none."""
    stored = have.stored
    if stored is None or not stored.names:  # a checkpoint, or a file of rows alone
        if want.stored is not None and want.stored.names:
            _constants(have, want, layer, result)
        return
    layers = tuple(sorted(have.tables)) if have.sizes is None else constants.container_layers(stored, have.sizes)
    layers = tuple(each for each in layers if each in want.tables) or tuple(sorted(want.tables))
    constants.compare("constants", stored, want.expected(layers), layers, result)
    if want.stored is not None and want.kind == have.kind:
        constants.lacking("constants", want.stored, stored, str(want.path), result)
    ours, theirs = want.texts, have.texts
    if ours is None or theirs is None:
        return
    roles = ours if want.stored is None else dict.fromkeys([*ours, *theirs])
    whole = want.needs_texts and have.needs_texts
    if not whole:
        roles = {role: None for role in roles if role in ours and role in theirs}
    texts.compare(roles, ours, theirs, (str(want.path), str(have.path)), result, whole)
    texts.compare_keys(have.kind, ours.get(texts.CONFIG), have.sizes_as_keys, str(want.path), result)
