"""All known mistakes, by stage. `check --list` prints them; the pages beside this file are made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engramctl.mistakes import constants, hash, history, token_map  # noqa: A004 - the stage's name
from engramctl.mistakes.hashing import HashPlan
from engramctl.mistakes.record import Mistake

HASHING: tuple[Mistake[HashPlan], ...] = (
    *token_map.MISTAKES,
    *constants.MISTAKES,
    *hash.MISTAKES,
    *history.MISTAKES,
)  # variations of one plan: everything between a token id and a row


def every() -> Sequence[Mistake[Any]]:
    return HASHING
