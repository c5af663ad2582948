"""ShortConv: what the demo, engram-peft and Qwen's PLE do to gated values before they join the streams. In float64.

    normed[t, s] = RMSNorm of values[t, s] over its D numbers, each stream with its own weights
    out[t, c]    = SiLU(sum over k of weight[c, k] * normed[t - (kernel - 1 - k) * dilation, c]),  c a channel (s, d)

Causal: what lies before the sequence is zero, or the state of what came before it. Nothing else resets the state: it
runs on over an EOS. Sources: deepseek-ai/Engram engram_demo_v1.py; huggingface/transformers modular_qwen4_exp.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


def short_conv(
    values: Float64,
    norm: Float64,
    weight: Float64,
    dilation: int,
    eps: float,
    state: Float64 | None = None,
    mask: NDArray[np.bool_] | None = None,
) -> tuple[Float64, Float64]:
    """values [T, S, D], norm [S, D], weight [S, D, kernel] -> what is added to the values [T, S, D], and the new state.

    `state` is [(kernel - 1) * dilation, S, D] normed values of the positions before, zeros at the start; a masked
    position counts as zeros.
    """
    normed = rms_norm(values, norm, eps)
    if mask is not None:
        normed = np.where(mask[:, None, None], normed, 0.0)
    before = empty_state(norm, weight.shape[-1], dilation) if state is None else state
    row = np.concatenate([before, normed])
    total = np.zeros_like(values)
    for k in range(weight.shape[-1]):
        total += weight[:, :, k] * row[k * dilation : k * dilation + len(values)]
    return silu(total), row[len(values) :]


def empty_state(norm: Float64, kernel: int, dilation: int) -> Float64:
    """The state at a sequence's start."""
    return np.zeros(((kernel - 1) * dilation, *norm.shape))


def rms_norm(x: Float64, weight: Float64, eps: float) -> Float64:
    """[..., D] over the root of their mean square, times weight [..., D]."""
    normed: Float64 = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight
    return normed


def silu(x: Float64) -> Float64:
    return x * sigmoid(x)


def sigmoid(x: Float64) -> Float64:
    """Without overflow on either side."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)
