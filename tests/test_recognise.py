"""Recognition: every dialect by its keys, shapes, types and rows; the nearest one, and what is missing or wrong."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import dialect_files as files
import numpy as np
import pytest
from checkpoints import rewrite
from cli_helpers import Cli
from dialect_files import MADE, NEW, OLD, Model
from gguf import GGMLQuantizationType as Q

from formats import dialect, gguf_file, row_layouts
from formats.dialects import DIALECTS


@pytest.fixture(scope="module")
def model(tiny: Path, container: Path) -> Model:
    return files.read_model(tiny, container)


@pytest.fixture(scope="module")
def made(model: Model, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("dialects")
    return {name: files.make(name, folder, model) for name in MADE}


@pytest.mark.parametrize("name", MADE)
def test_every_dialect_is_named_whatever_its_architecture_says(
    cli: Cli, made: dict[str, Path], name: str, tmp_path: Path
) -> None:
    shown = cli.ok("show", made[name], "--json").json
    assert (shown["dialect"], shown["missing"], shown["wrong"]) == (name, [], [])
    other = Path(shutil.copy(made[name], tmp_path / "other.gguf"))
    said = b"deepseek41" if b"architecture\x08\0\0\0\x0a" in other.read_bytes()[:4096] else b"deepseek4"
    rewrite(other, lambda data: _swap(data, b"architecture", said, b"x" * len(said)))
    assert cli.ok("show", other, "--json").json["dialect"] == name


def _swap(data: bytearray, after: bytes, old: bytes, new: bytes) -> None:
    at = data.index(old, data.index(after))
    data[at : at + len(old)] = new


def test_each_loader_takes_its_own_dialect_and_refuses_the_others(cli: Cli, made: dict[str, Path]) -> None:
    for name, path in made.items():
        loaders = cli.ok("show", path, "--json").json["loaders"]
        accepting = {loader for loader, said in loaders.items() if said["accepts"]}
        assert accepting == {name} & {"ds4", "llamacpp", "split-i8"}
        assert all(said["why"] for said in loaders.values() if not said["accepts"])


def test_a_file_with_old_prefixes_and_no_constants_is_the_nearest_dialect_with_what_it_lacks(
    cli: Cli, model: Model, tmp_path: Path
) -> None:
    """ggml-org/llama.cpp PR 28696: published before the rename, five constants never written."""
    keys = files.llamacpp_keys(model, OLD)
    for name in ("multipliers", "primes", "offsets", "token_map", "pad_id"):
        del keys[f"{OLD}{name}"]
    path = files.write(tmp_path / "old.gguf", keys, files.quantised(model))
    shown = cli.ok("show", path, "--json").json
    assert (shown["dialect"], shown["nearest"]) == (None, "llamacpp")
    assert set(shown["missing"]) == {
        f"{NEW}{name}" for name in ("multipliers", "primes", "offsets", "token_map", "pad_id")
    }
    assert {wrong["where"]: wrong["expected"] for wrong in shown["wrong"]} == {
        f"{OLD}{name}": f"the name {NEW}{name}" for name in ("layer_ids", "head_count", "key_length", "max_ngram_size")
    }
    whys = [why["found"] for why in shown["loaders"]["llamacpp"]["why"]]
    assert f"key not found in model: {NEW}layer_ids" in whys


@pytest.mark.parametrize(("kind", "nearest"), [(Q.Q8_0, "llamacpp"), (None, "ds4")])
def test_one_table_and_no_key_is_enough_to_be_near_something(
    cli: Cli, model: Model, tmp_path: Path, kind: Q | None, nearest: str
) -> None:
    tensor = [each for each in files.quantised(model) if each[0] == files.table(1)]
    if kind is None:
        tensor = [(files.table(1), model.rows264(1).view(np.int8), None)]
    shown = cli.ok("show", files.write(tmp_path / "x.gguf", {}, tensor), "--json").json
    assert (shown["dialect"], shown["nearest"]) == (None, nearest)
    assert shown["missing"]


def test_rows_in_blocks_of_a_scale_and_its_codes_are_told_from_codes_and_then_scales(
    cli: Cli, model: Model, tmp_path: Path
) -> None:
    rows = {layer: model.blocks264(layer).view(np.int8) for layer in model.layers}
    keys = files.ds4_keys(model, "e4m3_e8m0_32_row264")
    path = files.write(tmp_path / "blocks.gguf", keys, files.ds4_tensors(model, rows), alignment=16384)
    shown = cli.ok("show", path, "--json").json
    assert (shown["dialect"], shown["nearest"]) == (None, "ds4")
    assert [(wrong["where"], wrong["found"]) for wrong in shown["wrong"]] == [
        (files.table(layer), "rows of 8 blocks, a scale and its 32 codes each") for layer in (1, 14)
    ]
    report = cli("check", "file", path, "--json").json
    assert {finding["check"] for finding in report["findings"]} == {"ds4.layout"}


def test_scale_bytes_tell_the_two_layouts_only_where_they_can() -> None:
    rng = np.random.default_rng(0)
    codes, scales = rng.integers(0, 256, (64, 256), np.uint8), rng.integers(119, 121, (64, 8), np.uint8)
    rows = np.concatenate([codes, scales], axis=1)
    assert row_layouts.plausible(rows) == "row264"
    assert row_layouts.plausible(row_layouts.to_blocks(rows)) == "block264"
    assert row_layouts.plausible(np.zeros((64, 264), np.uint8)) is None
    assert row_layouts.plausible(np.full((64, 264), 120, np.uint8)) is None
    assert row_layouts.plausible(rng.integers(0, 256, (64, 264), np.uint8)) is None
    assert np.array_equal(row_layouts.BLOCK264.arranged(row_layouts.to_blocks(rows)), rows)


def test_an_interrupted_conversion_to_4_bits_is_named(cli: Cli, made: dict[str, Path], tmp_path: Path) -> None:
    """dongnh311/ds4-metal-qwen writes this into the encoding while it converts in place."""
    path = Path(shutil.copy(made["ds4"], tmp_path / "underway.gguf"))
    rewrite(path, lambda data: _swap(data, b"engram.encoding", b"e4m3_e8m0_32_row264", b"conversion_underway"))
    shown = cli.ok("show", path, "--json").json
    assert shown["dialect"] is None
    assert any("interrupted" in note for note in shown["notes"])
    assert cli("check", "file", path).code == 1
    refusal = cli.refused(tmp_path, "hash", "--params", path, "--ids", "1")
    assert "conversion_underway" in refusal.found


def test_nothing_is_made_of_rows_that_are_half_converted(
    cli: Cli, tiny: Path, made: dict[str, Path], tmp_path: Path
) -> None:
    """A repair that wrote an encoding over the mark would bless rows of two encodings as rows of one."""
    path = Path(shutil.copy(made["ds4"], tmp_path / "underway.gguf"))
    rewrite(path, lambda data: _swap(data, b"engram.encoding", b"e4m3_e8m0_32_row264", b"conversion_underway"))
    before = path.read_bytes()
    for command in (
        ("repair", path, "--from", tiny, "-o", tmp_path / "made.gguf"),
        ("repair", path, "--from", tiny, "--in-place"),
        ("unpack", path, "-o", tmp_path / "made"),
        ("lookup", path, "--layer", "1", "--rows", "0", "-o", tmp_path / "made.npy"),
    ):
        refusal = cli.refused(tmp_path, *command)
        assert (refusal.expected, refusal.found[:19]) == ("rows of one encoding", "conversion_underway")
    assert path.read_bytes() == before


def test_gemmas_per_layer_embedding_is_no_hashed_table(cli: Cli, tmp_path: Path) -> None:
    tensor = ("per_layer_token_embd.weight", np.zeros((16, 8), np.float32), None)
    path = files.write(tmp_path / "gemma.gguf", {}, [tensor], "gemma4")
    shown = cli.ok("show", path, "--json").json
    assert (shown["dialect"], shown["nearest"]) == (None, None)
    assert any("Gemma" in note and "not a hashed table" in note for note in shown["notes"])
    refusal = cli.refused(tmp_path, "lookup", path, "--rows", "0")
    assert "Gemma" in refusal.found


def test_a_shard_of_a_split_gguf_says_so(cli: Cli, model: Model, tmp_path: Path) -> None:
    keys: files.Keys = {"split.no": ("u32", 2), "split.count": ("u32", 9)}
    path = files.write(tmp_path / "x-00003-of-00009.gguf", keys, files.quantised(model))
    shown = cli.ok("show", path, "--json").json
    assert any(note.startswith("shard 3 of 9 of a split GGUF") for note in shown["notes"])


def test_the_first_part_of_two_says_how_much_is_missing_and_the_second_where_its_header_is(
    cli: Cli, container: Path, tmp_path: Path
) -> None:
    """antirez's upload came as .part1 and .part2: neither is a file by itself."""
    data = container.read_bytes()
    first, second = tmp_path / "model.gguf.part1", tmp_path / "model.gguf.part2"
    first.write_bytes(data[: len(data) // 2])
    second.write_bytes(data[len(data) // 2 :])
    shown = cli.ok("show", first, "--json").json
    rows = 264 * 5940
    end = gguf_file.read_header(container).tensor(files.table(14)).start + rows
    assert any(
        note.startswith("the first of two") and f"{end - len(data) // 2} bytes" in note for note in shown["notes"]
    )
    refusal = cli.refused(tmp_path, "show", second)
    assert "model.gguf.part1" in refusal.expected
    assert cli("check", "file", first).code == 1


@pytest.mark.parametrize(("form", "letter"), [("u32", "I"), ("i64", "q")])
def test_a_map_file_is_named_by_its_width(cli: Cli, model: Model, tmp_path: Path, form: str, letter: str) -> None:
    """zLLM and ferrite have one name for two widths."""
    path = tmp_path / "engram_token_map.bin"
    path.write_bytes(struct.pack(f"<{len(model.token_map)}{letter}", *model.token_map))
    shown = cli.ok("show", path, "--json").json
    assert (shown["kind"], shown["dialect"]) == ("map", f"map-{form}")
    assert shown["token_map"]["entries"] == len(model.token_map)


def test_every_type_that_the_gguf_library_decodes_has_a_layout() -> None:
    from gguf import quants

    assert set(dialect.QUANTS) | {"BF16"} == {kind.name for kind in quants._type_traits}
    for kind in (*dialect.QUANTS, *dialect.FLOATS):
        assert row_layouts.ggml(kind) is not None


def test_names_and_marks_are_the_dialects_own() -> None:
    assert len({each.name for each in DIALECTS}) == len(DIALECTS)
    for each in DIALECTS:
        names = {key.name for key in each.keys.values()} | {"deepseek4.engram.0.table_path"}
        assert set(each.marks) <= names | set(each.tensors.values())
        assert set(each.types) >= set(each.tensors)
        assert each.source
        assert not (each.keys and each.magic)


def test_tables_in_a_gguf_beside_the_models_are_read_without_a_key(cli: Cli, model: Model, tmp_path: Path) -> None:
    """2-fly-4-ai/ds4: the model's file has the keys, the one beside it codes and scales and nothing else."""
    tensors: files.Tensors = []
    for layer in model.layers:
        tensors.append((f"engram.{layer}.weight.fp8", model.codes[layer].view(np.int8), None))
        tensors.append((f"engram.{layer}.scale.e8m0", model.scales[layer].view(np.int8), None))
    path = files.write(tmp_path / "engram.gguf", {"deepseek41.sidecar.kind": ("string", "engram")}, tensors)
    shown = cli.ok("show", path, "--json").json
    assert (shown["dialect"], shown["nearest"]) == (None, "sidecar-contract")
    cli.ok("lookup", path, "--layer", "14", "--rows", "0,5939", "--to", "raw", "-o", tmp_path / "rows.npy")
    assert np.array_equal(np.load(tmp_path / "rows.npy"), model.rows264(14)[[0, 5939]])


def test_what_a_report_lists_is_bounded_and_the_rest_counted(cli: Cli, model: Model, tmp_path: Path) -> None:
    tensors: files.Tensors = [(files.table(layer), np.zeros((1, 264), np.int8), None) for layer in range(2000)]
    keys: files.Keys = {f"{NEW}encoding": ("string", "e" * 5000), f"{NEW}layer_ids": ("u32[]", list(range(256)))}
    shown = cli.ok("show", files.write(tmp_path / "x.gguf", keys, tensors), "--json").json
    assert (len(shown["tensors"]), shown["tensors_total"]) == (1000, 2000)
    assert len(shown["loaders"]["ds4"]["why"]) == 100 < shown["loaders"]["ds4"]["why_total"]
    assert shown["constants"][f"{NEW}encoding"] == {"type": "string", "count": 5000, "begins": "e" * 1000}
