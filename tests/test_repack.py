"""repack: the container is what ds4's dialect says, the gguf library agrees, and every row's bytes are the source's."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import INPUTS, OUTPUTS, ROWS, TOKEN_MAP, Mini, read_tensors, shard, token_map_of
from cli_helpers import Cli, Copy, process, snapshot
from gguf import GGUFReader, GGUFValueType

ALIGNMENT = 16384
ROW = 264

# antirez/ds4 gguf-tools/deepseek41_metadata.py: each key and its type; values where the tiny checkpoint fixes them
U32, F32, STRING, BOOL = GGUFValueType.UINT32, GGUFValueType.FLOAT32, GGUFValueType.STRING, GGUFValueType.BOOL
U64, ARRAY = GGUFValueType.UINT64, GGUFValueType.ARRAY
SCALARS = """vocab_size hidden_size moe_intermediate_size num_hidden_layers num_attention_heads num_key_value_heads
    head_dim qk_rope_head_dim q_lora_rank o_lora_rank o_groups n_routed_experts n_shared_experts num_experts_per_tok
    max_position_embeddings sliding_window index_n_heads index_head_dim index_topk candidate_source_layer_id
    candidate_topk_blocks candidate_block_size hc_mult hc_sinkhorn_iters rope_theta compress_rope_theta"""
FLOATS = ["rms_norm_eps", "hc_eps", "swiglu_limit", "routed_scaling_factor"]
ROPE = ["factor", "beta_fast", "beta_slow", "original_max_position_embeddings"]
STRINGS, BOOLS = ["scoring_func", "hidden_act", "topk_method"], ["norm_topk_prob"]
LISTS = ["compress_ratios", "kv_source_layer_ids", "index_source_layer_ids"]
ENGRAM = {
    "encoding": [STRING],
    "layer_ids": [ARRAY, U32],
    "rows": [ARRAY, U32],
    "compressed_vocab_size": [U32],
    "pad_id": [U32],
    "token_map": [ARRAY, U32],
    "primes": [ARRAY, U32],
    "multipliers": [ARRAY, U64],
}


@pytest.fixture(scope="module")
def read(container: Path) -> GGUFReader:
    return GGUFReader(container)


def text_config(checkpoint: Path) -> dict[str, Any]:
    return json.loads((checkpoint / "config.json").read_text())["text_config"]


def repack(cli: Cli, checkpoint: Path, output: Path, *more: object) -> Path:
    cli.ok("repack", checkpoint, "-o", output, *more)
    return output


def mini(tmp_path: Path, **changes: Any) -> Path:  # noqa: ANN401
    made = Mini()
    made.text.update(changes)
    return made.write(tmp_path / "ckpt")


def repack_mini(cli: Cli, checkpoint: Path, output: Path, *more: object) -> Path:
    return repack(cli, checkpoint, output, "--token-map", token_map_of(checkpoint), *more)


# keys


def test_every_key_has_the_dialects_name_and_type_and_there_is_no_other(read: GGUFReader) -> None:
    expected = {"GGUF.version": [U32], "GGUF.tensor_count": [U64], "GGUF.kv_count": [U64]}  # the library's own
    expected |= {"general.architecture": [STRING], "general.alignment": [U32], "general.name": [STRING]}
    expected |= {"deepseek41.config": [STRING]}
    expected |= {f"deepseek41.engram.{name}": types for name, types in ENGRAM.items()}
    for names, types in (
        (SCALARS.split(), [U32]),
        (FLOATS, [F32]),
        (STRINGS, [STRING]),
        (BOOLS, [BOOL]),
        (LISTS, [ARRAY, U32]),
    ):
        expected |= {f"deepseek41.{name}": types for name in names}
    expected |= {f"deepseek41.rope_scaling.{name}": [F32] for name in ROPE}
    assert {name: field.types for name, field in read.fields.items()} == expected


def test_constants_are_those_of_the_released_code(read: GGUFReader, tiny: Path) -> None:
    def value(name: str) -> Any:  # noqa: ANN401
        return read.fields[name].contents()

    assert value("GGUF.version") == 3
    assert value("general.architecture") == "deepseek41"
    assert value("general.alignment") == ALIGNMENT
    assert value("deepseek41.engram.encoding") == "e4m3_e8m0_32_row264"
    assert value("deepseek41.engram.layer_ids") == [1, 14]
    text = text_config(tiny)
    assert value("deepseek41.engram.rows") == text["engram_num_embeddings"]
    assert value("deepseek41.engram.compressed_vocab_size") == text["engram_compressed_vocab_size"]
    # the released walk: primes from 61 up, ascending, never reused, over layers, orders and heads
    primes = [n for n in range(61, 400) if all(n % d for d in range(2, 20))][:48]
    assert value("deepseek41.engram.primes") == primes
    assert [sum(primes[:24]), sum(primes[24:])] == value("deepseek41.engram.rows")
    half = (2**63 - 1) // text["engram_compressed_vocab_size"] // 2
    drawn = [np.random.default_rng(10007 * layer).integers(0, half, 4) for layer in (1, 14)]
    assert value("deepseek41.engram.multipliers") == [int(x) * 2 + 1 for x in np.concatenate(drawn)]
    token_map = value("deepseek41.engram.token_map")
    assert len(token_map) == text["vocab_size"]
    assert max(token_map) + 1 == text["engram_compressed_vocab_size"]
    assert value("deepseek41.engram.pad_id") == token_map[text["engram_pad_token_id"]] == 1  # raw it would be 2


def test_the_config_is_carried_verbatim(read: GGUFReader, tiny: Path) -> None:
    data = bytes(read.fields["deepseek41.config"].parts[-1])
    assert data == (tiny / "config.json").read_bytes()


def test_hyperparameters_are_the_configs(read: GGUFReader, tiny: Path) -> None:
    text = text_config(tiny)
    for name in [*SCALARS.split(), *STRINGS, *BOOLS, *LISTS[1:]]:
        assert read.fields[f"deepseek41.{name}"].contents() == text[name], name
    assert read.fields["deepseek41.compress_ratios"].contents() == text["compress_ratios"][:40]
    assert len(text["compress_ratios"]) == 43  # the last three are the draft blocks'
    for name in FLOATS:
        assert read.fields[f"deepseek41.{name}"].contents() == np.float32(text[name]), name
    for name in ROPE:
        assert read.fields[f"deepseek41.rope_scaling.{name}"].contents() == np.float32(text["rope_scaling"][name])


def test_only_hyperparameters_that_the_config_has_are_written(cli: Cli, tmp_path: Path) -> None:
    made = GGUFReader(repack_mini(cli, mini(tmp_path, rope_theta=10000.0), tmp_path / "out.gguf"))
    names = {name.removeprefix("deepseek41.") for name in made.fields if name.startswith("deepseek41.")}
    present = {"vocab_size", "hidden_size", "hc_mult", "rms_norm_eps", "rope_theta"}
    assert names == {"config"} | present | {f"engram.{name}" for name in ENGRAM}
    assert made.fields["deepseek41.rope_theta"].types == [U32]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"num_attention_heads": -1}, "deepseek41.num_attention_heads"),
        ({"num_attention_heads": 2**32}, "deepseek41.num_attention_heads"),
        ({"num_attention_heads": 64.5}, "deepseek41.num_attention_heads"),
        ({"num_attention_heads": True}, "deepseek41.num_attention_heads"),
        ({"num_attention_heads": [64]}, "deepseek41.num_attention_heads"),
        ({"swiglu_limit": "10"}, "deepseek41.swiglu_limit"),
        ({"swiglu_limit": 1e39}, "deepseek41.swiglu_limit"),
        ({"swiglu_limit": 10**400}, "deepseek41.swiglu_limit"),
        ({"hidden_act": 5}, "deepseek41.hidden_act"),
        ({"hidden_act": "\ud800"}, "deepseek41.hidden_act"),
        ({"norm_topk_prob": 1}, "deepseek41.norm_topk_prob"),
        ({"kv_source_layer_ids": 5}, "deepseek41.kv_source_layer_ids"),
        ({"kv_source_layer_ids": [2, -8]}, "deepseek41.kv_source_layer_ids"),
        ({"compress_ratios": [[1]]}, "deepseek41.compress_ratios"),
        ({"compress_ratios": [1, 2], "num_hidden_layers": "two"}, "deepseek41.num_hidden_layers"),
        ({"compress_ratios": [1, -2, 3], "num_hidden_layers": 2.0}, "deepseek41.compress_ratios"),
    ],
)
def test_a_config_that_does_not_fit_the_types_is_refused(
    cli: Cli, tmp_path: Path, changes: dict[str, Any], key: str
) -> None:
    checkpoint = mini(tmp_path, **changes)
    words = ("repack", checkpoint, "-o", tmp_path / "out.gguf", "--token-map", token_map_of(checkpoint))
    assert key in cli.refused_twice(tmp_path, *words).where


def test_where_the_source_is_from_is_said_only_when_asked(cli: Cli, tmp_path: Path, read: GGUFReader) -> None:
    assert not [name for name in read.fields if name.startswith("general.source")]
    more = ("--source-url", "https://huggingface.co/x/y", "--source-revision", "f" * 40)
    made = GGUFReader(repack_mini(cli, mini(tmp_path), tmp_path / "out.gguf", *more))
    assert made.fields["general.source.url"].contents() == "https://huggingface.co/x/y"
    assert made.fields["general.source.revision"].contents() == "f" * 40


# tensors


def test_every_tensor_lies_where_the_dialect_wants_it(read: GGUFReader, container: Path, tiny: Path) -> None:
    text = text_config(tiny)
    hidden, streams, rows = text["hidden_size"], text["hc_mult"], text["engram_num_embeddings"]
    expected: list[tuple[str, str, list[int]]] = []
    for layer in (1, 14):
        expected.append((f"blk.{layer}.engram_q_norm.weight", "F32", [hidden, streams]))
        expected.append((f"blk.{layer}.engram_k_norm.weight", "F32", [hidden, streams]))
        expected.append((f"blk.{layer}.engram_kv.weight", "F16", [6144, (streams + 1) * hidden]))
    for layer, count in zip((1, 14), rows, strict=True):
        expected.append((f"blk.{layer}.engram_embd.weight", "I8", [ROW, count]))  # the last two
    assert [(t.name, t.tensor_type.name, t.shape.tolist()) for t in read.tensors] == expected
    ends = [-(-(t.data_offset + t.n_bytes) // ALIGNMENT) * ALIGNMENT for t in read.tensors]
    starts = [t.data_offset for t in read.tensors]
    assert starts[0] == read.data_offset
    assert starts[0] % ALIGNMENT == 0
    assert starts[1:] == ends[:-1]
    assert ends[-1] == container.stat().st_size


def test_every_row_is_the_sources_byte_for_byte(read: GGUFReader, tiny: Path) -> None:
    source = read_tensors(tiny)
    for tensor in read.tensors[-2:]:
        layer = tensor.name.split(".")[1]
        name = f"layers.{layer}.engram.embed."
        codes = np.frombuffer(source[name + "weight"][2], np.uint8).reshape(-1, 256)
        scales = np.frombuffer(source[name + "scale"][2], np.uint8).reshape(-1, 8)
        assert np.array_equal(tensor.data.view(np.uint8), np.concatenate([codes, scales], axis=1))


def test_gate_weights_are_the_same_numbers_in_f32(read: GGUFReader, tiny: Path) -> None:
    source, made = read_tensors(tiny), {t.name: t.data for t in read.tensors}
    for layer in (1, 14):
        for ours, theirs in (("q_norm", "q_weight"), ("k_norm", "k_weight")):
            want = np.frombuffer(source[f"layers.{layer}.engram.{theirs}"][2], ml_dtypes.bfloat16)
            got = made[f"blk.{layer}.engram_{ours}.weight"]
            assert got.dtype == np.float32
            assert np.array_equal(got, want.astype(np.float32).reshape(got.shape))


def dequantised(source: dict[str, Any], layer: int) -> np.ndarray:
    """weight * scale of each 32 x 32 block, by ml_dtypes, in float64."""
    _, shape, data = source[f"layers.{layer}.engram.wkv.weight"]
    codes = np.frombuffer(data, ml_dtypes.float8_e4m3fn).reshape(shape).astype(np.float64)
    _, blocks, data = source[f"layers.{layer}.engram.wkv.scale"]
    scales = np.frombuffer(data, ml_dtypes.float8_e8m0fnu).reshape(blocks).astype(np.float64)
    return codes * np.repeat(np.repeat(scales, 32, axis=0), 32, axis=1)


def test_the_projection_is_weight_times_scale(read: GGUFReader, tiny: Path) -> None:
    source, made = read_tensors(tiny), {t.name: t.data for t in read.tensors}
    for layer in (1, 14):
        want, got = dequantised(source, layer), made[f"blk.{layer}.engram_kv.weight"]
        assert got.dtype == np.float16
        assert np.array_equal(got.astype(np.float64), want)


@pytest.mark.parametrize("kind", ["bf16", "f32"])
def test_the_projection_in_other_types_holds_the_same_values(cli: Cli, tmp_path: Path, kind: str) -> None:
    checkpoint = mini(tmp_path)
    made = GGUFReader(repack_mini(cli, checkpoint, tmp_path / "out.gguf", "--kv-type", kind))
    source = read_tensors(checkpoint)
    for tensor in made.tensors:
        if "engram_kv" in tensor.name:
            assert tensor.tensor_type.name == kind.upper()
            assert tensor.shape.tolist() == [INPUTS, OUTPUTS]
            data = np.ascontiguousarray(tensor.data)
            values = data.view(ml_dtypes.bfloat16) if kind == "bf16" else data.view(np.float32)
            want = dequantised(source, int(tensor.name.split(".")[1]))
            assert np.array_equal(values.reshape(want.shape).astype(np.float64), want)


@pytest.mark.parametrize("scale", [100, 140])  # below and above what F16 reaches
def test_a_projection_that_f16_cannot_hold_is_refused_with_the_count(cli: Cli, tmp_path: Path, scale: int) -> None:
    made = Mini()
    name = "layers.14.engram.wkv.scale"
    for block in (0, 17, 40):
        made.edit(name, block, scale)
    checkpoint = made.write(tmp_path / "ckpt")
    values = dequantised(made.tensors, 14)
    with np.errstate(over="ignore"):
        count = int((values.astype(np.float16).astype(np.float64) != values).sum())
    assert count > 0
    words = ("repack", checkpoint, "-o", tmp_path / "out.gguf", "--token-map", token_map_of(checkpoint))
    refusal = cli.refused_twice(tmp_path, *words)
    assert "layers.14.engram.wkv.weight" in refusal.where
    assert str(count) in refusal.found.split()
    assert "--kv-type bf16" in refusal.expected + refusal.hint
    for kind in ("bf16", "f32"):
        repack_mini(cli, checkpoint, tmp_path / f"{kind}.gguf", "--kv-type", kind)


# equal input gives equal bytes


def test_equal_input_gives_equal_bytes_anywhere_and_at_any_time(tiny: Path, container: Path, tmp_path: Path) -> None:
    folder = tmp_path / "Another place" / "überall"
    folder.mkdir(parents=True)
    for file in tiny.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
        os.utime(folder / file.name, (1e9, 1e9))
    env = os.environ | {"TZ": "Asia/Tokyo", "HOSTNAME": "elsewhere", "USER": "someone", "PYTHONHASHSEED": "7"}
    env |= {"PYTHONPATH": str(Path(__file__).parent.parent), "SOURCE_DATE_EPOCH": "1"}
    done = process("repack", ".", "-o", tmp_path / "b.gguf", cwd=folder, env=env)
    assert done.returncode == 0, done.stderr.decode()
    assert sha256(tmp_path / "b.gguf") == sha256(container)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_how_the_source_is_cut_into_shards_does_not_matter(
    cli: Cli, tiny: Path, container: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_bytes((tiny / name).read_bytes())
    tensors = read_tensors(tiny)
    shard(folder / "all.safetensors", {name: tensors[name] for name in sorted(tensors, reverse=True)})
    assert sha256(repack(cli, folder, tmp_path / "out.gguf")) == sha256(container)


# which layers, which files


@pytest.mark.parametrize("layer", [1, 14])
def test_one_layer_alone(cli: Cli, tmp_path: Path, layer: int) -> None:
    checkpoint = mini(tmp_path)
    both = GGUFReader(repack_mini(cli, checkpoint, tmp_path / "both.gguf"))
    one = GGUFReader(repack_mini(cli, checkpoint, tmp_path / "one.gguf", "--layers", layer))
    assert one.fields["deepseek41.engram.layer_ids"].contents() == [layer]
    assert one.fields["deepseek41.engram.rows"].contents() == [ROWS[layer]]
    at = 2 * [1, 14].index(layer)
    for name in ("primes", "multipliers"):
        whole = both.fields[f"deepseek41.engram.{name}"].contents()
        assert one.fields[f"deepseek41.engram.{name}"].contents() == whole[at : at + 2]
    same = {t.name: bytes(t.data) for t in both.tensors if t.name.startswith(f"blk.{layer}.")}
    assert {t.name: bytes(t.data) for t in one.tensors} == same


def test_layers_in_any_order_and_twice_are_the_models_order(cli: Cli, tmp_path: Path) -> None:
    checkpoint = mini(tmp_path)
    both = repack_mini(cli, checkpoint, tmp_path / "both.gguf")
    assert sha256(repack_mini(cli, checkpoint, tmp_path / "odd.gguf", "--layers", "14,1,14")) == sha256(both)


def test_only_shards_that_hold_a_needed_tensor_must_exist(cli: Cli, tiny: Path, copied: Copy, tmp_path: Path) -> None:
    folder = copied(tiny)
    index = json.loads((tiny / "model.safetensors.index.json").read_text())
    index["weight_map"] |= {f"layers.{i}.attn.weight": f"model-{i:05d}-of-00048.safetensors" for i in range(40)}
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    repack(cli, folder, tmp_path / "both.gguf")
    for number in (3, 4):
        (folder / f"model-0000{number}-of-00004.safetensors").unlink()
    repack(cli, folder, tmp_path / "one.gguf", "--layers", 1)
    words = ("repack", folder, "-o", tmp_path / "14.gguf", "--layers", 14)
    refusal = cli.refused_twice(tmp_path, *words)
    assert refusal.where.endswith("-of-00004.safetensors")
    assert "layers.14.engram" in refusal.expected
    assert refusal.found == "nothing there"


def test_the_index_is_optional(cli: Cli, tiny: Path, container: Path, copied: Copy, tmp_path: Path) -> None:
    folder = copied(tiny)
    (folder / "model.safetensors.index.json").unlink()
    assert sha256(repack(cli, folder, tmp_path / "out.gguf")) == sha256(container)


# rows that have no value


@pytest.mark.parametrize(
    ("layer", "row", "byte", "code", "scale"),
    [
        (1, 0, 0, 0x7F, None),
        (14, 29, 255, 0xFF, None),  # the last code of the last row
        (1, 5, 256, None, 255),
        (14, 7, 263, None, 255),
        (1, 17, 33, 0x7E, 247),  # 448 * 2**120
        (14, 3, 200, 0x40, 254),  # 2 * 2**127
    ],
)
def test_a_row_without_a_value_is_refused_by_layer_row_and_byte(
    cli: Cli, tmp_path: Path, layer: int, row: int, byte: int, code: int | None, scale: int | None
) -> None:
    made = Mini()
    name = f"layers.{layer}.engram.embed."
    if code is not None and scale is not None:
        for other in range(256):
            made.edit(name + "weight", row * 256 + other, 0x38)  # 1.0, finite under every scale
    if code is not None:
        made.edit(name + "weight", row * 256 + byte, code)
    if scale is not None:
        made.edit(name + "scale", row * 8 + (byte - 256 if code is None else byte // 32), scale)
    checkpoint = made.write(tmp_path / "ckpt")
    words = ("repack", checkpoint, "-o", tmp_path / "out.gguf", "--token-map", token_map_of(checkpoint))
    refusal = cli.refused_twice(tmp_path, *words)
    assert f"layer {layer} row {row} byte {byte}" in refusal.where
    rule = "scale" if code is None else "number" if scale is None else "2**128"
    assert rule in refusal.expected


def test_the_largest_values_there_are_are_no_reason_to_refuse(cli: Cli, tmp_path: Path) -> None:
    made = Mini()
    for at in range(32):
        made.edit("layers.1.engram.embed.weight", at, (0x7E, 0xFE)[at % 2])
    made.edit("layers.1.engram.embed.scale", 0, 246)  # 448 * 2**119
    made.edit("layers.1.engram.embed.scale", 1, 0)
    repack_mini(cli, made.write(tmp_path / "ckpt"), tmp_path / "out.gguf")


# the plan alone


@pytest.mark.parametrize("more", [(), ("--json",), ("-o", "out.gguf")])
def test_a_dry_run_writes_nothing(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    checkpoint = mini(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = snapshot(tmp_path)
    done = cli.ok("repack", checkpoint, "--dry-run", "--token-map", token_map_of(checkpoint), *more)
    assert snapshot(tmp_path) == before
    assert "blk.14.engram_embd.weight" in done.out.decode()
    if "--json" in more:
        made = repack_mini(cli, checkpoint, tmp_path / "out.gguf")
        plan = done.json
        assert plan["file_bytes"] == made.stat().st_size
        placed = {t.name: (t.data_offset, t.n_bytes) for t in GGUFReader(made).tensors}
        assert {t["name"]: (t["start"], t["bytes"]) for t in plan["tensors"]} == placed


# what is left behind, and what is not


def test_an_existing_output_is_replaced_only_when_asked(cli: Cli, tmp_path: Path) -> None:
    checkpoint, output = mini(tmp_path), tmp_path / "out.gguf"
    output.write_bytes(b"mine")
    words = ("repack", checkpoint, "-o", output, "--token-map", token_map_of(checkpoint))
    for more in ((), ("--resume",)):
        refusal = cli.refused_twice(tmp_path, *words, *more)
        assert refusal.where == str(output)
        assert ("--force" in refusal.expected) == (not more)  # to be resumed is not to be overwritten
    cli.ok(*words, "--force")
    assert output.read_bytes()[:4] == b"GGUF"


def test_what_is_refused_during_the_work_leaves_the_old_output(cli: Cli, tmp_path: Path) -> None:
    made = Mini()
    made.edit("layers.14.engram.embed.weight", 100, 0x7F)
    checkpoint, output = made.write(tmp_path / "ckpt"), tmp_path / "out.gguf"
    output.write_bytes(b"mine")
    words = ("repack", checkpoint, "-o", output, "--token-map", token_map_of(checkpoint), "--force")
    assert "layer 14 row 0 byte 100" in cli.refused_twice(tmp_path, *words).where
    assert output.read_bytes() == b"mine"


def test_no_more_than_the_output_is_there_afterwards(cli: Cli, tmp_path: Path) -> None:
    checkpoint = mini(tmp_path)
    (tmp_path / "out").mkdir()
    repack_mini(cli, checkpoint, tmp_path / "out" / "x.gguf")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["x.gguf"]


def test_a_source_that_utf8_cannot_say_is_refused(cli: Cli, tmp_path: Path) -> None:
    checkpoint = mini(tmp_path)
    words = ("repack", checkpoint, "-o", tmp_path / "out.gguf", "--token-map", token_map_of(checkpoint))
    assert "--source-url" in cli.refused_twice(tmp_path, *words, "--source-url", "https://\udcff").where


@pytest.mark.parametrize("output", [None, "-"])
def test_a_container_is_no_stream(cli: Cli, tmp_path: Path, output: str | None) -> None:
    checkpoint = mini(tmp_path)
    words = ("repack", checkpoint, *(() if output is None else ("-o", output)))
    assert cli.refused_twice(tmp_path, *words, "--token-map", token_map_of(checkpoint)).where == "--output"


def test_the_real_map_and_a_config_without_one_go_together(cli: Cli, tmp_path: Path) -> None:
    """`--tokens real` has no tokenizer file: the profile's map fits its counts, and the pad stays where it is."""
    cli.ok("synth", tmp_path / "ckpt", "--tokens", "real")
    made = repack(cli, tmp_path / "ckpt", tmp_path / "out.gguf", "--layers", 14)
    from formats.gguf_file import read_header  # the library takes seconds for a map of this size

    keys = read_header(made).keys
    token_map = keys["deepseek41.engram.token_map"].value
    digest = hashlib.sha256(np.asarray(token_map, "<u4").tobytes()).hexdigest()
    assert digest == "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481"
    assert keys["deepseek41.engram.pad_id"].value == 2


def test_a_token_map_of_other_sizes_is_refused(cli: Cli, tmp_path: Path) -> None:
    checkpoint = mini(tmp_path)
    for ids, count in ((TOKEN_MAP[:-1], "9 "), ([*TOKEN_MAP[:-1], 7], "8 ")):
        token_map_of(checkpoint).write_text(json.dumps(ids))
        words = ("repack", checkpoint, "-o", tmp_path / "out.gguf", "--token-map", token_map_of(checkpoint))
        assert cli.refused_twice(tmp_path, *words).found.startswith(count)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "link.gguf", "hard.gguf"])
def test_the_output_is_never_a_file_of_the_checkpoint(cli: Cli, tmp_path: Path, name: str) -> None:
    folder = Mini().write(tmp_path / "ckpt")
    (folder / "link.gguf").symlink_to("model.safetensors")
    (tmp_path / "hard.gguf").hardlink_to(folder / "model.safetensors")
    output = tmp_path / name if name == "hard.gguf" else folder / name
    words = ("repack", folder, "-o", output, "--token-map", token_map_of(folder), "--force")
    assert cli.refused(tmp_path, *words).expected == "an output that is none of its own sources"
