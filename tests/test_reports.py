"""What users reported of Engram files: each a test named after what it catches, with the smallest input that shows it.

`REPORTS` lists all of them and where the test is; reports of running engines that no file can show are not here.
"""

from __future__ import annotations

import ast
import json
import shutil
import struct
from pathlib import Path

import dialect_files as files
import numpy as np
import pytest
from checkpoints import Mini, rewrite, shard, token_map_of
from checks import differs, found, passes, wheres
from cli_helpers import Cli, peak_bytes
from dialect_files import NEW, OLD, Model
from gguf import GGMLQuantizationType as Q
from test_layouts import paged, sidecar

from engramctl import profiles
from formats.dialects import DEEPSEEK4_EXTERNAL, DEEPSTRIX
from formats.gguf_file import read_header
from formats.recognise import difference, recognise

REPORTS = {
    "ggml-org/llama.cpp 28696: old prefixes, five constants never written": "test_published_files_get_the_nine_keys",
    "vcruz305's notes: 47-bit multipliers as INT32": "test_multipliers_above_32_bits_survive",
    "vcruz305's notes: FP8 blocks of 128 assumed": "test_a_projection_scaled_by_blocks_of_128",
    "vcruz305's notes: row scales taken for tiles": "test_row_scales_taken_for_tiles",
    "vcruz305's notes: whole tables dequantised": "test_a_dense_table_streams_in_bounded_memory",
    "vcruz305's notes: a dry run that materialises": "test_a_dry_run_of_a_full_size_checkpoint_reads_headers",
    "ggml-org/llama.cpp 28696: a terabyte of scratch": "test_too_little_disk_is_said_before_anything_is_written",
    "ikawrakow/ik_llama.cpp 2506: no pad_id": "test_the_one_key_that_no_converter_writes",
    "ikawrakow/ik_llama.cpp 2455: files of other projects": "test_each_loader_takes_its_own_dialect",
    "anthony-chaudhary/fak 12918: integer widths": "test_the_same_constants_in_any_integer_width",
    "anthony-chaudhary/fak 13153: eager dequantisation": "test_one_row_of_a_table_larger_than_memory",
    "anthony-chaudhary/fak 13008: a Q2_K row of 84 bytes": "test_the_second_q2_k_row_starts_at_byte_84",
    "vllm-project/vllm 57897: another map of the same size": "test_two_swapped_entries_of_a_map",
    "lvyufeng/PocketLLM 260: the sentinel left out": "test_a_lone_mark_and_a_space_are_two_classes",
    "vllm-project/vllm-ascend 16423: negative ids, short masks": "test_negative_ids_and_masks_of_another_length",
    "local-inference-lab/vllm 760: a rank without heads": "test_a_dump_without_columns",
    "FujitsuPolycom/sparkring 260: rank offsets": "test_rows_written_at_a_ranks_own_numbers",
    "sparkring: an even row split": "test_a_rank_cut_at_a_quarter_of_the_rows",
    "REAP-256E: shards dropped": "test_shards_that_the_index_names_and_nobody_has",
    "LibertAIDAI NVFP4: engram_dtype": "test_fp4_rows_are_named",
    "msuiche NVFP4: config and tensors contradict": "test_a_projection_in_bytes_where_the_config_says_fp8",
    "ferrite and zLLM: one map name, two widths": "test_a_map_file_is_named_by_its_width",
    "a llama.cpp fork: GET_ROWS has no I8 case": "test_an_i8_table_in_a_llamacpp_file",
    "JigSawPT/llama.cpp: FP8 bytes turned into floats": "test_fp8_bytes_that_became_floats",
    "JigSawPT/llama.cpp: tables early in the file": "test_split_i8_is_what_its_own_loader_takes",
    "antirez/ds4: tables off their page": "test_tables_off_their_page_are_put_on_one",
    "antirez/ds4: nonfinite rows": "test_one_code_without_a_value",
    "antirez/ds4: 32-bit byte offsets": "test_check_packing_sees_one_wrong_bit_beyond_each_line",
    "asher/gmlx 140: codes from 128 up as negative": "test_codes_from_128_up_read_as_signed",
    "smalinin on 28696: gate weights quantised": "test_gate_weights_that_were_quantised",
    "vcruz305, StrixLink: two spellings of the pad": "test_the_pad_is_never_a_default",
    "raw and compressed pads": "test_raw_and_compressed_pads_are_told_apart",
    "deepstrix and a ds4 fork: one prefix": "test_two_dialects_of_one_prefix",
    "ztxz16/fastllm 727: tests too small": "test_repack_puts_every_telling_row_in_its_place",
    "vllm-engram: padding tokens looked up": "test_dead_positions_can_be_left_out",
    "antirez's upload: .part1 and .part2": "test_the_first_part_of_two_says_how_much_is_missing",
    "guqiong96/Lsglang 26: the last row in a partial page": "test_the_last_row_in_a_partial_page",
    "dongnh311/ds4-metal-qwen: conversion_underway": "test_an_interrupted_conversion_to_4_bits_is_named",
    "TripleSparkleAI/ds4: a sidecar with a row limit": "test_a_4_bit_sidecar_of_fewer_rows",
    "a converter's comment: multipliers below 2**37": "test_multipliers_are_wider_than_37_bits",
}


@pytest.fixture(scope="module")
def model(tiny: Path, container: Path) -> Model:
    return files.read_model(tiny, container)


def test_every_report_has_its_test() -> None:
    names = []
    for path in Path(__file__).parent.glob("test_*.py"):
        names += [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    missing = [test for test in REPORTS.values() if not any(name.startswith(test) for name in names)]
    assert missing == []
    assert len(REPORTS) == 40


def kv_dump(tiny: Path, model: Model, folder: Path, weight: np.ndarray) -> Path:
    """Keys and value of one position as an engine with this projection has them, in float32."""
    from engramctl.checkpoint import open_checkpoint
    from engramctl.reference import hash_rows

    with open_checkpoint(tiny) as source:
        rows = hash_rows(np.array([5]), source.params())[0, 0]
    values = model.values(1)[rows].reshape(-1).astype(np.float64)
    np.save(folder / "kv.npy", (weight.astype(np.float64) @ values).astype(np.float32)[None])
    return folder / "kv.npy"


def test_a_projection_scaled_by_blocks_of_128(cli: Cli, tiny: Path, model: Model, tmp_path: Path) -> None:
    """The model has 32 x 32 blocks; whoever takes each fourth scale for four blocks gets other weights, silently."""
    right = kv_dump(tiny, model, tmp_path, model.projection[1])
    passes(cli, "kv", right, tiny, "--layer", "1", "--ids", "5")
    from checkpoints import read_tensors

    scales = np.frombuffer(read_tensors(tiny)["layers.1.engram.wkv.scale"][2], np.uint8).reshape(10, 192)
    assumed = np.repeat(np.repeat(scales[::4, ::4], 4, axis=0), 4, axis=1)[:10, :192]
    factor = np.exp2(assumed.astype(np.float32) - scales.astype(np.float32))
    wrong = model.projection[1] * np.kron(factor, np.ones((32, 32), np.float32))
    differs(cli, "kv", kv_dump(tiny, model, tmp_path, wrong), tiny, "--layer", "1", "--ids", "5")


def test_row_scales_taken_for_tiles(cli: Cli, tiny: Path, model: Model, tmp_path: Path) -> None:
    """Scales are [rows, 8], a set for each row; as tiles of 32 rows the 33rd row would be the first to change them."""
    np.save(tmp_path / "values.npy", model.values(1)[:33])
    passes(cli, "values", tmp_path / "values.npy", tiny, "--layer", "1", "--rows", "0:33")
    tiled = np.repeat(np.exp2(model.scales[1][[row // 32 for row in range(33)]].astype(np.float32) - 127), 32, axis=1)
    codes = model.values(1)[:33] / np.repeat(np.exp2(model.scales[1][:33].astype(np.float32) - 127), 32, axis=1)
    np.save(tmp_path / "tiled.npy", (codes * tiled).astype(np.float32))
    report = differs(cli, "values", tmp_path / "tiled.npy", tiny, "--layer", "1", "--rows", "0:33")
    assert report["findings_total"] >= 30


def test_the_one_key_that_no_converter_writes(cli: Cli, tiny: Path, model: Model, tmp_path: Path) -> None:
    keys = files.llamacpp_keys(model)
    del keys[f"{NEW}pad_id"]
    path = files.write(tmp_path / "x.gguf", keys, files.quantised(model))
    report = differs(cli, "file", path, "--loader", "llamacpp")
    assert [have for _, _, have in found(report)] == [f"key not found in model: {NEW}pad_id"]
    cli.ok("repair", path, "--from", tiny, "--in-place")
    passes(cli, "file", path, "--loader", "llamacpp")


def test_one_row_of_a_table_larger_than_memory_is_read_alone(model: Model, tmp_path: Path) -> None:
    rows = 384_006_168
    tiny_table = (files.table(1), np.zeros((2, 84), np.uint8), Q.Q2_K)
    path = files.write(tmp_path / "x.gguf", {f"{NEW}key_length": ("u32", 256)}, [tiny_table])
    data = path.read_bytes()
    at = data.index(struct.pack("<2Q", 256, 2))
    path.write_bytes(data[:at] + struct.pack("<2Q", 256, rows) + data[at + 16 :])
    with path.open("r+b") as file:
        file.truncate(read_header(path, strict=False).data_start + rows * 84)
    out = tmp_path / "row.npy"
    assert peak_bytes("lookup", path, "--rows", f"0,{rows - 1}", "--to", "f32", "-o", out) < 300 << 20
    assert np.load(out).shape == (2, 256)


def test_the_second_q2_k_row_starts_at_byte_84(cli: Cli, tmp_path: Path) -> None:
    rows = np.arange(168, dtype=np.uint8).reshape(2, 84) % 60
    path = files.write(tmp_path / "x.gguf", {}, [(files.table(1), rows, Q.Q2_K)])
    cli.ok("lookup", path, "--rows", "1", "--to", "raw", "-o", tmp_path / "row.npy")
    assert np.array_equal(np.load(tmp_path / "row.npy")[0], rows[1])


def test_a_lone_mark_and_a_space_are_two_classes(cli: Cli, tiny: Path) -> None:
    """Without the sentinel a text of one space is stripped to nothing, and meets what normalises to nothing."""
    tokenizer = tiny / "tokenizer.json"
    space = cli.ok("map", tokenizer, "--explain", " ", "--json").json["explain"][0]
    mark = cli.ok("map", tokenizer, "--explain", "\u0301", "--json").json["explain"]
    assert space["compressed"] not in {each["compressed"] for each in mark}
    assert all(member["key"].strip(" ") == "" for member in space["members"])


def test_negative_ids_and_masks_of_another_length_are_refused(cli: Cli, tmp_path: Path) -> None:
    assert "-1" in cli.refused(tmp_path, "hash", "--ids=-1").found
    assert cli.refused(tmp_path, "hash", "--ids", "1,2,3", "--mask", "1").found == "1"


def test_a_dump_without_columns_is_refused(cli: Cli, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((3, 0, 24), np.int64))
    before = {path.name for path in tmp_path.iterdir()}
    assert cli("check", "hash", tmp_path / "rows.npy", "--ids", "1,2,3").code == 2
    assert {path.name for path in tmp_path.iterdir()} == before


def test_rows_written_at_a_ranks_own_numbers_are_found(cli: Cli, tiny: Path, model: Model, tmp_path: Path) -> None:
    """The second rank's rows at 0 instead of at their global number."""
    rows = np.zeros_like(model.rows264(1))
    rows[: 2826 - 1000] = model.rows264(1)[1000:]
    path = tmp_path / "engram-l1-packed.bin"
    path.write_bytes(rows.tobytes())
    report = differs(cli, "packing", tiny, path, "--layer", "1", "--rows", "1000:2826")
    assert report["findings_total"] == 1826


def test_a_rank_cut_at_a_quarter_of_the_rows_is_not_cut_at_a_head(cli: Cli, tmp_path: Path) -> None:
    """Layer 1's first rank of four ends at row 96,000,564, where a column does; a quarter of the rows is 96,001,542."""
    assert int(profiles.load().offsets[0][6]) == 96_000_564
    for end, code in ((96_000_564, 0), (96_001_542, 1)):
        path = tmp_path / "engram-layer-01-rank0-page15.bin"
        head = struct.pack("<8s7Q", b"DS41EPG2", 1, 0, end, 384_006_168, 264, 15, 4096)
        path.write_bytes(head)
        with path.open("r+b") as file:
            file.truncate(4096 + -(-end // 15) * 4096)
        outcome = cli("check", "file", path, "--json")
        assert outcome.code == code
        assert wheres(outcome.json) == ([] if code == 0 else ["row 96001542"])


def test_shards_that_the_index_names_and_nobody_has_are_found(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "ckpt"))
    (folder / "model-00003-of-00004.safetensors").unlink()
    report = differs(cli, "source", folder)
    assert any("model-00003-of-00004.safetensors" in where + have for where, _, have in found(report))
    assert cli.ok("show", folder, "--json").json["missing_shards"] == ["model-00003-of-00004.safetensors"]


def test_fp4_rows_are_named_and_found_where_fp8_is_expected(cli: Cli, tmp_path: Path) -> None:
    made = Mini()
    made.text.update({"engram_dtype": "fp4", "engram_block_size": 32, "engram_scale_fmt": "ue8m0"})
    for layer in (1, 14):
        name = f"layers.{layer}.engram.embed.weight"
        _, (rows, _), data = made.tensors[name]
        made.tensors[name] = ("U8", (rows, 128), data[: rows * 128])
    folder = made.write(tmp_path / "ckpt")
    assert cli.ok("show", folder, "--json").json["dialect"] == "nvfp4"
    report = cli("check", "source", folder, "--json")
    assert report.code == 1
    assert any("U8" in have for _, _, have in found(report.json))


@pytest.mark.parametrize(
    ("form", "weight", "beside"),
    [
        ("mlx", ("U32", (18, 32)), {"scales": ("BF16", (18, 4)), "biases": ("BF16", (18, 4))}),
        ("int8-g32", ("I8", (18, 256)), {"scale": ("F32", (18, 8))}),
        ("hf", ("F8_E4M3", (18, 256)), {"weight_scale_inv": ("U8", (18, 8))}),
    ],
)
def test_re_encoded_and_renamed_checkpoints_are_named(
    cli: Cli, tmp_path: Path, form: str, weight: tuple, beside: dict
) -> None:
    sizes = {"U32": 4, "F32": 4, "BF16": 2, "I8": 1, "U8": 1, "F8_E4M3": 1}
    tensors = {"layers.1.engram.embed.weight": weight} | {f"layers.1.engram.embed.{k}": v for k, v in beside.items()}
    folder = tmp_path / "ckpt"
    folder.mkdir()
    made = {name: (kind, shape, bytes(shape[0] * shape[1] * sizes[kind])) for name, (kind, shape) in tensors.items()}
    shard(folder / "model.safetensors", made)
    (folder / "config.json").write_text(json.dumps(Mini().config))
    shown = cli.ok("show", folder, "--json").json
    assert shown["nearest"] == form
    assert shown["dialect"] == (form if form != "hf" else None)
    assert bool(shown["notes"]) == (form == "hf")


@pytest.mark.parametrize("prefix", ["model.", "language_model.", "model.language_model."])
@pytest.mark.parametrize("scale", ["scale", "weight_scale_inv"])
def test_published_tensors_under_a_prefix_and_as_bytes_are_named(
    cli: Cli, tmp_path: Path, prefix: str, scale: str
) -> None:
    tensors = {"embed.weight": ("U8", (18, 256), bytes(18 * 256)), f"embed.{scale}": ("U8", (18, 8), bytes(18 * 8))}
    shard(tmp_path / "x.safetensors", {f"{prefix}layers.1.engram.{name}": each for name, each in tensors.items()})
    shown = cli.ok("show", tmp_path / "x.safetensors", "--json").json
    assert (shown["dialect"], shown["nearest"]) == (None, "hf")
    whose = f"a checkpoint with a prefix, {prefix}" if scale == "scale" else "mcore-bridge"
    assert shown["notes"] == [f"the published tensors under the names of {whose}"]


def test_a_projection_in_bytes_where_the_config_says_fp8_is_a_contradiction(cli: Cli, tmp_path: Path) -> None:
    made = Mini()
    name = "layers.1.engram.wkv.weight"
    _, (outputs, inputs), data = made.tensors[name]
    made.tensors[name] = ("U8", (outputs, inputs // 2), data[: outputs * inputs // 2])
    report = cli("check", "source", made.write(tmp_path / "ckpt"), "--json")
    assert report.code == 1
    assert any(name in where and "U8" in have for where, _, have in found(report.json))


def test_an_i8_table_in_a_llamacpp_file_would_abort_at_the_first_lookup(cli: Cli, model: Model, tmp_path: Path) -> None:
    tensors = [t for t in files.quantised(model) if "embd" not in t[0]]
    tensors += [(files.table(layer), model.codes[layer].view(np.int8), None) for layer in model.layers]
    path = files.write(tmp_path / "x.gguf", files.llamacpp_keys(model), tensors)
    report = differs(cli, "file", path, "--loader", "llamacpp")
    assert {finding["check"] for finding in report["findings"]} == {"llamacpp.lookup"}


def test_fp8_bytes_that_became_floats_are_no_table(cli: Cli, tiny: Path, model: Model, tmp_path: Path) -> None:
    tensors = [t for t in files.split_tensors(model) if t[0] != files.table(1)]
    tensors.append((files.table(1), model.codes[1].astype(np.float16), None))
    path = files.write(tmp_path / "x.gguf", files.split_keys(model), tensors)
    checks = {finding["check"] for finding in differs(cli, "file", path, "--loader", "split-i8")["findings"]}
    assert checks == {"split-i8.bytes"}
    assert "F16" in cli.refused(tmp_path, "lookup", path, "--layer", "1", "--rows", "0").found


def test_one_code_without_a_value_is_named_by_row_and_byte(cli: Cli, model: Model, tmp_path: Path) -> None:
    path = files.make("split-i8", tmp_path, model)
    start = read_header(path).tensor(files.table(1)).start
    rewrite(path, lambda data: data.__setitem__(start + 256 * 2825 + 3, 0x7F))
    assert wheres(differs(cli, "file", path)) == ["layer 1 row 2825 byte 3"]


def test_codes_from_128_up_read_as_signed_are_found(cli: Cli, tiny: Path, model: Model, tmp_path: Path) -> None:
    wrong = model.values(1)[:4].copy()
    wrong[model.codes[1][:4] >= 128] *= -1
    np.save(tmp_path / "values.npy", wrong)
    assert differs(cli, "values", tmp_path / "values.npy", tiny, "--layer", "1", "--rows", "0:4")["findings_total"] == 4
    path = tmp_path / "engram-l1-packed.bin"
    path.write_bytes(bytes([0x80, 0xB8]) + bytes(254) + bytes([127] * 8))
    cli.ok("lookup", path, "--rows", "0", "--to", "f32", "-o", tmp_path / "row.npy")
    row = np.load(tmp_path / "row.npy")[0]
    assert np.signbit(row[0])
    assert (row[0], row[1]) == (0.0, -1.0)


def test_gate_weights_that_were_quantised_are_noted(cli: Cli, model: Model, tmp_path: Path) -> None:
    from gguf import quants

    tensors: files.Tensors = []
    for name, array, kind in files.quantised(model):
        small = ".engram_q." in name or ".engram_k." in name
        tensors.append((name, quants.quantize(array, Q.Q4_0), Q.Q4_0) if small else (name, array, kind))
    path = files.write(tmp_path / "x.gguf", files.llamacpp_keys(model), tensors)
    notes = passes(cli, "file", path)["notes"]
    assert sum("gate weight" in note and "Q4_0" in note for note in notes) == 4


def test_the_pad_is_never_a_default(cli: Cli, tmp_path: Path) -> None:
    """config.json and inference/config.json spell it differently; a loader that knows one takes 2 for the other."""
    made = Mini()
    made.text["engram_pad_id"] = made.text.pop("engram_pad_token_id") + 3
    folder = made.write(tmp_path / "ckpt")
    map_file = token_map_of(folder)
    cli.ok("params", folder, "--token-map", map_file, "-o", tmp_path / "params.json")
    assert json.loads((tmp_path / "params.json").read_text())["pad_id"] == 0  # token_map[5]
    made.text["pad_token_id"] = made.text.pop("engram_pad_id")
    other = made.write(tmp_path / "other")
    refusal = cli.refused(tmp_path, "params", other, "--token-map", map_file, "-o", tmp_path / "x")
    assert refusal.expected == "engram_pad_token_id or engram_pad_id"


def test_two_dialects_of_one_prefix_are_not_read_as_each_other(cli: Cli, model: Model, tmp_path: Path) -> None:
    for name, other, lacks in (
        ("deepstrix", DEEPSEEK4_EXTERNAL, f"{OLD}0.table_path"),
        ("deepseek4-external", DEEPSTRIX, f"{OLD}table_shards"),
    ):
        header = read_header(files.make(name, tmp_path, model))
        seen = recognise(header)
        assert seen.dialect is not None
        assert seen.dialect.name == name
        assert lacks in difference(header, other, (1, 14))[0]


def test_the_last_row_in_a_partial_page_is_read_exactly(cli: Cli, model: Model, tmp_path: Path) -> None:
    path = tmp_path / "engram-l1-packed.bin"
    path.write_bytes(model.rows264(1).tobytes())
    assert path.stat().st_size % 4096
    cli.ok("lookup", path, "--rows", "15,2825", "--to", "raw", "-o", tmp_path / "rows.npy")
    assert np.array_equal(np.load(tmp_path / "rows.npy"), model.rows264(1)[[15, 2825]])
    last = paged(tmp_path / "engram-layer-01-rank0-page15.bin", model.rows264(1), 0, 2826)
    cli.ok("lookup", last, "--rows", "2825", "--to", "raw", "-o", tmp_path / "last.npy")
    assert np.array_equal(np.load(tmp_path / "last.npy"), model.rows264(1)[[2825]])


def test_a_4_bit_sidecar_of_fewer_rows_than_the_table_is_found(cli: Cli, tmp_path: Path) -> None:
    report = differs(cli, "file", sidecar(tmp_path / "x.engram4", 10, 1320))
    assert found(report) == [("table of layer 1", "384006168 rows as DeepSeek V4.1 Flash has", "10")]


def test_multipliers_are_wider_than_37_bits(cli: Cli, tmp_path: Path) -> None:
    multipliers = profiles.load().multipliers
    assert int(multipliers.max()) == 82_619_226_485_591
    assert (multipliers > 2**37).all()
    cli.ok("params", "-o", tmp_path / "params.json")
    passes(cli, "params", tmp_path / "params.json")
