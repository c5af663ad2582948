"""map --explain: which tokens share a compressed id, and why each of them has it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engramctl import vocabulary
from engramctl.errors import EngramctlError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_MEMBERS = 256  # of a class that are listed; all are counted


def explain(asked: str, ids: NDArray[np.uint32], tokenizer: Path | None) -> list[dict[str, Any]]:
    """For a token id, or each token of a text: its class, the others in it, and how each got there."""
    loaded = None if tokenizer is None else vocabulary.load_tokenizer(tokenizer)
    tokens = _tokens(asked, ids, loaded)
    made = []
    for token in tokens:
        compressed = int(ids[token])
        members = np.flatnonzero(ids == compressed)
        told = [_member(int(each), loaded) for each in members[:MOST_MEMBERS]]
        made.append({"token": token, "compressed": compressed, "shared_by": int(members.size), "members": told})
    return made


def _tokens(asked: str, ids: NDArray[np.uint32], loaded: Tokenizer | None) -> list[int]:
    if asked.isascii() and asked.isdigit():
        if len(asked) > 12 or int(asked) >= ids.size:
            raise EngramctlError("--explain", f"a token id below {ids.size}, or text", asked[:40])
        return [int(asked)]
    if loaded is None:
        raise EngramctlError("--explain", "a tokenizer for text", "none", "give the tokenizer.json as the source")
    found = vocabulary.encode(loaded, asked).tolist()
    if not found or max(found) >= ids.size:
        raise EngramctlError("--explain", f"text that gives token ids below {ids.size}", f"{found[:8]}")
    return list(dict.fromkeys(found))


def _member(token: int, loaded: Tokenizer | None) -> dict[str, Any]:
    if loaded is None:
        return {"token": token, "piece": None, "text": None, "key": None, "why": "no tokenizer: the map alone says so"}
    piece = loaded.id_to_token(token)
    text = loaded.decode([token], skip_special_tokens=False)
    key, why = reason(piece or "", text)
    return {"token": token, "piece": piece, "text": text, "key": key, "why": why}


def reason(piece: str, text: str) -> tuple[str, str]:
    """The key of a token, and the rule or the steps that gave it."""
    if vocabulary.REPLACEMENT in text:
        return piece, "its text is no whole character: the raw piece counts"
    key = vocabulary.normaliser()(text)
    if not key:
        return text, "nothing is left of it: its text counts as it is"
    changed = []
    for name, step in _steps().items():
        after = step(text)
        if after != text:
            changed.append(name)
        text = after
    return key, ", ".join(changed) if changed else "as it is"


def _steps() -> dict[str, Callable[[str], str]]:
    """The normaliser's steps by what they are to people; together they give what `vocabulary.normaliser` gives."""
    from tokenizers import Regex, normalizers

    lone = normalizers.Replace(Regex(r"^ $"), vocabulary.LONE_SPACE)
    space = normalizers.Sequence([lone, normalizers.Strip(), normalizers.Replace(vocabulary.LONE_SPACE, " ")])
    steps = {
        "compatible characters (NFKC)": normalizers.NFKC(),
        "marks apart (NFD)": normalizers.NFD(),
        "marks dropped": normalizers.StripAccents(),
        "lower case": normalizers.Lowercase(),
        "blanks to one space": normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
        "blanks at the ends dropped": space,
    }
    return {name: step.normalize_str for name, step in steps.items()}


def rows(found: list[dict[str, Any]]) -> list[tuple[str, str, str, str, str]]:
    """The same for people: class, token, piece, key, why."""
    return [
        (f"{each['compressed']}", f"{member['token']}", _quoted(member["piece"]), _quoted(member["key"]), member["why"])
        for each in found
        for member in each["members"]
    ]


def _quoted(text: str | None) -> str:
    return "" if text is None else repr(text)[:40]
