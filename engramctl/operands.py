"""What projection and gate accept, and the results they refuse: one set of words for the reference and the fast tier.

T tokens, K inputs, N outputs, S streams, D hidden width. BF16 is its bits in uint16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError
from formats.floats import BF16_INFINITY, bf16_finite, from_bf16

BF16 = (np.uint16,)
WEIGHT = (np.uint16, np.float32)  # the gate's q and k: BF16 bits, or F32 that is used as it is
MASK = (np.bool_,)


def expect(name: str, array: NDArray[Any], types: Sequence[type], shape: tuple[int | str, ...]) -> None:
    """`array` is of one of `types` and of `shape`, where a str stands for any size, or `EngramctlError`."""
    fits = array.dtype.type in types and len(array.shape) == len(shape)
    if fits and all(isinstance(w, str) or w == n for w, n in zip(shape, array.shape, strict=True)):
        return
    wanted = f"{' or '.join(kind.__name__.rstrip('_') for kind in types)} [{', '.join(map(str, shape))}]"
    raise EngramctlError(name, wanted, f"{array.dtype} [{', '.join(map(str, array.shape))}]")


def expect_projection(values: NDArray[np.uint16], weight: NDArray[np.uint16]) -> None:
    """values [T, K], weight [N, K]."""
    expect("projection weight", weight, BF16, ("N", "K"))
    expect_input(values, weight.shape[1])


def expect_input(values: NDArray[np.uint16], K: int) -> None:
    """values [T, K] of a projection."""
    expect("projection input", values, BF16, ("T", K))


def expect_gate(
    hidden: NDArray[np.uint16], key: NDArray[np.uint16], value: NDArray[np.uint16],
    q_weight: NDArray[Any], k_weight: NDArray[Any], mask: NDArray[np.bool_] | None,
) -> None:  # fmt: skip
    """hidden and key [T, S, D], value [T, D], weights [S, D], mask [T] or None."""
    expect("hidden", hidden, BF16, ("T", "S", "D"))
    T, S, D = hidden.shape
    if not D:
        raise EngramctlError("hidden", "at least one value a stream", "none")
    expect("key", key, BF16, (T, S, D))
    expect("value", value, BF16, (T, D))
    expect("q_weight", q_weight, WEIGHT, (S, D))
    expect("k_weight", k_weight, WEIGHT, (S, D))
    if mask is not None:
        expect("mask", mask, MASK, (T,))


def expect_finite_projection(kv: NDArray[np.uint16]) -> None:
    """Every output of [T, N] is a number."""
    if not _all_finite(kv) and (bad := _first(~bf16_finite(kv))) is not None:
        raise EngramctlError(
            f"projection of token {bad[0]}, output {bad[1]}", "a finite value", f"{from_bf16(kv[bad])}"
        )


def expect_finite_gate(gates: NDArray[np.float32], out: NDArray[np.uint16], mask: NDArray[np.bool_]) -> None:
    """Every gate of [T, S] and every output of [T, S, D] that is not masked is a number."""
    if (bad := _first(~np.isfinite(gates))) is not None:
        raise EngramctlError(f"gate of token {bad[0]}, stream {bad[1]}", "a finite value", f"{gates[bad]}")
    if not _all_finite(out) and (bad := _first(~bf16_finite(out) & mask[:, None, None])) is not None:
        where = f"gated output of token {bad[0]}, stream {bad[1]}, element {bad[2]}"
        raise EngramctlError(where, "a finite value", f"{from_bf16(out[bad])}")


def _all_finite(bits: NDArray[np.uint16]) -> bool:
    return bool((bits & np.uint16(BF16_INFINITY)).max(initial=0) < BF16_INFINITY)


def _first(bad: NDArray[np.bool_]) -> tuple[int, ...] | None:
    return tuple(int(i) for i in np.unravel_index(int(bad.argmax()), bad.shape)) if bad.any() else None
