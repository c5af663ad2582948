"""JSON out of files that anyone may have written: one meaning or a FormatError, in bounded time."""

from __future__ import annotations

import json
from collections.abc import Callable
from os import PathLike
from typing import NoReturn

from formats.errors import FormatError, shown

LONGEST_INTEGER = 20  # digits of 2**64 - 1: longer ones take quadratic time, and Python refuses them in its own way


def once(path: str | PathLike[str], at: int | None) -> Callable[[list[tuple[str, object]]], dict[str, object]]:
    """What makes an object of its (name, value) pairs: each name once, or `FormatError`."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        made: dict[str, object] = {}
        for name, value in pairs:
            if name in made:
                raise FormatError(path, at, "JSON with each name once", f"{shown(name)} twice")
            if not name.isascii() and any("\ud800" <= letter <= "\udfff" for letter in name):
                raise FormatError(path, at, "names in Unicode", f"half a surrogate pair in {shown(name)}")
            made[name] = value
        return made

    return unique


def _broken(said: str, rest: str) -> str:
    """What stands where the text stops being JSON, of what the parser says and of what follows there."""
    if said.startswith("Unterminated"):
        return f"a text without its end: {shown(rest)}"
    if said == "Extra data":
        return f"more after its end: {shown(rest)}"
    return shown(rest) if rest else "the end of it"


def read_object(path: str | PathLike[str], raw: bytes, at: int) -> dict[str, object]:
    """The bytes at `at` of a file -> one JSON object: UTF-8, no name twice, no NaN, integers that may be 64 bits."""

    def refuse(word: str) -> NoReturn:
        raise FormatError(path, at, "JSON", word)

    def integer(digits: str) -> int:
        if len(digits) > LONGEST_INTEGER:
            raise FormatError(path, at, "integers of at most 64 bits", f"one of {len(digits)} digits")
        return int(digits)

    try:
        text = raw.decode("utf-8")
        value = json.loads(text, object_pairs_hook=once(path, at), parse_constant=refuse, parse_int=integer)
    except UnicodeDecodeError as error:
        raise FormatError(path, at + error.start, "UTF-8", f"byte {raw[error.start]:#04x}") from None
    except json.JSONDecodeError as error:
        place = at + len(text[: error.pos].encode())
        raise FormatError(path, place, "JSON", _broken(error.msg, text[error.pos : error.pos + 8])) from None
    except RecursionError:
        raise FormatError(path, at, "JSON nested a few levels deep", "hundreds of levels") from None
    if not isinstance(value, dict):
        raise FormatError(path, at, "a JSON object", shown(value))
    return value
