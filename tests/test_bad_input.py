"""Bad input is one line, exit code 2, and nothing left behind: each kind of it, for people and for scripts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import ROWS, TOKEN_MAP, Mini, config, rewrite, shard, token_map_of, write_shard
from cli_helpers import Cli, Refusal
from faults import Faulty

from engramctl import tiny_tokenizer
from formats import disk
from formats.gguf_file import read_header

EMBED = "layers.1.engram.embed.weight"
SCALE = "layers.1.engram.embed.scale"
WKV = "layers.14.engram.wkv.weight"


class Bad:
    """A mini checkpoint to break, and the commands that must refuse it."""

    def __init__(self, cli: Cli, folder: Path) -> None:
        self.cli, self.folder, self.mini = cli, folder, Mini()
        self.path = folder / "ckpt"

    def write(self) -> Path:
        return self.mini.write(self.path)

    def refused(self, *, by: tuple[str, ...] = ("repack", "params", "run", "lookup")) -> Refusal:
        """Whatever needs the checkpoint refuses it in the same words."""
        if not self.path.exists():
            self.write()
        given = ("--token-map", token_map_of(self.path)) if token_map_of(self.path).exists() else ()
        words = {
            "repack": ("repack", self.path, "-o", self.folder / "out.gguf", *given),
            "params": ("params", self.path, "-o", self.folder / "out.json", *given),
            "run": ("run", self.path, "--layer", 1, "--ids", "1,2", "--stop-at", "kv", "-o", self.folder / "o", *given),
            "lookup": ("lookup", self.path, "--layer", 1, "--rows", "0:3", "-o", self.folder / "out.npy"),
        }
        refusals = [self.cli.refused(self.folder, *words[command]) for command in by]
        assert len(set(refusals)) == 1, refusals
        if "repack" in by:
            assert self.cli.refused_twice(self.folder, *words["repack"]) == refusals[0]
        return refusals[0]


@pytest.fixture
def bad(cli: Cli, tmp_path: Path) -> Bad:
    return Bad(cli, tmp_path)


# checkpoints


def test_no_config(bad: Bad) -> None:
    (bad.write() / "config.json").unlink()
    refusal = bad.refused()
    assert refusal.where == str(bad.path)
    assert refusal.expected == "a config.json"
    assert "--profile" in refusal.hint


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"null", b'{"text_config": 5}', b"\xff\xfe{}", b"[" * 100_000, b'{"a": 1' + b"0" * 5000]
)
def test_a_config_that_is_none(bad: Bad, text: bytes) -> None:
    (bad.write() / "config.json").write_bytes(text)
    assert bad.refused().where.startswith(str(bad.path / "config.json"))


@pytest.mark.parametrize("key", list(config()["text_config"]))
def test_a_config_without_a_needed_key(bad: Bad, key: str) -> None:
    del bad.mini.text[key]
    refusal = bad.refused()
    assert key in refusal.expected
    assert refusal.found == "no such key"


@pytest.mark.parametrize("value", [None, -1, 0, 1.5, "4", True, [4], 2**70, float("nan"), float("inf")])
@pytest.mark.parametrize("key", ["engram_max_ngram_size", "engram_layer_ids", "engram_vocab_size", "hidden_size"])
def test_a_config_whose_sizes_are_none(bad: Bad, key: str, value: Any) -> None:  # noqa: ANN401
    bad.mini.text[key] = value
    refusal = bad.refused()
    assert refusal.where.startswith(str(bad.path / "config.json"))
    assert key in refusal.where + refusal.expected or value == [4]  # a list of one: there are two row counts


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"engram_num_embeddings": [19, 30]}, EMBED),
        ({"engram_head_dim": 128}, EMBED),
        ({"hidden_size": 64}, "wkv"),
        ({"engram_n_heads": 3}, "wkv"),
        ({"hc_mult": 1}, "wkv"),
        ({"engram_max_ngram_size": 3}, "wkv"),
    ],
)
def test_a_config_that_contradicts_its_tensors(bad: Bad, changes: dict[str, Any], named: str) -> None:
    bad.mini.text.update(changes)
    refusal = bad.refused()
    assert named in refusal.where
    assert str(bad.path / "model.safetensors") in refusal.where


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"engram_layer_ids": [1]}, "engram_num_embeddings"),
        ({"engram_layer_ids": [1, 1]}, "engram_layer_ids"),
        ({"engram_pad_token_id": len(TOKEN_MAP)}, "engram_pad_token_id"),
        ({"engram_compressed_vocab_size": len(TOKEN_MAP) + 1}, "engram_compressed_vocab_size"),
        ({"engram_pad_id": 3}, "engram_pad_id"),  # inference/config.json's spelling of another value
    ],
)
def test_a_config_that_contradicts_itself(bad: Bad, changes: dict[str, Any], named: str) -> None:
    bad.mini.text.update(changes)
    assert named in bad.refused().where


def test_rows_that_are_not_the_primes_sum(bad: Bad) -> None:
    """The hash would never reach them, or would pass the end."""
    bad.mini.text["engram_vocab_size"] = 5  # 5 and 7, not 7 and 11
    refusal = bad.refused(by=("repack",))
    assert {refusal.found, refusal.expected.split()[0]} == {"12", "18"}
    bad.mini.text["engram_vocab_size"] = 50
    (bad.path / "config.json").write_text(json.dumps(bad.mini.config))
    assert "layer 1" in bad.refused(by=("params",)).expected


def test_a_shard_that_is_needed_but_absent(bad: Bad) -> None:
    folder = bad.write()
    index = {"weight_map": dict.fromkeys(bad.mini.tensors, "model-00002-of-00002.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refusal = bad.refused()
    assert refusal.where == str(folder / "model-00002-of-00002.safetensors")
    assert EMBED in refusal.expected


def test_a_tensor_that_no_shard_has(bad: Bad) -> None:
    del bad.mini.tensors[WKV]
    assert WKV in bad.refused().expected


def test_a_tensor_that_the_index_promises_elsewhere(bad: Bad) -> None:
    folder = bad.write()
    shard(folder / "other.safetensors", {"x": ("U8", (1,), b"x")})
    places = dict.fromkeys(bad.mini.tensors, "model.safetensors") | {WKV: "other.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    refusal = bad.refused()
    assert WKV in refusal.where
    assert refusal.found == "none"


@pytest.mark.parametrize("name", ["../x.safetensors", "a/b.safetensors", "/etc/passwd", "..", "a\\b", "", "a\0b", 5])
def test_a_shard_name_that_leaves_the_folder(bad: Bad, name: object) -> None:
    folder = bad.write()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {EMBED: name}}))
    assert EMBED in bad.refused().where


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"weight_map": []}', b"\xff", b'{"weight_map": {"a": "b"}'])
def test_an_index_that_is_none(bad: Bad, text: bytes) -> None:
    (bad.write() / "model.safetensors.index.json").write_bytes(text)
    assert bad.refused().where.startswith(str(bad.path / "model.safetensors.index.json"))


@pytest.mark.parametrize("left", [0, 1, 7, 8, 100, -1, -1000])
def test_a_truncated_shard(bad: Bad, left: int) -> None:
    path = bad.write() / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:left])
    assert bad.refused().where.startswith(str(path))


def test_a_header_longer_than_its_file(bad: Bad) -> None:
    path = bad.write() / "model.safetensors"
    for length in (10**6, 100_000_001, 2**63, 2**64 - 1):
        rewrite(path, lambda data, length=length: data.__setitem__(slice(0, 8), length.to_bytes(8, "little")))
        refusal = bad.refused()
        assert refusal.where.startswith(str(path))
        assert str(length) in refusal.found + refusal.expected


def entries(bad: Bad) -> tuple[dict[str, Any], bytes]:
    """The shard's header and data, to write it anew."""
    data = (bad.write() / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


@pytest.mark.parametrize(
    "change",
    [
        lambda span, size: [span[0], span[1] + 1],  # overlaps the next
        lambda span, size: [span[0] + 1, span[1] + 1],
        lambda span, size: [size - 10, size - 10 + span[1] - span[0]],  # past the end
        lambda span, size: [2**63, 2**63 + 1],
        lambda span, size: [span[1], span[0]],
        lambda span, size: [0, 0],
        lambda span, size: [-1, span[1]],
        lambda span, size: [span[0]],
        lambda span, size: "here",
    ],
)
def test_spans_that_overlap_or_leave_the_file(bad: Bad, change: Callable[[list[int], int], Any]) -> None:
    header, data = entries(bad)
    header[SCALE]["data_offsets"] = change(header[SCALE]["data_offsets"], len(data))
    write_shard(bad.path / "model.safetensors", header, data)
    assert bad.refused().where.startswith(f"{bad.path / 'model.safetensors'} at tensor")


@pytest.mark.parametrize("name", [EMBED, SCALE, WKV, "layers.14.engram.wkv.scale", "layers.1.engram.q_weight"])
def test_a_wrong_dtype_is_named_with_both(bad: Bad, name: str) -> None:
    dtype, shape, data = bad.mini.tensors[name]
    other = "F16" if dtype == "BF16" else "U8"
    bad.mini.tensors[name] = (other, shape, data)
    refusal = bad.refused()
    assert name in refusal.where
    assert refusal.expected.startswith(dtype)
    assert refusal.found.startswith(other)


@pytest.mark.parametrize("name", [EMBED, SCALE, WKV, "layers.14.engram.wkv.scale", "layers.1.engram.q_weight"])
def test_a_wrong_shape_is_named_with_both(bad: Bad, name: str) -> None:
    dtype, shape, data = bad.mini.tensors[name]
    bad.mini.tensors[name] = (dtype, shape[::-1], data)
    refusal = bad.refused()
    assert name in refusal.where
    assert str(list(shape)) in refusal.expected
    assert str(list(shape[::-1])) in refusal.found


def test_scales_of_the_wrong_count(bad: Bad) -> None:
    dtype, (rows, width), data = bad.mini.tensors[SCALE]
    bad.mini.tensors[SCALE] = (dtype, (rows - 1, width), data[:-width])
    refusal = bad.refused()
    assert SCALE in refusal.where
    assert f"[{rows}, {width}]" in refusal.expected
    assert f"[{rows - 1}, {width}]" in refusal.found


def test_zero_rows(bad: Bad) -> None:
    bad.mini.text["engram_num_embeddings"] = [0, ROWS[14]]
    bad.mini.tensors[EMBED] = ("F8_E4M3", (0, 256), b"")
    bad.mini.tensors[SCALE] = ("F8_E8M0", (0, 8), b"")
    assert "engram_num_embeddings" in bad.refused().where


def test_a_layer_that_is_not_there(bad: Bad) -> None:
    path, given = bad.write(), ("--token-map", token_map_of(bad.path))
    cli, folder = bad.cli, bad.folder
    refusal = cli.refused_twice(folder, "repack", path, "-o", folder / "x.gguf", "--layers", "1,2", *given)
    assert (refusal.where, refusal.found) == ("--layers", "2")
    assert "1, 14" in refusal.expected
    for words in (
        ("lookup", path, "--layer", 2, "--rows", 0),
        ("run", path, "--layer", 2, "--ids", 1, "--stop-at", "rows", *given),
    ):
        refusal = cli.refused(folder, *words)
        assert (refusal.where, refusal.found) == ("--layer", "2")
    refusal = cli.refused(folder, "lookup", path, "--rows", 0)  # which of the two?
    assert (refusal.where, refusal.expected, refusal.found) == ("--layer", "one of 1, 14", "none")


# tokenizers and maps


@pytest.mark.parametrize("text", [b"{}", b'{"model": {}}', b"{", b'{"version": "1.0", "model": {"type": "BPE"}}'])
def test_a_file_that_is_no_tokenizer(bad: Bad, text: bytes) -> None:
    (bad.write() / "tokenizer.json").write_bytes(text)
    token_map_of(bad.path).unlink()
    refusal = bad.refused(by=("repack", "params", "run"))
    assert str(bad.path / "tokenizer.json") in refusal.where
    cli, folder = bad.cli, bad.folder
    refusal = cli.refused_twice(folder, "map", bad.path / "tokenizer.json", "-o", folder / "map.bin")
    assert str(bad.path / "tokenizer.json") in refusal.where
    words = ("hash", "--text", "hello", "--tokenizer", bad.path / "tokenizer.json", "-o", folder / "rows.tsv")
    assert str(bad.path / "tokenizer.json") in cli.refused(folder, *words).where


def test_a_tokenizer_of_other_counts_than_the_config(bad: Bad) -> None:
    (bad.write() / "tokenizer.json").write_text(tiny_tokenizer.text())
    token_map_of(bad.path).unlink()
    refusal = bad.refused(by=("repack", "params", "run"))
    assert str(len(TOKEN_MAP)) in refusal.expected
    assert str(tiny_tokenizer.COUNT) in refusal.found


def test_no_map_that_fits(bad: Bad) -> None:
    bad.write()
    token_map_of(bad.path).unlink()
    refusal = bad.refused(by=("repack", "params", "run"))
    assert "--token-map" in refusal.hint
    assert "tokenizer.json" in refusal.hint


# token ids, masks, histories

TOO_LARGE = "129280"


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ("-1", "-1"),
        ("5,-1", "-1 at position 1"),
        (TOO_LARGE, "129280 at position 0"),
        ("0 1,2 99999999999", "99999999999"),
        (str(2**63), str(2**63)),
        ("9" * 5000, "999"),
        ("-" + "9" * 30, "-999"),
        ("1,x", "'x' at position 1"),
        ("1.0", "'1.0'"),
        ("1e3", "'1e3'"),
        ("0x10", "'0x10'"),
        ("1_000", "'1_000'"),
        ("+1", "'+1'"),
        ("--1", "'--1'"),
        ("\u0661", "at position 0"),  # a digit, but not one of these
        ("", "an empty input"),
        (" , ,", "nothing between commas at position 0"),
        ("nan", "'nan'"),
    ],
)
def test_ids_that_are_negative_too_large_or_no_numbers(cli: Cli, tmp_path: Path, ids: str, found: str) -> None:
    words = ("hash", f"--ids={ids}", "-o", tmp_path / "rows.tsv")
    assert found in cli.refused(tmp_path, *words).found
    (tmp_path / "ids.txt").write_text(ids)
    if ids:
        words = ("hash", tmp_path / "ids.txt", "-o", tmp_path / "rows.tsv")
        assert found in cli.refused(tmp_path, *words).found
        assert found in cli.refused(tmp_path, "hash", "-", "-o", tmp_path / "rows", stdin=ids.encode()).found


@pytest.mark.parametrize(
    "text",
    [b"[1, null]", b"null", b"[[1]]", b"1.5", b"true", b'"1"', b"{}", b"[1", b"[" * 100_000, b"\xff", b"[1, 1e999]"],
)
def test_jsonl_that_holds_no_ids(cli: Cli, tmp_path: Path, text: bytes) -> None:
    (tmp_path / "ids.jsonl").write_bytes(b"3\n" + text + b"\n")
    refusal = cli.refused(tmp_path, "hash", tmp_path / "ids.jsonl", "-o", tmp_path / "rows.tsv")
    assert refusal.where.startswith(str(tmp_path / "ids.jsonl"))


@pytest.mark.parametrize(
    "array",
    [
        np.array([1.0, 2.0]),
        np.array([[1, 2]]),
        np.array(3),
        np.array([True]),
        np.array(["1"]),
        np.array([], np.int64),
        np.array([2**63], np.uint64),
        np.array([-1]),
        np.array([{}], object),
        np.zeros(2, [("a", "i4")]),
    ],
    ids=["float", "2d", "0d", "bool", "text", "empty", "u64", "negative", "object", "records"],
)
def test_npy_that_holds_no_ids(cli: Cli, tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "ids.npy", array, allow_pickle=True)
    cli.refused(tmp_path, "hash", tmp_path / "ids.npy", "-o", tmp_path / "rows.tsv")


@pytest.mark.parametrize("cut", [0, 5, 8, 20, 100, 129])
def test_npy_that_was_cut(cli: Cli, tmp_path: Path, cut: int) -> None:
    np.save(tmp_path / "whole.npy", np.arange(5))
    (tmp_path / "ids.npy").write_bytes((tmp_path / "whole.npy").read_bytes()[:cut])
    cli.refused(tmp_path, "hash", tmp_path / "ids.npy", "-o", tmp_path / "rows.tsv")


def test_u32_that_was_cut(cli: Cli, tmp_path: Path) -> None:
    words = ("hash", "-", "--ids-format", "u32", "-o", tmp_path / "rows.tsv")
    assert cli.refused(tmp_path, *words, stdin=bytes(7)).found == "7 bytes"


@pytest.mark.parametrize("mask", ["1,1", "1,1,0,1", "1,1,2", "1,1,-1", "1,1,x", "", "1 1 1.0"])
def test_a_mask_of_another_length_or_value(cli: Cli, tmp_path: Path, mask: str) -> None:
    words = ("hash", "--ids", "1,2,3", "-o", tmp_path / "rows.tsv")
    assert cli.refused(tmp_path, *words, f"--mask={mask}").where == "--mask"
    (tmp_path / "mask.txt").write_text(mask)
    assert str(tmp_path / "mask.txt") in cli.refused(tmp_path, *words, "--mask-file", tmp_path / "mask.txt").where


@pytest.mark.parametrize("history", ["1,2,3,4", "99092", "-2", "x", "1.5", str(2**64)])
def test_a_history_that_is_none(cli: Cli, tmp_path: Path, history: str) -> None:
    refusal = cli.refused(tmp_path, "hash", "--ids", "1", f"--history={history}", "-o", tmp_path / "rows.tsv")
    assert "history" in refusal.where


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--ids", "1", "--text", "a"),
        ("--ids", "1", "--ids-file", "x"),
        ("x", "--ids-file", "y"),
        ("x", "y"),
        ("x", "y", "--to", "sha256", "--mask", "1"),
        ("--ids", "1", "--mask", "1", "--mask-file", "x"),
    ],
)
def test_several_inputs_or_none(cli: Cli, tmp_path: Path, words: tuple[str, ...]) -> None:
    cli.refused(tmp_path, "hash", *words, "-o", tmp_path / "rows.tsv")


def test_empty_standard_input(cli: Cli, container: Path, tmp_path: Path) -> None:
    out = ("-o", tmp_path / "out")
    ids = ("--layer", 1, "--ids", "1,2")
    for words in (
        ("hash", "-", *out),
        ("hash", "--ids-file", "-", *out),
        ("hash", "--ids", "1", "--mask-file", "-", *out),
        ("map", "-", *out),
        ("lookup", container, "--layer", 1, "--rows-file", "-", *out),
        ("run", container, *ids, "--hidden", "-", *out),
        ("check", "hash", "-", "--ids", "1,2"),
        ("check", "values", "-", container, *ids),
        ("check", "gate", "-"),
    ):
        refusal = cli.refused(tmp_path, *words)
        assert refusal.where == "standard input", words
        assert refusal.found.startswith("an empty"), words


# hidden states


@pytest.mark.parametrize(
    ("array", "found"),
    [
        (np.zeros((3, 4, 64), np.float32), "[3, 4, 64]"),
        (np.zeros((2, 3, 64), np.float32), "[2, 3, 64]"),
        (np.zeros((2, 4, 63), np.float32), "[2, 4, 63]"),
        (np.zeros((2, 256), np.float32), "[2, 256]"),
        (np.zeros((2, 4, 64)), "float64"),
        (np.zeros((2, 4, 64), np.int64), "int64"),
        (np.zeros((2, 4, 64), np.float16), "float16"),
        (np.full((2, 4, 64), np.nan, np.float32), "512"),
        (np.full((2, 4, 64), np.inf, np.float32), "512"),
        (np.full((2, 4, 64), 0x7F80, np.uint16), "512"),
        (np.full((2, 4, 64), 0xFFC0, np.uint16), "512"),
        (np.full((2, 4, 64), 0.1, np.float32), "512"),
    ],
    ids=["T", "S", "D", "2d", "f64", "i64", "f16", "nan", "inf", "bf16-inf", "bf16-nan", "inexact"],
)
def test_hidden_states_of_the_wrong_shape_dtype_or_value(
    cli: Cli, container: Path, tmp_path: Path, array: np.ndarray, found: str
) -> None:
    np.save(tmp_path / "h.npy", array)
    words = ("run", container, "--layer", 1, "--ids", "5,6", "--hidden", tmp_path / "h.npy", "-o", tmp_path / "out.npy")
    refusal = cli.refused(tmp_path, *words)
    assert str(tmp_path / "h.npy") in refusal.where
    assert found in refusal.found
    assert ("--round-hidden" in refusal.hint) == (float(array.flat[0]) == np.float32(0.1))


def test_hidden_states_where_they_are_needed(cli: Cli, container: Path, tmp_path: Path) -> None:
    words = ("run", container, "--layer", 1, "--ids", "5,6", "-o", tmp_path / "out.npy")
    for more in ((), ("--stop-at", "gate")):
        assert cli.refused(tmp_path, *words, *more).where == "--hidden"


def test_hidden_states_in_a_file_without_them(cli: Cli, container: Path, tmp_path: Path) -> None:
    shard(tmp_path / "h.safetensors", {"states": ("BF16", (2, 4, 64), bytes(1024))})
    (tmp_path / "h.txt").write_text("1 2 3")
    np.savez(tmp_path / "h.npz", hidden=np.zeros((2, 4, 64), np.float32))
    for name in ("h.safetensors", "h.txt", "h.npz"):
        words = ("run", container, "--layer", 1, "--ids", "5,6", "--hidden", tmp_path / name, "-o", tmp_path / "out")
        assert str(tmp_path / name) in cli.refused(tmp_path, *words).where


# rows


@pytest.mark.parametrize(
    "rows", ["", "x", "-1", "1:", ":1", "5:5", "6:5", "1:2:3", "1.5", "0,", "999999999", "0:999999"]
)
def test_row_sets_that_are_none(cli: Cli, container: Path, tmp_path: Path, rows: str) -> None:
    words = ("lookup", container, "--layer", 1, "-o", tmp_path / "out.npy")
    assert cli.refused(tmp_path, *words, f"--rows={rows}").where == "--rows"


# files and folders


def test_a_folder_for_a_file(cli: Cli, container: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "folder", tmp_path / "out"
    folder.mkdir()
    ids = ("--layer", 1, "--ids", "1,2")
    for words in (
        ("hash", folder, "-o", out),
        ("hash", "--ids", 1, "--mask-file", folder, "-o", out),
        ("hash", "--ids", 1, "--token-map", folder, "-o", out),
        ("hash", "--text", "a", "--tokenizer", folder, "-o", out),
        ("hash", "--check", folder),
        ("lookup", container, "--layer", 1, "--rows-file", folder, "-o", out),
        ("run", container, *ids, "--hidden", folder, "-o", out),
        ("check", "hash", folder, "--ids", 1),
        ("check", "values", folder, container, *ids),
        ("check", "kv", folder, container, *ids),
        ("check", "gate", folder),
        ("check", "file", folder),
    ):
        refusal = cli.refused(tmp_path, *words)
        assert refusal.where == str(folder), words
        assert (refusal.expected, refusal.found) == ("a file", "a folder"), words
    for words in (
        ("hash", "--ids", 1, "-o", folder),
        ("map", "-o", folder),
        ("params", "-o", folder),
        ("lookup", container, "--layer", 1, "--rows", 0, "-o", folder),
    ):
        for more in ((), ("--force",)):
            refusal = cli.refused(tmp_path, *words, *more)
            assert (refusal.where, refusal.expected, refusal.found) == (str(folder), "a file", "a folder"), words


def test_a_file_for_a_folder(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    assert cli.refused_twice(tmp_path, "synth", file).expected == "a folder"
    assert cli.refused_twice(tmp_path, "synth", file / "below").where.startswith(str(file))
    for words in (("hash", "--ids", 1), ("params",), ("map",)):
        assert cli.refused(tmp_path, *words, "-o", file / "out").where == str(file)


def test_an_empty_folder_is_no_checkpoint(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    for command in ("repack", "show"):
        words = (command, tmp_path / "x", *(("-o", tmp_path / "out.gguf") if command == "repack" else ()))
        assert cli.refused_twice(tmp_path, *words).where == str(tmp_path / "x")


def test_nothing_there(cli: Cli, container: Path, tmp_path: Path) -> None:
    gone, out, ids = tmp_path / "gone", ("-o", tmp_path / "out"), ("--layer", 1, "--ids", "1,2")
    for words in (
        ("hash", gone, *out),
        ("hash", "--check", gone),
        ("hash", "--ids", 1, "--params", gone, *out),
        ("map", gone, *out),
        ("params", gone, *out),
        ("repack", gone, *out),
        ("show", gone),
        ("lookup", gone, "--rows", 0, *out),
        ("run", gone, *ids, "--stop-at", "rows", *out),
        ("run", container, *ids, "--hidden", gone, *out),
        ("check", "map", gone),
        ("check", "params", gone),
        ("check", "hash", gone, "--ids", 1),
        ("check", "values", gone, container, *ids),
        ("check", "packing", gone, container),
        ("check", "packing", container, gone),
        ("check", "gate", gone),
        ("check", "file", gone),
        ("check", "source", gone),
    ):
        refusal = cli.refused(tmp_path, *words)
        assert refusal.where == str(gone), words
        assert refusal.found == "nothing there", words


def test_an_output_in_no_folder(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "gone" / "out"
    for words in (("hash", "--ids", 1), ("map",), ("params",), ("repack", tiny)):
        refusal = cli.refused(tmp_path, *words, "-o", out)
        assert (refusal.where, refusal.found) == (str(out.parent), "nothing there")


def test_an_existing_output(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    np.save(tmp_path / "h.npy", np.zeros((1, 4, 64), np.float32))
    run = ("run", container, "--layer", 1, "--ids", 1)
    for words in (
        ("hash", "--ids", 1),
        ("hash", "--ids", 1, "--to", "sha256"),
        ("map",),
        ("params",),
        ("repack", tiny),
        ("lookup", container, "--layer", 1, "--rows", 0),
        (*run, "--stop-at", "rows"),
        (*run, "--hidden", tmp_path / "h.npy"),
    ):
        refusal = cli.refused(tmp_path, *words, "-o", out)
        assert (refusal.where, refusal.found) == (str(out), "an existing file")
        assert "--force" in refusal.expected
        assert out.read_text() == "mine"
    for words in (("hash", "--ids", 1), ("map",), ("repack", tiny)):
        cli.ok(*words, "-o", out, "--force", "--quiet")


def test_a_folder_with_files_is_no_place_for_a_checkpoint(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "mine").write_text("mine")
    assert "--force" in cli.refused_twice(tmp_path, "synth", tmp_path / "x").expected


def test_a_pipe_for_a_container(cli: Cli, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert cli.refused(tmp_path, "lookup", tmp_path / "pipe", "--rows", 0).found == "a device or a pipe"


# too little disk, for whatever writes


@pytest.mark.parametrize("room", [0, 100])
def test_a_full_disk(cli: Cli, container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    run = ("run", container, "--layer", 1, "--ids", "1,2,3")
    for words in (
        ("hash", "--ids", "1,2,3"),
        ("map",),
        ("params",),
        ("lookup", container, "--layer", 1, "--rows", "0:99"),
        (*run, "--stop-at", "kv"),
    ):
        monkeypatch.setattr(disk, "system", Faulty(room=room))
        refusal = cli.refused(tmp_path, *words, "-o", tmp_path / "out")
        assert refusal.found == "no space left on device"
        assert refusal.where.startswith(str(tmp_path / "out"))


# containers


def test_a_container_that_was_cut(cli: Cli, container: Path, tmp_path: Path) -> None:
    data = container.read_bytes()
    for left in (0, 3, 4, 24, 1000, 16384, len(data) // 2, len(data) - 16384):
        (tmp_path / "cut.gguf").write_bytes(data[:left])
        for words in (
            ("lookup", tmp_path / "cut.gguf", "--layer", 14, "--rows", 0, "-o", tmp_path / "out"),
            ("params", tmp_path / "cut.gguf", "-o", tmp_path / "out"),
        ):
            assert cli.refused(tmp_path, *words).where.startswith(str(tmp_path / "cut.gguf"))


@pytest.mark.parametrize("command", ["lookup", "run"])
def test_a_row_of_a_container_that_has_no_value(cli: Cli, container: Path, tmp_path: Path, command: str) -> None:
    table = read_header(container).tensor("blk.1.engram_embd.weight")
    data = bytearray(container.read_bytes())
    for row in range(table.shape[1]):
        data[table.start + row * 264 + 7] = 0xFF
    (tmp_path / "bad.gguf").write_bytes(data)
    more = {"lookup": ("--rows", "9,3"), "run": ("--ids", "1,2", "--stop-at", "values")}[command]
    refusal = cli.refused(tmp_path, command, tmp_path / "bad.gguf", "--layer", 1, *more, "-o", tmp_path / "out")
    assert "layer 1 row" in refusal.where
    assert "byte 7" in refusal.where
    if command == "lookup":
        assert "row 9 byte" in refusal.where  # the first asked for
        cli.ok("lookup", tmp_path / "bad.gguf", "--layer", 1, "--to", "raw", *more, "-o", tmp_path / "raw.npy")


def test_names_out_of_files_reach_a_terminal_escaped(bad: Bad) -> None:
    header, data = entries(bad)
    header["x\x1b[2J\nengramctl: error: \u202e"] = {"dtype": "NOPE", "shape": [1], "data_offsets": [0, 1]}
    write_shard(bad.path / "model.safetensors", header, data)
    refusal = bad.refused()
    assert "\x1b" not in refusal.where
