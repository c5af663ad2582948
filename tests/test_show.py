"""show: what a file is, from headers alone; broken ones are described as far as they parse."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import Mini, shard
from cli_helpers import Cli, Copy
from faults import Faulty

from formats import disk
from formats import gguf_file as ours

Keys = dict[str, ours.Value]
Tensors = list[tuple[str, int, tuple[int, ...], int]]


def rebuilt(container: Path, path: Path, change: Callable[[Keys, Tensors], Any]) -> Path:
    """A container with other keys or tensors; its tensor bytes are a hole."""
    header = ours.read_header(container)
    keys, tensors = dict(header.keys), [(t.name, t.type, t.shape, t.size or 0) for t in header.tensors]
    change(keys, tensors)
    alignment = int(keys["general.alignment"].value) if "general.alignment" in keys else 32
    layout = ours.encode_header(list(keys.items()), tensors, alignment)
    with path.open("wb") as file:
        file.write(layout.header)
        file.truncate(layout.file_size)
    return path


# whole ones


def test_a_container_that_repack_made(cli: Cli, container: Path, tiny: Path) -> None:
    shown = cli.ok("show", container, "--json").json
    config = json.loads((tiny / "config.json").read_text())["text_config"]
    assert (shown["kind"], shown["dialect"], shown["nearest"]) == ("container", "ds4", "ds4")
    assert (shown["missing"], shown["wrong"], shown["config_problem"]) == ([], [], None)
    assert (shown["version"], shown["alignment"], shown["architecture"]) == (3, 16384, "deepseek41")
    assert shown["file_bytes"] == container.stat().st_size
    assert shown["synthetic"] is True
    assert shown["loaders"]["ds4"] == {"accepts": True, "why": [], "why_total": 0}
    assert shown["token_map"]["origin"] == "the container"
    assert (shown["token_map"]["entries"], shown["token_map"]["compressed"]) == (384, 310)
    assert shown["sizes"]["rows"] == config["engram_num_embeddings"]
    assert set(shown["constants"]) == {
        f"deepseek41.engram.{name}"
        for name in ("encoding", "layer_ids", "rows", "compressed_vocab_size", "pad_id", "token_map", "primes")
    } | {"deepseek41.engram.multipliers"}
    assert shown["constants"]["deepseek41.engram.pad_id"] == {"type": "u32", "value": 1}
    assert shown["constants"]["deepseek41.engram.multipliers"]["type"] == "u64[]"
    assert shown["constants"]["deepseek41.engram.token_map"]["count"] == 384
    reader = gguf.GGUFReader(container)
    tensors = [(t.name, t.tensor_type.name, t.shape.tolist(), t.data_offset, t.n_bytes) for t in reader.tensors]
    assert [(t["name"], t["type"], t["shape"], t["start"], t["bytes"]) for t in shown["tensors"]] == tensors
    assert shown["other_tensors"] == 0


def test_what_differs_from_the_profile_is_said_and_is_no_failure(cli: Cli, container: Path, tiny: Path) -> None:
    for path in (container, tiny):
        shown = cli.ok("show", path, "--json").json
        differs = shown["differs_from_profile"]
        assert set(differs) == {"rows", "base", "vocabulary", "compressed", "hidden"}
        assert differs["hidden"] == {"here": 64, "profile": 5120}
        assert shown["profile"] == "deepseek-v4.1-flash"


def test_a_checkpoint(cli: Cli, tiny: Path) -> None:
    shown = cli.ok("show", tiny, "--json").json
    assert (shown["kind"], shown["dialect"], shown["missing"]) == ("checkpoint", "hf", [])
    assert shown["shards"] == [f"model-0000{number}-of-00004.safetensors" for number in (1, 2, 3, 4)]
    assert len(shown["tensors"]) == 12
    table = next(t for t in shown["tensors"] if t["name"] == "layers.14.engram.embed.weight")
    assert (table["dtype"], table["shape"], table["bytes"]) == ("F8_E4M3", [5940, 256], 5940 * 256)
    assert shown["token_map"] == {"origin": "the checkpoint's tokenizer.json"}
    assert shown["synthetic"] is True


def test_the_release_at_full_size_is_shown_at_once(
    cli: Cli, full: Path, full_container: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (full, full_container):
        monkeypatch.setattr(disk, "system", system := Faulty())
        begun = time.process_time()
        shown = cli.ok("show", path, "--json").json
        assert time.process_time() - begun < 1
        assert shown["dialect"] in ("hf", "ds4")
        assert shown["sizes"]["rows"] == [384_006_168, 384_016_682]
        assert shown["differs_from_profile"] == {}
        assert shown["synthetic"] is True
        assert sum(size for name, size in system.calls if name == "read") < 4 << 20


def test_only_the_header_of_a_container_is_read_and_a_few_rows(
    cli: Cli, container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 rows a table tell the layouts of 264 bytes apart; nothing else is read, and nobody minds if they cannot be."""
    rows: list[int] = []

    class Watched(disk.System):
        def pread_into(self, fd: int, view: memoryview, offset: int) -> int:
            if offset >= 16384:
                assert len(view) == 264
                rows.append(offset)
            return super().pread_into(fd, view, offset)

    class Broken(disk.System):
        def pread_into(self, fd: int, view: memoryview, offset: int) -> int:
            if offset >= 16384:
                raise OSError(errno.EIO, "no such luck")
            return super().pread_into(fd, view, offset)

    monkeypatch.setattr(disk, "system", Watched())
    shown = cli.ok("show", container, "--json").json
    assert 0 < len(set(rows)) <= 2 * 64
    monkeypatch.setattr(disk, "system", Broken())
    assert cli.ok("show", container, "--json").json == shown


@pytest.mark.parametrize("which", ["container", "tiny"])
def test_people_see_the_same_facts(cli: Cli, request: pytest.FixtureRequest, which: str) -> None:
    path = request.getfixturevalue(which)
    text, shown = cli.ok("show", path).out.decode(), cli.ok("show", path, "--json").json
    assert all(t["name"] in text for t in shown["tensors"])
    assert all(name in text for name in shown["constants"])
    assert shown["dialect"] in text
    assert "2826" in text
    assert which == "tiny" or ("loader ds4" in text and "310 compressed ids of 384 tokens with SHA-256" in text)


# broken ones


def drop(*names: str) -> Callable[[Keys, Tensors], Any]:
    def change(keys: Keys, tensors: Tensors) -> None:
        for name in names:
            keys.pop(name, None)
        tensors[:] = [t for t in tensors if t[0] not in names]

    return change


@pytest.mark.parametrize(
    "name",
    [
        "deepseek41.engram.token_map",
        "deepseek41.engram.layer_ids",
        "deepseek41.engram.pad_id",
        "blk.14.engram_embd.weight",
        "blk.1.engram_q_norm.weight",
    ],
)
def test_what_is_missing_is_named(cli: Cli, container: Path, tmp_path: Path, name: str) -> None:
    shown = cli.ok("show", rebuilt(container, tmp_path / "x.gguf", drop(name)), "--json").json
    assert shown["dialect"] is None
    assert shown["nearest"] == "ds4"
    assert shown["missing"] == [name]
    assert shown["loaders"]["ds4"]["accepts"] == name.endswith("q_norm.weight") or shown["loaders"]["ds4"]["why"]
    text = cli.ok("show", tmp_path / "x.gguf").out.decode()
    assert "missing" in text
    assert name in text


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("deepseek41.engram.primes", ours.u64s([61] * 48), "u64[]"),
        ("deepseek41.engram.layer_ids", ours.i32s([1, 14]), "i32[]"),
        ("deepseek41.engram.token_map", ours.strings(["a"]), "string[]"),
        ("deepseek41.engram.layer_ids", ours.f32s([float("nan"), float("inf")]), "f32[]"),
        ("deepseek41.engram.layer_ids", ours.u64s([2**63, 2**64 - 1]), "u64[]"),
        ("deepseek41.engram.layer_ids", ours.string("1, 14"), "string"),
        ("deepseek41.engram.layer_ids", ours.i32s([-1, -1]), "i32[]"),
        ("deepseek41.engram.pad_id", ours.f32(float("nan")), "f32"),
        ("deepseek41.engram.token_map", ours.f32s([float("inf")] * 200), "f32[]"),
        ("deepseek41.engram.token_map", ours.i32s([-5]), "i32[]"),
        ("deepseek41.engram.compressed_vocab_size", ours.boolean(True), "bool"),
        ("deepseek41.engram.encoding", ours.u32(7), "u32"),
        ("deepseek41.engram.rows", ours.u64(3), "u64"),
    ],
)
def test_what_has_another_type_is_described(
    cli: Cli, container: Path, tmp_path: Path, name: str, value: ours.Value, found: str
) -> None:
    made = rebuilt(container, tmp_path / "x.gguf", lambda keys, tensors: keys.__setitem__(name, value))
    shown = cli.ok("show", made, "--json").json
    assert {"where": name, "expected": shown["wrong"][0]["expected"], "found": found} in shown["wrong"]
    assert shown["constants"][name]["type"] == found
    assert shown["dialect"] is None
    assert shown["loaders"]["ds4"]["accepts"] is False
    cli.ok("show", made)


def test_a_tensor_of_another_dtype_or_shape_is_not_the_published_form(cli: Cli, tmp_path: Path) -> None:
    """U8 for E8M0, as some re-savers have it: `repack` refuses it, so `show` must not call it hf."""
    made = Mini()
    kind, shape, data = made.tensors["layers.1.engram.embed.scale"]
    made.tensors["layers.1.engram.embed.scale"] = ("U8", shape, data)
    made.tensors["layers.14.engram.q_weight"] = ("BF16", (2, 2), bytes(8))
    shown = cli.ok("show", folder := made.write(tmp_path / "ckpt"), "--json").json
    assert (shown["dialect"], shown["nearest"]) == (None, "hf")
    assert {(w["where"], w["found"]) for w in shown["wrong"]} == {
        ("layers.1.engram.embed.scale", f"U8 [{', '.join(map(str, shape))}]"),
        ("layers.14.engram.q_weight", "BF16 [2, 2]"),
    }
    assert kind in {w["expected"].split()[0] for w in shown["wrong"]}
    assert cli("check", "source", folder).code == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"text_config": 5}', "{}", "[" * 100_000, '{"a":' + "9" * 5000 + "}"])
def test_a_container_with_a_config_that_is_none(cli: Cli, container: Path, tmp_path: Path, text: str) -> None:
    made = rebuilt(
        container, tmp_path / "x.gguf", lambda keys, _: keys.__setitem__("deepseek41.config", ours.string(text))
    )
    shown = cli.ok("show", made, "--json").json
    assert shown["config_problem"]
    assert shown["sizes"] is None
    cli.ok("show", made)


@pytest.mark.parametrize("kind", [24, 0, 1, 8, 9999])
@pytest.mark.parametrize("shape", [(), (264,), (264, 2826, 1), (256, 2826), (0, 2826), (264, 0)])
def test_tables_of_any_type_and_shape(
    cli: Cli, container: Path, tmp_path: Path, kind: int, shape: tuple[int, ...]
) -> None:
    def change(keys: Keys, tensors: Tensors) -> None:
        tensors[6] = ("blk.1.engram_embd.weight", kind, shape, ours.tensor_bytes(kind, shape) or 0)

    made = rebuilt(container, tmp_path / "x.gguf", change)
    if kind == 8 and (shape[0] if shape else 1) % 32:  # rows of no whole Q8_0 blocks: no header that parses
        assert cli.refused_twice(tmp_path, "show", made).where.startswith(str(made))
        return
    for words in (("show", made), ("check", "file", made)):
        done = cli(*words, "--json")
        assert done.code in (0, 1), done.err
    shown = cli.ok("show", made, "--json").json
    assert shown["loaders"]["ds4"]["accepts"] is False


def test_a_container_without_any_engram(cli: Cli, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_float32("llama.nan", float("nan"))
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_tensor("x", np.ones((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    shown = cli.ok("show", tmp_path / "x.gguf", "--json").json
    assert (shown["dialect"], shown["nearest"], shown["missing"]) == (None, None, [])
    assert (shown["tensors"], shown["other_tensors"], shown["architecture"]) == ([], 1, "llama")
    cli.ok("show", tmp_path / "x.gguf")


def test_odd_keys_give_json_and_lines_all_the_same(cli: Cli, container: Path, tmp_path: Path) -> None:
    odd = {
        "deepseek41.engram.nan": ours.f32(float("nan")),
        "deepseek41.engram.floats": ours.f32s([1.5, float("inf"), float("-inf")]),
        "deepseek41.engram.text": ours.string("[bold]\x1b[31m\n\u202e"),
        "deepseek41.engram.texts": ours.strings(["[red]"] * 100),
        "deepseek41.engram.\x1b[2J": ours.boolean(False),
        "general.architecture": ours.f32(float("nan")),
    }
    made = rebuilt(container, tmp_path / "x.gguf", lambda keys, tensors: keys.update(odd))
    shown = cli.ok("show", made, "--json").json
    assert set(odd) - set(shown["constants"]) == {"general.architecture"}
    text = cli.ok("show", made).out.decode()
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[bold]" in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_hidden_layers", "two"),
        ("num_hidden_layers", 40.0),
        ("num_hidden_layers", -1),
        ("routed_scaling_factor", 10**400),
        ("routed_scaling_factor", 1e308),
        ("swiglu_limit", float("nan")),
        ("compress_ratios", {}),
        ("rope_scaling", 5),
    ],
)
def test_a_container_whose_config_says_odd_things(
    cli: Cli, container: Path, tmp_path: Path, name: str, value: object
) -> None:
    def change(keys: Keys, tensors: Tensors) -> None:
        config = json.loads(keys["deepseek41.config"].value)
        config["text_config"][name] = value
        keys["deepseek41.config"] = ours.string(json.dumps(config))

    made = rebuilt(container, tmp_path / "x.gguf", change)
    cli.ok("show", made, "--json")
    done = cli("check", "file", made, "--json")
    assert done.code in (0, 1), done.err
    assert done.code == 1 or name == "rope_scaling" or value == 40.0


@pytest.mark.parametrize("value", [ours.u32s([1, 2]), ours.f32s([]), ours.strings(["deepseek41"]), ours.f32(0.0)])
@pytest.mark.parametrize("name", ["general.architecture", "deepseek41.engram.encoding", "deepseek41.config"])
def test_texts_that_are_none(cli: Cli, container: Path, tmp_path: Path, name: str, value: ours.Value) -> None:
    made = rebuilt(container, tmp_path / "x.gguf", lambda keys, tensors: keys.__setitem__(name, value))
    assert cli.ok("show", made, "--json").json["loaders"]["ds4"]["accepts"] is False
    done = cli("check", "file", made, "--json")
    assert done.code == 1, done.err


def test_a_container_that_was_cut_in_its_tensors(cli: Cli, container: Path, tmp_path: Path) -> None:
    """Headers parse: it is described, and no loader takes it."""
    data = container.read_bytes()
    (tmp_path / "x.gguf").write_bytes(data[: len(data) - 20_000])
    shown = cli.ok("show", tmp_path / "x.gguf", "--json").json
    assert shown["loaders"]["ds4"]["accepts"] is False
    assert shown["file_bytes"] == len(data) - 20_000


def test_a_checkpoint_with_holes(cli: Cli, tiny: Path, copied: Copy) -> None:
    folder = copied(tiny)
    (folder / "model-00003-of-00004.safetensors").unlink()
    shown = cli.ok("show", folder, "--json").json
    assert shown["dialect"] is None
    assert shown["missing"] == ["layers.14.engram.embed.weight"]
    assert shown["missing_shards"] == ["model-00003-of-00004.safetensors"]
    assert "missing shard" in cli.ok("show", folder).out.decode()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"text_config": 5}', "{}", "null"])
def test_a_checkpoint_with_a_config_that_is_none(cli: Cli, tmp_path: Path, text: str) -> None:
    folder = Mini().write(tmp_path / "ckpt")
    (folder / "config.json").write_text(text)
    shown = cli.ok("show", folder, "--json").json
    assert shown["config_problem"]
    assert shown["sizes"] is None
    cli.ok("show", folder)


def test_a_shard_alone(cli: Cli, tiny: Path) -> None:
    shown = cli.ok("show", tiny / "model-00001-of-00004.safetensors", "--json").json
    assert shown["kind"] == "checkpoint"
    assert [t["name"] for t in shown["tensors"]] == ["layers.1.engram.embed.weight"]
    assert len(shown["missing"]) == 11


def test_what_is_neither_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("GGUFs are files, but this is none of them, however long it gets")
    (tmp_path / "y").write_bytes(b"\x93NUMPY")
    shard(tmp_path / "z.safetensors", {})
    for name in ("x.txt", "y"):
        assert cli.refused_twice(tmp_path, "show", tmp_path / name).where.startswith(str(tmp_path / name))
    assert len(cli.ok("show", tmp_path / "z.safetensors", "--json").json["missing"]) == 12


@pytest.mark.parametrize("architecture", ["deepseek41", "qwen4exp"])
def test_a_text_that_is_not_utf_8_is_described_and_otherwise_refused(
    cli: Cli, tmp_path: Path, architecture: str
) -> None:
    writer = gguf.GGUFWriter(path := tmp_path / "x.gguf", architecture)
    writer.add_string("odd", "caf?")
    writer.add_array("list", ["fine", "caf?", "?"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    path.write_bytes(data := path.read_bytes().replace(b"?", b"\xe9"))
    report = cli.ok("show", path, "--json").json
    places = [data.index(b"\xe9"), data.index(b"\xe9", data.index(b"fine"))]
    wrong = [
        {"where": f'key "{name}"', "expected": "UTF-8", "found": f"byte 0xe9 at byte {at}"}
        for name, at in zip(("odd", "list"), places, strict=True)
    ]
    assert report["wrong"][:2] == wrong
    assert b"0xe9" in cli.ok("show", path).out
    refusal = cli.refused(tmp_path, "check", "file", path)
    assert refusal.where == f"{path} at byte {places[0]}"
    path.write_bytes(data.replace(b"odd", b"od\xe9"))  # a key's own name
    assert "UTF-8" in cli.refused(tmp_path, "show", path).expected
