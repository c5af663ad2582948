"""Qwen3.8's table in GGUF: the gguf library's opinion, the way back, full size, damage, and who is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import specs
from cli_helpers import Cli
from faults import Faulty
from gguf.quants import dequantize, quantize
from test_siblings_files import PLE, library, rewrite

from engramctl import profiles
from engramctl.errors import EngramctlError
from engramctl.siblings import repack, synth, writing
from engramctl.siblings.opened import as_sibling
from engramctl.source import open_source
from formats import disk, row_q8_0
from formats import gguf_file as own
from formats.errors import FormatError
from formats.floats import from_bf16
from formats.ple_gguf import DIALECTS, QWEN4EXP, SIDECAR, PleDialect
from formats.row_plain import PlainRows

NAMES = ("qwen3.8-flash-next", "qwen3.8-flash-next:fp8")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("ple")
    for name in NAMES:
        synth.make(folder / name, profiles.load(name), 7, real_tokens=False, full_size=False)
        with open_source(folder / name) as source:
            for dialect in DIALECTS:
                plan = repack.plan(as_sibling(source), dialect, None, None)
                writing.write(plan, folder / f"{name}.{dialect.name}.gguf")
    return {path.name: path for path in folder.iterdir()}


def bf16_rows(folder: Path) -> np.ndarray:
    """[rows, width] BF16 bits that the checkpoint's table looks up, by the library's bytes."""
    found, parts = library(folder), []
    for shard in range(12):
        entry = found[f"{PLE}ple_embedding.ngram_embedding.shard_{shard}.weight"]
        parts.append(np.frombuffer(bytes(entry["data"]), np.uint8).reshape(entry["shape"][0], -1))
    raw = np.concatenate(parts)
    if raw.shape[1] == 320:
        return raw.view("<u2")
    import ml_dtypes

    scale = from_bf16(np.frombuffer(bytes(found[f"{PLE}ple_embedding.ngram_embedding.weight_scale"]["data"]), "<u2"))
    values = raw.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale[0]
    return values.astype(ml_dtypes.bfloat16).view(np.uint16)


@pytest.mark.parametrize("name", NAMES)
def test_the_gguf_library_reads_what_was_meant(made: dict[str, Path], name: str) -> None:
    reader, found = gguf.GGUFReader(made[f"{name}.qwen4exp.gguf"]), library(made[name])
    fields = {field.name: field for field in reader.fields.values()}
    kinds = {
        "qwen4exp.ple.layers": gguf.GGUFValueType.INT32,
        "qwen4exp.ple.layer_multipliers": gguf.GGUFValueType.UINT64,
        "qwen4exp.ple.head_offsets": gguf.GGUFValueType.UINT64,
        "qwen4exp.ple.head_vocab_sizes": gguf.GGUFValueType.UINT64,
    }
    for key, kind in kinds.items():
        assert fields[key].types == [gguf.GGUFValueType.ARRAY, kind]
    names = {"layer_multipliers": "layer_multipliers", "ngram_heads_offsets": "head_offsets"}
    for tensor, key in (names | {"ngram_heads_vocab_sizes": "head_vocab_sizes"}).items():
        stored = np.frombuffer(bytes(found[f"{PLE}ple_embedding.{tensor}"]["data"]), "<i8")
        assert fields[f"qwen4exp.ple.{key}"].contents() == stored.tolist()
    assert fields["qwen4exp.ple.eos_token_id"].contents() == 3
    assert fields["qwen4exp.ple.layers"].contents() == [1]
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    table = tensors["per_layer_token_embd.weight"]
    assert table.tensor_type == gguf.GGMLQuantizationType.BF16
    np.testing.assert_array_equal(table.data.view("<u2").reshape(-1, 160), bf16_rows(made[name]))
    for role in ("key", "query", "conv"):
        stored = from_bf16(np.frombuffer(bytes(found[f"{PLE}norm_{role}.weight"]["data"]), "<u2"))
        np.testing.assert_array_equal(tensors[f"blk.1.ple_norm_{role}.weight"].data, stored + np.float32(1))
    conv = from_bf16(np.frombuffer(bytes(found[f"{PLE}conv1d.weight"]["data"]), "<u2"))
    np.testing.assert_array_equal(tensors["blk.1.ple_conv1d.weight"].data.reshape(-1), conv)
    assert tensors["blk.1.ple_conv1d.weight"].shape.tolist() == [4, 192]
    for role in ("key", "value"):
        stored_bytes = bytes(found[f"{PLE}{role}_proj.weight"]["data"])
        assert tensors[f"blk.1.ple_{role}.weight"].data.tobytes() == stored_bytes


def test_q8_0_is_the_librarys(made: dict[str, Path]) -> None:
    values = from_bf16(bf16_rows(made[NAMES[0]]))
    raw = row_q8_0.encode(values)
    np.testing.assert_array_equal(raw, quantize(values, gguf.GGMLQuantizationType.Q8_0))
    np.testing.assert_array_equal(row_q8_0.decode(raw), dequantize(raw, gguf.GGMLQuantizationType.Q8_0))
    random = np.random.default_rng(0).normal(size=(200, 64)).astype(np.float32)
    random[3], random[4, :32] = 0, 1e-30
    np.testing.assert_array_equal(row_q8_0.encode(random), quantize(random, gguf.GGMLQuantizationType.Q8_0))


def test_the_sidecar_is_the_table_and_its_constants(made: dict[str, Path]) -> None:
    reader = gguf.GGUFReader(made[f"{NAMES[0]}.ple-sidecar.gguf"])
    (tensor,) = reader.tensors
    values = from_bf16(bf16_rows(made[NAMES[0]]))
    np.testing.assert_array_equal(tensor.data, quantize(values, gguf.GGMLQuantizationType.Q8_0))
    fields = {field.name: field.contents() for field in reader.fields.values()}
    assert fields["general.architecture"] == "qwen38-next-ple"
    assert (fields["qwen38-next.ple.total_rows"], fields["qwen38-next.ple.table_rows"]) == (1548, 1560)


def test_the_page_says_what_the_code_does() -> None:
    sizes = {row[0]: specs.number(row[1]) for row in specs.table("ple_gguf.md", "type of the table")}
    assert sizes == {kind: PlainRows(kind, 160).row_bytes for kind in QWEN4EXP.row_types}
    assert set(sizes) == set(SIDECAR.row_types)
    assert 320_001_536 * PlainRows("Q8_0", 160).row_bytes == 54_400_261_120


@pytest.mark.parametrize("kind", ["bf16", "f16", "f32", "q8_0"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_row_type_is_packed_and_checked(
    cli: Cli, made: dict[str, Path], tmp_path: Path, kind: str, dialect: PleDialect
) -> None:
    out = tmp_path / "out.gguf"
    cli.ok("repack", made[NAMES[0]], "-o", out, "--dialect", dialect.name, "--row-type", kind)
    assert cli.ok("check", "packing", made[NAMES[0]], out, "--json").json["coverage"]["checked"] == 1560
    assert cli.ok("check", "file", out, "--json").json["ok"]
    assert cli.ok("check", "params", made[f"{NAMES[0]}.qwen4exp.gguf"], "--json").json["ok"]
    data, table = bytearray(out.read_bytes()), own.read_header(out).tensor("per_layer_token_embd.weight")
    data[table.start + (table.size or 0) - 7] ^= 16
    out.write_bytes(data)
    report = cli("check", "packing", made[NAMES[0]], out, "--json")
    assert report.code == 1
    assert report.json["findings"][0]["where"].startswith("layer 1 row 1559 byte ")


@pytest.mark.parametrize("name", NAMES)
def test_the_way_back_gives_the_checkpoint(cli: Cli, made: dict[str, Path], tmp_path: Path, name: str) -> None:
    """Of a BF16 checkpoint bit for bit; of an FP8 one the rows that it looks up."""
    back = tmp_path / "back"
    cli.ok("repack", made[f"{name}.qwen4exp.gguf"], "-o", back, "--dialect", "hf", "--row-type", "bf16")
    want, got = library(made[name]), library(back)
    for tensor, entry in want.items():
        if "ngram_embedding." not in tensor:
            assert (entry["dtype"], entry["shape"]) == (got[tensor]["dtype"], got[tensor]["shape"]), tensor
            assert bytes(entry["data"]) == bytes(got[tensor]["data"]), tensor
    (table,) = (entry for tensor, entry in got.items() if "shard_" in tensor)  # 1560 rows do not make 128 shards
    assert bytes(table["data"]) == bf16_rows(made[name]).tobytes()
    assert cli.ok("check", "source", back, "--json").json["ok"]
    assert cli.ok("check", "packing", made[name], back, "--json").json["ok"]
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (made[name], back))
    odd = {"engramctl_synthetic", "engramctl_seed", "split_ngram_parts", "make_ngram_vocab_size_divisible_by"}
    assert {key: value for key, value in before.items() if key not in odd} == {
        key: value for key, value in after.items() if key not in odd
    }


@pytest.mark.parametrize("name", NAMES)
def test_run_and_lookup_give_the_same_from_checkpoint_container_and_back(
    cli: Cli, made: dict[str, Path], tmp_path: Path, name: str
) -> None:
    back, hidden = tmp_path / "back", tmp_path / "h.npy"
    cli.ok("repack", made[f"{name}.qwen4exp.gguf"], "-o", back, "--dialect", "hf")
    np.save(hidden, np.random.default_rng(1).normal(size=(6, 4, 48)).astype(np.float32))
    outs = {
        cli.ok("run", where, "--ids", "5,6,3,9,10,11", "--hidden", hidden, "-o", "-").out
        for where in (made[name], made[f"{name}.qwen4exp.gguf"], back)
    }
    assert len(outs) == 1
    rows = {
        cli.ok("lookup", where, "--rows", "0,5,1559", "-o", "-").out
        for where in (made[name], made[f"{name}.qwen4exp.gguf"], back)
    }
    assert len(rows) == 1


def test_equal_input_gives_equal_bytes(cli: Cli, made: dict[str, Path], tmp_path: Path) -> None:
    for dialect in DIALECTS:
        out = tmp_path / f"{dialect.name}.gguf"
        cli.ok("repack", made[NAMES[0]], "-o", out, "--dialect", dialect.name)
        assert out.read_bytes() == made[f"{NAMES[0]}.{dialect.name}.gguf"].read_bytes()


def test_a_full_size_container_keeps_holes_and_places(cli: Cli, tmp_path: Path) -> None:
    full, out = tmp_path / "full", tmp_path / "full.gguf"
    marked = synth.make(full, profiles.load(NAMES[0]), 7, real_tokens=True, full_size=True).marked[1]
    cli.ok("repack", full, "-o", out)
    status = out.stat()
    assert status.st_size > 102_400_491_520
    assert status.st_blocks * 512 < 256 << 20
    table = own.read_header(out).tensor("per_layer_token_embd.weight")
    assert table.shape == (160, 320_001_536)
    with open_source(full) as source, out.open("rb") as file:
        rows = source.table(1).read(np.array(marked))
        for row, want in zip(marked, rows, strict=True):
            file.seek(table.start + row * 320)
            assert file.read(320) == want.tobytes(), row
    report = cli.ok("check", "packing", full, out, "--json").json
    assert report["coverage"]["checked"] == 320_001_536
    report = cli.ok("check", "params", out, "--json").json
    assert report["constants"] == dict.fromkeys(("multipliers", "moduli", "offsets"), "stored = derived")
    assert not any("not the sizes" in note for note in report["notes"])


def values(path: Path) -> tuple[list[tuple[str, own.Value]], list[tuple[str, int, tuple[int, ...], int, bytes]]]:
    header = own.read_header(path)
    data = path.read_bytes()
    tensors = [(t.name, t.type, t.shape, t.size or 0, data[t.start : t.start + (t.size or 0)]) for t in header.tensors]
    return list(header.keys.items()), tensors


def rewritten(path: Path, out: Path, change: dict[str, own.Value | None], drop: str = "") -> Path:
    """A copy with other keys (None: without), and without one tensor."""
    keys, tensors = values(path)
    keys = [(name, change.get(name, value)) for name, value in keys if change.get(name, value) is not None]
    tensors = [tensor for tensor in tensors if tensor[0] != drop]
    layout = own.encode_header([(n, v) for n, v in keys if v], [t[:4] for t in tensors], 32)
    data = bytearray(layout.file_size)
    data[: len(layout.header)] = layout.header
    for name, _, _, size, some in tensors:
        data[layout.starts[name] : layout.starts[name] + size] = some
    out.write_bytes(data)
    return out


P = "qwen4exp.ple."
WRONG: list[tuple[dict[str, own.Value | None], str, str]] = [
    ({f"{P}layer_multipliers": own.f32s([1.0, 2.0, 3.0])}, "", f"key {P}layer_multipliers"),
    ({f"{P}layer_multipliers": own.u64s([1, 3])}, "", f"key {P}layer_multipliers"),
    ({f"{P}head_offsets": None}, "", f"key {P}head_offsets"),
    ({f"{P}layers": own.u32s([1, 2])}, "", f"key {P}layers"),
    ({f"{P}ngram_size": own.u32(9)}, "", f"key {P}ngram_size"),
    ({f"{P}ngram_size": own.u64(3)}, "", f"key {P}ngram_size"),
    ({f"{P}heads_per_ngram": own.u32(40)}, "", f"key {P}heads_per_ngram"),
    ({f"{P}conv_kernel": own.u32(0)}, "", f"key {P}conv_kernel"),
    ({f"{P}head_vocab_sizes": own.u64s([2**31] + [61] * 15)}, "", f"key {P}head_vocab_sizes, column 0"),
    ({f"{P}head_vocab_sizes": own.u64s([61] * 15 + [10**6])}, "", "tensor per_layer_token_embd.weight"),
    ({"qwen4exp.embedding_length": own.u32(47)}, "", "tensor blk.1.ple_key.weight"),
    ({}, "blk.1.ple_conv1d.weight", "tensor blk.1.ple_conv1d.weight"),
    ({}, "per_layer_token_embd.weight", "tensor per_layer_token_embd.weight"),
]


@pytest.mark.parametrize(("change", "drop", "where"), WRONG)
def test_each_rule_of_the_loader_is_reported_and_opening_refuses(
    cli: Cli, made: dict[str, Path], tmp_path: Path, change: dict[str, own.Value | None], drop: str, where: str
) -> None:
    out = rewritten(made[f"{NAMES[0]}.qwen4exp.gguf"], tmp_path / "x.gguf", change, drop)
    report = cli("check", "file", out, "--json")
    assert report.code == 1
    assert where in [finding["where"] for finding in report.json["findings"]]
    shown = cli.ok("show", out, "--json").json
    assert shown["dialect"] is None
    assert shown["loaders"]["llamacpp"]["accepts"] is False


def test_images_without_a_key_are_noted(cli: Cli, made: dict[str, Path], tmp_path: Path) -> None:
    out = rewritten(made[f"{NAMES[0]}.qwen4exp.gguf"], tmp_path / "x.gguf", {f"{P}image_token_id": None})
    notes = cli.ok("check", "file", out, "--json").json["notes"]
    assert any("hashes images as EOS" in note for note in notes)
    assert any("hashes images as EOS" in note for note in cli.ok("show", out, "--json").json["notes"])
    kept = cli.ok("check", "file", made[f"{NAMES[0]}.qwen4exp.gguf"], "--json").json["notes"]
    assert not any("images" in note for note in kept)


def test_a_table_of_gemmas_is_told_apart_by_its_keys(cli: Cli, made: dict[str, Path], tmp_path: Path) -> None:
    """The same tensor name, no `ple.` constants."""
    names = [name for name, _ in values(made[f"{NAMES[0]}.qwen4exp.gguf"])[0] if ".ple." in name]
    out = rewritten(made[f"{NAMES[0]}.qwen4exp.gguf"], tmp_path / "x.gguf", dict.fromkeys(names))
    refusal = cli.refused(tmp_path, "lookup", out, "--layer", 1, "--rows", 0)
    assert "no such key" in refusal.found
    assert cli("check", "file", out).code == 1


@pytest.mark.parametrize("dialect", [dialect.name for dialect in DIALECTS])
def test_what_takes_an_engram_says_that_this_is_another_table(
    cli: Cli, made: dict[str, Path], tiny: Path, tmp_path: Path, dialect: str
) -> None:
    """And not that it is Gemma's."""
    file, out = made[f"{NAMES[0]}.{dialect}.gguf"], tmp_path / "x"
    refusal = cli.refused(tmp_path, "unpack", file, "-o", out)
    assert refusal.found == f"one of {NAMES[0]}"
    assert refusal.hint == f"repack {file} --dialect hf -o DIR makes it a checkpoint again"
    assert cli.refused(tmp_path, "repair", file, "--dry-run").found == f"one of {NAMES[0]}"
    assert "architecture qwen" in cli.refused(tmp_path, "repack", tiny, "--append-to", file, "-o", out).found
    assert "Qwen3.8's hashed table" in cli.refused(tmp_path, "check", "packing", tiny, file).found
    assert cli.refused(tmp_path, "repack", file, "-o", out).found == "none"
    assert cli.refused(tmp_path, "check", "packing", file, file, "--token-map", out).where == "--token-map"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "model-00001-of-00013.safetensors"])
def test_no_file_of_the_checkpoint_is_written_over(cli: Cli, tmp_path: Path, name: str) -> None:
    synth.make(tmp_path / "ckpt", profiles.load(NAMES[0]), 7, real_tokens=False, full_size=False)
    (tmp_path / "link.gguf").symlink_to(tmp_path / "ckpt" / name)
    for output in (tmp_path / "ckpt" / name, tmp_path / "link.gguf"):
        refusal = cli.refused(tmp_path, "repack", tmp_path / "ckpt", "-o", output, "--force")
        assert refusal.expected == "an output that is none of its own sources"


def cuts(data: bytes) -> Iterator[bytes]:
    header = own_header(data)
    for length in [*range(0, header, 3), header, header + 1, len(data) - 1]:
        yield data[:length]


def flips(data: bytes) -> Iterator[bytes]:
    random = np.random.default_rng(0)
    for at in range(own_header(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << int(random.integers(0, 8))
        yield bytes(changed)


def own_header(data: bytes) -> int:
    """Up to the first tensor's data."""
    return 1504 if data.find(b"qwen38-next-ple") < 0 else 800


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("damage", [cuts, flips])
def test_every_cut_and_flip_opens_or_is_refused(
    made: dict[str, Path], tmp_path: Path, dialect: PleDialect, damage: Callable[[bytes], Iterator[bytes]]
) -> None:
    """Nothing but the two errors, and whatever opens has rows."""
    data, path = made[f"{NAMES[0]}.{dialect.name}.gguf"].read_bytes(), tmp_path / "x.gguf"
    opened = refused = 0
    for changed in damage(data):
        path.write_bytes(changed)
        try:
            with open_source(path, NAMES[0]) as source:
                layer = source.sizes.layers[0]
                assert source.table(layer).read(np.array([0])).size
            opened += 1
        except (FormatError, EngramctlError):
            refused += 1
    assert refused > 100
    assert opened <= 1 if damage is cuts else opened  # the last byte may be padding


@pytest.mark.parametrize("words", [
    ("--dialect", "ds4"), ("--dialect", "hf"), ("--layers", "1"), ("--layer", "1"),
    ("--layer", "0"), ("--part", "1/2"), ("--merge",), ("--source-url", "x"), ("--shards", "2"),
])  # fmt: skip
def test_what_does_not_apply_is_refused_by_name(
    cli: Cli, made: dict[str, Path], tmp_path: Path, words: tuple[str, ...]
) -> None:
    refusal = cli.refused(tmp_path, "repack", made[NAMES[0]], "-o", tmp_path / "x.gguf", *words)
    assert refusal.where.startswith("--")


@pytest.mark.parametrize("name", ["engram-demo", "longcat-flash-lite", "longcat-2.0", "engram-peft", "blt"])
def test_models_without_a_container_are_refused_by_name(cli: Cli, tmp_path: Path, name: str) -> None:
    synth.make(tmp_path / "ckpt", profiles.load(name), 7, real_tokens=False, full_size=False)
    refusal = cli.refused(tmp_path, "repack", tmp_path / "ckpt", "-o", tmp_path / "x.gguf")
    assert refusal.found == f"profile {name}, for which no container is defined here"


@pytest.mark.parametrize("room", [0, 1000, 400_000, 1_500_000])
def test_a_full_disk_leaves_no_half_of_a_folder(
    cli: Cli, made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(disk, "system", Faulty(room=room))
    outcome = cli("repack", made[f"{NAMES[0]}.qwen4exp.gguf"], "-o", tmp_path / "back", "--dialect", "hf")
    assert outcome.code == 2
    assert list(tmp_path.iterdir()) == []


def test_an_existing_output_and_bad_rows_are_refused(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    synth.make(folder, profiles.load(NAMES[0]), 7, real_tokens=False, full_size=False)
    out = tmp_path / "x.gguf"
    out.write_bytes(b"kept")
    assert cli.refused(tmp_path, "repack", folder, "-o", out).found == "an existing file"
    name = f"{PLE}ple_embedding.ngram_embedding.shard_2.weight"
    data = bytearray(library(folder)[name]["data"])
    data[2:4] = b"\x80\x7f"
    rewrite(folder, name, data=bytes(data))
    refusal = cli.refused(tmp_path, "repack", folder, "-o", tmp_path / "y.gguf")
    assert refusal.where.endswith("layer 1 row 260 byte 2")
    assert not (tmp_path / "y.gguf").exists()


def test_dry_run_says_what_repack_does(cli: Cli, made: dict[str, Path], tmp_path: Path) -> None:
    report = cli.ok("repack", made[NAMES[0]], "--dry-run", "--json").json
    assert report["file_bytes"] == made[f"{NAMES[0]}.qwen4exp.gguf"].stat().st_size
    assert cli.ok("repack", made[NAMES[0]], "--dry-run").out
    assert not list(tmp_path.iterdir())


def test_norms_that_no_bf16_weight_gives_do_not_go_back(cli: Cli, made: dict[str, Path], tmp_path: Path) -> None:
    path, out = made[f"{NAMES[0]}.qwen4exp.gguf"], tmp_path / "x.gguf"
    tensor, data = own.read_header(path).tensor("blk.1.ple_norm_key.weight"), bytearray(path.read_bytes())
    data[tensor.start : tensor.start + 4] = np.float32(1.2345678).tobytes()
    out.write_bytes(data)
    refusal = cli.refused(tmp_path, "repack", out, "-o", tmp_path / "back", "--dialect", "hf")
    assert refusal.found == "1 of 192 that no BF16 weight gives"


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_header_of_nothing_but_the_architecture_is_described(cli: Cli, tmp_path: Path, dialect: PleDialect) -> None:
    writer = gguf.GGUFWriter(path := tmp_path / "x.gguf", dialect.architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    report = cli.ok("show", path, "--json").json
    assert (report["architecture"], report["dialect"], report["nearest"]) == (dialect.architecture, None, None)
    assert any(where.startswith("key ") for where in report["missing"])
    assert cli("check", "file", path).code == 1
