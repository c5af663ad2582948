"""Lookup, projection and gate: published cases stage by stage, bounds, edges, and the order of operations itself."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import splitmix
from specs import table
from tiers import TIERS, bits

from engramctl import reference
from engramctl.errors import EngramctlError
from engramctl.projection import Projection, held
from engramctl.verify import bounds
from formats import row264
from formats.floats import E4M3_VALUES, E8M0_VALUES, exact_in_f16, from_bf16, to_bf16

FIXTURES = Path(__file__).parent.parent / "fixtures"
PUBLISHED = json.loads((FIXTURES / "lookup_project_gate.json").read_text())
CASES = [pytest.param(case, id=case["name"]) for case in PUBLISHED["cases"]]
EDGES = json.loads((FIXTURES / "gate_edge.json").read_text())["cases"]
ONE_BLOCK = row264.BLOCK


def sha256(array: np.ndarray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


class Case:
    """A published case's inputs, made by its generators; the projection's weights band by band, since one is 157 MB."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.published, self.seed = case, case["seed"]
        self.T, self.C, self.width = case["tokens"], case["n_cols"], case["head_dim"]
        self.S, self.D = case["hc_mult"], case["dim"]
        self.K, self.N = self.C * self.width, (self.S + 1) * self.D
        table_scales, wkv_scales = (self.window(name) for name in ("table_scales", "wkv_scales"))
        rows = case["table_rows"]
        self.codes = splitmix.codes(self.seed + 1, rows, self.width)
        self.scales = splitmix.scales(self.seed + 2, *table_scales, rows, self.width // ONE_BLOCK)
        ids = splitmix.numbers(self.seed + 3, self.T * self.C) % np.uint64(rows)
        self.rows = ids.astype(np.int64).reshape(self.T, self.C)
        self.weight_scales = splitmix.scales(
            self.seed + 5, *wkv_scales, -(-self.N // ONE_BLOCK), -(-self.K // ONE_BLOCK)
        )
        self.hidden = splitmix.uniform(self.seed + 6, 2.0, self.T, self.S, self.D)
        self.q, self.k = (splitmix.uniform(self.seed + i, 1.5, self.S, self.D) for i in (7, 8))
        self.mask = None if case["token_mask"] is None else np.array(case["token_mask"], np.bool_)

    def window(self, name: str) -> tuple[int, int]:
        found = re.fullmatch(r"scales\(seed\+\d,\d+,(\d+),(\d+)\).*", self.published["generator"][name])
        assert found
        return int(found[1]), int(found[2])

    def values(self, tier: ModuleType) -> np.ndarray:
        """[T, K]: looked up as table rows; a row narrower than row264 is padded for the purpose."""
        codes = np.zeros((self.T, self.C, row264.WIDTH), np.uint8)
        scales = np.zeros((self.T, self.C, row264.SCALES), np.uint8)
        codes[..., : self.width], scales[..., : self.scales.shape[1]] = self.codes[self.rows], self.scales[self.rows]
        packed = np.concatenate([codes, scales], axis=-1)
        return np.ascontiguousarray(tier.lookup(packed)[..., : self.width]).reshape(self.T, self.K)

    def bands(self) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """(first output, codes, scales) of every 1280 outputs."""
        for first in range(0, self.N, 40 * ONE_BLOCK):
            outputs = min(40 * ONE_BLOCK, self.N - first)
            codes = splitmix.codes(self.seed + 4, outputs, self.K, start=first * self.K)
            yield first, codes, self.weight_scales[first // ONE_BLOCK : -(-(first + outputs) // ONE_BLOCK)]

    def split(self, kv: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Keys first, stream by stream, then the value."""
        return kv[:, : self.S * self.D].reshape(self.T, self.S, self.D), np.ascontiguousarray(kv[:, self.S * self.D :])


def official_kv(act: np.ndarray, act_scales: np.ndarray, codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The released model's order: a block's codes summed, then both scales, then added to the total."""
    total = np.zeros((len(act), len(codes)), np.float32)
    for block in range(scales.shape[1]):
        part = slice(block * ONE_BLOCK, (block + 1) * ONE_BLOCK)
        sums = (E4M3_VALUES[act[:, part]].astype(float) @ E4M3_VALUES[codes[:, part]].astype(float).T).astype(
            np.float32
        )
        both = (
            E8M0_VALUES[act_scales[:, block, None]] * np.repeat(E8M0_VALUES[scales[:, block]], ONE_BLOCK)[: len(codes)]
        )
        total += sums * both
    return to_bf16(total)


@pytest.mark.parametrize("published", CASES)
def test_a_published_case_stage_by_stage(published: dict[str, Any]) -> None:
    case = Case(published)
    made = {
        "table_codes_u8": case.codes,
        "table_scales_u8": case.scales,
        "row_ids_i64": case.rows,
        "wkv_scales_u8": case.weight_scales,
        "x_bf16": case.hidden,
        "q_bf16": case.q,
        "k_bf16": case.k,
    }
    assert {name: sha256(array) for name, array in made.items()} == {k: published["input_sha256"][k] for k in made}

    looked_up = [case.values(tier.values[0]) for tier in TIERS]
    values = looked_up[0]
    assert [sha256(each) for each in looked_up] == [published["lookup_bf16_sha256"]] * len(TIERS)

    act, act_scales = reference.quantise_activation(values)
    assert (sha256(act), sha256(act_scales)) == tuple(
        published[f"act_quant_{part}_sha256"] for part in ("codes", "scale_bytes")
    )
    np.testing.assert_array_equal(reference.official_activation(values), values)

    kv, exact, magnitude, official, codes_seen = [], [], [], [], hashlib.sha256()
    for _, codes, scales in case.bands():
        codes_seen.update(codes.tobytes())
        weight = reference.dequantise(codes, scales)
        assert exact_in_f16(from_bf16(weight[:ONE_BLOCK])).all() == published["wkv_f16_exact"]
        outputs = [tier.values[0].project(values, weight) for tier in TIERS]
        np.testing.assert_array_equal(*outputs)
        kv.append(outputs[0])
        for parts, part in zip((exact, magnitude), bounds.kv_f64(values, held(weight)), strict=True):
            parts.append(part)
        official.append(official_kv(act, act_scales, codes, scales))
    assert codes_seen.hexdigest() == published["input_sha256"]["wkv_codes_u8"]
    kv, exact, magnitude, official = (np.concatenate(parts, axis=1) for parts in (kv, exact, magnitude, official))
    rounded = to_bf16(exact.astype(np.float32))
    assert sha256(rounded) == published["kv_f64_bf16_sha256"]
    assert int((official != rounded).sum()) == published["kv_official_vs_f64_mismatches"]
    if not published["kv_official_vs_f64_mismatches"]:
        assert sha256(official) == published["kv_official_bf16_sha256"]
    got = from_bf16(kv).astype(float)
    for want in (exact, from_bf16(official).astype(float)):
        assert (np.abs(got - want) <= bounds.kv_bound(want, got, magnitude, case.K)).all()
    assert int((kv != rounded).sum()) <= 10  # a bound alone would let every output be one step off
    assert kv[:, :8].tolist() == published["kv_first8_bits"]

    key, value = case.split(kv)
    span = bounds.gate_range(case.hidden, key, case.q, case.k, case.mask)
    masked = np.zeros(case.T, np.bool_) if case.mask is None else ~case.mask
    np.testing.assert_allclose(span.dot[~masked], np.array(published["gate_dot_f64"])[~masked], rtol=0, atol=1e-5)
    np.testing.assert_allclose(span.gate, published["gate_f64"], rtol=0, atol=1e-6)
    assert (bounds.GateRange.off(span, np.array(published["gate_f64"])) == 0).all()
    for tier in TIERS:
        gates, out = tier.values[0].gate(case.hidden, key, value, case.q, case.k, case.mask)
        assert (span.off(gates) == 0).all()
        off = np.abs(from_bf16(out) - bounds.out_f64(case.hidden, value, span.gate))
        assert (off <= bounds.out_bound(case.hidden, value, span.gate, out, span.bound())).all()
        assert sha256(out) == published["out_bf16_sha256"]
        assert out[..., :8].tolist() == published["out_first8_bits"]
        assert (gates[masked] == 0).all()
        np.testing.assert_array_equal(out[masked], case.hidden[masked])
    for mistake, wrong in published["negative_control_gates"].items():
        # eps only tells on tiny norms, for which there is an edge case
        assert (span.off(np.array(wrong)) > 1e-4).any() == (mistake != "eps_1e-6"), mistake


def test_the_small_cases_listing_agrees_stage_by_stage() -> None:
    published = PUBLISHED["cases"][0]
    case, full = Case(published), published["full"]
    ((_, codes, scales),) = case.bands()
    values = case.values(reference)
    act, act_scales = reference.quantise_activation(values)
    kv = reference.project(values, reference.dequantise(codes, scales))
    out = reference.gate(case.hidden, *case.split(kv), case.q, case.k, case.mask)[1]
    listed = {
        "table_codes": case.codes,
        "table_scales": case.scales,
        "row_ids": case.rows,
        "wkv_codes": codes,
        "wkv_scales": scales,
        "x_bf16": case.hidden,
        "q_bf16": case.q,
        "k_bf16": case.k,
        "lookup_bf16": values,
        "act_codes": act,
        "act_scale_bytes": act_scales,
        "kv_official_bf16": kv,
        "out_bf16": out,
    }
    assert set(listed) == set(full)
    for name, array in listed.items():
        np.testing.assert_array_equal(array, full[name], err_msg=name)


def edge_inputs(case: dict[str, Any]) -> tuple[np.ndarray, ...]:
    """hidden, key, value, q, k of an edge case, as BF16 bits."""
    if "pattern" in case:  # flat indices over [4, width] and [5, width]
        S, D = 4, 5120
        x, kv = ((np.arange(S * D) % 11) - 5) / 8, ((np.arange((S + 1) * D) % 13) - 6) / 16
        q, k = ((np.arange(S * D) % 7) - 3) / 4, np.ones(S * D)
    else:
        S, D = case["hc"], case["dim"]
        x, kv, q, k = (np.array(case[name], float) for name in ("x", "kv", "q", "k"))
    x, kv, q, k = (to_bf16(part.astype(np.float32)) for part in (x, kv, q, k))
    return (
        x.reshape(1, S, D), kv[: S * D].reshape(1, S, D), kv[S * D :].reshape(1, D), q.reshape(S, D), k.reshape(S, D)
    )  # fmt: skip


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in EDGES])
def test_a_gate_at_the_edge(tier: ModuleType, case: dict[str, Any]) -> None:
    hidden, key, value, q, k = edge_inputs(case)
    mask = np.array(case["mask"], np.bool_) if case.get("mask") else None
    gates, out = tier.gate(hidden, key, value, q, k, mask, case.get("eps", 1e-20))
    np.testing.assert_allclose(gates[0], case["gate"], rtol=0, atol=1e-6)
    span = bounds.gate_range(hidden, key, q, k, mask, case.get("eps", 1e-20))
    assert (span.off(gates) == 0).all()
    if "dot" in case and mask is None:
        np.testing.assert_allclose(span.dot[0], case["dot"], rtol=1e-5, atol=1e-9)
    if mask is not None:
        np.testing.assert_array_equal(out, hidden)  # bits; the published -0 came out as +0
        np.testing.assert_array_equal(from_bf16(out).ravel(), from_bf16(np.array(case["out_bits"], np.uint16)))
    elif "out_bits" in case:
        assert out.ravel().tolist() == case["out_bits"]
    else:
        assert sha256(out) == case["out_sha256_u16le"]
        assert out[0, :, :8].tolist() == case["out_first8"]


@pytest.mark.parametrize("tier", TIERS)
def test_the_wrong_eps_shows_where_norms_are_tiny(tier: ModuleType) -> None:
    (case,) = (case for case in EDGES if case["name"] == "tiny_norms_eps_1e-20")
    inputs = edge_inputs(case)
    gates = tier.gate(*inputs, None, 1e-6)[0]
    assert (bounds.gate_range(inputs[0], inputs[1], inputs[3], inputs[4]).off(gates) > 0.2).all()


def test_edges_hold_a_masked_minus_zero_and_a_dot_of_either_sign_of_nothing() -> None:
    names = {case["name"] for case in EDGES}
    assert {"masked_negative_zero_stream", "exact_zero_dot_positive_zero", "zero_key"} <= names
    (case,) = (case for case in EDGES if case["name"] == "masked_negative_zero_stream")
    assert (edge_inputs(case)[0] == 0x8000).any()


@pytest.mark.parametrize("tier", TIERS)
def test_a_product_is_rounded_before_it_is_added(tier: ModuleType) -> None:
    """217 * 151 = 32767 units of 2**-149, then 1.5 units: 2 after rounding, so the sum is above half a BF16 step.

    A fused multiply-add has 32768.5, which becomes half a step exactly, and that goes to the even 0.
    """
    e = to_bf16(np.array([[217 * 2.0**-70, 0, 1.5 * 2.0**-70]], np.float32))
    w = to_bf16(np.array([[151 * 2.0**-79, 0, 2.0**-79]] * 40, np.float32))
    fused = np.float32(math.ldexp(217 * 151 + 1.5, -149))  # one rounding
    assert to_bf16(np.array([fused]))[0] == 0
    assert tier.project(e, w).tolist() == [[1] * 40]


@pytest.mark.parametrize("tier", TIERS)
def test_gate_times_value_is_rounded_before_it_is_added(tier: ModuleType) -> None:
    T, S, D = 16, 4, 5120
    hidden, key = (splitmix.uniform(seed, 2.0, T, S, D) for seed in (1, 2))
    value, q, k = splitmix.uniform(3, 2.0, T, D), splitmix.uniform(4, 1.5, S, D), splitmix.uniform(5, 1.5, S, D)
    gates, out = tier.gate(hidden, key, value, q, k)
    h, v = from_bf16(hidden), from_bf16(value)[:, None, :]
    product = gates[:, :, None].astype(float) * v  # exact: 24 and 8 bits
    twice = to_bf16((h + product.astype(np.float32).astype(float)).astype(np.float32))
    once = to_bf16((h + product).astype(np.float32))
    np.testing.assert_array_equal(out, twice)
    assert (once != twice).any()


@pytest.mark.parametrize("tier", TIERS)
def test_even_and_odd_inputs_are_summed_apart_and_blocks_in_order(tier: ModuleType) -> None:
    one = 0x3F80
    big, small = to_bf16(np.array([2.0**24, 1.0], np.float32)).tolist()

    def summed(places: dict[int, int], K: int) -> float:
        weight = np.zeros((1, K), np.uint16)
        for at, bits_ in places.items():
            weight[0, at] = bits_
        return float(from_bf16(tier.project(np.full((1, K), one, np.uint16), weight))[0, 0])

    minus = big | 0x8000
    # 2**24 swallows a 1 that is added to it. What is left of 1s around +2**24 and -2**24 tells the order.
    assert summed({0: big, 2: small, 4: minus}, 32) == 0  # one chain: swallowed
    assert summed({0: big, 1: small, 2: minus}, 32) == 1  # the other chain: kept
    assert summed({0: big, 2: minus, 4: small}, 32) == 1  # ascending
    assert summed({0: big, 33: small, 64: minus}, 96) == 0  # blocks join the total in order
    assert summed({0: big, 32: minus, 65: small}, 96) == 1
    assert summed({31: small, 32: big, 64: minus}, 96) == 0


@pytest.mark.parametrize("D", [1, 7, 64, 65, 130, 1000])
def test_the_tree_sum_deals_to_64_partials_and_halves_them(D: int) -> None:
    x = from_bf16(splitmix.uniform(9, 1.0, D))
    partials = [np.float32(0)] * 64
    for d in range(D):
        partials[d % 64] = partials[d % 64] + x[d]
    lanes = [(partials[p] + partials[p + 16]) + (partials[p + 32] + partials[p + 48]) for p in range(16)]
    for half in (8, 4, 2, 1):
        lanes = [lanes[i] + lanes[i + half] for i in range(half)]
    assert reference.tree_sum(x) == lanes[0]


def test_the_sigmoid_is_the_nearest_f32_or_its_neighbour_everywhere() -> None:
    for g in [*np.linspace(-130, 130, 2001), 1e-3, -1e-3, 0.0, 1e18, -1e18, math.inf, -math.inf]:
        want = 1 / (1 + math.exp(-g)) if g > -700 else 0.0
        assert math.isclose(reference.sigmoid(float(g)), want, rel_tol=1e-15, abs_tol=1e-55), g
    assert math.isnan(reference.sigmoid(math.nan))


def test_the_official_activation_leaves_looked_up_rows_alone_under_every_scale() -> None:
    """Blocks whose largest member is each code in turn: only the stated exceptions change, and some of those do."""
    random = np.random.default_rng(5)
    order = np.argsort(np.abs(np.nan_to_num(E4M3_VALUES, nan=np.inf)), kind="stable")[:-2].astype(np.uint8)
    changed = {"tiny": 0, "lowest scales": 0}
    for scale in range(255):
        blocks = np.stack([order[random.integers(0, i + 1, ONE_BLOCK)] for i in range(len(order))])
        blocks[:, 3] = order
        with np.errstate(over="ignore"):
            values = to_bf16(E4M3_VALUES[blocks] * E8M0_VALUES[scale])
        amax = np.abs(from_bf16(values)).max(axis=1)
        values, tiny = values[np.isfinite(amax)], amax[np.isfinite(amax)] < np.float32(1e-4)
        same = (reference.official_activation(values) == values).all(axis=1)
        if scale > 2:
            assert same[~tiny].all(), scale
            changed["tiny"] += int((~same).sum())
        else:
            changed["lowest scales"] += int((~same).sum())
    assert min(changed.values()) > 0


def test_the_official_activation_takes_the_least_scale_for_every_largest_value() -> None:
    amax = from_bf16(np.arange(0x7F80, dtype=np.uint16)[:, None])
    scales = reference.quantise_activation(to_bf16(amax))[1][:, 0].astype(int)
    fraction, exponent = np.frexp(np.maximum(amax[:, 0], np.float32(1e-4)).astype(float))
    np.testing.assert_array_equal(scales, exponent - 9 + (fraction > 448 / 512) + 127)
    published = json.loads((FIXTURES / "decode.json").read_text())["activation"]
    assert scales[0] == published["zero_block_scale_byte"]


def test_the_official_activation_changes_what_was_quantised_otherwise() -> None:
    values = splitmix.uniform(3, 1.0, 4, 100)
    changed = reference.official_activation(values)
    assert (changed != values).any()
    steps = np.abs(from_bf16(changed) - from_bf16(values))
    assert (steps <= np.abs(from_bf16(values)).max() / 16).all()  # half an E4M3 step of the block's largest


@pytest.mark.parametrize("seed", range(8))
def test_projection_and_gate_stay_within_their_bounds(seed: int) -> None:
    random = np.random.default_rng(seed)
    T, S, D, K = (int(random.integers(1, high)) for high in (4, 5, 400, 700))
    values, hidden = splitmix.uniform(seed, 3.0, T, K), splitmix.uniform(seed + 100, 2.0, T, S, D)
    weight = splitmix.uniform(seed + 200, 1.0, (S + 1) * D, K)
    q, k = splitmix.uniform(seed + 300, 1.5, S, D), splitmix.uniform(seed + 400, 1.5, S, D)
    kv = reference.project(values, weight)
    exact, magnitude = bounds.kv_f64(values, held(weight))
    got = from_bf16(kv).astype(float)
    assert (np.abs(got - exact) <= bounds.kv_bound(exact, got, magnitude, K)).all()
    key, value = kv[:, : S * D].reshape(T, S, D), kv[:, S * D :]
    gates, out = reference.gate(hidden, key, value, q, k)
    span = bounds.gate_range(hidden, key, q, k)
    assert (span.off(gates) == 0).all()
    off = np.abs(from_bf16(out) - bounds.out_f64(hidden, value, span.gate))
    assert (off <= bounds.out_bound(hidden, value, span.gate, out, span.bound())).all()


def test_bounds_are_no_wider_than_they_say() -> None:
    assert bounds.bf16_step(np.array([1.0, 1.99, 2.0, 0.0, 2.0**-126, 2.0**-140])).tolist() == [
        2.0**-7, 2.0**-7, 2.0**-6, 2.0**-133, 2.0**-133, 2.0**-133,
    ]  # fmt: skip
    step = bounds.kv_bound(np.array(1.0), np.array(1.0), np.array(8.0), 6144)
    assert step == 2.0**-7 + (192 + 32) * 2.0**-23 * 8
    nan = bounds.GateRange(*(np.zeros((1, 1)) for _ in range(4))).off(np.full((1, 1), np.nan, np.float32))
    assert nan == np.inf


def test_a_wrong_projection_leaves_the_bound() -> None:
    """Value before keys, one weight's sign, one scale byte: each is seen."""
    values, weight = splitmix.uniform(1, 1.0, 2, 256), splitmix.uniform(2, 1.0, 160, 256)
    exact, magnitude = bounds.kv_f64(values, held(weight))
    flipped = weight.copy()
    flipped[7, np.abs(from_bf16(weight[7])).argmax()] ^= 0x8000
    doubled = weight.copy()
    doubled[:32, :32] += 0x80
    for wrong in (np.roll(weight, 32, axis=0), flipped, doubled):
        got = from_bf16(reference.project(values, wrong)).astype(float)
        assert (np.abs(got - exact) > bounds.kv_bound(exact, got, magnitude, 256)).any()


def test_weights_that_bf16_cannot_hold_are_refused_with_their_count() -> None:
    codes, scales = np.full((40, 70), 0x39, np.uint8), np.full((2, 3), 120, np.uint8)
    weight = reference.dequantise(codes, scales)
    assert weight.shape == (40, 70)
    assert (from_bf16(weight) == 1.125 * 2.0**-7).all()
    scales[0, 0] = 2  # 1.125 * 2**-125 is exact
    scales[1, 2], codes[32:, 64:] = 0, 0x01  # 2**-9 * 2**-127 is less than BF16's least
    codes[38:, 69] = 0, 0x38  # but 0 and 2**-127 are exact
    with pytest.raises(EngramctlError, match=r"projection weight: .*found 46 of 2800 that it does not"):
        reference.dequantise(codes, scales)


@pytest.mark.parametrize(
    ("part", "at", "byte", "message"),
    [
        ("code", (35, 6), 0xFF, "row 35, column 6: expected an E4M3 number, found 0xff (NaN)"),
        ("scale", (1, 2), 255, "scale, row 1, column 2: expected an E8M0 scale below 255, found 255 (NaN)"),
        ("scale", (0, 0), 254, "found 1024 of 2800 that it does not"),
    ],
)
def test_weights_without_a_value_are_refused(part: str, at: tuple[int, int], byte: int, message: str) -> None:
    codes, scales = np.full((40, 70), 0x7E, np.uint8), np.full((2, 3), 120, np.uint8)
    (codes if part == "code" else scales)[at] = byte
    with pytest.raises(EngramctlError, match=re.escape(message)):
        reference.dequantise(codes, scales, "w")


def test_a_stored_weight_is_taken_a_band_at_a_time_and_gives_the_same() -> None:
    random, asked = np.random.default_rng(6), list[tuple[int, int]]()
    codes, scales = random.integers(0, 0x7F, (700, 70), np.uint8), random.integers(110, 130, (22, 3), np.uint8)

    def rows(first: int, last: int) -> np.ndarray:
        asked.append((first, last))
        return codes[first:last]

    stored, values = Projection((700, 70), rows, scales), splitmix.uniform(6, 1.0, 3, 70)
    whole = bounds.kv_f64(values, held(reference.dequantise(codes, scales)))
    np.testing.assert_array_equal(bounds.kv_f64(values, stored), whole)
    assert asked == [(0, 256), (256, 512), (512, 700)]
    for part, at, byte in ((codes, (600, 6), 0x7F), (scales, (20, 2), 255), (scales, (20, 2), 250)):
        before, part[at] = int(part[at]), byte
        with pytest.raises(EngramctlError) as refused:
            reference.dequantise(codes, scales)
        with pytest.raises(EngramctlError, match=re.escape(str(refused.value))):
            bounds.kv_f64(values, stored)
        part[at] = before


def test_scales_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(EngramctlError, match=r"w scale: expected uint8 \[2, 3\], found uint8 \[3, 2\]"):
        reference.dequantise(np.zeros((40, 70), np.uint8), np.zeros((3, 2), np.uint8), "w")


def test_f16_and_f32_weights_are_used_if_bf16_holds_them() -> None:
    fine = np.array([[1.0, -0.5], [3.140625, 0.0]])
    for kind in (np.float16, np.float32):
        np.testing.assert_array_equal(from_bf16(reference.exact_bf16(fine.astype(kind), "kv")), fine)
    with pytest.raises(EngramctlError, match=r"kv: expected values that BF16 holds exactly, found 2 of 3"):
        reference.exact_bf16(np.array([1.001, np.nan, 1.0], np.float32), "kv")


def test_an_activation_that_is_no_number_is_refused() -> None:
    with pytest.raises(EngramctlError, match="activation: expected finite values"):
        reference.official_activation(np.array([[0x7F80]], np.uint16))


@pytest.mark.parametrize("tier", TIERS)
def test_results_that_are_no_numbers_are_refused_by_place(tier: ModuleType) -> None:
    values, weight = np.full((2, 40), 0x3F80, np.uint16), np.full((70, 40), 0x3F80, np.uint16)
    values[1], weight[66] = 0x5F80, 0x5F80  # 2**64, twice
    with pytest.raises(EngramctlError, match="projection of token 1, output 66: expected a finite value, found inf"):
        tier.project(values, weight)
    hidden, key = np.full((3, 2, 8), 0x3F80, np.uint16), np.full((3, 2, 8), 0x3F80, np.uint16)
    value, q = np.full((3, 8), 0x3F80, np.uint16), np.full((2, 8), 0x3F80, np.uint16)
    key[2, 1, 5] = 0x7FC0
    with pytest.raises(EngramctlError, match="gate of token 2, stream 1: expected a finite value, found nan"):
        tier.gate(hidden, key, value, q, q)
    value[1, 7] = 0x7F80
    mask = np.array([True, True, False])
    with pytest.raises(EngramctlError, match="gated output of token 1, stream 0, element 7: expected a finite value"):
        tier.gate(hidden, key, value, q, q, mask)
    mask[1] = False
    gates, out = tier.gate(hidden, key, value, q, q, mask)  # masked: nobody looks
    np.testing.assert_array_equal(out[1:], hidden[1:])
    assert gates[1:].tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("tier", TIERS)
def test_operands_of_another_shape_or_type_are_refused_before_any_work(tier: ModuleType) -> None:
    u16 = np.uint16
    bad = [
        (tier.project, (np.zeros((1, 5), u16), np.zeros((2, 6), u16)), r"projection input: expected uint16 \[T, 6\]"),
        (tier.project, (np.zeros((1, 6), np.float32), np.zeros((2, 6), u16)), "found float32"),
        (
            tier.project,
            (np.zeros((1, 6), u16), np.zeros(6, u16)),
            r"weight: expected uint16 \[N, K\], found uint16 \[6\]",
        ),
        (tier.lookup, (np.zeros((2, 256), np.uint8),), r"rows: expected uint8 \[2, 264\]"),
        (tier.lookup, (np.zeros((2, 264), np.int8),), "found int8"),
    ]
    gate = [np.zeros(shape, u16) for shape in ((2, 3, 8), (2, 3, 8), (2, 8), (3, 8), (3, 8))]
    for at, name in enumerate(["hidden", "key", "value", "q_weight", "k_weight"]):
        bad.append((tier.gate, [*gate[:at], gate[at].astype(np.int32), *gate[at + 1 :]], f"{name}: expected uint16"))
        wrong = [*gate[:at], gate[at][..., :-1], *gate[at + 1 :]]
        bad.append((tier.gate, wrong, f"{name if at else 'key'}: expected"))  # hidden sets the shape of the others
    bad.append((tier.gate, [*gate, np.ones(3, np.bool_)], r"mask: expected bool \[2\], found bool \[3\]"))
    bad.append((tier.gate, [part[..., :0] for part in gate], "hidden: expected at least one value a stream"))
    for function, arguments, message in bad:
        with pytest.raises(EngramctlError, match=message):
            function(*arguments)


def test_the_spec_has_the_modules_numbers() -> None:
    numbers = {name: float(value) for name, value, _ in table("../engramctl/arithmetic.md", "name")}
    gate = dict(zip(("eps", "clamp"), reference.gate.__defaults__[1:], strict=True))
    assert numbers == gate | {
        "block": row264.BLOCK,
        "partials": reference.PARTIALS,
        "far": reference.FAR,
        "amax": pytest.approx(float(reference.LEAST_AMAX)),
    }
    assert (PUBLISHED["eps"], PUBLISHED["clamp"]) == (gate["eps"], gate["clamp"])


def test_operands_are_left_as_they_are() -> None:
    for tier in TIERS:
        hidden, key = (splitmix.uniform(seed, 1.0, 2, 2, 70) for seed in (1, 2))
        value, q = splitmix.uniform(3, 1.0, 2, 70), splitmix.uniform(4, 1.0, 2, 70)
        before = [bits(array).copy() for array in (hidden, key, value, q)]
        tier.values[0].gate(hidden, key, value, q, q, np.array([True, False]))
        tier.values[0].project(value, q)
        for array, was in zip((hidden, key, value, q), before, strict=True):
            np.testing.assert_array_equal(array, was)
