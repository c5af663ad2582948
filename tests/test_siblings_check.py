"""The checks on siblings: clean on what is right, and naming what is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_helpers import Cli
from test_siblings_files import LAYER, NAMES, PLE, TABLES, library, rewrite

from engramctl import profiles
from engramctl.siblings import synth

IDS = "5,6,3,9,10,3,3,11"  # 3 is the tiny vocabulary's EOS
WITH_KEYS = ("engram-demo", "qwen3.8-flash-next", "qwen3.8-flash-next:fp8", "engram-peft")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("siblings")
    for name in NAMES:
        synth.make(folder / name, profiles.load(name), 7, real_tokens=False, full_size=False)
    return {name: folder / name for name in NAMES}


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    synth.make(tmp_path / "ckpt", profiles.load("qwen3.8-flash-next"), 7, real_tokens=False, full_size=False)
    return tmp_path / "ckpt"


@pytest.mark.parametrize("name", NAMES)
def test_a_good_checkpoint_passes(cli: Cli, made: dict[str, Path], name: str) -> None:
    for options in ((), ("--all-rows",)):
        report = cli.ok("check", "source", made[name], "--json", *options).json
        assert report["ok"]
        assert report["coverage"]["checked"] > 0


@pytest.mark.parametrize("name", NAMES)
def test_stored_constants_are_compared_and_where_there_are_none_nothing_is_called_good(
    cli: Cli, made: dict[str, Path], tmp_path: Path, name: str
) -> None:
    if profiles.load(name).rule.mix == "xor_mul":
        report = cli.ok("check", "params", made[name], "--json").json
        assert report["ok"]
        assert report["coverage"]["checked"] > 0
    else:
        refusal = cli.refused_twice(tmp_path, "check", "params", made[name])
        assert (refusal.expected, refusal.found) == ("stored constants to compare", "none: they follow from its config")
        assert refusal.hint.startswith("check source ")


@pytest.mark.parametrize("name", NAMES)
def test_dumps_of_what_run_gives_pass_and_a_changed_number_does_not(
    cli: Cli, made: dict[str, Path], name: str, tmp_path: Path
) -> None:
    some = (made[name], "--layer", LAYER[name], "--ids", IDS)
    stages = ["rows", "values"] + (["kv"] if name in WITH_KEYS else [])
    for stage in stages:
        dump = tmp_path / f"{stage}.npy"
        cli.ok("run", *some, "--stop-at", stage, "-o", dump)
        if stage == "rows":
            words: tuple[object, ...] = ("check", "hash", dump, "--params", *some)
        else:
            words = ("check", stage, dump, *some)
        assert cli.ok(*words, "--json").json["ok"]
        array = np.load(dump)
        flat = array.reshape(-1)
        flat[7] = flat[7] + 1 if stage != "kv" else flat[7] + 10
        np.save(dump, array)
        report = cli(*words, "--json")
        assert report.code == 1
        assert report.json["findings_total"] == 1


@pytest.mark.parametrize("name", ["longcat-flash-lite", "longcat-2.0", "blt"])
def test_a_stage_that_a_module_lacks_is_refused_by_name(
    cli: Cli, made: dict[str, Path], name: str, tmp_path: Path
) -> None:
    some = (made[name], "--ids", IDS)
    for stage in ("kv", "gate"):
        np.save(tmp_path / "h.npy", np.zeros((8, 1, 48), np.float32))
        refusal = cli.refused(tmp_path, "run", *some, "--stop-at", stage, "--hidden", tmp_path / "h.npy")
        assert name in refusal.found


def test_ples_gates_are_checked_and_its_output_is_not_mistaken_for_v41s(
    cli: Cli, made: dict[str, Path], tmp_path: Path
) -> None:
    from engramctl.siblings import checkpoint, module, run
    from engramctl.source import open_source
    from formats.floats import from_bf16, to_bf16

    name, ids = "qwen3.8-flash-next", np.array([int(x) for x in IDS.split(",")])
    hidden = to_bf16(np.random.default_rng(1).normal(size=(8, 4, 48)).astype(np.float32))
    with open_source(made[name]) as source:
        assert isinstance(source, checkpoint.SiblingCheckpoint)
        kv = to_bf16(run.run(source, 1, ids, stop_at="kv"))
        weights = module.weights(source, 1)
    gate = module.gates(
        from_bf16(hidden).astype(np.float64), from_bf16(kv).astype(np.float64), weights, profiles.load(name),
        source.sizes,
    ).astype(np.float32)  # fmt: skip
    arrays = {
        "hidden": hidden, "key": kv[:, :-1], "value": kv[:, -1],
        "q_weight": weights.norm_query.astype(np.float32), "k_weight": weights.norm_key.astype(np.float32),
    }  # fmt: skip
    np.savez(tmp_path / "gate.npz", gate=gate, **arrays)
    assert cli.ok("check", "gate", tmp_path / "gate.npz", "--profile", name, "--json").json["ok"]
    gate[3, 1] += 0.01
    np.savez(tmp_path / "gate.npz", gate=gate, **arrays)
    assert cli("check", "gate", tmp_path / "gate.npz", "--profile", name).code == 1
    np.savez(tmp_path / "gate.npz", out=hidden, **arrays)
    assert cli.refused(tmp_path, "check", "gate", tmp_path / "gate.npz", "--profile", name).where == "array out"


def test_a_changed_multiplier_in_a_tensor_is_a_conflict(cli: Cli, broken: Path) -> None:
    name = f"{PLE}ple_embedding.layer_multipliers"
    values = np.frombuffer(bytes(library(broken)[name]["data"]), "<i8").copy()
    values[1] += 2
    rewrite(broken, name, data=values.tobytes())
    for command in ("params", "source"):
        report = cli("check", command, broken, "--json")
        assert report.code == 1
        (finding,) = report.json["findings"]
        assert finding["where"] == "layer_multipliers, layer 1 position 1"
        assert finding["expected"] == f"{values[1] - 2} as derived"
    assert report.json["ok"] is False


def test_multipliers_rounded_to_float32_are_seen(cli: Cli, broken: Path) -> None:
    """What a converter does that casts integer tensors to F32 on their way."""
    name = f"{PLE}ple_embedding.layer_multipliers"
    values = np.frombuffer(bytes(library(broken)[name]["data"]), "<i8")
    rewrite(broken, name, data=values.astype(np.float32).astype("<i8").tobytes())
    assert cli("check", "params", broken).code == 1


def test_a_row_that_holds_no_number_is_a_finding(cli: Cli, broken: Path) -> None:
    name = TABLES["qwen3.8-flash-next"](10)
    data = bytearray(library(broken)[name]["data"])
    data[3 * 320 + 2 : 3 * 320 + 4] = b"\xc0\x7f"
    rewrite(broken, name, data=bytes(data))
    report = cli("check", "source", broken, "--all-rows", "--json")
    assert report.code == 1
    assert [f["where"] for f in report.json["findings"]] == ["layer 1 row 1303 byte 2"]


def test_the_padding_may_hold_anything(cli: Cli, broken: Path) -> None:
    """The last rows of a padded table are never addressed: nothing is demanded of them."""
    name = TABLES["qwen3.8-flash-next"](11)
    data = bytearray(library(broken)[name]["data"])
    data[-320:] = b"\xff" * 320
    rewrite(broken, name, data=bytes(data))
    report = cli.ok("check", "source", broken, "--all-rows", "--json").json
    assert "layer 1: the last 12 rows are padding, which nothing addresses" in report["notes"]


def test_a_weight_that_holds_no_number_and_a_missing_shard_are_findings(cli: Cli, broken: Path) -> None:
    name = f"{PLE}norm_conv.weight"
    data = bytearray(library(broken)[name]["data"])
    data[10:12] = b"\x80\xff"
    rewrite(broken, name, data=bytes(data))
    assert f"tensor {name} at [5]" in cli("check", "source", broken, "--json").json["findings"][0]["where"]
    (broken / "model-00003-of-00013.safetensors").unlink()
    report = cli("check", "source", broken, "--json")
    assert report.code == 1
    assert any("model-00003-of-00013.safetensors" in f["found"] for f in report.json["findings"])


@pytest.mark.parametrize("variant", ["eos-ignored", "eos-zeroed"])
def test_longcats_rows_name_the_rule_they_follow(cli: Cli, tmp_path: Path, variant: str) -> None:
    rows = tmp_path / "rows.npy"
    cli.ok("hash", "--profile", f"longcat-2.0:{variant}", "--ids", "1,17,300,2,45,46", "--to", "npy", "-o", rows)
    assert cli.ok("check", "hash", rows, "--profile", f"longcat-2.0:{variant}", "--ids", "1,17,300,2,45,46").out
    report = cli("check", "hash", rows, "--profile", "longcat-2.0", "--ids", "1,17,300,2,45,46", "--json")
    assert report.code == 1
    words = {"eos-ignored": "goes through an EOS", "eos-zeroed": "every column of an EOS is 0"}[variant]
    assert any(words in note for note in report.json["notes"] if note.startswith("all of them"))


def test_engram_pefts_rows_are_told_from_the_demos(cli: Cli, tmp_path: Path) -> None:
    rows, ids = tmp_path / "rows.npy", "22898,19737,270,5,6,7"
    cli.ok("hash", "--profile", "engram-peft", "--ids", ids, "--to", "npy", "-o", rows)
    notes = cli.ok("check", "hash", rows, "--profile", "engram-peft", "--ids", ids, "--json").json["notes"]
    assert any("not the rows of engram-demo" in note for note in notes)
    made = profiles.load("engram-peft")
    from engramctl.hash_params import published

    offsets = published(made).offsets.astype(np.int64)
    np.save(tmp_path / "local.npy", np.load(rows) - offsets)
    report = cli("check", "hash", tmp_path / "local.npy", "--profile", "engram-peft", "--ids", ids, "--json")
    assert report.code == 1
    assert any("without the columns' offsets" in note for note in report.json["notes"])


@pytest.mark.parametrize("name", ["engram-demo", "engram-peft"])
def test_the_map_of_a_checkpoint_is_checked_by_its_own_config(cli: Cli, made: dict[str, Path], name: str) -> None:
    for more in ((), ("--profile", name)):
        assert cli.ok("check", "map", made[name], *more, "--json").json["coverage"]["checked"] == 384
        assert cli.ok("map", made[name], "--allow-mismatch", *more, "--json").json["found"]["compressed"] == 310


@pytest.mark.parametrize("name", ["qwen3.8-flash-next", "longcat-2.0", "blt"])
def test_a_checkpoint_of_raw_ids_is_said_to_have_no_map(cli: Cli, made: dict[str, Path], name: str) -> None:
    for words in (("map",), ("check", "map")):
        refusal = cli.refused(made[name], *words, made[name])
        assert (refusal.where, refusal.expected) == (f"profile {name}", "a token map")


def test_a_config_that_counts_other_classes_says_only_that(cli: Cli, tmp_path: Path) -> None:
    synth.make(tmp_path / "ckpt", profiles.load("engram-peft"), 7, real_tokens=False, full_size=False)
    config = tmp_path / "ckpt" / "config.json"
    config.write_text(config.read_text().replace('"compressed_vocab_size": 310', '"compressed_vocab_size": 311'))
    report = cli("check", "map", tmp_path / "ckpt")
    assert (report.code, b"number of compressed ids: expected 311" in report.out) == (1, True)
    assert b"under other numbers" not in report.out


@pytest.mark.parametrize("name", ["qwen3.8-flash-next", "blt"])
@pytest.mark.parametrize("command", [("map",), ("check", "map", "x")])
def test_a_model_without_a_token_map_has_none_to_make_or_check(
    cli: Cli, tmp_path: Path, name: str, command: tuple[str, ...]
) -> None:
    refusal = cli.refused(tmp_path, *command, "--profile", name)
    assert refusal.expected == "a token map"


@pytest.mark.parametrize("form", ["json", "npz"])
@pytest.mark.parametrize("name", ["deepseek-v4.1-flash", *NAMES, "longcat-2.0:eos-zeroed"])
def test_params_files_hash_as_their_profile(cli: Cli, tmp_path: Path, name: str, form: str) -> None:
    file = tmp_path / f"params.{form}"
    cli.ok("params", "--profile", name, "--to", form, "-o", file)
    want = cli.ok("hash", "--profile", name, "--ids", "5,6,2,9,10", "--to", "sha256").out
    base = name.partition(":")[0]
    assert cli.ok("hash", "--params", file, "--profile", base, "--ids", "5,6,2,9,10", "--to", "sha256").out == want
    assert cli.ok("check", "params", file, "--profile", name, "--json").json["ok"]


@pytest.mark.parametrize("name", ["engram-demo", "qwen3.8-flash-next", "longcat-2.0", "blt"])
def test_probes_are_of_v41_alone(cli: Cli, tmp_path: Path, name: str) -> None:
    for stage, file in (("hash", "p.json"), ("gate", "p.npz")):
        refusal = cli.refused(tmp_path, "probe", stage, "--profile", name, "-o", tmp_path / file)
        assert refusal.where == f"probe {stage}"


@pytest.mark.parametrize("name", ["engram-demo", "engram-peft", "qwen3.8-flash-next"])
def test_gates_of_f32_states_are_checked_as_they_are(
    cli: Cli, made: dict[str, Path], tmp_path: Path, name: str
) -> None:
    """A module that works in F32 has states that BF16 does not hold."""
    from engramctl.siblings import module, run
    from engramctl.siblings.opened import as_sibling
    from engramctl.source import open_source

    ids = np.array([int(x) for x in IDS.split(",")])
    hidden = np.random.default_rng(1).normal(size=(8, 4, 48)).astype(np.float32)
    with open_source(made[name]) as source:
        opened, layer = as_sibling(source), source.sizes.layers[0]
        kv, weights = run.run(opened, layer, ids, stop_at="kv"), module.weights(opened, layer)
        gate = run.run(opened, layer, ids, hidden, stop_at="gate")
    arrays = {
        "hidden": hidden, "key": kv[:, :-1], "value": kv[:, -1],
        "q_weight": weights.norm_query.astype(np.float32), "k_weight": weights.norm_key.astype(np.float32),
    }  # fmt: skip
    np.savez(tmp_path / "gate.npz", gate=gate, **arrays)
    words = ("check", "gate", tmp_path / "gate.npz", "--profile", name)
    assert cli.ok(*words, "--json").json["ok"]
    np.savez(tmp_path / "gate.npz", gate=gate + np.float32(0.001), **arrays)
    assert cli(*words).code == 1
    arrays["hidden"] = np.where(hidden == hidden.max(), np.float32(np.inf), hidden)
    np.savez(tmp_path / "gate.npz", gate=gate, **arrays)
    assert cli.refused(tmp_path, *words).expected == "finite values"
