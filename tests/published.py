"""Published numbers from `fixtures/`, and the release's constants built from them alone: not from the profile."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from engramctl import profiles
from engramctl.hash_params import HashParams

FOLDER = Path(__file__).parent.parent / "fixtures"


@cache
def fixture(name: str) -> Any:  # noqa: ANN401 - whatever the JSON holds
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


def sha256(array: np.ndarray, kind: str) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).astype(kind).tobytes()).hexdigest()


@cache
def shipped_map() -> np.ndarray:
    """The map in the package; test_vocabulary proves it to be the tokenizer's."""
    return profiles.load("deepseek-v4.1-flash").token_map()


def release(token_map: np.ndarray | None = None) -> HashParams:
    """The published constants, with the shipped map or another one."""
    facts = fixture("constants")
    return HashParams(
        layers=tuple(facts["layer_ids"]),
        rows=tuple(facts["rows"]),
        heads=facts["n_heads"],
        compressed=facts["compressed_vocab_size"],
        pad_id=facts["pad_compressed_id"],
        token_map=shipped_map() if token_map is None else token_map,
        multipliers=np.array(facts["multipliers"], np.uint64),
        moduli=np.array(facts["primes"], np.uint64),
        offsets=np.array(facts["offsets"], np.uint64),
    ).check()
