"""Mistakes of masks and history: what look-back sees at starts, images, chunk boundaries and forks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from engramctl.mistakes import invert
from engramctl.mistakes.hashing import HashCase, HashPlan, Rows, compress, rows
from engramctl.mistakes.record import ENGRAM, Fitted, Mistake

CACHED = 128  # tokens before which transformers' padded cache made every token dead
MOST_SHIFT = 3
SHOWN = 4  # cuts that are named


@dataclass(frozen=True)
class SeenRows:
    """Rows that were dumped: [T, l, C] of these places among the plan's layers, and the positions that count."""

    rows: Rows
    places: tuple[int, ...]
    wanted: NDArray[np.bool_]

    def of(self, made: Rows) -> Rows:
        return made[:, list(self.places)]

    def equal(self, made: Rows) -> NDArray[np.bool_]:
        """[T] positions that agree whole."""
        return np.asarray((self.of(made) == self.rows).all(axis=(1, 2)))


def fit_cuts(plan: HashPlan, case: HashCase, seen: SeenRows) -> Iterator[Fitted[HashPlan]]:
    """Positions that look as if the sequence began there, or with fewer ids behind it than look-back takes."""
    T = case.tokens.size
    right = seen.equal(rows(plan, case))
    for kept in range(plan.size - 1):
        every = replace(plan, cuts=tuple(range(1, T)), kept=kept)
        begins = seen.equal(rows(every, case)) & ~right & seen.wanted
        begins[1:] &= right[:-1] | begins[:-1] | (kept == 0)
        cuts = np.flatnonzero(begins)
        cuts = cuts[cuts > 0]
        if cuts.size:
            found = tuple(int(at) for at in cuts)
            yield Fitted(replace(plan, cuts=found, kept=kept), _places([case.first + at for at in found], kept))


def _places(cuts: list[int], kept: int) -> str:
    behind = f" with {kept} of the ids before" if kept else ""
    step = math.gcd(*cuts)
    if len(cuts) > 1 and all(later - earlier == step for earlier, later in pairwise(cuts)):
        return f"every {step} token{'s' if step > 1 else ''}{behind}"
    listed = ", ".join(map(str, cuts[:SHOWN]))
    more = f" and {len(cuts) - SHOWN} others" if len(cuts) > SHOWN else ""
    return f"at position {listed}{more}{behind}"


def fit_dead(plan: HashPlan, case: HashCase, seen: SeenRows) -> Iterator[Fitted[HashPlan]]:
    """How many positions from the start have nothing but the filler's rows."""
    filler = seen.equal(rows(replace(plan, mask="all dead"), case))
    until = case.tokens.size if filler.all() else int(filler.argmin())
    if 0 < until < case.tokens.size:
        yield Fitted(replace(plan, dead_until=until), f"until position {case.first + until}")


def fit_stale(plan: HashPlan, case: HashCase, seen: SeenRows) -> Iterator[Fitted[HashPlan]]:
    """The compressed ids that the first position looked back on, if they are not those that were given."""
    if not case.history or not case.tokens.size or (case.mask is not None and not case.mask[0]):
        return
    first = int(compress(plan, case.tokens[:1])[0])
    for place, layer in enumerate(seen.places[:1]):
        ids = invert.window(seen.rows[0, place], plan, layer, first)
        if ids is not None and tuple(ids[:0:-1]) != case.history:
            stale = tuple(ids[:0:-1])
            yield Fitted(replace(plan, past="stale", stale=stale), f"look-back has {', '.join(map(str, stale))}")


def fit_shift(plan: HashPlan, case: HashCase, seen: SeenRows) -> Iterator[Fitted[HashPlan]]:
    for shift in (1, -1, 2, -2, 3, -3):
        if abs(shift) < case.tokens.size:
            yield Fitted(replace(plan, shift=shift), f"by {shift:+d}")


MISTAKES: tuple[Mistake[HashPlan], ...] = (
    Mistake(
        "mask-not-sticky",
        "history",
        "A dead position fills its own slot only; look-back goes on to the text before it.",
        "Only the second and third position after a gap differ, in the longer orders.",
        "After each image a few rows are of n-grams that reach over it.",
        "Once a slot is blocked, every older one is filled too.",
        ENGRAM + ": the blocked flag is latched",
        lambda plan: replace(plan, sticky=False),
    ),
    Mistake(
        "current-position-ignored",
        "history",
        "A dead position hashes its own token: only the slots behind it are checked.",
        "Rows at dead positions differ; rows after them agree.",
        "None where the gate is shut at dead positions; else images get the image token's rows.",
        "The check starts at the current position: a dead one's slots are all filled.",
        ENGRAM + ": shift 0 counts",
        lambda plan: replace(plan, dead_itself=False),
    ),
    Mistake(
        "mask-ignored",
        "history",
        "Image positions are hashed like text, by the image token's id.",
        "Rows at dead positions and at the three after each gap differ.",
        "Text after an image reads rows that no training made.",
        "Positions with a token type count as dead: pass the mask to the hash.",
        "sgl-project/sglang: an image is any token equal to image_token_id",
        lambda plan: replace(plan, mask="ignored"),
    ),
    Mistake(
        "mask-inverted",
        "history",
        "The mask is read the other way round: text is dead and images live.",
        "Every text position has the filler's rows.",
        "The memory adds the same rows to all text.",
        "True or 1 is text.",
        ENGRAM + ": a token type of 0 or more is an image",
        lambda plan: replace(plan, mask="inverted"),
    ),
    Mistake(
        "all-dead",
        "history",
        "Every position counts as dead.",
        "Every row is the filler's.",
        "The memory adds nothing, or the same to every token.",
        "A run of text alone has no dead position: count them.",
        "huggingface/transformers#48721",
        lambda plan: replace(plan, mask="all dead"),
    ),
    Mistake(
        "dead-until-cached",
        "history",
        "Positions before some length count as dead (a mask made for a padded, static cache).",
        "Rows are the filler's until that position, and right soon after it.",
        "Short prompts get no memory at all, long ones look healthy.",
        "Make the mask of the tokens that are there, not of the cache's length.",
        "huggingface/transformers#48721",
        lambda plan: replace(plan, dead_until=CACHED),
        fit_dead,
    ),
    Mistake(
        "history-lost",
        "history",
        "Look-back is lost, or partly lost, where a chunk, a micro-batch or a decoding step begins.",
        "The first three positions of a chunk differ, in 24, 16, 8 columns: 48 of a layer's 12,288 rows of 512 tokens.",
        "A few rows in every chunk are wrong; decoding token by token, all of them.",
        "Keep the last three compressed ids of each sequence and look back on them.",
        "vllm-project/vllm#56440",
        lambda plan: replace(plan, cuts="chunks"),
        fit_cuts,
    ),
    Mistake(
        "history-not-restored",
        "history",
        "The history is empty where a sequence is forked, copied or resumed from a prefix cache.",
        "The first three positions after the fork differ, as at the start of a sequence.",
        "Each resumed sequence begins with wrong rows.",
        "Copy the last three compressed ids with the cache.",
        "vllm-project/vllm#56440",
        lambda plan: replace(plan, past="none"),
    ),
    Mistake(
        "fork-keeps-parents-end",
        "history",
        "After a fork or a rollback look-back still sees what the parent, or the rejected draft, went on to.",
        "The first three positions after the fork differ, though no slot is the filler.",
        "Each resumed sequence begins with wrong rows.",
        "Take the history of the position that is resumed, not the newest one.",
        ENGRAM + ": ids are kept by position and written before look-back",
        lambda plan: replace(plan, past="stale"),
        fit_stale,
    ),
    Mistake(
        "filler-zero",
        "history",
        "Blocked slots are filled with compressed id 0 instead of the pad.",
        "The first three positions of a sequence and those after a gap differ.",
        "Wrong rows at every start and after every image.",
        "The filler is token_map[pad token id]: 2 in the release.",
        ENGRAM + ": the filler is the compressed pad",
        lambda plan: replace(plan, pad=0),
    ),
    Mistake(
        "raw-pad",
        "history",
        "Blocked slots are filled with the pad's raw token id instead of its compressed one.",
        "Nothing differs in the release, whose pad 2 is compressed to 2; with another map as filler-zero.",
        "Wrong rows at every start and after every image, in a model whose map moves the pad.",
        "The filler is token_map[pad token id].",
        ENGRAM + ": the filler is the compressed pad",
        lambda plan: replace(plan, pad=plan.raw_pad),
    ),
    Mistake(
        "dead-rows-left-zero",
        "history",
        "Rows at dead positions are not computed but left at 0.",
        "Rows at dead positions are 0; all others agree.",
        "None where the gate is shut at dead positions. --skip-dead leaves them out.",
        "Nothing, or compute them: the released code does.",
        ENGRAM + ": dead positions are hashed, all filler",
        lambda plan: replace(plan, dead_rows=False),
    ),
    Mistake(
        "positions-shifted",
        "history",
        "A position has the rows of a neighbour: look-ups run one step early or late.",
        "The right rows, some positions off.",
        "Each token gets its neighbour's memory.",
        "Hash the token whose hidden state the rows are added to.",
        "vllm-project/vllm: placeholders of asynchronous scheduling",
        lambda plan: replace(plan, shift=1),
        fit_shift,
    ),
)
