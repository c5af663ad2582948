"""check source: shards, index, config and tensors contradict each other in one place, and that place is named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import ROWS, Mini, read_shard, rewrite, shard, token_map_of
from checks import differs, found, only, passes, wheres
from cli_helpers import Cli, Copy

EMBED = "layers.1.engram.embed.weight"
BIG = 2826  # rows of layer 1 in the tiny checkpoint


def test_what_synth_writes_is_whole(cli: Cli, tiny: Path) -> None:
    report = passes(cli, "source", tiny)
    assert report["coverage"]["sampled"] is True
    whole = passes(cli, "source", tiny, "--all-rows")
    assert whole["coverage"] == {"unit": "rows", "checked": 2826 + 5940, "of": 2826 + 5940, "sampled": False}
    assert set(whole["scale_bytes"]["14"]) == {"118", "119", "120", "121"}
    assert sum(whole["scale_bytes"]["1"].values()) == 8 * BIG
    assert any("the published rows use 119 and 120" in note for note in whole["notes"])


def test_a_full_size_checkpoint_is_whole(cli: Cli, full: Path) -> None:
    passes(cli, "source", full, "--sample", 100)
    whole = passes(cli, "source", full, "--all-rows")
    assert whole["coverage"]["checked"] == 384_006_168 + 384_016_682
    assert any("rows lie in holes and count as zeros read" in note for note in whole["notes"])


def test_one_file_alone_needs_a_profile(cli: Cli, tmp_path: Path) -> None:
    folder = Mini().write(tmp_path / "ckpt")
    report = differs(cli, "source", folder / "model.safetensors")
    assert only(report)[1] == "a config.json (or --profile NAME)"
    report = differs(cli, "source", folder / "model.safetensors", "--profile", "deepseek-v4.1-flash")
    assert found(report)[0][1:] == ("F8_E4M3 [384006168, 256]", f"F8_E4M3 [{ROWS[1]}, 256]")


def test_a_folder_without_an_index_is_read_as_it_lies(cli: Cli, tmp_path: Path) -> None:
    passes(cli, "source", *mapped(Mini().write(tmp_path / "ckpt")))


Break = Callable[[Mini], object]


def mapped(folder: Path) -> tuple[object, ...]:
    """A checkpoint without a tokenizer, with the map to use."""
    return folder, "--token-map", token_map_of(folder)


def text(key: str, value: object) -> Break:
    return lambda mini: mini.text.__setitem__(key, value)


def tensor(name: str, dtype: str, shape: tuple[int, ...]) -> Break:
    return lambda mini: mini.tensors.__setitem__(name, (dtype, shape, mini.tensors[name][2]))


def byte(name: str, at: int, value: int) -> Break:
    return lambda mini: mini.edit(name, at, value)


def drop(name: str) -> Break:
    return lambda mini: mini.tensors.pop(name)


SCALE, Q = "layers.14.engram.embed.scale", "layers.1.engram.q_weight"
CASES: list[tuple[str, Break, tuple[str, str, str]]] = [  # name, change, end of where, expected, found
    ("codes as U8", tensor(EMBED, "U8", (18, 256)), (EMBED, "F8_E4M3 [18, 256]", "U8 [18, 256]")),
    ("another shape", tensor(EMBED, "F8_E4M3", (36, 128)), (EMBED, "F8_E4M3 [18, 256]", "F8_E4M3 [36, 128]")),
    ("scales of another count", tensor(SCALE, "F8_E8M0", (60, 4)), (SCALE, "F8_E8M0 [30, 8]", "F8_E8M0 [60, 4]")),
    ("a tensor missing", drop(Q), ("ckpt", f"a tensor {Q}", "none")),
    ("not the sum", text("engram_vocab_size", 5), ("config rows of layer 1", "12, the sum of its primes", "18")),
    ("pads that disagree", text("engram_pad_id", 3), ("engram_pad_id", "2 as in engram_pad_token_id", "3")),
    ("no heads", text("engram_n_heads", None), ("text_config", "engram_n_heads", "no such key")),
    ("a NaN code", byte(EMBED, 256 * 17 + 3, 0xFF), ("layer 1 row 17 byte 3", "an E4M3 number", "0xff (NaN)")),
    ("scale 255", byte(SCALE, 8 * 29 + 7, 0xFF), ("layer 14 row 29 byte 263", "an E8M0 scale below 255", "255 (NaN)")),
    ("an infinite weight", byte(Q, 7, 0x7F), (f"layer 1 tensor {Q} row 0 column 3", "a finite BF16 number", None)),
    ("a NaN in the projection", byte("layers.1.engram.wkv.weight", 513, 0x7F),
     ("layer 1 tensor layers.1.engram.wkv.weight row 1 column 1", "an E4M3 number", "0x7f")),
    ("a NaN scale of the projection", byte("layers.1.engram.wkv.scale", 17, 0xFF),
     ("layer 1 tensor layers.1.engram.wkv.scale row 1 column 1", "an E8M0 scale below 255", "0xff")),
    ("a layer that the config has not", lambda mini: mini.tensors.update({"layers.3.engram.q_weight": mini.tensors[Q]}),
     ("model.safetensors", "Engram tensors of layers [1, 14] under the profile's names", '"layers.3.engram.q_weight"')),
    ("another quantisation", lambda mini: mini.config.update(quantization_config={"weight_block_size": [128, 128]}),
     ("config weight_block_size", "[32, 32]", "[128, 128]")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "expected"), CASES, ids=[name for name, _, _ in CASES])
def test_one_contradiction_is_named(
    cli: Cli, tmp_path: Path, name: str, change: Break, expected: tuple[str, str, str]
) -> None:
    mini = Mini()
    change(mini)
    folder = mini.write(tmp_path / "ckpt")
    for more in ((), ("--all-rows",)):
        report = differs(cli, "source", *mapped(folder), *more)
        where, want, got = found(report)[0]
        assert where.endswith(expected[0]), name
        assert want == expected[1]
        assert expected[2] in (None, got)
        assert report["findings_total"] == (2 if name == "not the sum" else 1)


def test_a_value_beyond_what_a_float_holds_is_named(cli: Cli, tmp_path: Path) -> None:
    mini = Mini()
    mini.edit(EMBED, 256 * 5, 0x7E)
    mini.edit("layers.1.engram.embed.scale", 8 * 5, 254)
    report = differs(cli, "source", *mapped(mini.write(tmp_path / "ckpt")), "--all-rows")
    assert all(where.startswith("layer 1 row 5 byte ") for where in wheres(report))


def test_invalid_rows_are_counted_and_a_seeded_sample_finds_most(cli: Cli, tiny: Path, copied: Copy) -> None:
    folder = copied(tiny)

    def spoil(data: bytearray) -> None:
        start = len(data) - BIG * 256
        for row in range(0, BIG, 2):
            data[start + row * 256] = 0x7F

    rewrite(folder / "model-00001-of-00004.safetensors", spoil)
    report = differs(cli, "source", folder, "--all-rows")
    assert (report["findings_total"], len(report["findings"])) == (BIG // 2, 100)
    sampled = differs(cli, "source", folder, "--sample", 500)
    assert 200 < sampled["findings_total"] < 350
    assert wheres(sampled) == wheres(differs(cli, "source", folder, "--sample", 500))
    assert wheres(sampled) != wheres(differs(cli, "source", folder, "--sample", 500, "--seed", 1))


def index(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "model.safetensors.index.json").read_text())


def put_index(folder: Path, value: dict[str, Any]) -> None:
    path = folder / "model.safetensors.index.json"
    path.unlink()
    path.write_text(json.dumps(value))


def test_a_missing_shard_is_one_finding(cli: Cli, tiny: Path, copied: Copy) -> None:
    folder = copied(tiny)
    (folder / "model-00004-of-00004.safetensors").unlink()
    where, expected, got = only(differs(cli, "source", folder))
    assert where.endswith("model-00004-of-00004.safetensors")
    assert (expected, got) == ("the shard that holds 5 Engram tensors", "nothing there")


def test_shards_of_main_weights_may_be_missing(cli: Cli, tiny: Path, copied: Copy) -> None:
    folder = copied(tiny)
    listed = index(folder)
    listed["weight_map"]["embed.weight"] = "model-00009-of-00009.safetensors"
    put_index(folder, listed)
    assert "1 shards without Engram tensors are not there" in passes(cli, "source", folder)["notes"]


def test_an_index_that_promises_too_much(cli: Cli, tiny: Path, copied: Copy) -> None:
    folder = copied(tiny)
    listed = index(folder)
    listed["weight_map"]["norm.weight"] = "model-00001-of-00004.safetensors"
    put_index(folder, listed)
    _, expected, got = only(differs(cli, "source", folder))
    assert (expected, got) == ("a tensor that the index promises", "none")


def test_an_index_that_promises_too_little(cli: Cli, tiny: Path, copied: Copy) -> None:
    folder = copied(tiny)
    listed = index(folder)
    del listed["weight_map"]["layers.14.engram.q_weight"]
    put_index(folder, listed)
    report = differs(cli, "source", folder)
    assert found(report)[0][1:] == ("only tensors that the index places here", '"layers.14.engram.q_weight"')
    assert found(report)[1][1:] == ("a tensor layers.14.engram.q_weight", "none")


def test_a_truncated_shard_is_a_finding(cli: Cli, tiny: Path, copied: Copy) -> None:
    folder = copied(tiny)
    rewrite(folder / "model-00001-of-00004.safetensors", lambda data: data.__delitem__(slice(len(data) - 100, None)))
    where, expected, _ = only(differs(cli, "source", folder))
    assert where.endswith(f'model-00001-of-00004.safetensors at tensor "{EMBED}"')
    assert "before the file's end" in expected


def test_spans_that_overlap_are_findings(cli: Cli, tmp_path: Path) -> None:
    folder = Mini().write(tmp_path / "ckpt")

    def shift(data: bytearray) -> None:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        start, end = header["layers.14.engram.k_weight"]["data_offsets"]
        header["layers.14.engram.k_weight"]["data_offsets"] = [start - 2, end - 2]
        raw = json.dumps(header).encode()
        data[: 8 + length] = len(raw).to_bytes(8, "little") + raw

    rewrite(folder / "model.safetensors", shift)
    expected = [each[1] for each in found(differs(cli, "source", folder))]
    assert expected[0].startswith("its bytes from ")
    assert expected[1].startswith("a file of ")


def test_a_tokenizer_that_gives_another_map_contradicts_the_config(cli: Cli, tiny: Path, copied: Copy) -> None:
    folder = copied(tiny)
    raw = (folder / "tokenizer.json").read_text().replace('"Word"', '"Wore"')
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text(raw)
    where, expected, got = only(differs(cli, "source", folder))
    assert where == "tokenizer.json: number of compressed ids"
    assert (expected, got) == ("310 as in the source's config", "311")


def release(folder: Path, full: Path, order: tuple[str, ...]) -> Path:
    """The release's two shards: names, sizes and header, and nothing but holes after it."""
    folder.mkdir()
    config = json.loads((full / "config.json").read_text())
    del config["engramctl_synthetic"]
    (folder / "config.json").write_text(json.dumps(config))
    sizes = {"embed.weight": ("F8_E4M3", None), "embed.scale": ("F8_E8M0", None), "q_weight": ("BF16", [4, 5120])}
    sizes |= {
        "k_weight": ("BF16", [4, 5120]),
        "wkv.weight": ("F8_E4M3", [25600, 6144]),
        "wkv.scale": ("F8_E8M0", [800, 192]),
    }
    for layer, rows, number, length in ((1, 384_006_168, 47, 656), (14, 384_016_682, 48, 664)):
        entries, at = {}, 0
        for name in order:
            dtype, shape = sizes[name]
            shape = shape or [rows, 256 if name == "embed.weight" else 8]
            end = at + shape[0] * shape[1] * (2 if dtype == "BF16" else 1)
            entries[f"layers.{layer}.engram.{name}"] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
            at = end
        raw = json.dumps(entries, separators=(",", ":")).encode()
        raw += b" " * (length - len(raw))
        path = folder / f"model-{number:05d}-of-00048.safetensors"
        path.write_bytes(len(raw).to_bytes(8, "little") + raw)
        os.truncate(path, 8 + len(raw) + at)
    return folder


ORDER = ("embed.weight", "embed.scale", "q_weight", "k_weight", "wkv.weight", "wkv.scale")


def test_the_releases_headers_and_rows_are_known(cli: Cli, full: Path, tmp_path: Path) -> None:
    """Headers in the published order have the published digests; rows of zeros do not."""
    report = differs(cli, "source", release(tmp_path / "a", full, ORDER), "--sample", 10)
    assert [note for note in report["notes"] if note.endswith("the published header")] == [
        "model-00047-of-00048.safetensors: the published header",
        "model-00048-of-00048.safetensors: the published header",
    ]
    assert report["findings_total"] == 96
    assert all(" codes" in where or " scales" in where for where in wheres(report))
    swapped = (*ORDER[:2], "k_weight", "q_weight", *ORDER[4:])
    report = differs(cli, "source", release(tmp_path / "b", full, swapped), "--sample", 10)
    assert wheres(report)[0].endswith("model-00047-of-00048.safetensors header")
    assert "e5c5c7fc900caec400644bef07aa5d7e28fc6ca941c8c47592b393963b218242" in found(report)[0][1]


def test_a_synthetic_checkpoint_can_be_asked_for_the_releases_rows(cli: Cli, full: Path) -> None:
    assert differs(cli, "source", full, "--release", "--sample", 0)["findings_total"] == 96


@pytest.mark.parametrize("length", [0, 7, 8, 100])
def test_a_header_that_cannot_be_parsed_is_damage(cli: Cli, tmp_path: Path, length: int) -> None:
    folder = Mini().write(tmp_path / "ckpt")
    rewrite(folder / "model.safetensors", lambda data: data.__delitem__(slice(length, None)))
    cli.refused_twice(tmp_path, "check", "source", folder)


@pytest.mark.parametrize("raw", ["", "[]", "{", "nonsense"])
def test_a_config_that_cannot_be_parsed_is_damage(cli: Cli, tmp_path: Path, raw: str) -> None:
    folder = Mini().write(tmp_path / "ckpt")
    (folder / "config.json").write_text(raw)
    cli.refused_twice(tmp_path, "check", "source", folder)


def test_what_is_no_checkpoint_is_refused(cli: Cli, tmp_path: Path, tiny: Path, container: Path) -> None:
    assert cli.refused(tmp_path, "check", "source", tmp_path).found == "neither"
    cli.refused(tmp_path, "check", "source", tmp_path / "none")
    cli.refused(tmp_path, "check", "source", container)
    assert "at most 4194304" in cli.refused(tmp_path, "check", "source", tiny, "--sample", 10**9).expected


def test_a_folder_without_a_config_is_a_finding(cli: Cli, tmp_path: Path) -> None:
    folder = Mini().write(tmp_path / "ckpt")
    (folder / "config.json").unlink()
    report = differs(cli, "source", folder)
    assert only(report) == (str(folder), "a config.json (or --profile NAME)", "none")
    assert "without sizes, shapes and rows were not checked" in report["notes"]


def test_tensors_twice_in_a_folder_without_an_index(cli: Cli, tmp_path: Path) -> None:
    folder = Mini().write(tmp_path / "ckpt")
    tensors = read_shard(folder / "model.safetensors")
    shard(folder / "more.safetensors", {EMBED: tensors[EMBED]})
    _, expected, got = only(differs(cli, "source", *mapped(folder)))
    assert (expected, got) == ('it in "model.safetensors" alone', "it here as well")


@pytest.mark.parametrize("scale", [0, 254])
def test_a_projection_that_bf16_does_not_hold_is_a_finding_as_it_is_refused_in_use(
    cli: Cli, tmp_path: Path, scale: int
) -> None:
    mini = Mini()
    mini.edit("layers.1.engram.wkv.weight", 512 * 32 + 32, 0x7E)  # 448
    mini.edit("layers.1.engram.wkv.weight", 512 * 32 + 33, 0x09)  # 9 / 512
    mini.edit("layers.1.engram.wkv.scale", 16 + 1, scale)
    folder = mini.write(tmp_path / "ckpt")
    where = [each for each in wheres(differs(cli, "source", folder)) if "wkv.weight" in each]
    assert len(where) == 1
    assert where[0].startswith("layer 1 tensor layers.1.engram.wkv.weight row 32 column ")
    words = ("repack", folder, "-o", tmp_path / "x.gguf", "--token-map", tmp_path / "map.json")
    assert cli(*words).code == 2


def test_rows_of_another_width_are_a_finding(cli: Cli, tmp_path: Path) -> None:
    mini = Mini()
    mini.text["engram_head_dim"] = 128
    for layer, count in ROWS.items():
        for name, columns in (("embed.weight", 128), ("embed.scale", 4)):
            kind, _, data = mini.tensors[f"layers.{layer}.engram.{name}"]
            mini.tensors[f"layers.{layer}.engram.{name}"] = (kind, (count, columns), data[: count * columns])
        for name, shape in (("wkv.weight", (96, 256)), ("wkv.scale", (3, 8))):
            kind, _, data = mini.tensors[f"layers.{layer}.engram.{name}"]
            mini.tensors[f"layers.{layer}.engram.{name}"] = (kind, shape, data[: shape[0] * shape[1]])
    folder = mini.write(tmp_path / "ckpt")
    assert cli.refused(tmp_path, "lookup", folder, "--layer", 1, "--rows", 0).expected == "rows of 256 values"
    report = differs(cli, "source", folder)
    assert ("layer 1", "rows of 256 values, which can be used", "of 128") in found(report)
    assert report["coverage"]["of"] == sum(ROWS.values())


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "tokenizer.json"])
def test_a_link_that_leads_nowhere_is_not_the_same_as_no_file(cli: Cli, tmp_path: Path, name: str) -> None:
    folder = Mini().write(tmp_path / "ckpt")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("nowhere")
    assert cli.refused(tmp_path, "check", "source", folder).where == str(folder / name)
    words = ("repack", folder, "-o", tmp_path / "x.gguf", "--profile", "deepseek-v4.1-flash")
    assert cli.refused(tmp_path, *words).where == str(folder / name)


def test_a_config_that_says_a_name_twice_is_refused(cli: Cli, tmp_path: Path) -> None:
    folder = Mini().write(tmp_path / "ckpt")
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"hc_mult"', '"hc_mult": 3, "hc_mult"'))
    for words in (("check", "source", folder), ("params", folder)):
        assert cli.refused(tmp_path, *words).found == '"hc_mult" twice'
