"""The reference is itself checked: every small change of `reference.py` makes some golden fail.

Goldens are numbers that others computed, another library, float64 within its bound, and the Numba tier, which has the
order of operations in code of its own. What survives is listed below, each with the reason why it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import ml_dtypes
import mutants
import numpy as np
import pytest
import splitmix
from published import fixture, release, sha256
from tiers import outcome

from engramctl import fast, profiles, reference
from engramctl.hash_params import HashParams, published
from formats.floats import from_bf16, to_bf16

FP8, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16
FULL = next(case for case in fixture("lookup_project_gate")["cases"] if "full" in case)
LISTED = {name: np.array(value) for name, value in FULL["full"].items()}

# Changes that no result shows, and why.
SURVIVORS: dict[str, str] = {
    "module: INVERSE_FACTORIALS = tuple(1.0 / math.factorial(k) for k in range(13, -1, -1)) [13 -> 14]": (
        "one term more of the exponential's series: below 0.35**14 / 14! = 5e-18 of it, which no F32 gate shows"
    ),
    "hash_rows: rows = np.empty((len(tokens), len(params.layers), params.columns), np.int64) [np.empty -> np.zeros]": (
        "every row number is written"
    ),
    "dequantise: weight, inexact = np.empty((N, K), np.uint16), 0 [np.empty -> np.zeros]": "every weight is written",
    "dequantise: if (band & 0x7F).max(initial=0) == E4M3_NAN: [0 -> 1]": "the largest of no codes: 1 is no NaN either",
    "quantise_activation: scales = np.empty((len(x), -(-x.shape[1] // BLOCK)), np.uint8) [np.empty -> np.zeros]": (
        "every scale is written"
    ),
    "project: sums = np.zeros((2, T, N), np.float32) [2 -> 3]": "a third sum that nothing is added to or taken from",
    "quantise_activation: bits = (amax * np.float32(1 / 448)).view(np.uint32) [448 -> 449]": (
        "BF16 has no number between 448 and 450, nor between their multiples by powers of two"
    ),
    "sigmoid: return (1.0 if g >= 0 else power) / (1.0 + power) [g >= 0 -> g > 0]": "at 0 the power is 1: 1 / 2 anyway",
}


def same(one: object, other: object) -> None:
    """An assertion whose failure costs nothing: on a CI server pytest writes a whole diff, minutes for one mutant."""
    if one != other:
        raise AssertionError(f"{one!r:.200} is not {other!r:.200}")


def rows(module: ModuleType) -> None:
    """Published digests: real text, a masked synthetic sequence, and the same text with its history."""
    fox, params = fixture("rows_generated")["probes"]["fox"], release()
    tokens, past = np.array(fox["token_ids"]), fox["compressed"]
    same(sha256(module.hash_rows(tokens, params), "<i8"), fox["rows_i64le_sha256"])
    later = module.hash_rows(tokens[5:], params, None, past[2:5])
    same(later.tolist(), np.array(fox["rows"])[5:].tolist())
    case, i = fixture("ds4_synthetic"), np.arange(513)
    multipliers = [[35184372088831 - 2 * (j + 4 * layer) for j in range(4)] for layer in range(2)]
    moduli = np.full((2, 24), 16_000_057, np.uint64)
    synthetic = HashParams(
        (1, 14), (24 * 16_000_057,) * 2, 8, 128, 1, np.arange(256, dtype=np.uint32) // 2,
        np.array(multipliers, np.uint64), moduli, np.cumsum(moduli, axis=1) - moduli,
    ).check()  # fmt: skip
    ids, mask = (97 * i + i // 3) % 256, (i % 17 != 0) & ((i < 125) | (i > 131))
    same(sha256(module.hash_rows(ids, synthetic, mask), "<u4"), case["sha256_u32le_masked"])
    same(module.hash_rows(ids[:0], synthetic).shape, (0, 2, 24))
    ids, sibling = fixture("siblings/engram-demo")["prompt"]["ids"], published(profiles.load("engram-peft"))
    found = module.hash_rows(np.array(ids), sibling) - sibling.offsets.astype(np.int64)
    same(found[:, 0].tolist(), fixture("siblings/engram-peft")["rows"]["1"])


def lookup(module: ModuleType) -> None:
    values = module.lookup(every_row())
    same(sha256(values.reshape(256, 256).T, "<u2"), fixture("decode")["sha256_u16le"])
    same(module.lookup(every_row().reshape(2, 128, 264)).tolist(), values.reshape(2, 128, 256).tolist())
    refused(module.lookup, np.zeros((2, 263), np.uint8), "rows: expected uint8 [2, 264]")


def every_row() -> np.ndarray:
    """[256, 264]: every code under every scale byte."""
    codes = np.tile(np.arange(256, dtype=np.uint8), (256, 1))
    return np.concatenate([codes, np.repeat(np.arange(256, dtype=np.uint8)[:, None], 8, axis=1)], axis=1)


def refused(function: Callable[..., object], *arguments: object) -> None:
    *given, words = arguments
    said = outcome(function, *given)
    assert len(said) == 1 and isinstance(said[0], str) and str(words) in said[0], said  # noqa: PT018


def weights(module: ModuleType) -> None:
    """Another library's E4M3 and BF16; refusals with place and count."""
    codes = splitmix.codes(3, 71, 100)
    scales = splitmix.scales(4, 3, 246, 3, 4)
    scales[0, 0], scales[2, 3], codes[:, 0] = 3, 246, 0x7E
    codes[64:, 96:] &= 0x80 | 0x77  # below 2**128 under 246
    exact = codes.view(FP8).astype(np.float64) * 2.0 ** (
        np.repeat(np.repeat(scales, 32, axis=0), 32, axis=1)[:71, :100] - 127.0
    )
    same(module.dequantise(codes, scales).tolist(), exact.astype(BF16).view(np.uint16).tolist())
    worse, bad = codes.copy(), scales.copy()
    worse[40, 7] = 0xFF
    refused(module.dequantise, worse, scales, "w", "w, row 40, column 7: expected an E4M3 number, found 0xff (NaN)")
    worse[0, 1] = 0x7F
    refused(module.dequantise, worse, scales, "projection weight, row 0, column 1: expected")
    bad[1, 2] = 255
    refused(module.dequantise, codes, bad, "w", "w scale, row 1, column 2: expected an E8M0 scale below 255, found 255")
    refused(module.dequantise, codes[0], scales, "expected uint8 [N, K]")
    refused(module.dequantise, codes, scales.T, "scale: expected uint8 [3, 4]")
    few = np.full((40, 70), 0x38, np.uint8)
    low = np.full((2, 3), 120, np.uint8)
    low[1, 2], few[32:, 64:] = 0, 0x01
    refused(module.dequantise, few, low, "expected values that BF16 holds exactly, found 48 of 2800 that it does not")
    low[1, 2], few[:] = 254, 0x38
    same(module.dequantise(few, low)[39, 69], 0x7F00)
    fine = np.array([[1.0, -0.5], [3.140625, 0.0]], np.float32)
    same(from_bf16(module.exact_bf16(fine, "kv")).tolist(), fine.tolist())
    same(from_bf16(module.exact_bf16(fine.astype(np.float16), "kv")).tolist(), fine.tolist())
    refused(module.exact_bf16, np.array([1.001, np.nan, 1.0], np.float32), "kv", "kv: expected values that BF16 holds")
    refused(module.exact_bf16, np.array([1.001, np.nan, 1.0], np.float32), "kv", "found 2 of 3 that it does not")


def activation(module: ModuleType) -> None:
    """Published codes and scales, and the published rule for every largest value."""
    values = LISTED["lookup_bf16"].astype(np.uint16)
    codes, scales = module.quantise_activation(values)
    same((codes.tolist(), scales.tolist()), (LISTED["act_codes"].tolist(), LISTED["act_scale_bytes"].tolist()))
    same(module.official_activation(values).tolist(), values.tolist())
    amax = from_bf16(np.arange(0x7F80, dtype=np.uint16)[:, None])
    found = module.quantise_activation(to_bf16(amax))[1][:, 0].astype(int)
    fraction, exponent = np.frexp(np.maximum(amax[:, 0], np.float32(1e-4)).astype(float))
    same(found.tolist(), (exponent - 9 + (fraction > 448 / 512) + 127).tolist())
    wide = splitmix.uniform(3, 1.0, 4, 100)
    codes, scales = module.quantise_activation(wide)
    factors = np.repeat(2.0 ** (scales - 127.0), 32, axis=1)[:, :100]
    want = (from_bf16(wide) / factors).astype(np.float32).astype(FP8)
    same(codes.tolist(), want.view(np.uint8).tolist())
    same(
        module.official_activation(wide).tolist(), (want.astype(float) * factors).astype(BF16).view(np.uint16).tolist()
    )
    refused(module.official_activation, np.array([[0x7F80]], np.uint16), "activation: expected finite values")
    refused(module.quantise_activation, np.zeros(4, np.uint16), "activation: expected uint16 [T, K]")


def projection(module: ModuleType) -> None:
    """The published outputs; then the Numba tier's bits, where sums of another order have others."""
    weight = module.dequantise(LISTED["wkv_codes"].astype(np.uint8), LISTED["wkv_scales"].astype(np.uint8))
    values = LISTED["lookup_bf16"].astype(np.uint16)
    same(module.project(values, weight).tolist(), LISTED["kv_official_bf16"].tolist())
    for K in (1, 31, 33, 200):
        e, w = splitmix.uniform(K, 2.0, 3, K), splitmix.uniform(K + 1, 3.0, 500, K)
        same(outcome(module.project, e, w), outcome(fast.project, e, w))
    values, weight = np.full((2, 40), 0x3F80, np.uint16), np.full((70, 40), 0x3F80, np.uint16)
    values[1], weight[66] = 0x5F80, 0x5F80
    refused(module.project, values, weight, "projection of token 1, output 66: expected a finite value, found inf")
    weight[66, 1::2] = 0xDF80
    refused(module.project, values, weight, "projection of token 1, output 66: expected a finite value, found nan")
    refused(module.project, values, weight[:, :3], "projection input: expected uint16 [T, 3]")


def gates(module: ModuleType) -> None:
    """Published gates, edges and outputs; the Numba tier's bits for other widths, weights, masks, eps and clamp."""
    x, q, k = (LISTED[name].astype(np.uint16) for name in ("x_bf16", "q_bf16", "k_bf16"))
    x, q, k = x.reshape(3, 4, 32), q.reshape(4, 32), k.reshape(4, 32)
    kv = LISTED["kv_official_bf16"].astype(np.uint16).reshape(3, 5, 32)
    mask = np.array(FULL["token_mask"], np.bool_)
    key, value = np.ascontiguousarray(kv[:, :4]), np.ascontiguousarray(kv[:, 4])
    made, out = module.gate(x, key, value, q, k, mask)
    same(out.tolist(), LISTED["out_bf16"].tolist())
    assert (np.abs(made - np.array(FULL["gate_f64"]) * mask[:, None]) < 1e-6).all()
    for case in fixture("gate_edge")["cases"]:
        edge(module, case)
    for seed, (S, D, size) in enumerate([(1, 1, 1.0), (2, 70, 1.0), (3, 200, 300.0), (2, 129, 1e-3)]):
        given = [splitmix.uniform(5 * seed + i, 2.0, *shape) for i, shape in enumerate([(4, S, D), (4, S, D), (4, D)])]
        both = [splitmix.uniform(9 * seed + i, size, S, D) for i in (7, 8)]
        alive = np.array([True, False, True, True])
        for weights_ in (both, [from_bf16(each) + np.float32(1e-5) for each in both], [both[0], from_bf16(both[1])]):
            for more in ((), (alive,), (alive, 1e-3, 0.5)):
                args = (*given, *weights_, *more)
                same(outcome(module.gate, *args), outcome(fast.gate, *args))
    tiny = [to_bf16(from_bf16(part) * np.float32(2**-34)) for part in given[:2]]
    large = [splitmix.uniform(seed, 3.0, S, D) for seed in (77, 78)]
    same(outcome(module.gate, *tiny, given[2], *large), outcome(fast.gate, *tiny, given[2], *large))
    broken = [np.full(shape, 0x3F80, np.uint16) for shape in ((3, 2, 8), (3, 2, 8), (3, 8), (2, 8), (2, 8))]
    broken[1][2, 1, 5] = 0x7FC0
    refused(module.gate, *broken, "gate of token 2, stream 1: expected a finite value, found nan")
    broken[2][1, 7] = 0x7F80
    alive = np.array([True, True, False])
    refused(module.gate, *broken, alive, "gated output of token 1, stream 0, element 7: expected a finite value")
    alive[1] = False
    same(module.gate(*broken, alive)[1][1:].tolist(), broken[0][1:].tolist())
    huge = [np.full(shape, 0x7F00, np.uint16) for shape in ((1, 1, 70), (1, 1, 70), (1, 70), (1, 70), (1, 70))]
    same(outcome(module.gate, *huge), outcome(fast.gate, *huge))
    refused(module.gate, broken[0][0], *broken[1:], "hidden: expected uint16 [T, S, D]")
    same(module.gate(*(part[:0] for part in given), *both)[0].shape, (0, 2))


def edge(module: ModuleType, case: dict) -> None:
    if "pattern" in case:
        return
    S, D = case["hc"], case["dim"]
    x, kv, q, k = (to_bf16(np.array(case[name], np.float32)) for name in ("x", "kv", "q", "k"))
    args = (
        x.reshape(1, S, D),
        kv[: S * D].reshape(1, S, D),
        kv[S * D :].reshape(1, D),
        q.reshape(S, D),
        k.reshape(S, D),
    )
    mask = np.array(case["mask"], np.bool_) if case["mask"] else None
    made, out = module.gate(*args, mask, case["eps"])
    assert (np.abs(made[0] - case["gate"]) < 1e-6).all()
    assert (from_bf16(out).ravel() == from_bf16(np.array(case["out_bits"], np.uint16))).all()


def sigmoids(module: ModuleType) -> None:
    """float64's own exponential to within a unit in the last place, far out, and a NaN."""
    for g in [*np.linspace(-140, 140, 1121).tolist(), 1e-3, -1e-3, 0.0, -0.0, 1e300]:
        with np.errstate(over="ignore"):
            want = 1 / (1 + np.exp(-g)) if g >= 0 else np.exp(g) / (1 + np.exp(g)) if g > -700 else 0.0
        if abs(g) <= 128:
            assert abs(module.sigmoid(g) / want - 1) < 4e-16, g
        else:
            assert module.sigmoid(g) == module.sigmoid(np.sign(g) * 128.0), g
    assert np.isnan(module.sigmoid(float("nan")))
    assert isinstance(module.sigmoid(1.0), float)


GOLDENS = [rows, lookup, weights, activation, projection, gates, sigmoids]
FIRST = {  # golden to ask first, by the function that was changed
    "hash_rows": rows, "look_back": rows, "lookup": lookup, "dequantise": weights, "exact_bf16": weights,
    "_expect_exact": weights, "official_activation": activation, "quantise_activation": activation,
    "project": projection, "sigmoid": sigmoids,
}  # fmt: skip


LEAST = {  # changes at least, so that none is lost because it was not looked for
    "_expect_exact": 1, "as_f32": 1, "hash_rows": 15, "look_back": 5, "dequantise": 30, "quantise_activation": 20,
    "project": 15, "gate": 25,
}  # fmt: skip


def noticed(mutant: mutants.Mutant) -> bool:
    """Does a golden fail? Anything that the mutant raises is one."""
    first = FIRST.get(mutant.function, gates)
    with np.errstate(all="ignore"):
        try:
            changed = mutant.load(reference)
            for golden in (first, *(each for each in GOLDENS if each is not first)):
                golden(changed)
        except Exception:
            return True
    return False


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden.__name__)
def test_the_goldens_hold_for_the_reference(golden: Callable[[ModuleType], None]) -> None:
    golden(mutants.Mutant("", "", mutants.parsed(reference)).load(reference))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", mutants.functions(reference))
def test_every_change_of_the_reference_is_noticed(function: str) -> None:
    changed = [*mutants.mutants(reference, function)]
    names = {mutant.name for mutant in changed}
    survived = {mutant.name for mutant in changed if not noticed(mutant)}
    explained = {name for name in SURVIVORS if name.startswith(f"{function}: ")}
    assert len(names) == len(changed) >= LEAST.get(function, 2)
    assert explained <= names
    assert survived == explained


def test_every_survivor_has_a_reason() -> None:
    assert all(SURVIVORS.values())
    assert {name.split(":")[0] for name in SURVIVORS} <= {*mutants.functions(reference)}
