"""A mistake: what engines were seen to do instead, in words and as a small variation of the reference's plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

P = TypeVar("P")  # the plan of a stage: HashPlan, RowPlan, ProjectPlan, GatePlan
Stage = Literal["map", "constants", "hash", "history", "decode", "project", "gate"]
STAGES: tuple[Stage, ...] = ("map", "constants", "hash", "history", "decode", "project", "gate")


@dataclass(frozen=True)
class Mistake(Generic[P]):
    """One entry of the catalogue. Variations of one plan can be applied one after another."""

    name: str
    stage: Stage
    what: str  # what is done instead
    symptom: str  # how its numbers differ from the right ones
    consequence: str  # what that does to a model
    fix: str
    source: str  # repository and path or thread: who was seen to do it, or the code that it departs from
    vary: Callable[[P], P | None]  # None: this cannot be said of this plan (a map that is not known)
    fit: Callable[[P, Any, Any], Iterator[Fitted[P]]] | None = None  # guesses of its parameter from what was found

    def facts(self) -> dict[str, str]:
        """The record in words, as it is printed."""
        return {
            name: str(getattr(self, name))
            for name in ("name", "stage", "what", "symptom", "consequence", "fix", "source")
        }


@dataclass(frozen=True)
class Fitted(Generic[P]):
    """A variation whose parameter was read off a dump, and that parameter in words."""

    plan: P
    detail: str


ENGRAM = "deepseek-ai/DeepSeek-V4.1-Flash inference/engram.py"
MODEL = "deepseek-ai/DeepSeek-V4.1-Flash inference/model.py"
