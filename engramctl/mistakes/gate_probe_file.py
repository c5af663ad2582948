"""The gate probe as npz or safetensors: an engine's inputs, and with answers the right numbers of every stage.

With `gate` and `out` beside them, an engine's own or the answers, the same file is what `check gate` reads.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import reference
from engramctl.mistakes import gate_probes
from engramctl.mistakes.gateplan import GatePlan
from engramctl.mistakes.hash_probes import Pair
from engramctl.profiles import Profile
from engramctl.verify import bounds
from formats import safetensors_raw

KINDS = {"uint16": "BF16", "uint8": "U8", "float32": "F32", "float64": "F64"}


@dataclass(frozen=True)
class Made:
    """The file's arrays, what each token is there for, and which pairs it tells apart."""

    arrays: dict[str, NDArray[Any]]
    why: tuple[str, ...]
    pairs: list[Pair]


def make(profile: Profile, hidden: int, answers: bool) -> Made:
    """The probe of a model's streams, and answers by the reference: dot (float64), gate, out."""
    eps, clamp = profile.sizes.eps, profile.clamp
    probe = gate_probes.inputs(profile.sizes.streams, hidden)
    arrays = gate_probes.arrays(probe)
    if answers:
        given = (probe.hidden, probe.key, probe.value, probe.q_weight, probe.k_weight, probe.mask)
        gates, out = reference.gate(*given, eps=eps, clamp=clamp)
        exact = bounds.gate_range(probe.hidden, probe.key, probe.q_weight, probe.k_weight, probe.mask, eps, clamp)
        arrays |= {"dot": exact.dot, "gate": gates, "out": out}
    return Made(arrays, gate_probes.WHY, gate_probes.matrix(GatePlan(eps, clamp), probe))


def encode(arrays: Mapping[str, NDArray[Any]], suffix: str) -> Iterator[bytes]:
    """A safetensors file where the name says so, else npz (BF16 as its bits in uint16). Equal bytes every time."""
    stored = {name: array.astype(np.uint8) if array.dtype == np.bool_ else array for name, array in arrays.items()}
    if suffix == ".safetensors":
        header, _ = safetensors_raw.header(
            [(name, KINDS[array.dtype.name], array.shape) for name, array in stored.items()]
        )
        yield header
        for array in stored.values():
            yield np.ascontiguousarray(array).tobytes()
        return
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in stored.items():
            member = io.BytesIO()
            np.save(member, array, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), member.getvalue())
    yield file.getvalue()
