"""Where the mistaken maps come from: shipped with the profile, or made with the tokenizer at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engramctl.hash_params import HashParams, digest
from engramctl.mistakes import map_deltas
from engramctl.mistakes.hashing import Maps, no_maps
from engramctl.mistakes.token_map import KEY_PLANS
from engramctl.profiles import Profile


def for_params(params: HashParams, profile: Profile, tokenizer: Path | None = None) -> Maps:
    """The mistaken maps beside the constants' own."""
    return for_map(params.token_map, profile, tokenizer)


def for_map(ids: NDArray[np.uint32], profile: Profile, tokenizer: Path | None = None) -> Maps:
    """The mistaken maps beside a right one: shipped for the published map, else by the tokenizer, else none."""
    if digest(ids, "<u4") == profile.digests.get("token_map_u32"):
        return map_deltas.shipped(profile.name).get
    return no_maps if tokenizer is None else Built(tokenizer).get


class Built:
    """Maps made when they are asked for, with a tokenizer.json."""

    def __init__(self, tokenizer: Path) -> None:
        from engramctl import vocabulary
        from engramctl.mistakes.keys import Texts

        self._texts = Texts(vocabulary.load_tokenizer(tokenizer))
        self._made: dict[str, NDArray[np.uint32]] = {}

    def get(self, name: str) -> NDArray[np.uint32] | None:
        from engramctl.mistakes import keys

        if name not in KEY_PLANS:
            return None
        if name not in self._made:
            self._made[name] = keys.build(self._texts, KEY_PLANS[name])
        return self._made[name]
