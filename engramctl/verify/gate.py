"""check gate: gates and new hidden states that an engine dumped, against float64 on the same inputs.

T tokens, S streams, D hidden width. BF16 is its bits in uint16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import dumps, reference
from engramctl.arrays import Dump
from engramctl.mistakes.gateplan import GateInputs, GatePlan
from engramctl.verify import bounds, name_gate
from engramctl.verify.result import MOST_FINDINGS, Coverage, Result
from formats.errors import FormatError
from formats.floats import bf16_finite, exact_in_bf16, from_bf16

CHECK = "gate"
CHUNK_TOKENS = 64
WEIGHTS = ("uint16", "float32")
MASKS = ("bool", "uint8", "int8", "int32", "int64")


@dataclass(frozen=True)
class Inputs:
    """What the gate works on, from the dump itself."""

    hidden: NDArray[Any]  # [T, S, D] BF16 bits; F32 where the model's states are
    key: NDArray[Any]  # [T, S, D]
    value: NDArray[Any]  # [T, D]
    q_weight: NDArray[Any]  # [S, D]
    k_weight: NDArray[Any]  # [S, D]
    mask: NDArray[np.bool_] | None


def read(dump: Dump, f32: bool = False) -> tuple[Inputs, NDArray[np.float32] | None, NDArray[np.uint16] | None]:
    """The inputs, and the gates [T, S] and outputs [T, S, D] that are to be checked; at least one of the two.
    With `f32` any finite F32 states are taken as they are, not only those that BF16 holds."""
    arrays = dump.arrays
    if "gate" not in arrays and "out" not in arrays:
        raise FormatError(dump.where, None, "an array gate or out", f"{', '.join(sorted(arrays)) or 'none'}"[:120])
    shape = dump.named("hidden").shape
    if len(shape) != 3 or not all(shape):
        raise FormatError(dump.where, "array hidden", "[T, streams, D], none of them 0", f"{list(shape)}")
    T, S, D = shape
    mask = _mask(dump, T)
    hidden = _states(dump.named("hidden").load(dumps.DTYPES, (T, S, D)), dump.where, "hidden", f32)
    key = _operand(dump, "key", (T, S, D), mask, f32)
    value = _operand(dump, "value", (T, D), mask, f32)
    weights = [dump.named(name).load(WEIGHTS, (S, D)) for name in ("q_weight", "k_weight")]
    for name, weight in zip(("q_weight", "k_weight"), weights, strict=True):
        if not np.isfinite(reference.as_f32(weight)).all():
            raise FormatError(dump.where, f"array {name}", "finite values", "an infinity or a NaN")
    gates = arrays["gate"].load(("float32",), (T, S)) if "gate" in arrays else None
    out = None
    if "out" in arrays:
        out = _out(dump, (T, S, D))
    return Inputs(hidden, key, value, weights[0], weights[1], mask), gates, out


def _states(array: NDArray[Any], where: str, name: str, f32: bool) -> NDArray[Any]:
    if f32 and array.dtype != np.uint16:
        return dumps.finite(array, where, name)
    return dumps.as_bf16(array, where, name)


def _operand(dump: Dump, name: str, shape: tuple[int, ...], mask: NDArray[np.bool_] | None, f32: bool) -> NDArray[Any]:
    """A masked token's key and value may be anything: only a missing mask would use them, where they are numbers."""
    array = dump.named(name).load(dumps.DTYPES, shape)
    if mask is not None:
        array = array.copy()
        dead = array[~mask]
        array[~mask] = np.where(_usable(dead, f32), dead, array.dtype.type(0))
    return _states(array, dump.where, name, f32)


def _usable(array: NDArray[Any], f32: bool) -> NDArray[np.bool_]:
    """Which elements `_states` takes."""
    if array.dtype == np.uint16:
        return bf16_finite(array)
    good: NDArray[np.bool_] = np.isfinite(array)
    return good if f32 else good & exact_in_bf16(np.where(good, array, np.float32(0)))


def _out(dump: Dump, shape: tuple[int, ...]) -> NDArray[np.uint16]:
    """An output that is no number is a finding, so only the dtype is checked here; float32 must hold BF16 values."""
    array = dump.arrays["out"].load(dumps.DTYPES, shape)
    if array.dtype == np.uint16:
        return np.asarray(array)
    finite = np.isfinite(array)
    bits = dumps.as_bf16(np.where(finite, array, np.float32(0)), dump.where, "out")
    return np.where(finite, bits, np.uint16(0x7FC0))


def _mask(dump: Dump, tokens: int) -> NDArray[np.bool_] | None:
    if "mask" not in dump.arrays:
        return None
    mask = dump.arrays["mask"].load(MASKS, (tokens,))
    mask = mask.view(np.uint8) if mask.dtype == np.bool_ else mask
    if mask.size and not np.isin(mask, (0, 1)).all():
        raise FormatError(dump.where, "array mask", "1 for text or 0 for dead", f"{mask[~np.isin(mask, (0, 1))][0]}")
    return mask.astype(np.bool_)


def check(
    inputs: Inputs, gates: NDArray[np.float32] | None, out: NDArray[np.uint16] | None, eps: float, clamp: float
) -> Result:
    """Each gate inside the range that F32 sums may give, each output within a BF16 step and value times that range."""
    T = len(inputs.hidden)
    count = sum(0 if array is None else array.size for array in (gates, out))
    result, somewhere = Result(Coverage("numbers", count, count)), np.zeros(T, np.bool_)
    for start in range(0, T, CHUNK_TOKENS):
        some = slice(start, start + CHUNK_TOKENS)
        mask = None if inputs.mask is None else inputs.mask[some]
        allowed = bounds.gate_range(
            inputs.hidden[some], inputs.key[some], inputs.q_weight, inputs.k_weight, mask, eps, clamp
        )
        if gates is not None:
            somewhere[some] |= _gates(gates[some], allowed, start, result)
        if out is not None:
            somewhere[some] |= _outputs(
                inputs.hidden[some], inputs.value[some], mask, out[some], allowed, start, result
            )
    if inputs.mask is not None:
        result.notes.append(f"{int(np.count_nonzero(~inputs.mask))} of {T} positions are dead")
    if not result.ok and all(array.dtype == np.uint16 for array in (inputs.hidden, inputs.key, inputs.value)):
        explain(inputs, name_gate.Dumped(gates, out), GatePlan(eps, clamp), somewhere, result)
    return result


def explain(inputs: Inputs, found: name_gate.Dumped, plan: GatePlan, wrong: NDArray[np.bool_], result: Result) -> None:
    """The mistake behind the tokens that differ, or what they have in common."""
    given = GateInputs(inputs.hidden, inputs.key, inputs.value, inputs.q_weight, inputs.k_weight, inputs.mask)
    result.diagnosis = name_gate.diagnose(plan, given, found, wrong)
    if result.diagnosis is None:
        result.structure = name_gate.facts(given, found, wrong)


def _gates(gates: NDArray[np.float32], allowed: bounds.GateRange, start: int, result: Result) -> NDArray[np.bool_]:
    """[T] where a gate is outside of its range."""
    wrong: NDArray[np.bool_] = ~(allowed.off(gates) <= 0)
    named = np.argwhere(wrong)[: max(0, MOST_FINDINGS - len(result.findings))]
    for t, s in named.tolist():
        low, high = allowed.low[t, s], allowed.high[t, s]
        expected = "0, as the position is dead" if low == high == 0 else f"{low:.9g} to {high:.9g}"
        result.add(CHECK, f"gate of position {start + t} stream {s}", expected, f"{gates[t, s]:.9g}")
    result.total += int(np.count_nonzero(wrong)) - len(named)
    return np.asarray(wrong.any(axis=1))


def _outputs(
    hidden: NDArray[np.uint16],
    value: NDArray[np.uint16],
    mask: NDArray[np.bool_] | None,
    out: NDArray[np.uint16],
    allowed: bounds.GateRange,
    start: int,
    result: Result,
) -> NDArray[np.bool_]:
    """[T] where an output is beyond its bound."""
    exact = bounds.out_f64(hidden, value, allowed.gate)
    finite = bf16_finite(out)
    bound = bounds.out_bound(hidden, value, allowed.gate, np.where(finite, out, np.uint16(0)), allowed.bound())
    dead = np.zeros(len(out), np.bool_) if mask is None else ~mask
    bound[dead] = 0.0  # a dead position keeps its hidden state; +0 and -0 are the same value
    have = from_bf16(out).astype(np.float64)
    with np.errstate(invalid="ignore"):
        wrong = ~(finite & (np.abs(have - exact) <= bound))
    named = np.argwhere(wrong)[: max(0, MOST_FINDINGS - len(result.findings))]
    for t, s, d in named.tolist():
        kept = "its hidden state kept, as the position is dead: " if dead[t] else ""
        expected = f"{kept}{exact[t, s, d]:.9g}" + ("" if dead[t] else f" within {bound[t, s, d]:.3g}")
        result.add(CHECK, f"out of position {start + t} stream {s} element {d}", expected, f"{have[t, s, d]:.9g}")
    result.total += int(np.count_nonzero(wrong)) - len(named)
    return np.asarray(wrong.any(axis=(1, 2)))
