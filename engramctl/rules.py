"""The axes along which hashed n-gram memories differ, and the combinations that somebody has defined.

A model is one point in this space. Any other combination of known words is refused: no implementation says what it
would mean.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from engramctl.errors import EngramctlError


@dataclass(frozen=True)
class HashRule:
    """Where a model stands on each axis along which hashed n-gram memories differ."""

    id_space: str  # "map": ids go through a token map first; "raw": as they are; "byte": a text's bytes and some marks
    order: str  # "newest_first": multiplier 0 meets the current token; "oldest_first": the n-gram's first
    align: str  # "current": a short n-gram ends at the current token; "left": it begins where the longest one does
    boundary: tuple[str, ...]  # what look-back may not cross: start, dead, eos (also from the EOS itself: eos_itself)
    filler: str  # what stands in a blocked slot: "pad" or "eos", an id; "zero", nothing
    sticky: bool  # a blocked slot blocks every older one
    mix: str  # how an n-gram becomes a number: "xor_mul", "poly_mod", "wrap_poly"
    mix_scope: str  # "order": one mix serves all heads of an n-gram order; "column": each column has its own


V41_RULE = HashRule("map", "newest_first", "current", ("start", "dead"), "pad", True, "xor_mul", "order")

START, DEAD, EOS, EOS_ITSELF = ("start",), ("start", "dead"), ("start", "eos"), ("start", "dead", "eos", "eos_itself")
NEWEST, OLDEST, MISALIGNED = ("newest_first", "current"), ("oldest_first", "current"), ("oldest_first", "left")

# mix -> (id space, order and alignment, boundary, filler, scope) that some implementation has.
DEFINED: dict[str, tuple[tuple[str, tuple[str, str], tuple[str, ...], str, str], ...]] = {
    "xor_mul": (
        ("map", NEWEST, DEAD, "pad", "order"),  # DeepSeek V4.1 Flash
        ("map", NEWEST, START, "pad", "order"),  # deepseek-ai/Engram engram_demo_v1.py
        ("map", MISALIGNED, START, "pad", "order"),  # engram-peft
        ("raw", NEWEST, EOS, "eos", "order"),  # Qwen3.8-Flash-Next
    ),
    "poly_mod": (
        ("raw", NEWEST, ("start", "dead", "eos"), "zero", "column"),  # LongCat
        ("raw", NEWEST, EOS_ITSELF, "zero", "column"),
        ("raw", NEWEST, START, "zero", "column"),
    ),
    "wrap_poly": (("byte", OLDEST, START, "zero", "order"),),  # BLT
}
WORDS: dict[str, tuple[str, ...]] = {
    "id_space": ("map", "raw", "byte"),
    "order": ("newest_first", "oldest_first"),
    "align": ("current", "left"),
    "boundary": ("start", "dead", "eos", "eos_itself"),
    "filler": ("pad", "eos", "zero"),
    "mix": tuple(DEFINED),
    "mix_scope": ("order", "column"),
}


def read(table: dict[str, Any], where: str) -> HashRule:
    """The rule of a profile's [rule]; unknown words and combinations nobody has defined raise `EngramctlError`."""
    for axis in (field.name for field in fields(HashRule)):
        if axis not in table:
            raise EngramctlError(f"{where} at rule", f"a word for {axis}", "none")
        value = table[axis]
        if axis == "sticky":
            if not isinstance(value, bool):
                raise EngramctlError(f"{where} at rule.sticky", "true or false", f"{value!r:.40}")
            continue
        known = f"{'words' if axis == 'boundary' else 'one'} of {', '.join(WORDS[axis])}"
        words = value if axis == "boundary" else [value]
        if not isinstance(words, (list, tuple)) or not all(word in WORDS[axis] for word in words) or not words:
            raise EngramctlError(f"{where} at rule.{axis}", known, f"{value!r:.60}")
    rule = HashRule(**{name: table[name] for name in WORDS if name != "boundary"} | _rest(table))
    check(rule, f"{where} at rule")
    return rule


def _rest(table: dict[str, Any]) -> dict[str, Any]:
    return {"boundary": tuple(table["boundary"]), "sticky": table["sticky"]}


def check(rule: HashRule, where: str) -> None:
    """Refuse a combination that nobody has defined, naming those of the same mix."""
    asked = (rule.id_space, (rule.order, rule.align), rule.boundary, rule.filler, rule.mix_scope)
    known = DEFINED.get(rule.mix, ())
    if asked not in known or not rule.sticky:
        spelled = " or ".join(_spell(point) for point in known)
        raise EngramctlError(
            where, f"a combination that is defined for {rule.mix}: {spelled}", _spell(asked, rule.sticky)
        )


def _spell(point: tuple[str, tuple[str, str], tuple[str, ...], str, str], sticky: bool = True) -> str:
    id_space, (order, align), boundary, filler, scope = point
    rest = "" if sticky else ", not sticky"
    return f"{id_space} ids, {order}, {align}, boundary {'+'.join(boundary)}, filler {filler}, per {scope}{rest}"
