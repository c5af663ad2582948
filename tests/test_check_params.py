"""check params: every constant against the derivation and against what is published, one by one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import Mini
from checks import changed, differs, found, only, passes, replace_text, scalar_at, set_u32, set_u64
from cli_helpers import Cli

EQUAL = "stored = derived"


@pytest.fixture
def published(cli: Cli, tmp_path: Path) -> dict[str, Any]:
    return json.loads(cli.ok("params", "-q").out)


def written(folder: Path, facts: dict[str, Any]) -> Path:
    path = folder / "params.json"
    path.write_text(json.dumps(facts))
    return path


def test_the_profiles_params_are_derived_and_published(cli: Cli, tmp_path: Path, published: dict[str, Any]) -> None:
    assert published["multipliers"][0][0] == 76632096046245  # deepseek-ai/DeepSeek-V4.1-Flash inference/engram.py
    report = passes(cli, "params", written(tmp_path, published))
    roles = ("layers", "rows", "heads", "compressed", "pad_id", "multipliers", "moduli", "offsets")
    assert report["constants"] == dict.fromkeys(roles, EQUAL)
    assert report["coverage"] == {"unit": "constants", "checked": 8, "of": 8, "sampled": False}


@pytest.mark.parametrize(
    ("change", "role", "where", "expected", "got"),
    [
        (
            lambda f: f["multipliers"][1].__setitem__(2, 7),
            "multipliers",
            "multipliers, layer 14 position 2",
            "30921347202721",
            "7",
        ),
        (
            lambda f: f["moduli"][0].__setitem__(23, 16000461),
            "moduli",
            "moduli, layer 1 column 23",
            "16000463",
            "16000461",
        ),
        (lambda f: f["offsets"][1].__setitem__(1, 0), "offsets", "offsets, layer 14 column 1", "16000477", "0"),
        (lambda f: f["rows"].__setitem__(1, 384006168), "rows", "rows, entry 1", "384016682", "384006168"),
        (lambda f: f.__setitem__("pad_id", 3), "pad_id", "pad_id", "2", "3"),
        (lambda f: f.__setitem__("compressed", 99091), "compressed", "compressed", "99092", "99091"),
        (lambda f: f.__setitem__("heads", 4), "heads", "heads", "8", "4"),
    ],
)
def test_one_wrong_constant_is_a_conflict(
    cli: Cli, tmp_path: Path, published: dict[str, Any], change: Callable[[dict[str, Any]], None],
    role: str, where: str, expected: str, got: str,
) -> None:  # fmt: skip
    change(published)
    report = differs(cli, "params", written(tmp_path, published))
    assert only(report) == (where, f"{expected} as derived and published", got)
    assert {name for name, status in report["constants"].items() if status == "conflict"} == {role}


def test_the_digest_of_the_map_is_a_constant_too(cli: Cli, tmp_path: Path, published: dict[str, Any]) -> None:
    published["token_map_sha256"] = "00" * 32
    assert only(differs(cli, "params", written(tmp_path, published)))[0] == "token_map_sha256"


def test_a_container_is_derived_from_its_own_config(cli: Cli, container: Path) -> None:
    report = passes(cli, "params", container)
    expected = dict.fromkeys(("layers", "rows", "compressed", "pad_id", "multipliers", "moduli"), EQUAL)
    assert report["constants"] == expected | {"token_map": "stored only"}


def test_a_full_size_container_has_the_published_constants(cli: Cli, full_container: Path) -> None:
    report = passes(cli, "params", full_container)
    assert report["constants"]["token_map"] == EQUAL
    assert report["notes"] == ["token map of profile deepseek-v4.1-flash"]


@pytest.mark.parametrize(
    ("change", "where", "got"),
    [
        (set_u32("primes", 25, 2), "deepseek41.engram.primes, layer 14 column 1", "2"),
        (set_u64("multipliers", 4, 10), "deepseek41.engram.multipliers, layer 14 position 0", "10"),
        (set_u32("rows", 0, 1), "deepseek41.engram.rows, entry 0", "1"),
        (set_u32("layer_ids", 1, 15), "deepseek41.engram.layer_ids, entry 1", "15"),
    ],
)
def test_a_wrong_entry_of_a_container_is_named(
    cli: Cli, container: Path, tmp_path: Path, change: Callable[[bytearray], None], where: str, got: str
) -> None:
    report = differs(cli, "params", changed(container, tmp_path, change))
    name, expected, have = only(report)
    assert (name, have) == (where, got)
    assert expected.endswith(" as derived")


def test_the_raw_pad_is_told_from_the_compressed_one(cli: Cli, container: Path, tmp_path: Path) -> None:
    def raw_pad(data: bytearray) -> None:
        data[scalar_at(data, "deepseek41.engram.pad_id")] = 2

    assert only(differs(cli, "params", changed(container, tmp_path, raw_pad))) == (
        "deepseek41.engram.pad_id",
        "1 as derived",
        "2, which is the raw pad",
    )


def test_a_missing_key_is_a_finding(cli: Cli, container: Path, tmp_path: Path) -> None:
    path = changed(container, tmp_path, replace_text("deepseek41.engram.pad_id", "deepseek41.engram.pad_it"))
    assert only(differs(cli, "params", path)) == ("key deepseek41.engram.pad_id", "a key of type u32", "no such key")


def test_another_models_params_need_its_source(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    for to in ("json", "npz"):
        cli.ok("params", container, "--to", to, "-q", "-o", tmp_path / f"p.{to}")
        assert differs(cli, "params", tmp_path / f"p.{to}")["findings_total"] > 40
        assert set(passes(cli, "params", tmp_path / f"p.{to}", "--source", tiny)["constants"].values()) == {EQUAL}
        passes(cli, "params", tmp_path / f"p.{to}", "--source", container)


def test_a_checkpoint_whose_rows_are_not_the_primes_sum(cli: Cli, tmp_path: Path) -> None:
    mini = Mini()
    mini.text["engram_vocab_size"] = 5  # primes 5, 7 and 11, 13: rows 12 and 24 instead of 18 and 30
    report = differs(cli, "params", mini.write(tmp_path / "ckpt"), "--token-map", tmp_path / "map.json")
    assert found(report) == [
        ("engram_num_embeddings, entry 0", "12 as derived", "18"),
        ("engram_num_embeddings, entry 1", "24 as derived", "30"),
    ]


def test_a_checkpoint_that_states_what_its_primes_give(cli: Cli, tmp_path: Path) -> None:
    folder = Mini().write(tmp_path / "ckpt")
    report = passes(cli, "params", folder, "--token-map", tmp_path / "map.json")
    assert report["constants"] == dict.fromkeys(("layers", "rows", "compressed"), EQUAL)


def test_a_numpy_that_derives_other_multipliers_is_caught(
    cli: Cli, tmp_path: Path, published: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from engramctl import hash_params

    monkeypatch.setattr(hash_params, "pcg64_multipliers", lambda layer, size, compressed, seed=0: [3] * size)
    report = differs(cli, "params", written(tmp_path, published))
    assert report["findings"][0]["check"] == "derivation"
    assert report["constants"]["multipliers"] == "conflict"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b"PK\x03\x04junk"])
def test_what_is_no_params_file_is_refused(cli: Cli, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "params.json").write_bytes(data)
    cli.refused_twice(tmp_path, "check", "params", tmp_path / "params.json")


def test_a_folder_without_a_config_is_refused(cli: Cli, tmp_path: Path) -> None:
    assert cli.refused(tmp_path, "check", "params", tmp_path).expected == "a config.json"
    np.savez(tmp_path / "p.npz", layers=np.array([1]))
    assert cli.refused(tmp_path, "check", "params", tmp_path / "p.npz").found == "no such name"


@pytest.mark.parametrize(("name", "value"), [("vocabulary", 129279), ("token_map_sha256", "ab" * 32)])
def test_what_is_said_about_the_map_must_be_true_of_it(
    cli: Cli, tmp_path: Path, published: dict[str, Any], name: str, value: object
) -> None:
    published[name] = value
    assert only(differs(cli, "params", written(tmp_path, published)))[::2] == (name, str(value))
    cli.ok("params", "--to", "npz", "-o", tmp_path / "p.npz", "-q")
    arrays = dict(np.load(tmp_path / "p.npz")) | {name: np.asarray(value)}
    np.savez(tmp_path / "p.npz", **arrays)
    where, expected, _ = only(differs(cli, "params", tmp_path / "p.npz"))
    assert where == name
    assert expected.endswith("as of the token map inside")


@pytest.mark.parametrize(("name", "value"), [("size", 5), ("schema", "engramctl/params/2")])
def test_a_params_file_that_contradicts_itself_is_refused(
    cli: Cli, tmp_path: Path, published: dict[str, Any], name: str, value: object
) -> None:
    path = written(tmp_path, published | {name: value})
    for words in (("check", "params", path), ("hash", "--ids", "5", "--params", path)):
        assert cli.refused(tmp_path, *words).where == f"{path} at {name}"
