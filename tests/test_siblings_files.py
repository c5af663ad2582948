"""Siblings' checkpoints: every row where the safetensors library finds it, full sizes, and damage refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_helpers import Cli
from safetensors import deserialize

from engramctl import profiles
from engramctl.siblings import checkpoint, synth
from engramctl.source import open_source
from formats import safetensors_raw
from formats.errors import FormatError
from formats.floats import from_bf16

NAMES = (
    "engram-demo", "qwen3.8-flash-next", "qwen3.8-flash-next:fp8", "longcat-flash-lite", "longcat-2.0", "engram-peft",
    "blt",
)  # fmt: skip
LAYER = {name: -1 if name.startswith(("longcat", "blt")) else 1 for name in NAMES}
PLE = "model.language_model.layers.1.ple."
TABLES: dict[str, Callable[[int], str]] = {
    "engram-demo": lambda i: "layers.1.engram.multi_head_embedding.embedding.weight",
    "qwen3.8-flash-next": lambda i: f"{PLE}ple_embedding.ngram_embedding.shard_{i}.weight",
    "qwen3.8-flash-next:fp8": lambda i: f"{PLE}ple_embedding.ngram_embedding.shard_{i}.weight",
    "longcat-flash-lite": lambda i: f"model.ngram_embeddings.embedders.{i}.weight",
    "longcat-2.0": lambda i: f"model.oe_embed_tokens{i}.weight",
    "engram-peft": lambda i: "1.multi_head_embedding.embedding.weight",
    "blt": lambda i: "model.encoder_hash_tok_embedding.weight",
}
PIECES = {"longcat-flash-lite": 12, "longcat-2.0": 16, "qwen3.8-flash-next": 12, "qwen3.8-flash-next:fp8": 12}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("siblings")
    for name in NAMES:
        synth.make(folder / name, profiles.load(name), 7, real_tokens=False, full_size=False)
    return {name: folder / name for name in NAMES}


def library(folder: Path) -> dict[str, dict[str, Any]]:
    """Every tensor's dtype, shape and bytes, by the safetensors library."""
    return {name: entry for path in folder.glob("*.safetensors") for name, entry in deserialize(path.read_bytes())}


def raw_rows(name: str, folder: Path) -> np.ndarray:
    """The whole table as bytes: pieces in numerical order."""
    found = library(folder)
    parts = [found[TABLES[name](i)] for i in range(PIECES.get(name, 1))]
    return np.concatenate([np.frombuffer(bytes(p["data"]), np.uint8).reshape(p["shape"][0], -1) for p in parts])


@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_the_librarys(made: dict[str, Path], name: str) -> None:
    want = raw_rows(name, made[name])
    with open_source(made[name]) as source:
        table = source.table(LAYER[name])
        assert table.rows == len(want)
        every = np.random.default_rng(1).permutation(table.rows)
        np.testing.assert_array_equal(table.read_valid(every), want[every])
        np.testing.assert_array_equal(table.read(every.reshape(1, -1))[0], want[every])


def test_shards_are_sorted_by_number_and_not_by_name(made: dict[str, Path]) -> None:
    """Twelve shards: by name 10 and 11 would come before 2."""
    with open_source(made["qwen3.8-flash-next"]) as source:
        shard = source.table(1).rows // 12
        second, tenth = (source.table(1).read(np.array([n * shard])) for n in (2, 10))
    found = library(made["qwen3.8-flash-next"])
    for number, row in ((2, second), (10, tenth)):
        assert row.tobytes() == bytes(found[TABLES["qwen3.8-flash-next"](number)]["data"])[:320]


def test_fp8_rows_are_the_scaled_numbers_rounded_once(made: dict[str, Path]) -> None:
    import ml_dtypes

    name = "qwen3.8-flash-next:fp8"
    codes = raw_rows(name, made[name]).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    scale = from_bf16(
        np.frombuffer(bytes(library(made[name])[f"{PLE}ple_embedding.ngram_embedding.weight_scale"]["data"]), "<u2")
    )
    want = codes * float(scale[0])
    with open_source(made[name]) as source:
        table = source.table(1)
        raw = table.read_valid(np.arange(table.rows))
        np.testing.assert_array_equal(table.decode(raw).astype(np.float64), want)
        bf16 = want.astype(ml_dtypes.bfloat16).view(np.uint16)
        np.testing.assert_array_equal(table.decode_bf16(raw), bf16)


@pytest.mark.parametrize("name", NAMES)
def test_equal_seeds_give_equal_bytes_and_other_seeds_others(tmp_path: Path, name: str) -> None:
    for folder, seed in (("a", 3), ("b", 3), ("c", 4)):
        synth.make(tmp_path / folder, profiles.load(name), seed, real_tokens=False, full_size=False)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert raw_rows(name, tmp_path / "a").tobytes() != raw_rows(name, tmp_path / "c").tobytes()


FULL = {
    "engram-demo": ((10_344_164, 10_348_242), 256),
    "qwen3.8-flash-next": ((320_001_536,), 320),
    "qwen3.8-flash-next:fp8": ((320_001_536,), 160),
    "longcat-2.0": ((263_630_608,), 1024),
    "longcat-flash-lite": ((122_683_536,), 512),
    "engram-peft": ((2_264_076, 2_266_756), 320),
    "blt": ((3_000_012,), 2048),
}


@pytest.mark.parametrize("name", FULL)
def test_full_size_rows_lie_where_they_should(tmp_path: Path, name: str) -> None:
    """Real sizes, sparse: marked rows are found by arithmetic on the headers alone, others are zeros."""
    made = synth.make(tmp_path / "full", profiles.load(name), 7, real_tokens=True, full_size=True)
    counts, row_bytes = FULL[name]
    assert made.sizes.rows == counts
    disk = sum(path.stat().st_blocks * 512 for path in (tmp_path / "full").iterdir())
    assert disk < 64 << 20, "sparse files"
    layer = LAYER[name]
    pieces = []
    for path in (tmp_path / "full").glob("*.safetensors"):
        pieces += [(t, path) for t in safetensors_raw.read_shard(path).values()]
    placed = {tensor.name: (tensor, path) for tensor, path in pieces}
    marked = made.marked[layer]
    assert {0, counts[0] - 1} <= set(marked)
    with open_source(tmp_path / "full", name) as source:
        table = source.table(layer)
        got = table.read_valid(np.array(marked))
        assert got.shape == (len(marked), row_bytes)
        for number, row in enumerate(marked):
            first = 0
            for i in range(PIECES_FULL.get(name, 1)):
                tensor, path = placed[TABLES[name](i)]
                if row < first + tensor.shape[0]:
                    break
                first += tensor.shape[0]
            with path.open("rb") as file:
                file.seek(tensor.start + (row - first) * row_bytes)
                assert file.read(row_bytes) == got[number].tobytes(), row
        assert got.any(axis=1).all()
        unmarked = next(row for row in range(5, counts[0]) if row not in marked)
        assert not table.read(np.array([unmarked])).any()
        assert source.params().rows == counts


PIECES_FULL = {"longcat-2.0": 16, "longcat-flash-lite": 12, "qwen3.8-flash-next": 128, "qwen3.8-flash-next:fp8": 128}


def test_rows_of_the_release_lie_where_its_fixture_says() -> None:
    """Row -> shard and byte, as computed for the 128 shards of 2,500,012 rows."""
    facts = json.loads((Path(__file__).parent.parent / "fixtures/siblings/qwen3.8-flash-next.json").read_text())
    from engramctl.siblings import tensors

    profile = profiles.load("qwen3.8-flash-next")
    firsts = np.cumsum([0, *tensors.pieces(profile, profile.sizes, 1)])
    for place in facts["row_location"]:
        shard = int(np.searchsorted(firsts, place["row"], side="right")) - 1
        local = place["row"] - int(firsts[shard])
        assert (shard, local) == (place["shard"], place["local"])
        assert (local * 320, local * 160) == (place["bf16_byte_in_shard"], place["fp8_byte_in_shard"])


def rewrite(folder: Path, name: str, dtype: str | None = None, data: bytes | None = None, drop: bool = False) -> None:
    """Change one tensor of a checkpoint, or take it out."""
    path = next(p for p in folder.glob("*.safetensors") if name in safetensors_raw.read_shard(p))
    entries = [(n, e["dtype"], tuple(e["shape"]), bytes(e["data"])) for n, e in deserialize(path.read_bytes())]
    if drop:
        entries = [entry for entry in entries if entry[0] != name]
        index = folder / "model.safetensors.index.json"
        placed = json.loads(index.read_text())
        del placed["weight_map"][name]
        index.write_text(json.dumps(placed))
    entries = [
        (n, dtype or d, shape, data if data is not None else old) if n == name else (n, d, shape, old)
        for n, d, shape, old in entries
    ]
    header, _ = safetensors_raw.header([(n, d, shape) for n, d, shape, _ in entries])
    path.write_bytes(header + b"".join(old for _, _, _, old in entries))


def remake(tmp_path: Path, name: str) -> Path:
    synth.make(tmp_path / "ckpt", profiles.load(name), 7, real_tokens=False, full_size=False)
    return tmp_path / "ckpt"


def test_an_fp8_table_without_its_scale_is_refused(tmp_path: Path) -> None:
    folder, scale = remake(tmp_path, "qwen3.8-flash-next:fp8"), f"{PLE}ple_embedding.ngram_embedding.weight_scale"
    rewrite(folder, scale, drop=True)
    with pytest.raises(FormatError, match=r"expected a tensor .*: the scale of an F8_E4M3 table, found none"):
        open_source(folder)


@pytest.mark.parametrize("bits", [0x0000, 0x7F80, 0x7FC0, 0xBA00])
def test_a_scale_that_is_no_positive_number_is_refused(tmp_path: Path, bits: int) -> None:
    folder, scale = remake(tmp_path, "qwen3.8-flash-next:fp8"), f"{PLE}ple_embedding.ngram_embedding.weight_scale"
    rewrite(folder, scale, data=bits.to_bytes(2, "little"))
    with pytest.raises(FormatError, match="expected a scale above 0"):
        open_source(folder)


def test_a_mixed_table_is_refused(tmp_path: Path) -> None:
    folder, name = remake(tmp_path, "qwen3.8-flash-next"), TABLES["qwen3.8-flash-next"](7)
    rewrite(folder, name, "F8_E4M3", bytes(130 * 160))
    with pytest.raises(FormatError, match=r"expected BF16 as in .*shard_0.weight, found F8_E4M3"):
        open_source(folder)


@pytest.mark.parametrize(
    ("name", "bad", "found"),
    [
        ("engram-demo", b"\x00\x00\xc0\x7f", "F32 0x7fc00000 (nan)"),
        ("qwen3.8-flash-next", b"\x80\x7f", "BF16 0x7f80 (inf)"),
        ("qwen3.8-flash-next:fp8", b"\xff", "F8_E4M3 0xff (NaN)"),
    ],
)  # fmt: skip
def test_a_number_that_is_none_is_refused_with_row_and_byte(
    tmp_path: Path, name: str, bad: bytes, found: str, cli: Cli
) -> None:
    folder = remake(tmp_path, name)
    tensor = TABLES[name](0)
    entry = library(folder)[tensor]
    row_bytes = len(entry["data"]) // entry["shape"][0]
    at = 5 * row_bytes + 3 * len(bad)
    data = bytes(entry["data"])
    rewrite(folder, tensor, data=data[:at] + bad + data[at + len(bad) :])
    refusal = cli.refused(tmp_path, "lookup", folder, "--layer", 1, "--rows", "0,5", "--to", "f32")
    assert refusal.where.endswith(f"layer 1 row 5 byte {3 * len(bad)}")
    assert refusal.found == found
    assert cli.ok("lookup", folder, "--layer", 1, "--rows", "0,5", "--to", "raw").out


@pytest.mark.parametrize("name", NAMES)
def test_every_cut_of_a_shard_is_refused(tmp_path: Path, name: str) -> None:
    folder = remake(tmp_path, name)
    for path in sorted(folder.glob("*.safetensors"))[:2]:
        whole = path.read_bytes()
        header = 8 + int.from_bytes(whole[:8], "little")
        for length in (0, 7, 8, header - 1, header, header + 1, len(whole) - 1):
            path.write_bytes(whole[:length])
            with pytest.raises(FormatError):
                open_source(folder, name)
        path.write_bytes(whole)
    open_source(folder, name).close()


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_tensor_or_another_shape_is_refused_by_name(tmp_path: Path, name: str) -> None:
    folder = remake(tmp_path, name)
    tensor = TABLES[name](0)
    config = json.loads((folder / "config.json").read_text())
    keys = {
        "engram-demo": ("engram_head_dim", 9), "blt": ("encoder_hash_byte_group_vocab", 60),
        "engram-peft": ("embedding_dim", 256), "longcat-flash-lite": ("emb_split_num", 2),
        "longcat-2.0": ("oe_split_num", 2),
    }  # fmt: skip
    key, value = keys.get(name, ("ngram_vocab_size_base", 63))
    (folder / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(FormatError) as caught:
        open_source(folder)
    assert tensor in str(caught.value)
    (folder / "config.json").write_text(json.dumps(config))
    if name != "engram-peft":
        rewrite(folder, tensor, drop=True)
        with pytest.raises(FormatError, match=f"expected a tensor {re.escape(tensor)}, found none"):
            open_source(folder)


HOSTILE: list[tuple[str, str, Any]] = [
    ("qwen3.8-flash-next", "ple_layer_ids", [0]),
    ("qwen3.8-flash-next", "ple_layer_ids", "2"),
    ("qwen3.8-flash-next", "ple_embed_dim", 2561),
    ("qwen3.8-flash-next", "split_ngram_parts", 7),
    ("qwen3.8-flash-next", "eos_token_id", []),
    ("qwen3.8-flash-next", "eos_token_id", 384),
    ("qwen3.8-flash-next", "ngram_size", 10**9),
    ("qwen3.8-flash-next", "ngram_vocab_size_base", 2**70),
    ("qwen3.8-flash-next", "seed", -1),
    ("qwen3.8-flash-next", "rms_norm_eps", float("nan")),
    ("longcat-2.0", "oe_vocab_size_ratio", 0),
    ("longcat-2.0", "oe_vocab_size_ratio", float("inf")),
    ("longcat-2.0", "oe_split_num", 7),
    ("longcat-2.0", "hidden_size", True),
    ("engram-peft", "ngram_sizes", [2, 4]),
    ("engram-peft", "engram_vocab_size_per_ngram", [488, 496]),
    ("engram-peft", "engine", "qwen_ple"),
    ("engram-peft", "n_head_per_ngram", None),
    ("blt", "encoder_hash_byte_group_nb_functions", 2),
    ("blt", "encoder_hash_byte_group_size", [3, 5]),
    ("blt", "encoder_config", 5),
]


@pytest.mark.parametrize(("name", "key", "value"), HOSTILE)
def test_a_config_that_is_odd_is_refused_in_one_line(
    tmp_path: Path, cli: Cli, name: str, key: str, value: object
) -> None:
    folder = remake(tmp_path, name)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {key: value}))
    cli.refused(tmp_path, "lookup", folder, "--layer", LAYER[name], "--rows", "0", "--to", "raw")
    shown = cli.ok("show", folder, "--json").json
    assert shown["config_problem"]


def test_eos_of_a_list_is_its_first_as_transformers_takes_it(tmp_path: Path) -> None:
    folder = remake(tmp_path, "qwen3.8-flash-next")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": [9, 3]}))
    with open_source(folder) as source:
        assert source.params().eos == 9


@pytest.mark.parametrize("name", NAMES)
def test_show_says_what_it_is(cli: Cli, made: dict[str, Path], name: str) -> None:
    shown = cli.ok("show", made[name], "--json").json
    assert shown["dialect"] == "hf"
    assert shown["profile"] == name.removesuffix(":fp8")
    assert shown["missing"] == shown["wrong"] == []
    assert shown["synthetic"] is True
    assert cli.ok("show", made[name]).out


def test_stored_constants_decide_over_derived_ones(tmp_path: Path) -> None:
    folder, name = remake(tmp_path, "qwen3.8-flash-next"), f"{PLE}ple_embedding.layer_multipliers"
    rewrite(folder, name, data=np.array([3, 5, 7], "<i8").tobytes())
    with open_source(folder) as source:
        assert source.params().multipliers.tolist() == [[3, 5, 7]]
        assert isinstance(source, checkpoint.SiblingCheckpoint)
        assert source.expected().multipliers.tolist() != [[3, 5, 7]]
    rewrite(folder, name, data=np.array([3, -5, 7], "<i8").tobytes())
    with open_source(folder) as source, pytest.raises(FormatError, match="constants of at least 0, found -5"):
        source.params()


def test_f32_rows_are_not_looked_up_as_bf16(cli: Cli, made: dict[str, Path], tmp_path: Path) -> None:
    refusal = cli.refused(tmp_path, "lookup", made["engram-demo"], "--layer", 1, "--rows", "0", "--to", "bf16")
    assert refusal.hint == "--to f32 gives the exact values"


def test_text_needs_the_models_own_tokenizer_and_bytes_need_none(cli: Cli, tmp_path: Path) -> None:
    refusal = cli.refused(tmp_path, "hash", "--profile", "qwen3.8-flash-next", "--text", "hello")
    assert "deepseek" not in refusal.hint
    by_text = cli.ok("hash", "--profile", "blt", "--text", "Hé").out
    assert by_text == cli.ok("hash", "--profile", "blt", "--ids", "76,199,173").out


def test_an_adapter_that_is_a_pickle_is_not_opened(cli: Cli, tmp_path: Path) -> None:
    folder = remake(tmp_path, "engram-peft")
    (folder / "engram_adapters.safetensors").rename(folder / "engram_weights.pt")
    refusal = cli.refused(tmp_path, "lookup", folder, "--layer", 1, "--rows", "0", "--to", "f32")
    assert refusal.found == "engram_weights.pt alone, a pickle: code, not data"
