"""How a token becomes a key, step by step, so that a step can be left out or done otherwise.

`vocabulary` is the released way, and so is a `KeyPlan` of defaults; the other choices are what engines were seen to do.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from engramctl.vocabulary import LONE_SPACE, REPLACEMENT

if TYPE_CHECKING:
    from tokenizers import Tokenizer

STEPS = ("nfkc", "nfd", "accents", "case", "collapse", "lone_space", "strip", "space_again")
Step = Callable[[str], str]
TextOf = Literal["decoded", "without special tokens", "piece"]


@dataclass(frozen=True)
class KeyPlan:
    """The choices; every default is the released one."""

    text: TextOf = "decoded"
    added: bool = True  # tokens beyond the base vocabulary have entries
    cut_characters: bool = True  # a text with U+FFFD is keyed by its vocabulary piece
    fallback: bool = True  # a text that normalises to nothing is keyed as it is
    without: frozenset[str] = frozenset()  # of STEPS
    instead: Mapping[str, Step] = field(default_factory=dict)  # another way to do one of STEPS


class Texts:
    """A tokenizer's texts and pieces in id order, decoded once for any number of plans."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._made: dict[TextOf, list[str]] = {}
        self.count = tokenizer.get_vocab_size(with_added_tokens=True)
        self.base = tokenizer.get_vocab_size(with_added_tokens=False)

    def of(self, kind: TextOf) -> list[str]:
        if kind not in self._made:
            ids = range(self.count)
            if kind == "piece":
                self._made[kind] = [self._tokenizer.id_to_token(token) or "" for token in ids]
            else:
                skip = kind == "without special tokens"
                self._made[kind] = self._tokenizer.decode_batch([[token] for token in ids], skip_special_tokens=skip)
        return self._made[kind]


def by_combining_class(text: str) -> str:
    return "".join(letter for letter in text if not unicodedata.combining(letter))


def by_category_mn(text: str) -> str:
    return "".join(letter for letter in text if unicodedata.category(letter) != "Mn")


def all_white_space(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def normaliser(plan: KeyPlan) -> Step:
    """The plan's steps as one function; neighbours of the library's own run in one call."""
    from tokenizers import Regex, normalizers

    library: dict[str, Any] = {
        "nfkc": normalizers.NFKC(),
        "nfd": normalizers.NFD(),
        "accents": normalizers.StripAccents(),
        "case": normalizers.Lowercase(),
        "collapse": normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
        "lone_space": normalizers.Replace(Regex("^ $"), LONE_SPACE),
        "strip": normalizers.Strip(),
        "space_again": normalizers.Replace(LONE_SPACE, " "),
    }
    runs: list[Step] = []
    for own, names in groupby((name for name in STEPS if name not in plan.without), lambda name: name in plan.instead):
        if own:
            runs += [plan.instead[name] for name in names]
        else:
            runs.append(normalizers.Sequence([library[name] for name in names]).normalize_str)

    def normalise(text: str) -> str:
        for run in runs:
            text = run(text)
        return text

    return normalise


def build(texts: Texts, plan: KeyPlan) -> NDArray[np.uint32]:
    """[V] compressed id of each token id, numbered by first appearance of its key."""
    normalise, numbers = normaliser(plan), dict[str, int]()
    count = texts.count if plan.added else texts.base
    ids = np.empty(count, np.uint32)
    for token, (text, piece) in enumerate(zip(texts.of(plan.text)[:count], texts.of("piece")[:count], strict=True)):
        if plan.cut_characters and REPLACEMENT in text:
            key = piece
        else:
            key = normalise(text)
            if plan.fallback and not key:
                key = text
        ids[token] = numbers.setdefault(key, len(numbers))
    return ids
