"""Known mistakes of decoding, projection and gate, of maps and constants in files: named from what an engine dumps."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from checks import differs, npy, passes
from cli_helpers import Cli
from published import fixture, release, shipped_map

from engramctl import params_file, profiles, reference
from engramctl.arrays import Array
from engramctl.mistakes import catalogue, gate_probes, map_deltas, map_sources, rowplan
from engramctl.mistakes.gateplan import GateInputs, GatePlan, gates, outputs
from engramctl.mistakes.hashing import HashPlan
from engramctl.mistakes.projectplan import ProjectPlan
from engramctl.mistakes.record import Mistake
from engramctl.mistakes.rowplan import RowPlan
from engramctl.source import Source, open_source
from engramctl.verify import explain_lookups, gate, name_lookups, score_lookups, values
from engramctl.verify.name_lookups import LookPlan
from formats import row264
from formats.floats import from_bf16, to_bf16

ENTRIES = {entry.name: entry for entry in catalogue.every()}
DECODE, GATE = fixture("decode"), fixture("lookup_project_gate")


# Decoding.


def decode_rows() -> np.ndarray:
    """The probe of decoding: every code but the NaNs, scale bytes from 0 up, a different one in each block."""
    codes = np.arange(256, dtype=np.uint8)
    codes[[0x7F, 0xFF]] = 0x38
    scales = np.array([[119, 120, 118, 121, 119, 117, 122, 120], [0, 1, 2, 119, 3, 120, 0, 119]], np.uint8)
    return np.concatenate([np.stack([codes, np.roll(codes, 41)]), scales], axis=1)


def test_a_row_plan_of_defaults_decodes_as_the_specification() -> None:
    np.testing.assert_array_equal(rowplan.values(RowPlan(), decode_rows()), row264.decode(decode_rows()))
    np.testing.assert_array_equal(rowplan.relaid(RowPlan(), decode_rows()), decode_rows())


def in_row(entry: Mistake) -> bool:
    return entry.name not in ("row-after", "row-before", "tables-swapped", "offset-32-bit")  # these read another row


def test_every_mistake_of_decoding_differs_on_its_probe_from_the_truth_and_the_others() -> None:
    made = {"truth": rowplan.values(RowPlan(), decode_rows())}
    made |= {e.name: rowplan.values(e.vary(RowPlan()), decode_rows()) for e in catalogue.DECODING if in_row(e)}
    for one, other in combinations(made, 2):
        assert (made[one] != made[other]).any(), (one, other)


def test_decoding_goes_wrong_as_published() -> None:
    """(0x38, 120) is 2**-7; as a number 120; without a scale 1; a scale byte of 0 gives 0 in the vLLM gather."""
    raw = np.zeros((1, 264), np.uint8)
    raw[:, :256], raw[:, 256:] = 0x38, 120

    def first(name: str, row: np.ndarray = raw) -> float:
        return float(rowplan.values(ENTRIES[name].vary(RowPlan()), row)[0, 0])

    assert (first("scale-as-number"), first("scale-dropped"), first("codes-signed")) == (120.0, 1.0, 56 * 2.0**-7)
    raw[:, 256:] = 0
    assert first("scale-zero-as-zero") == 0.0
    blocks = np.concatenate([[s, *[c] * 32] for s, c in zip(range(110, 118), range(0x30, 0x38), strict=True)])
    want = np.repeat(2.0 ** (np.arange(110, 118) - 127) * rowplan.CODES["e4m3"][0x30:0x38], 32)
    made = rowplan.values(ENTRIES["block-interleaved"].vary(RowPlan()), blocks.astype(np.uint8)[None])
    np.testing.assert_array_equal(made[0], want.astype(np.float32))


# Values and projections of a checkpoint.


TOKENS = np.random.default_rng(0).integers(0, 384, 20)
MASK = np.arange(20) % 9 != 7


@pytest.fixture(scope="module")
def source(tiny: Path) -> Source:
    with open_source(tiny) as opened:
        yield opened


@pytest.fixture(scope="module")
def looked(source: Source, tiny: Path) -> values.Looked:
    maps = map_sources.for_params(source.params(), source.profile, tiny / "tokenizer.json")
    return values.looked_up(source, 14, TOKENS, MASK, (3, -1, 5), maps)


def dump(array: np.ndarray) -> Array:
    return Array("dump", "", array.dtype.name, array.dtype, array.shape, lambda: array)


def engine_values(source: Source, looked: values.Looked, plan: LookPlan) -> np.ndarray:
    """[T, C, 256] F32 as an engine with that plan looks them up."""
    rows = looked.of(plan, np.arange(len(TOKENS)))
    raw = score_lookups.reader(source, 14).raw(plan.row, rows)
    return rowplan.values(plan.row, raw).reshape(*rows.shape, 256)


def engine_kv(source: Source, looked: values.Looked, plan: LookPlan) -> np.ndarray:
    weights = explain_lookups.projection(source, 14)
    inputs = from_bf16(to_bf16(engine_values(source, looked, plan))).reshape(len(TOKENS), -1)
    every = np.arange(weights.shape[0])
    with np.errstate(all="ignore"):
        return (inputs.astype(np.float64) @ weights.weights(plan.project, every).T).astype(np.float32)


SHOWN_IN_VALUES = [
    *(entry.name for entry in catalogue.DECODING if entry.name not in ("scale-zero-as-zero", "offset-32-bit")),
    *("oldest-token-first", "seed-by-index", "mix-32-bit", "raw-pad", "mask-ignored", "raw-ids", "accents-kept"),
]  # the tiny tables have no scale byte of 0 and end before 2**32


def varied(looked: values.Looked, name: str) -> LookPlan:
    base = LookPlan(looked.plan)
    made = next(vary(base) for entry, vary in name_lookups.entries(base, True) if entry.name == name)
    assert made is not None
    return made


@pytest.mark.parametrize("name", SHOWN_IN_VALUES)
def test_values_name_the_mistake_bit_for_bit(source: Source, looked: values.Looked, name: str) -> None:
    made = to_bf16(engine_values(source, looked, varied(looked, name)))
    result = values.check_values(dump(made), source, 14, looked)
    assert result.diagnosis is not None
    assert (result.diagnosis.name, result.diagnosis.explains) == (name, 1.0)
    assert result.diagnosis.decided_at.startswith("position ")


def test_raw_rows_name_their_layout(source: Source, looked: values.Looked) -> None:
    raw = source.table(14).read(looked.rows)
    made = rowplan.interleave(raw.reshape(-1, 264)).reshape(raw.shape)
    result = values.check_values(dump(made), source, 14, looked)
    assert result.diagnosis is not None
    assert result.diagnosis.name == "block-interleaved-file"


def test_values_of_two_mistakes_and_of_none_that_is_known(source: Source, looked: values.Looked) -> None:
    plan = varied(looked, "oldest-token-first")
    both = LookPlan(plan.hash, ENTRIES["scale-dropped"].vary(RowPlan()))
    result = values.check_values(dump(to_bf16(engine_values(source, looked, both))), source, 14, looked)
    assert result.diagnosis is not None
    assert (result.diagnosis.name, result.diagnosis.explains) == ("oldest-token-first + scale-dropped", 1.0)
    right = engine_values(source, looked, LookPlan(looked.plan))
    made = to_bf16(right)
    made[:, 3] = to_bf16(right[:, 3] * np.float32(4))
    result = values.check_values(dump(made), source, 14, looked)
    assert result.diagnosis is None
    assert "only columns 3" in result.structure
    assert "each is 4 times the right one" in result.structure


def test_listed_rows_are_enough(source: Source) -> None:
    listed = values.Looked(np.array([5, 9, 2000, 17, 0]))
    raw = source.table(14).read(listed.rows + 1)
    result = values.check_values(dump(row264.decode_bf16(raw)), source, 14, listed)
    assert result.diagnosis is not None
    assert (result.diagnosis.name, result.diagnosis.explains) == ("row-after", 1.0)


def test_an_offset_in_32_bits_reads_the_bytes_that_lie_there(full_container: Path) -> None:
    """Row 16,268,816 of 264 bytes begins at 2**32 + 128: its bytes are taken from the middle of row 0."""
    rows = np.array([16_268_815, 16_268_816, 16_268_817, 5])
    with open_source(full_container) as opened:
        reader = score_lookups.reader(opened, 1)
        right, wrapped = reader.raw(RowPlan(), rows), reader.raw(RowPlan(wrapped=True), rows)
        first = opened.table(1).read(np.arange(3)).reshape(-1)
    assert right is not None
    assert wrapped is not None
    np.testing.assert_array_equal(wrapped[[0, 3]], right[[0, 3]])
    np.testing.assert_array_equal(wrapped[1:3].reshape(-1), first[128 : 128 + 2 * 264])
    assert (wrapped[1] != right[1]).any()


KV = [
    *(entry.name for entry in catalogue.PROJECTING),
    *("scale-as-number", "scale-dropped", "scale-tiled", "oldest-token-first", "columns-head-major", "row-before"),
]


@pytest.mark.parametrize("name", KV)
def test_projections_name_the_mistake_by_distance(source: Source, looked: values.Looked, name: str) -> None:
    made = engine_kv(source, looked, varied(looked, name))
    result = values.check_kv(dump(made), source, 14, looked)
    assert result.diagnosis is not None
    assert (result.diagnosis.name, result.diagnosis.explains) == (name, 1.0)


def test_two_mistakes_of_the_projection_and_one_that_is_not_known(source: Source, looked: values.Looked) -> None:
    both = LookPlan(looked.plan, RowPlan(scale="nothing"), ProjectPlan(order="value first"))
    result = values.check_kv(dump(engine_kv(source, looked, both)), source, 14, looked)
    assert result.diagnosis is not None
    assert (result.diagnosis.name, result.diagnosis.explains) == ("scale-dropped + value-first", 1.0)
    made = engine_kv(source, looked, LookPlan(looked.plan)).reshape(len(TOKENS), 5, 64)
    made[4:, 2] *= -1.5
    result = values.check_kv(dump(made), source, 14, looked)
    assert result.diagnosis is None
    assert result.structure[0] == f"key 2: {16 * 64} outputs"
    assert result.structure[1].startswith("only positions 4, 5, ")


def test_another_layers_projections_and_weights_are_told(source: Source, looked: values.Looked) -> None:
    def through(rows: np.ndarray, layer: int, weights: int) -> np.ndarray:
        taken = reference.lookup(source.table(layer).read_valid(rows)).reshape(len(TOKENS), -1)
        return reference.project(taken, source.weights(weights).projection.bits())

    first = values.looked_up(source, 1, TOKENS, MASK, (3, -1, 5))
    for made, said in (
        (through(first.rows, 1, 1), "they are layer 1's keys and value"),
        (through(looked.rows, 14, 1), "they are this layer's rows through layer 1's projection"),
    ):
        result = values.check_kv(dump(made), source, 14, looked)
        assert result.diagnosis is None
        assert result.structure[0] == said
    listed = values.Looked(looked.rows.reshape(-1))
    assert values.check_kv(dump(made), source, 14, listed).structure[0] == said


def test_a_container_without_scales_still_names_orders(container: Path) -> None:
    with open_source(container) as opened:
        looked = values.looked_up(opened, 1, TOKENS[:4])
        right = values.check_kv(dump(np.zeros((4, 320), np.float32)), opened, 1, looked)
        assert right.diagnosis is None
        weights = explain_lookups.projection(opened, 1)
        assert weights.codes is None
        raw = opened.table(1).read(looked.rows).reshape(-1, 264)
        inputs = from_bf16(row264.decode_bf16(raw)).reshape(4, -1).astype(np.float64)
        made = inputs @ weights.weights(ProjectPlan(quantised=False, order="interleaved"), np.arange(320)).T
        result = values.check_kv(dump(made.astype(np.float32)), opened, 1, looked)
        assert result.diagnosis is not None
        assert result.diagnosis.name == "outputs-interleaved"


# The gate.


PLAN = GatePlan(1e-20, 1e-6)
CONTROLS = {
    "value_first_split": "split-value-first",
    "eps_1e-6": "eps-1e-6",
    "joint_rms_over_copies": "joint-rms",
    "no_signed_sqrt": "no-square-root",
    "no_rsqrt_dim": "no-width-scale",
}


@pytest.mark.parametrize("control", CONTROLS)
def test_mistakes_of_the_gate_have_the_gates_that_others_computed(control: str) -> None:
    case = next(each for each in GATE["cases"] if "full" in each)
    full = {name: np.array(value, np.uint16) for name, value in case["full"].items() if name.endswith("_bf16")}
    T, S, D = case["tokens"], case["hc_mult"], case["dim"]
    kv = full["kv_official_bf16"].reshape(T, S + 1, D)
    shape = (full[name].reshape(-1, S, D) for name in ("x_bf16", "q_bf16", "k_bf16"))
    x, q, k = shape
    inputs = GateInputs(x, kv[:, :-1], kv[:, -1], q[0], k[0])
    want = np.array(case["negative_control_gates"][control])
    made = gates(ENTRIES[CONTROLS[control]].vary(PLAN), inputs)
    live = np.array(case["token_mask"], bool)
    np.testing.assert_allclose(made[live], want.reshape(T, S)[live], atol=1e-6)


@pytest.fixture(scope="module")
def probe() -> GateInputs:
    return gate_probes.inputs(4, 128)


def test_the_gate_probe_tells_every_mistake_from_the_truth_and_from_every_other(probe: GateInputs) -> None:
    pairs = gate_probes.matrix(PLAN, probe)
    names = ["truth", *(entry.name for entry in catalogue.GATING)]
    assert [(pair.one, pair.other) for pair in pairs] == [*combinations(names, 2)]
    alike = [(pair.one, pair.other) for pair in pairs if pair.position is None]
    assert alike == [("no-clamp", "clamp-after-root")]
    assert all(pair.reason for pair in pairs if pair.position is None)


def checked(probe: GateInputs, plan: GatePlan, which: str = "both") -> gate.Result:
    made = gates(plan, probe).astype(np.float32) if which != "out" else None
    out = to_bf16(outputs(plan, probe).astype(np.float32)) if which != "gate" else None
    arrays = (probe.hidden, probe.key, probe.value, probe.q_weight, probe.k_weight, probe.mask)
    return gate.check(gate.Inputs(*arrays), made, out, PLAN.eps, PLAN.clamp)


@pytest.mark.parametrize("entry", catalogue.GATING, ids=lambda entry: entry.name)
def test_gates_name_the_mistake_by_distance(probe: GateInputs, entry: Mistake) -> None:
    assert checked(probe, PLAN).ok
    for which in ("both", "gate"):
        found = checked(probe, entry.vary(PLAN), which).diagnosis
        assert found is not None
        assert found.explains == 1.0
        assert entry.name in (found.name, *(runner.name for runner in found.runners_up))
        if entry.name not in ("no-clamp", "clamp-after-root"):
            assert (found.name, list(found.runners_up)) == (entry.name, [])


def test_outputs_alone_name_what_shows_in_them(probe: GateInputs) -> None:
    for name in ("joint-rms", "masked-rows-gated", "split-value-first", "no-width-scale", "eps-1e-6"):
        found = checked(probe, ENTRIES[name].vary(PLAN), "out").diagnosis
        assert found is not None
        assert (found.name, found.explains) == (name, 1.0)


def test_two_mistakes_of_the_gate_and_none(probe: GateInputs) -> None:
    both = ENTRIES["no-width-scale"].vary(ENTRIES["joint-rms"].vary(PLAN))
    found = checked(probe, both).diagnosis
    assert found is not None
    assert (found.name, found.explains) == ("joint-rms + no-width-scale", 1.0)
    arrays = (probe.hidden, probe.key, probe.value, probe.q_weight, probe.k_weight, probe.mask)
    result = gate.check(gate.Inputs(*arrays), np.full((10, 4), 0.7, np.float32), None, PLAN.eps, PLAN.clamp)
    assert result.diagnosis is None
    assert "2 of them are dead" in result.structure
    assert "their gates lie between 0.7 and 0.7" in result.structure


# Maps and constants in files.


@pytest.mark.parametrize("name", sorted(map_deltas.shipped("deepseek-v4.1-flash")))
def test_map_files_name_the_mistake(cli: Cli, tmp_path: Path, name: str) -> None:
    path = npy(tmp_path / "map.npy", map_deltas.shipped("deepseek-v4.1-flash")[name].astype(np.uint32))
    report = cli("check", "map", path, "--json").json
    assert report["ok"] is False
    assert (report["diagnosis"]["name"], report["diagnosis"]["explains"]) == (name, 1.0)


def test_two_mistakes_of_the_map_and_facts_about_others(cli: Cli, tmp_path: Path) -> None:
    shipped, truth = map_deltas.shipped("deepseek-v4.1-flash"), shipped_map()
    both = map_deltas.merged(shipped["case-kept"], shipped["special-tokens-skipped"], truth)
    report = differs(cli, "map", npy(tmp_path / "both.npy", both))
    assert (report["diagnosis"]["name"], report["diagnosis"]["explains"]) == ("special-tokens-skipped + case-kept", 1.0)
    report = differs(cli, "map", npy(tmp_path / "raw.npy", np.arange(129_280, dtype=np.uint32)))
    assert report["diagnosis"]["name"] == "raw-ids"
    other = truth.copy()
    other[5000] = 3
    report = differs(cli, "map", npy(tmp_path / "other.npy", other))
    assert report["diagnosis"] is None
    assert report["structure"][0] == "1 tokens are in another class, the first is token id 5000"


PARAMS = ["seed-by-index", "multipliers-reversed", "multipliers-32-bit", "primes-restart", "layers-swapped"]


@pytest.mark.parametrize("name", [*PARAMS, "offsets-missing", "filler-zero", "bound-from-raw-vocabulary"])
def test_params_files_name_the_mistake(cli: Cli, tmp_path: Path, name: str) -> None:
    plan = ENTRIES[name].vary(HashPlan.of(release()))
    constants = params_file.to_dict(release())
    for role in ("multipliers", "moduli", "offsets"):
        array = np.roll(getattr(plan, role), -plan.layer_step, axis=0)
        constants[role] = (array * np.uint64(plan.offset_times if role == "offsets" else 1)).tolist()
    constants["pad_id"] = plan.pad
    (tmp_path / "params.json").write_text(json.dumps(constants))
    report = differs(cli, "params", tmp_path / "params.json")
    assert (report["diagnosis"]["name"], report["diagnosis"]["explains"]) == (name, 1.0)


def test_params_that_no_mistake_explains_say_where_they_differ(cli: Cli, tmp_path: Path) -> None:
    constants = params_file.to_dict(release())
    constants["multipliers"][1][2] += 2
    (tmp_path / "params.json").write_text(json.dumps(constants))
    report = differs(cli, "params", tmp_path / "params.json")
    assert report["diagnosis"] is None
    assert report["structure"] == ["multipliers: 1 of 8 entries, each by +2"]
    constants["multipliers"] = release().multipliers[::-1].tolist()
    (tmp_path / "params.json").write_text(json.dumps(constants))
    moved = "layer 1 has layer 14's, layer 14 has layer 1's"
    assert differs(cli, "params", tmp_path / "params.json")["structure"] == [f"multipliers: 8 of 8 entries, {moved}"]


# The commands.


def test_the_list_is_the_catalogue(cli: Cli) -> None:
    entries = [entry.facts() for entry in catalogue.every()]
    assert cli.ok("check", "--list", "--json").json["mistakes"] == entries
    text = cli.ok("check", "--list").out.decode()
    assert all(f"{entry['stage']}: {entry['name']}\n" in text and entry["fix"] in text for entry in entries)


def test_a_hash_probe_with_answers_is_a_test_vector_that_passes(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "probe.json"
    told = cli.ok("probe", "hash", "--with-answers", "-o", path).err
    assert "1274 of 1275 pairs told apart" in told
    content = json.loads(path.read_text())
    rows = np.concatenate([np.array(each["answers"]["rows"]) for each in content["sequences"]])
    passes(cli, "hash", npy(tmp_path / "rows.npy", rows), "--probe", path)
    first = content["sequences"][0]
    mix, m = int(first["answers"]["mixes"][3][1][2]), release().multipliers[1].tolist()
    window = first["answers"]["windows"][3]
    assert mix == (window[0] * m[0]) ^ (window[1] * m[1]) ^ (window[2] * m[2]) ^ (window[3] * m[3])
    assert first["answers"]["compressed"] == shipped_map()[first["tokens"]].tolist()
    assert first["answers"]["buckets"][3][1][23] == mix % int(release().moduli[1, 23])
    rows[40:] += 1
    report = differs(cli, "hash", npy(tmp_path / "wrong.npy", rows), "--probe", path)
    assert report["findings"][0]["where"].startswith("sequence ")
    assert cli.refused(tmp_path, "check", "hash", tmp_path / "rows.npy", "--probe", path, "--ids", "1").found == "both"


def test_a_hash_probe_under_a_name_for_arrays_is_refused(cli: Cli, tmp_path: Path) -> None:
    refusal = cli.refused(tmp_path, "probe", "hash", "--with-answers", "-o", tmp_path / "probe.npz")
    assert (refusal.expected, refusal.found) == ("a name that ends in .json, or in no known form", "probe.npz")


def test_a_probe_of_another_model_has_its_own_maps(cli: Cli, tmp_path: Path, tiny: Path) -> None:
    told = cli.ok("probe", "hash", "--params", tiny, "-o", tmp_path / "p.json", "--json").json
    assert {"raw-pad", "case-kept"} <= set(told["mistakes"])
    assert all(pair["reason"] for pair in told["pairs_alike"])
    assert ("truth", "raw-pad") not in {(pair["one"], pair["other"]) for pair in told["pairs_alike"]}
    refusal = cli.refused(tmp_path, "check", "hash", tmp_path / "p.json", "--probe", tmp_path / "p.json")
    assert refusal.expected == "those of the check"


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"[]",
        b"{}",
        b'{"kind": "engramctl/probe-hash-file/1"}',
        lambda made: made["sequences"][0].pop("name"),
        lambda made: made["sequences"][0]["tokens"].append(-1),
        lambda made: made["sequences"][0]["tokens"].append(5),
        lambda made: made["sequences"][1]["mask"].append(1),
        lambda made: made["sequences"][3]["history"].append(1),
        lambda made: made["sequences"].clear(),
        lambda made: made.update(sequences={"a": 1}),
        lambda made: made["sequences"][2].update(chunks=[99]),
        lambda made: made["sequences"][2].update(tokens=[True]),
    ],
)
def test_broken_probes_are_refused_in_one_line(cli: Cli, tmp_path: Path, broken: object) -> None:
    path = tmp_path / "probe.json"
    if isinstance(broken, bytes):
        path.write_bytes(broken)
    else:
        cli.ok("probe", "hash", "-o", path, "-q")
        made = json.loads(path.read_text())
        broken(made)
        path.write_text(json.dumps(made))
    cli.refused_twice(tmp_path, "check", "hash", npy(tmp_path / "r.npy", np.zeros((1, 2, 24), int)), "--probe", path)


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_a_gate_probe_with_answers_passes_its_own_check(cli: Cli, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"probe.{suffix}"
    told = cli.ok("probe", "gate", "--with-answers", "--hidden-size", 96, "-o", path).err
    assert "77 of 78 pairs told apart" in told
    passes(cli, "gate", path)
    assert cli.ok("probe", "gate", "--hidden-size", 96, "-o", tmp_path / "x.npz", "--json").json["ok"]
    assert profiles.load().sizes.streams == 4
