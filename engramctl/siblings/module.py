"""What a sibling's memory does with the rows of a token, in float64: the exact value that its engines approximate.

Weights, rows and hidden states are taken as they are stored; nothing is rounded on the way. T tokens, C columns,
K = C * width inputs, S streams, D hidden width.

key_value   keys and a value from e [K]; per stream u = <norm(key), norm(h)> / sqrt(D),
            gate = sigmoid(sign(u) * sqrt(max(|u|, clamp))), v = gate * value; h + v + ShortConv(v)
columns     (h + the sum of each column's projected row) / (1 + C)
none        h + the sum of the rows
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError
from engramctl.profiles import Profile, Sizes
from engramctl.short_conv import Float64, rms_norm, short_conv, sigmoid
from engramctl.siblings.opened import Opened

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ModuleWeights:
    """One layer's weights as float64; those that a module does not have are empty."""

    key: Float64  # [S * D, K]
    key_bias: Float64  # [S * D]
    value: Float64  # [D, K]
    value_bias: Float64  # [D]
    norm_key: Float64  # [S, D], with the 1 where it is added
    norm_query: Float64
    norm_conv: Float64
    conv: Float64  # [S, D, kernel]
    projections: tuple[Float64, ...]  # [D, width] of each column


def weights(source: Opened, layer: int) -> ModuleWeights:
    """A layer's weights."""
    module, sizes = source.profile.module, source.sizes
    S, D = sizes.streams, sizes.hidden

    def joined(role: str, *shape: int) -> Float64:
        found = source.floats(role, layer)
        one = np.concatenate([array.reshape(-1) for array in found]) if found else np.zeros(0, np.float32)
        if role.startswith("norm") and module.norm == "one_plus":
            one = one + np.float32(1)  # in F32, as the model adds it
        return one.astype(np.float64).reshape(shape if one.size else (0,))

    projections = tuple(array.astype(np.float64) for array in source.floats("projection", layer))
    return ModuleWeights(
        joined("key", S * D, sizes.inputs), joined("key_bias", S * D), joined("value", D, sizes.inputs),
        joined("value_bias", D), joined("norm_key", S, D), joined("norm_query", S, D), joined("norm_conv", S, D),
        joined("conv", S, D, module.kernel), projections,
    )  # fmt: skip


def magnitudes(made: ModuleWeights) -> ModuleWeights:
    """The weights without their signs: what a sum of products may cost goes by these."""
    parts = {name: np.abs(getattr(made, name)) for name in ("key", "key_bias", "value", "value_bias")}
    return replace(made, **parts)


def project(values: Float64, made: ModuleWeights, sizes: Sizes) -> Float64:
    """values [T, K] -> keys, stream by stream, and the value [T, S + 1, D]."""
    keys, value = values @ made.key.T, values @ made.value.T
    if made.key_bias.size:
        keys, value = keys + made.key_bias, value + made.value_bias
    return np.concatenate([keys.reshape(len(values), sizes.streams, sizes.hidden), value[:, None]], axis=1)


def gates(hidden: Float64, kv: Float64, made: ModuleWeights, profile: Profile, sizes: Sizes) -> Float64:
    """hidden [T, S, D] and kv [T, S + 1, D] -> [T, S]; a dot product of 0 gives exactly 0.5."""
    key, query = rms_norm(kv[:, :-1], made.norm_key, sizes.eps), rms_norm(hidden, made.norm_query, sizes.eps)
    u = (key * query).sum(-1) / np.sqrt(sizes.hidden)
    return sigmoid(np.sign(u) * np.sqrt(np.maximum(np.abs(u), profile.clamp)))


@dataclass
class Stream:
    """One sequence through a layer's module, chunk after chunk: the convolution's state goes along."""

    made: ModuleWeights
    profile: Profile
    sizes: Sizes
    state: Float64 | None = None

    def out(self, hidden: Float64, values: Float64, mask: NDArray[np.bool_] | None = None) -> Float64:
        """hidden [T, S, D] and looked-up values [T, C, width] -> new hidden states [T, S, D]."""
        module, made = self.profile.module, self.made
        if module.combine == "sum":
            return np.asarray(hidden + values.sum(axis=1)[:, None])
        if module.combine == "mean":
            parts = [values[:, column] @ each.T for column, each in enumerate(made.projections)]
            return np.asarray((hidden + np.sum(parts, axis=0)[:, None]) / (1 + len(parts)))
        kv = project(values.reshape(len(values), self.sizes.inputs), made, self.sizes)
        gated = gates(hidden, kv, made, self.profile, self.sizes)[:, :, None] * kv[:, -1:]
        if mask is not None:
            gated = np.where(mask[:, None, None], gated, 0.0)
        if not module.kernel:
            return hidden + gated
        added, self.state = short_conv(
            gated, made.norm_conv, made.conv, module.dilation, module.conv_eps, self.state, mask
        )
        return hidden + gated + added


def expect_keys(profile: Profile, stage: str) -> None:
    """Refuse a stage that the module does not have."""
    if profile.module.projection != "key_value":
        found = f"profile {profile.name}, whose module combines by {profile.module.combine}"
        raise EngramctlError(f"--stop-at {stage}", "a module with keys and gates", found)
