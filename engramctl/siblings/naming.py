"""Whose rows are these? Rows that are not the expected ones are held against every other rule of the same mix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from engramctl import fast, rules
from engramctl.errors import EngramctlError
from engramctl.hash_params import HashParams
from engramctl.row_dumps import Rows
from engramctl.rules import HashRule

Mask = NDArray[np.bool_] | None
RULES = {
    ("oldest_first", "left"): "engram-peft's: windows oldest first, so that bigrams lack the current token",
    ("newest_first", "start"): "look-back stops at the start alone, and goes through an EOS",
    ("newest_first", "start+dead"): "V4.1's: look-back stops at the start and at dead positions",
    ("newest_first", "start+eos"): "look-back stops at an EOS, which still sees its own segment",
    ("newest_first", "start+dead+eos"): "look-back stops at an EOS, which still sees its own segment",
    ("newest_first", "start+dead+eos+eos_itself"): "every column of an EOS is 0, and look-back stops there",
    ("oldest_first", "start"): "byte groups, oldest first",
}

VARIANTS = {("start",): "eos-ignored", ("start", "dead", "eos", "eos_itself"): "eos-zeroed"}


def spell(rule: HashRule) -> str:
    """A rule's windows in words."""
    if rule.align == "left":
        return RULES["oldest_first", "left"]
    words, variant = RULES[rule.order, "+".join(rule.boundary)], VARIANTS.get(rule.boundary)
    return f"{words} (LongCat's variant {variant})" if rule.mix == "poly_mod" and variant else words


def notes(
    found: Rows, tokens: NDArray[np.int64], params: HashParams, mask: Mask, history: Sequence[int], differ: bool
) -> list[str]:
    """The rule that was used, and where the rows differ, the rule whose rows they are."""
    said = [f"the rule: {spell(params.rule)}"]
    if params.rule.align == "left":
        said.append("these are not the rows of engram-demo, whatever the adapter's documentation says")
    if differ:
        said += [
            f"all of them are the rows of another rule: {words}"
            for words in _others(found, tokens, params, mask, history)
        ]
    return said


def _others(
    found: Rows, tokens: NDArray[np.int64], params: HashParams, mask: Mask, history: Sequence[int]
) -> Iterator[str]:
    places = [params.layers.index(layer) for layer in found.layers]
    offsets = params.offsets.astype(np.int64)[places]
    for rule in [params.rule, *_alternatives(params)]:
        try:
            rows = fast.hash_rows(tokens, replace(params, rule=rule).check(), mask, history)[:, places]
        except EngramctlError:  # a mask or a history that the rule has no word for
            continue
        if rule != params.rule and np.array_equal(rows, found.rows):
            yield spell(rule)
        if np.array_equal(rows - offsets, found.rows):
            yield f"{spell(rule)}; and without the columns' offsets"


def _alternatives(params: HashParams) -> Iterator[HashRule]:
    for id_space, (order, align), boundary, filler, scope in rules.DEFINED[params.rule.mix]:
        rule = HashRule(id_space, order, align, boundary, filler, True, params.rule.mix, scope)
        if id_space == params.rule.id_space and filler == params.rule.filler and rule != params.rule:
            yield rule
