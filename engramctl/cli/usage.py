"""Usage errors, whichever words Typer, click or pydantic has for them, in this project's: where, expected, found."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable

Said = tuple[str | None, str, str]  # where (None: the command), expected, found

A_COMMAND = "a command that --help lists"
NOISE = re.compile(r"^(?:got |value error, )", re.IGNORECASE)
NAME = r"'?(-{0,2}[^']+?)'?"
FORMS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Said]], ...] = (
    (re.compile(r"missing command"), lambda m: (None, "a command", "none")),
    (re.compile(r"no such command '(.*?)'.*"), lambda m: (None, A_COMMAND, m[1])),
    (re.compile(r"no such option:? '?(-[^\s']*)'?(.*)"), lambda m: (None, "an option that --help lists", m[1])),
    (re.compile(rf"missing (?:argument|option|parameter) {NAME}"), lambda m: (None, m[1], "none")),
    (re.compile(rf"option {NAME} requires an argument"), lambda m: (m[1], "a value", "none")),
    (re.compile(r"unexpected extra arguments?(?:\(s\))? \((.*)\)"), lambda m: (None, "no more arguments", m[1])),
)
INVALID = re.compile(rf"invalid value for {NAME}(?: \(env var: '?(.*?)'?\))?: (.*)")
VALUES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str], tuple[str, str]]], ...] = (
    (re.compile(r"('.*?') is not one of (.*)"), lambda m, word: (f"one of {m[2].replace(chr(39), '')}", m[1])),
    (re.compile(r"(?:'(.*)'|(\S+)) is not (?:a |in the )(.*)"), lambda m, word: (f"a {m[3]}", m[1] or m[2])),
    (re.compile(r"input should be (.*?)(?:, unable .*)?"), lambda m, word: (_number(m[1]), word)),
)


def parts(
    command: str, message: str, arguments: list[str], names: Callable[[str], Iterable[str]]
) -> tuple[str, str, str, str]:
    """Where, expected, found and the way on; `names` are those of a group's commands, "" being the whole tool."""
    where, expected, found = _said(_plain(message), arguments)
    if expected == A_COMMAND:
        group, _, word = command.rpartition(" ")
        name = f"engramctl {group}".rstrip()
        near = difflib.get_close_matches(word, names(group), 1)
        return where or command, expected, found, f"did you mean {name} {near[0]}?" if near else f"{name} --help"
    name = "engramctl" if command == "engramctl" else f"engramctl {command}"
    return where or command, expected, found, f"{name} --help"


def _said(message: str, arguments: list[str]) -> Said:
    for form, words in FORMS:
        if match := form.fullmatch(message):
            return words(match)
    if match := INVALID.fullmatch(message):
        value, option = _plain(match[3]), match[1]
        given = _value(option, arguments)
        if given is None and match[2] in os.environ:
            option, given = match[2], os.environ[match[2]]
        for kind, each in VALUES:
            if found := kind.fullmatch(value):
                return (option, *each(found, given or "another"))
        return option, "a usage that --help shows", value
    return None, "a usage that --help shows", message


def _plain(message: str) -> str:
    """On one line, without its stop and its opening phrase, and not begun in upper case."""
    message = NOISE.sub("", " ".join(message.split()).rstrip("."))
    return message[:1].lower() + message[1:]


def _number(text: str) -> str:
    return text.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")


def _value(option: str, arguments: list[str]) -> str | None:
    """What was given to an option, as far as it can be told from the words."""
    for at, word in enumerate(arguments):
        if word == option and at + 1 < len(arguments):
            return arguments[at + 1]
        if word.startswith(f"{option}="):
            return word.removeprefix(f"{option}=")
    return None
