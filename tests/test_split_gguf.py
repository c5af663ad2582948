"""Split GGUFs, as llama.cpp's files of this size are published: keys in the first shard, tables in others."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import dialect_files as files
import numpy as np
import pytest
from checks import differs, found, only, passes, wheres
from cli_helpers import Cli
from dialect_files import NEW, OLD, Model

from formats.errors import FormatError
from formats.gguf_split import read_model


@pytest.fixture(scope="module")
def model(tiny: Path, container: Path) -> Model:
    return files.read_model(tiny, container)


def split(
    folder: Path, keys: files.Keys, tensors: files.Tensors, arch: str = "deepseek41", **other: tuple[str, Any]
) -> list[Path]:
    """Three shards as gguf-split writes them: all keys in the first, no table there, a layer in each of the others."""
    main: files.Tensors = [("token_embd.weight", np.zeros((64, 32), np.float32), None)]
    parts = [main, *([t for t in tensors if f"blk.{layer}." in t[0]] for layer in (1, 14))]
    made = []
    for number, part in enumerate(parts):
        said: files.Keys = {
            "split.no": ("u16", number),
            "split.count": ("u16", 3),
            "split.tensors.count": ("i32", sum(map(len, parts))),
        }
        said = (keys | said | {name.replace("_", "."): value for name, value in other.items()}) if not number else said
        made.append(files.write(folder / f"model-{number + 1:05d}-of-00003.gguf", said, part, arch))
    return made


@pytest.fixture
def shards(model: Model, tmp_path: Path) -> list[Path]:
    return split(tmp_path, files.llamacpp_keys(model), files.quantised(model))


def test_shards_beside_one_another_are_one_model(cli: Cli, tiny: Path, shards: list[Path], tmp_path: Path) -> None:
    for path in shards:
        shown = cli.ok("show", path, "--json").json
        assert (shown["dialect"], shown["missing"], shown["wrong"]) == ("llamacpp", [], [])
        assert "all 3 shards are beside one another, and taken as one model" in shown["notes"]
        assert {t["file"] for t in shown["tensors"]} == {shards[1].name, shards[2].name}
        assert shown["loaders"]["llamacpp"]["accepts"] == (path == shards[0])
    passes(cli, "file", shards[0])
    passes(cli, "packing", tiny, shards[0])
    passes(cli, "params", shards[0], "--source", tiny)
    passes(cli, "map", shards[2], "--tokenizer", tiny / "tokenizer.json")
    cli.ok("hash", "--params", shards[0], "--ids", "5,6")
    cli.ok("run", shards[0], "--layer", "14", "--ids", "5,6", "--stop-at", "kv", "-o", tmp_path / "split.npy")
    cli.ok("lookup", shards[1], "--layer", "14", "--rows", "0,5939", "--to", "f32", "-o", tmp_path / "rows.npy")


def test_llamacpp_loads_the_first_shard_and_ds4_none(cli: Cli, shards: list[Path]) -> None:
    where, expected, have = only(differs(cli, "file", shards[1]))
    assert where == "key split.no"
    assert expected == f"{shards[0].name}: model must be loaded with the first split"
    assert have == "illegal split file idx: 1"
    checks = {finding["check"] for finding in differs(cli, "file", shards[0], "--loader", "ds4")["findings"]}
    assert {"ds4.one file", "ds4.tables"} <= checks


def test_shards_that_are_not_there_are_named(cli: Cli, tiny: Path, shards: list[Path], tmp_path: Path) -> None:
    shards[2].unlink()
    shown = cli.ok("show", shards[0], "--json").json
    assert f"{shards[2].name}: expected files beside {shards[0].name}, found none" in shown["notes"]
    assert {name.split(".")[1] for name in shown["missing"]} == {"14"}
    assert shards[2].name in wheres(differs(cli, "file", shards[0]))
    refusal = cli.refused(tmp_path, "repair", shards[0], "--from", tiny, "--in-place")
    assert refusal.where.endswith(shards[2].name)
    refusal = cli.refused(tmp_path, "run", shards[0], "--layer", "14", "--ids", "5", "--stop-at", "kv")
    assert refusal.found.endswith(f"; without {shards[2].name}")


def test_a_shard_alone_says_what_it_is_and_its_rows_are_read(cli: Cli, shards: list[Path], tmp_path: Path) -> None:
    alone = Path(shutil.move(shards[1], tmp_path / "table.gguf"))
    notes = cli.ok("show", alone, "--json").json["notes"]
    assert notes[0].startswith("shard 2 of 3 of a split GGUF")
    assert any("does not end in -00002-of-00003.gguf" in note for note in notes)
    cli.ok("lookup", alone, "--layer", "1", "--rows", "5", "--to", "raw", "-o", tmp_path / "row.npy")
    bare = Path(shutil.move(shards[0], tmp_path / "first.gguf"))
    found_there = cli.refused(tmp_path, "lookup", bare, "--layer", "1", "--rows", "5").found
    assert "shard 1 of 3 of a split GGUF" in found_there


@pytest.mark.parametrize(
    ("name", "value", "finding"),
    [
        ("split_count", ("u32", 3), ("key split.count", "a key of type u16", "u32")),
        ("split_tensors_count", ("i32", 8), ("key split.tensors.count", "9 tensors, as there are", "corrupted model")),
    ],
)
def test_what_the_first_shard_says_of_the_others_is_checked(
    cli: Cli, model: Model, tmp_path: Path, name: str, value: tuple[str, Any], finding: tuple[str, str, str]
) -> None:
    made = split(tmp_path, files.llamacpp_keys(model), files.quantised(model), **{name: value})
    where, expected, have = only(differs(cli, "file", made[0]))
    assert (where, expected) == finding[:2]
    assert have.startswith(finding[2])


def test_shards_that_changed_places_and_tensors_that_are_there_twice_are_found(
    cli: Cli, shards: list[Path], tmp_path: Path
) -> None:
    spare = Path(shutil.move(shards[1], tmp_path / "spare"))
    shutil.move(shards[2], shards[1])
    shutil.move(spare, shards[2])
    wrong = {f"{shards[1].name} key split.no": ("1", "2"), f"{shards[2].name} key split.no": ("2", "1")}
    assert set(wheres(differs(cli, "file", shards[0]))) == set(wrong)
    notes = cli.ok("show", shards[0], "--json").json["notes"]
    for where, (named, said) in wrong.items():
        assert f"{where}: expected {named}, as in its name, found {said}" in notes
    shutil.copy(shards[1], shards[2])
    assert any("each tensor once" in expected for _, expected, _ in found(differs(cli, "file", shards[0])))


def test_a_damaged_shard_is_described_and_refused_where_rows_are_wanted(
    cli: Cli, shards: list[Path], tmp_path: Path
) -> None:
    shards[2].write_bytes(shards[2].read_bytes()[:100])
    assert any(note.startswith(shards[2].name) for note in cli.ok("show", shards[0], "--json").json["notes"])
    assert shards[2].name in wheres(differs(cli, "file", shards[0]))
    with pytest.raises(FormatError):
        read_model(shards[0])


def test_a_count_that_nobody_has_is_no_search(cli: Cli, model: Model, tmp_path: Path) -> None:
    keys: files.Keys = {"split.no": ("u16", 0), "split.count": ("u16", 65535)}
    path = files.write(tmp_path / "x-00001-of-65535.gguf", keys, files.quantised(model))
    shown = cli.ok("show", path, "--json").json
    assert any("the other shards cannot be found" in note for note in shown["notes"])


@pytest.mark.parametrize("way", ["copy", "in place"])
@pytest.mark.parametrize("keys", ["old", "none"])
def test_only_the_first_shard_of_a_published_model_is_written(
    cli: Cli, tiny: Path, model: Model, tmp_path: Path, keys: str, way: str
) -> None:
    """Seven and nine shards were published without five constants; the first has no table, and is all that changes."""
    said = {
        name: value
        for name, value in files.llamacpp_keys(model, OLD).items()
        if value[0] == "u32" and "pad" not in name
    }
    made = split(
        tmp_path, said if keys == "old" else {}, files.quantised(model), "deepseek4" if keys == "old" else "deepseek41"
    )
    others = [hashlib.sha256(path.read_bytes()).hexdigest() for path in made[1:]]
    first = made[0]
    if way == "copy":
        assert (
            "-00001-of-00003.gguf"
            in cli.refused(tmp_path, "repair", first, "--from", tiny, "-o", tmp_path / "x").expected
        )
        first = tmp_path / "fixed-00001-of-00003.gguf"
        cli.ok("repair", made[0], "--from", tiny, "-o", first)
        for path in made[1:]:
            shutil.copy(path, tmp_path / path.name.replace("model", "fixed"))
    else:
        cli.ok("repair", first, "--from", tiny, "--in-place")
    passes(cli, "file", first)
    passes(cli, "params", first, "--source", tiny)
    passes(cli, "packing", tiny, first)
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in made[1:]] == others
    assert "healthy" in cli.ok("repair", first, "--from", tiny, "--in-place").err


def test_no_shard_of_what_constants_are_taken_from_is_written_over(
    cli: Cli, model: Model, shards: list[Path], tmp_path: Path
) -> None:
    broken = files.write(tmp_path / "broken.gguf", {}, files.quantised(model))
    for output in (*shards, broken):
        refusal = cli.refused(tmp_path, "repair", broken, "--from", shards[0], "-o", output, "--force")
        assert (refusal.where, refusal.found) == (str(output), output.name)
        assert refusal.expected == "an output that is none of its own sources"


def test_other_shards_are_not_repaired_and_nothing_is_put_behind_one(
    cli: Cli, tiny: Path, shards: list[Path], tmp_path: Path
) -> None:
    refusal = cli.refused(tmp_path, "repair", shards[1], "--from", tiny, "--in-place")
    assert refusal.expected == f"the shard with the keys: {shards[0].name}"
    refusal = cli.refused(tmp_path, "repack", tiny, "--append-to", shards[0], "-o", tmp_path / "x.gguf")
    assert refusal.found == "a shard of a split GGUF"


def test_names_in_other_shards_cannot_be_changed_from_the_first(
    cli: Cli, tiny: Path, model: Model, tmp_path: Path
) -> None:
    made = split(tmp_path, files.tensor_constants_keys(model), files.tensor_constants(model)[4:])
    refusal = cli.refused(tmp_path, "repair", made[0], "--from", tiny, "--to-dialect", "split-i8", "--dry-run")
    assert "which is not written" in refusal.found


def test_unpack_gathers_a_split_models_tables(cli: Cli, tiny: Path, model: Model, tmp_path: Path) -> None:
    made = split(tmp_path, files.split_keys(model), files.split_tensors(model))
    cli.ok("unpack", made[0], "-o", tmp_path / "back")
    passes(cli, "packing", tiny, made[0])
    passes(cli, "packing", tmp_path / "back", made[0], "--token-map", tmp_path / "back" / "engram_token_map.bin")


def test_constants_of_a_missing_key_are_told_of_the_first_shard(cli: Cli, model: Model, tmp_path: Path) -> None:
    keys = files.llamacpp_keys(model)
    del keys[f"{NEW}pad_id"]
    made = split(tmp_path, keys, files.quantised(model))
    assert found(differs(cli, "file", made[0]))[0][2] == f"key not found in model: {NEW}pad_id"


def test_shards_whose_numbers_do_not_fit_their_names_are_not_repaired(
    cli: Cli, tiny: Path, model: Model, tmp_path: Path
) -> None:
    """All of them would be the first; show and check say so, whichever is given."""
    paths = split(tmp_path, files.llamacpp_keys(model), files.quantised(model))
    for path in paths[1:]:
        data = bytearray(path.read_bytes())
        at = data.index(b"split.no") + len("split.no") + 4
        data[at : at + 2] = bytes(2)
        path.write_bytes(data)
    for path in paths:
        for way in ("--in-place", "--dry-run"):
            refusal = cli.refused(tmp_path, "repair", path, "--from", tiny, way)
            assert refusal.where.endswith("key split.no")
            assert refusal.found == "0"
        notes = cli.ok("show", path, "--json").json["notes"]
        assert f"{paths[2].name} key split.no: expected 2, as in its name, found 0" in notes
        assert not any("taken as one model" in note for note in notes)
        assert {f"{each.name} key split.no" for each in paths[1:]} <= set(wheres(differs(cli, "file", path)))
