"""All known mistakes, by stage. `check --list` prints them; the pages beside this file are made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engramctl.mistakes import constants, decode, gate, hash, history, project, token_map  # noqa: A004 - a stage
from engramctl.mistakes.gateplan import GatePlan
from engramctl.mistakes.hashing import HashPlan
from engramctl.mistakes.projectplan import ProjectPlan
from engramctl.mistakes.record import Mistake
from engramctl.mistakes.rowplan import RowPlan

HASHING: tuple[Mistake[HashPlan], ...] = (
    *token_map.MISTAKES,
    *constants.MISTAKES,
    *hash.MISTAKES,
    *history.MISTAKES,
)  # variations of one plan: everything between a token id and a row
DECODING: tuple[Mistake[RowPlan], ...] = decode.MISTAKES
PROJECTING: tuple[Mistake[ProjectPlan], ...] = project.MISTAKES
GATING: tuple[Mistake[GatePlan], ...] = gate.MISTAKES

WORDS = ("what", "symptom", "consequence", "fix", "source")


def every() -> Sequence[Mistake[Any]]:
    return (*HASHING, *DECODING, *PROJECTING, *GATING)
