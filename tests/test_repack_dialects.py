"""repack into other dialects and behind a model's tensors, and back again: the checkpoint's bytes, wherever they go."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import dialect_files as files
import numpy as np
import pytest
from checkpoints import read_tensors
from checks import differs, only, passes, scalar_at
from cli_helpers import Cli
from dialect_files import Model
from faults import Faulty
from gguf import GGUFReader
from test_repair import KilledError, Killing, Room, bodies

from engramctl import append, repair, repair_journal, unpack
from engramctl.checkpoint import open_checkpoint
from formats import disk, gguf_file, ranges
from formats.dialects import DS4, SPLIT_I8


@pytest.fixture(scope="module")
def model(tiny: Path, container: Path) -> Model:
    return files.read_model(tiny, container)


@pytest.fixture(scope="module")
def main_weights(tmp_path_factory: pytest.TempPathFactory, model: Model) -> Path:
    """A model without tables: alignment 32, its last tensor ends anywhere."""
    keys: files.Keys = {"tokenizer.ggml.tokens": ("string[]", [f"t{i}" for i in range(len(model.token_map))])}
    keys["deepseek41.block_count"] = ("u32", 40)
    rng = np.random.default_rng(3)
    tensors: files.Tensors = [
        ("token_embd.weight", rng.normal(size=(len(model.token_map), 64)).astype(np.float32), None),
        ("output_norm.weight", rng.normal(size=77).astype(np.float32), None),
    ]
    return files.write(tmp_path_factory.mktemp("main") / "model.gguf", keys, tensors)


def test_split_i8_is_what_its_own_loader_takes_and_the_checkpoints_bytes(
    cli: Cli, tiny: Path, model: Model, tmp_path: Path
) -> None:
    path = tmp_path / "split.gguf"
    cli.ok("repack", tiny, "-o", path, "--dialect", "split-i8")
    reader = GGUFReader(path)
    for name, (kind, value) in files.split_keys(model).items():
        assert reader.fields[name].contents() == value
        assert reader.fields[name].types[-1] == files.WORDS[kind.removesuffix("[]")]
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for layer in model.layers:
        assert np.array_equal(tensors[files.table(layer)].data.view(np.uint8), model.codes[layer])
        scales = tensors[f"blk.{layer}.engram_embd_scale.weight"].data
        assert np.array_equal(scales.view(np.uint8), model.scales[layer])
        assert np.array_equal(tensors[f"blk.{layer}.engram_kv.weight"].data.astype("f4"), model.projection[layer])
    names = [tensor.name for tensor in reader.tensors]
    assert all("embd" in name for name in names[-4:])  # tables last: what is read ahead is weights
    del reader, tensors
    files.gc.collect()
    passes(cli, "file", path, "--loader", "split-i8")
    passes(cli, "packing", tiny, path)
    passes(cli, "params", path, "--source", tiny)
    assert cli.ok("show", path, "--json").json["dialect"] == "split-i8"


def test_equal_checkpoints_give_equal_bytes_in_every_dialect(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        cli.ok("repack", tiny, "-o", tmp_path / f"{name}.gguf", "--dialect", "split-i8")
        cli.ok("repack", tiny, "-o", tmp_path / name, "--dialect", "row264-bare")
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "two.gguf").read_bytes()
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_bare_rows_have_a_file_and_a_manifest_a_layer(cli: Cli, tiny: Path, model: Model, tmp_path: Path) -> None:
    cli.ok("repack", tiny, "-o", tmp_path / "rows", "--dialect", "row264-bare")
    for layer, rows in zip(model.layers, model.rows, strict=True):
        path = tmp_path / "rows" / f"engram-l{layer}-packed.bin"
        assert path.read_bytes() == model.rows264(layer).tobytes()
        manifest = json.loads(path.with_name(path.name + ".json").read_text())
        assert (manifest["layer"], manifest["rows"], manifest["row_bytes"]) == (layer, rows, 264)
        assert manifest["ranges"] == [[0, rows]]
        assert not {"built", "source"} & set(manifest)  # neither time nor place
        passes(cli, "packing", tiny, path, "--layer", layer)
    assert len(list((tmp_path / "rows").iterdir())) == 4


LOSING = ("ds4-lloyd4", "ds4-q4k", "ds4-hlwq", "llamacpp", "split-table", "deepstrix", "tensorsharp", "row264-paged")
LOSING += ("engram-sidecar", "vllm-parts")


@pytest.mark.parametrize("name", LOSING)
def test_other_dialects_are_refused_with_what_would_be_lost(cli: Cli, tiny: Path, tmp_path: Path, name: str) -> None:
    refusal = cli.refused_twice(tmp_path, "repack", tiny, "-o", tmp_path / "x.gguf", "--dialect", name)
    assert (refusal.where, refusal.found) == ("--dialect", name)
    assert refusal.hint
    unknown = cli.refused(tmp_path, "repack", tiny, "-o", tmp_path / "x.gguf", "--dialect", "nope")
    assert unknown.expected == refusal.expected == "one of ds4, split-i8, row264-bare"


@pytest.mark.parametrize("dialect", ["ds4", "split-i8"])
@pytest.mark.parametrize("way", ["copy", "in place"])
def test_tables_go_behind_a_models_tensors_which_do_not_change(
    cli: Cli, tiny: Path, model: Model, main_weights: Path, tmp_path: Path, dialect: str, way: str
) -> None:
    path = Path(shutil.copy(main_weights, tmp_path / "model.gguf"))
    before, full = bodies(path), path
    if way == "copy":
        full = tmp_path / "full.gguf"
        cli.ok("repack", tiny, "--append-to", path, "-o", full, "--dialect", dialect)
        assert path.read_bytes() == main_weights.read_bytes()
    else:
        cli.ok("repack", tiny, "--append-to", path, "--in-place", "--dialect", dialect)
    after = bodies(full)
    assert {name: after[name] for name in before} == before
    header = gguf_file.read_header(full)
    assert header.keys["deepseek41.block_count"].value == 40
    if dialect == "ds4":
        assert header.tensor(files.table(1)).start % 16384 == 0
        assert header.alignment == 32
    passes(cli, "file", full, "--loader", dialect)
    passes(cli, "packing", tiny, full)
    passes(cli, "params", full, "--source", tiny)
    assert "engram-only" not in str(cli("check", "file", full, "--json").json["notes"])
    assert not list(tmp_path.glob("*.repair")) + list(tmp_path.glob("*.partial"))


def test_copy_and_in_place_give_the_same_tensors_and_a_dry_run_says_where(
    cli: Cli, tiny: Path, main_weights: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copy(main_weights, tmp_path / "model.gguf"))
    plan = cli.ok("repack", tiny, "--append-to", path, "--dry-run", "--json").json
    cli.ok("repack", tiny, "--append-to", path, "-o", tmp_path / "full.gguf")
    cli.ok("repack", tiny, "--append-to", path, "--in-place")
    assert (tmp_path / "full.gguf").stat().st_size == path.stat().st_size == plan["file_bytes"]
    assert path.read_bytes() == (tmp_path / "full.gguf").read_bytes()
    starts = {t.name: t.start for t in gguf_file.read_header(path).tensors}
    assert {name: starts[name] for name in plan["starts"]} == plan["starts"]


def test_a_model_that_has_tables_is_refused(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    refusal = cli.refused_twice(tmp_path, "repack", tiny, "--append-to", container, "-o", tmp_path / "x.gguf")
    assert "blk.1.engram_q_norm.weight" in refusal.found


def test_an_append_killed_at_any_step_is_finished_or_undone(
    tiny: Path, main_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, path = main_weights.read_bytes(), tmp_path / "model.gguf"
    with open_checkpoint(tiny) as source:
        shutil.copy(main_weights, path)
        append.in_place(append.plan(source, path, DS4, "f16"))
        full = path.read_bytes()
        finished = undone = 0
        for at in [*range(1, 14), 40, 100, *range(240, 320)]:
            shutil.copy(main_weights, path)
            made = append.plan(source, path, DS4, "f16")
            killing = Killing(at, torn=bool(at % 2))
            with monkeypatch.context() as patched:
                patched.setattr(disk, "system", killing)
                patched.setattr(ranges, "calls", Room(killing))
                try:
                    append.in_place(made)
                except KilledError:
                    pass
                else:
                    break
            if not repair_journal.journal_of(path).exists():
                assert path.read_bytes() in (original, full)
                for left in tmp_path.glob("*.repair*"):
                    left.unlink()
                continue
            if repair_journal.read(path)[0].grown:
                repair.undo(path)
                undone += 1
                assert path.read_bytes() == original
            else:
                place = repair_journal.journal_of(path)
                state, journal = path.read_bytes(), place.read_bytes()
                repair.undo(path)
                assert path.read_bytes() == original
                path.write_bytes(state)
                place.write_bytes(journal)
                repair.resume(path)
                finished += 1
                assert path.read_bytes() == full
        assert finished
        assert undone


def test_an_interrupted_split_or_append_resumes_to_the_same_bytes(
    cli: Cli, tiny: Path, main_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (("--dialect", "split-i8"), ("--append-to", main_weights)):
        whole, path = tmp_path / "whole.gguf", tmp_path / "again.gguf"
        cli.ok("repack", tiny, "-o", whole, *words, "--force")
        with monkeypatch.context() as patched:
            patched.setattr(disk, "system", Faulty(room=9_000_000))
            outcome = cli("repack", tiny, "-o", path, *words)
        assert outcome.code == 2
        assert not path.exists()
        refusal = cli.refused(tmp_path, "repack", tiny, "-o", path, *words)
        assert "--resume" in refusal.hint
        cli.ok("repack", tiny, "-o", path, *words, "--resume")
        assert path.read_bytes() == whole.read_bytes()
        assert {each.name for each in tmp_path.iterdir()} == {"whole.gguf", "again.gguf"}
        path.unlink()


@pytest.mark.parametrize("name", ["ds4", "split-i8", "tensor-constants", "engram-sidecar"])
def test_unpack_gives_the_checkpoints_bytes_back(
    cli: Cli, tiny: Path, model: Model, container: Path, tmp_path: Path, name: str
) -> None:
    path = container if name == "ds4" else files.make(name, tmp_path, model)
    cli.ok("unpack", path, "-o", tmp_path / "back")
    want, have = read_tensors(tiny), read_tensors(tmp_path / "back")
    assert set(want) == set(have)
    for tensor, (dtype, shape, data) in want.items():
        assert have[tensor][:2] == (dtype, shape)
        if ".wkv." not in tensor:
            assert have[tensor][2] == data
    again = tmp_path / "again.gguf"
    cli.ok("repack", tmp_path / "back", "-o", again, "--token-map", tmp_path / "back" / "engram_token_map.bin")
    if name == "ds4":
        assert (tmp_path / "back" / "config.json").read_bytes() == (tiny / "config.json").read_bytes()
        assert again.read_bytes() == container.read_bytes()
    report = cli("check", "packing", tiny, again, "--json").json
    assert [each for each in report["findings"] if not each["where"].startswith("config.")] == []


def test_unpack_refuses_lossy_rows_with_the_reason(cli: Cli, model: Model, tmp_path: Path) -> None:
    refusal = cli.refused_twice(tmp_path, "unpack", files.make("llamacpp", tmp_path, model), "-o", tmp_path / "back")
    assert "Q8_0" in refusal.found
    assert not (tmp_path / "back").exists()


def test_unpack_refuses_numbers_that_a_checkpoint_does_not_hold_before_it_begins_or_leaves_nothing(
    cli: Cli, model: Model, tmp_path: Path
) -> None:
    split = files.make("split-i8", tmp_path, model)
    header, data = gguf_file.read_header(split), bytearray(split.read_bytes())
    at = header.tensor("blk.1.engram_kv.weight").start
    data[at : at + 2] = np.array([np.nan], np.float16).tobytes()
    split.write_bytes(data)
    refusal = cli.refused(tmp_path, "unpack", split, "-o", tmp_path / "back")
    assert refusal.expected.startswith("finite values")
    sidecar = files.make("engram-sidecar", tmp_path, model)
    data = bytearray(sidecar.read_bytes())
    data[gguf_file.read_header(sidecar).tensor("engram.token_map").start + 3] = 0xFF
    sidecar.write_bytes(data)
    assert cli.refused(tmp_path, "unpack", sidecar, "-o", tmp_path / "back").expected == "compressed ids of 32 bits"


def test_a_changed_config_inside_a_split_container_is_found(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    split, other = tmp_path / "split.gguf", tmp_path / "other.gguf"
    cli.ok("repack", tiny, "--dialect", "split-i8", "-o", split)
    data = split.read_bytes()
    assert data.count(b'"rms_norm_eps": 1e-20') == 1
    other.write_bytes(data.replace(b'"rms_norm_eps": 1e-20', b'"rms_norm_eps": 1e-02'))
    passes(cli, "packing", tiny, split)
    for one in (tiny, split):
        found = differs(cli, "packing", one, other)["findings"]
        assert [each["where"] for each in found] == ["config.text_config.rms_norm_eps"]


@pytest.mark.parametrize("key", ["rms_norm_eps", "hc_mult", "num_hidden_layers"])
def test_a_key_that_does_not_say_what_the_config_says_is_found(
    cli: Cli, tiny: Path, container: Path, tmp_path: Path, key: str
) -> None:
    other, data = tmp_path / "other.gguf", bytearray(container.read_bytes())
    data[scalar_at(data, f"deepseek41.{key}")] ^= 1
    other.write_bytes(data)
    for one in (tiny, container):
        found = differs(cli, "packing", one, other)["findings"]
        assert [each["where"] for each in found] == [f"key deepseek41.{key}"]
        assert found[0]["expected"].endswith(" as in the config")


def test_unpack_takes_a_file_of_rows(cli: Cli, tiny: Path, model: Model, tmp_path: Path) -> None:
    cli.ok("repack", tiny, "-o", tmp_path / "rows", "--dialect", "row264-bare")
    cli.ok("unpack", tmp_path / "rows" / "engram-l14-packed.bin", "-o", tmp_path / "back")
    tensors = read_tensors(tmp_path / "back")
    assert tensors["layers.14.engram.embed.weight"][2] == model.codes[14].tobytes()
    assert tensors["layers.14.engram.embed.scale"][2] == model.scales[14].tobytes()


def test_a_folder_of_rows_is_one_thing(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    cli.ok("repack", tiny, "-o", rows, "--dialect", "row264-bare")
    shown = cli.ok("show", rows, "--json").json
    assert (shown["kind"], shown["dialect"], shown["layers"]) == ("sidecar", "row264-bare", [1, 14])
    assert cli.ok("show", rows).out.count(b"packed.bin: row_bytes") == 2
    passes(cli, "packing", tiny, rows)
    cli.ok("lookup", rows, "--layer", "14", "--rows", "5", "--to", "raw", "-o", tmp_path / "row.npy")
    cli.ok("unpack", rows, "-o", tmp_path / "back")
    have = read_tensors(tmp_path / "back")
    assert {name: each for name, each in read_tensors(tiny).items() if name in have} == have
    assert len(have) == 4
    with (rows / "engram-l14-packed.bin").open("ab") as file:
        file.write(b"x")
    wrong = cli.ok("show", rows, "--json").json
    assert wrong["dialect"] is None
    assert wrong["wrong"][0]["where"].endswith("engram-l14-packed.bin: size")
    cli.refused_twice(tmp_path, "unpack", rows, "-o", tmp_path / "again")


def test_unpack_leaves_a_full_folder_and_one_of_somebody_else_alone(cli: Cli, container: Path, tmp_path: Path) -> None:
    for name in ("full", "back.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("x")
    assert "empty" in cli.refused_twice(tmp_path, "unpack", container, "-o", tmp_path / "full").expected
    refusal = cli.refused(tmp_path, "unpack", container, "-o", tmp_path / "back", "--force")
    assert refusal.found == "something else"


@pytest.mark.parametrize("room", [400, 1_000_000, 4_200_000])
def test_an_interrupted_unpack_goes_on_to_the_same_bytes(
    cli: Cli, container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    path = Path(shutil.copy(container, tmp_path / "engram.gguf"))
    cli.ok("unpack", path, "-o", tmp_path / "whole")
    monkeypatch.setattr(unpack, "PIECE_ROWS", 1000)
    words = ("unpack", path, "-o", tmp_path / "back")
    with monkeypatch.context() as patched:
        patched.setattr(disk, "system", Faulty(room=room))
        assert cli(*words).code == 2
    assert not (tmp_path / "back").exists()
    assert "--resume" in cli.refused(tmp_path, *words).hint
    os.utime(path, (1, 1))
    assert "another" in cli.refused(tmp_path, *words, "--resume").found
    cli.ok(*words, "--force")
    assert snapshot_bytes(tmp_path / "back") == snapshot_bytes(tmp_path / "whole")
    shutil.rmtree(tmp_path / "back")
    with monkeypatch.context() as patched:
        patched.setattr(disk, "system", Faulty(room=room))
        assert cli(*words).code == 2
    cli.ok(*words, "--resume")
    assert snapshot_bytes(tmp_path / "back") == snapshot_bytes(tmp_path / "whole")
    assert not (tmp_path / "back.partial").exists()


def snapshot_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_full_size_tables_keep_their_holes_in_every_dialect(cli: Cli, full: Path, tmp_path: Path) -> None:
    """203 GB that take megabytes: the marked rows are there, and so is everything else."""
    cli.ok("repack", full, "-o", tmp_path / "split.gguf", "--dialect", "split-i8", "--layers", "1")
    assert (tmp_path / "split.gguf").stat().st_blocks * 512 < 1 << 30
    passes(cli, "packing", full, tmp_path / "split.gguf", "--layer", "1")
    assert SPLIT_I8.loses == ""
    assert differs(cli, "file", tmp_path / "split.gguf", "--loader", "llamacpp")


def test_two_runs_never_write_one_output(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.gguf"
    partial = out.with_name("x.gguf.partial")
    with disk.WriteFile.create(partial) as other:
        other.lock()
        for more in ((), ("--resume",), ("--force",)):
            words = ("repack", tiny, "--dialect", "split-i8", "-o", out, *more)
            assert cli.refused(tmp_path, *words).found == "one that writes it"
    cli.ok("repack", tiny, "--dialect", "split-i8", "-o", out, "--force")


def test_an_unpack_that_is_stopped_or_finished_says_what_is_there(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Model
) -> None:
    path, folder = files.make("ds4", tmp_path, model), tmp_path / "back"

    def stopped(*words: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(unpack, "_write", stopped)
        outcome = cli("unpack", path, "-o", folder, "--quiet")
    assert outcome.code == 130
    assert outcome.err == f"engramctl: interrupted; {folder}.partial is kept, and --resume goes on\n"
    cli.ok("unpack", path, "-o", folder, "--resume")
    for more in ((), ("--resume",), ("--force",)):
        refusal = cli.refused(tmp_path, "unpack", path, "-o", folder, *more)
        assert (refusal.where, refusal.found) == (str(folder), "files in it")
        assert "for an unfinished output" in refusal.hint
    refusal = cli.refused(tmp_path, "unpack", tmp_path / "none", "-o", tmp_path / "x")
    assert (refusal.expected, refusal.found) == ("a container", "nothing there")


def test_bare_rows_make_a_round_trip_that_is_checked_without_a_config(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    rows, back = tmp_path / "rows", tmp_path / "back"
    cli.ok("repack", tiny, "-o", rows, "--dialect", "row264-bare")
    cli.ok("unpack", rows, "-o", back)
    for sides in ((tiny, back), (back, tiny), (rows, back)):
        passes(cli, "packing", *sides)
    shard = next(iter(back.glob("*-14.safetensors")))
    data = bytearray(shard.read_bytes())
    data[-3] ^= 1
    shard.write_bytes(data)
    assert only(differs(cli, "packing", tiny, back))[0].startswith("layer 14 row ")
    refusal = cli.refused(tmp_path, "check", "file", rows)
    assert refusal.hint == f"one file of rows at a time: check file {rows / 'engram-l1-packed.bin'}"
    passes(cli, "file", rows / "engram-l1-packed.bin")


def test_a_checkpoint_with_weights_and_no_config_wants_its_sizes(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "c")
    (tmp_path / "c" / "config.json").unlink()
    assert cli.refused(tmp_path, "check", "packing", tiny, tmp_path / "c").expected == "a config.json"
