"""Constants and token maps in every dialect and integer width: read, checked against the derivation, rewritten."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import dialect_files as files
import numpy as np
import pytest
from checks import differs, found, passes
from cli_helpers import Cli
from dialect_files import MADE, NEW, Model

HOLDING = [name for name in MADE if name not in ("deepstrix", "deepseek4-external")]  # those keep no constants
RAW = ("split-i8", "split-table", "tensor-constants", "deepstrix", "sidecar-contract")
NAMES = {"split-i8": "multipliers", "split-table": "hash_multipliers", "llamacpp": "multipliers"}


@pytest.fixture(scope="module")
def model(tiny: Path, container: Path) -> Model:
    return files.read_model(tiny, container)


@pytest.fixture(scope="module")
def made(model: Model, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("constants")
    return {name: files.make(name, folder, model) for name in MADE} | {"tensorsharp": tsd41(folder / "x.bin", model)}


def tsd41(path: Path, model: Model, change: int = 0) -> Path:
    """zhongkaifu/TensorSharp: little-endian, primes of 32 bits, the pad raw."""
    data = b"TSD41E01" + struct.pack(
        "<7IQi4I", len(model.token_map), model.compressed, model.raw_pad, 2, 4, 8, 256, *TAIL
    )
    data += struct.pack("<4i8i", *range(4), *range(8)) + struct.pack(f"<{len(model.token_map)}i", *model.token_map)
    for i, layer in enumerate(model.layers):
        columns = slice(24 * i, 24 * i + 24)
        data += struct.pack("<iQ", layer, model.rows[i])
        data += struct.pack("<4Q", *model.multipliers[4 * i : 4 * i + 4])
        data += struct.pack("<24I", *model.primes[columns]) + struct.pack("<24Q", *model.offsets[columns])
    path.write_bytes(data[: len(data) + change])
    return path


TAIL = (1234567890123456789, 20, 2048, 8, 4, 8)  # fingerprint, candidate source, blocks, block, two counts


@pytest.mark.parametrize("name", [*MADE, "tensorsharp"])
def test_every_constant_of_every_dialect_is_compared_with_the_derivation(
    cli: Cli, tiny: Path, made: dict[str, Path], name: str
) -> None:
    report = passes(cli, "params", made[name], "--source", tiny)
    roles = set(report["constants"])
    assert set(report["constants"].values()) == {"stored = derived"}
    assert "pad_token_id" in roles if name in (*RAW, "tensorsharp") else "pad_id" in roles
    if name in HOLDING:
        assert {"layers", "multipliers", "moduli", "token_map"} <= roles


@pytest.mark.parametrize("name", [name for name in HOLDING if name not in ("ds4-lloyd4", "ds4-q4k")])
def test_containers_of_every_dialect_hash_and_run_like_the_checkpoint(
    cli: Cli, tiny: Path, made: dict[str, Path], name: str, tmp_path: Path
) -> None:
    for source, out in ((tiny, "want.npy"), (made[name], "have.npy")):
        cli.ok(
            "hash",
            "--params",
            source,
            "--ids",
            "5,6,7,2,300",
            "--mask",
            "1,1,0,1,1",
            "--to",
            "npy",
            "-o",
            tmp_path / out,
        )
    assert np.array_equal(np.load(tmp_path / "want.npy"), np.load(tmp_path / "have.npy"))


@pytest.mark.parametrize("name", ["split-i8", "tensor-constants"])
def test_lossless_containers_give_the_same_projections_to_the_bit(
    cli: Cli, tiny: Path, made: dict[str, Path], name: str, tmp_path: Path
) -> None:
    for source, out in ((tiny, "want.npy"), (made[name], "have.npy")):
        cli.ok("run", source, "--layer", "14", "--ids", "5,6,7", "--stop-at", "kv", "-o", tmp_path / out)
    assert (tmp_path / "want.npy").read_bytes() == (tmp_path / "have.npy").read_bytes()


@pytest.mark.parametrize("width", ["u32", "i32", "u64", "i64"])
def test_the_same_constants_in_any_integer_width_are_read_and_named_as_what_they_are(
    cli: Cli, tiny: Path, model: Model, tmp_path: Path, width: str
) -> None:
    """anthony-chaudhary/fak 12918, 12976: I32, U32 and U64 arrays of the same numbers from different writers."""
    keys = files.llamacpp_keys(model)
    for name in ("layer_ids", "primes", "offsets", "token_map"):
        keys[f"{NEW}{name}"] = (f"{width}[]", keys[f"{NEW}{name}"][1])
    path = files.write(tmp_path / "x.gguf", keys, files.quantised(model))
    passes(cli, "params", path, "--source", tiny)
    passes(cli, "map", path, "--tokenizer", tiny / "tokenizer.json", "--allow-mismatch")
    outcome = cli("check", "file", path, "--json")
    broken = {finding["where"].split(".")[-1] for finding in outcome.json["findings"]}
    narrow = {"primes", "offsets"} if width in ("u32", "i32", "i64") else set()
    wide = {"layer_ids", "token_map"} if width in ("u64", "i64") else set()
    assert broken == narrow | wide


def test_multipliers_above_32_bits_survive_and_their_loss_is_found(
    cli: Cli, tiny: Path, model: Model, tmp_path: Path
) -> None:
    """gguf-py takes Python integers for INT32: the 47-bit multipliers failed, and five constants were never written."""
    keys = files.llamacpp_keys(model)
    assert max(model.multipliers) > 2**31
    path = files.write(tmp_path / "x.gguf", keys, files.quantised(model))
    passes(cli, "params", path, "--source", tiny)
    keys[f"{NEW}multipliers"] = ("u64[]", [x & 0x7FFFFFFF | 1 for x in model.multipliers])
    cut = files.write(tmp_path / "cut.gguf", keys, files.quantised(model))
    report = differs(cli, "params", cut, "--source", tiny)
    assert report["findings_total"] == 8
    passes(cli, "file", cut)  # the loader itself sees nothing wrong: only the derivation does


@pytest.mark.parametrize("name", ["llamacpp", "split-i8"])
def test_raw_and_compressed_pads_are_told_apart(cli: Cli, tiny: Path, model: Model, tmp_path: Path, name: str) -> None:
    """The release's map keeps the pad, which hides it; here raw 2 becomes 1."""
    if name == "llamacpp":
        keys = files.llamacpp_keys(model) | {f"{NEW}pad_id": ("u32", model.raw_pad)}
        expected, word = "1 as derived", "2, which is the raw pad"
        path = files.write(tmp_path / "x.gguf", keys, files.quantised(model))
    else:
        keys = files.split_keys(model) | {f"{NEW}pad_token_id": ("u32", model.pad)}
        expected, word = "2 as derived", "1, which is the compressed pad"
        path = files.write(tmp_path / "x.gguf", keys, files.split_tensors(model))
    report = differs(cli, "params", path, "--source", tiny)
    assert [(want, have) for _, want, have in found(report)] == [(expected, word)]


@pytest.mark.parametrize("name", [*HOLDING, "tensorsharp"])
def test_a_token_map_is_taken_out_of_any_file_that_holds_one(
    cli: Cli, tiny: Path, model: Model, made: dict[str, Path], name: str, tmp_path: Path
) -> None:
    cli.ok("map", made[name], "-o", tmp_path / "map.bin", "--allow-mismatch")
    assert (tmp_path / "map.bin").read_bytes() == struct.pack(f"<{len(model.token_map)}I", *model.token_map)
    cli.ok("map", made[name], "-o", tmp_path / "map.json", "--to", "json", "--allow-mismatch")
    assert json.loads((tmp_path / "map.json").read_text()) == model.token_map
    passes(cli, "map", made[name], "--tokenizer", tiny / "tokenizer.json", "--allow-mismatch")
    cli.ok("hash", "--params", tiny, "--token-map", made[name], "--ids", "5")


def test_two_swapped_entries_of_a_map_are_found_though_its_size_is_the_same(
    cli: Cli, tiny: Path, model: Model, tmp_path: Path
) -> None:
    """vllm-project/vllm 57897: another revision's tokenizer gives the same compressed size and another map."""
    ids = list(model.token_map)
    ids[20], ids[40] = ids[40], ids[20]
    keys = files.llamacpp_keys(model) | {f"{NEW}token_map": ("i32[]", ids)}
    path = files.write(tmp_path / "x.gguf", keys, files.quantised(model))
    report = differs(cli, "map", path, "--tokenizer", tiny / "tokenizer.json", "--allow-mismatch")
    assert {"token id 20", "token id 40"} <= {where for where, _, _ in found(report)}
    passes(cli, "file", path)


@pytest.mark.parametrize("change", [-1, -500])
def test_a_tsd41e01_file_that_is_cut_is_refused(cli: Cli, model: Model, tmp_path: Path, change: int) -> None:
    path = tsd41(tmp_path / "x.bin", model, change)
    assert "as its header says" in cli.refused(tmp_path, "show", path).expected
    cli.refused(tmp_path, "map", path, "-o", tmp_path / "map.bin")


def test_every_cut_and_flip_of_a_sidecars_header_is_a_report_or_a_refusal(
    cli: Cli, model: Model, tmp_path: Path
) -> None:
    whole = tsd41(tmp_path / "x.bin", model).read_bytes()
    path = tmp_path / "y.bin"
    for at in [*range(0, 70, 3), 300, len(whole) - 1]:
        path.write_bytes(whole[:at])
        assert cli("show", path).code in (0, 2)
    for at in range(8, 68):
        flipped = bytearray(whole)
        flipped[at] ^= 0x81
        path.write_bytes(flipped)
        assert cli("show", path).code in (0, 2)
        assert cli("check", "params", path).code in (1, 2)
