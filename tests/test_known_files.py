"""Files of this tool, and of checkpoints, where another is expected: each is called what it is, with the way on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_helpers import Cli

SHOWN = "a checkpoint folder, a safetensors file, a GGUF, a token map or a file of rows"
MAPS = "a token map, a tokenizer.json, a container or a checkpoint"


@pytest.fixture
def folder(cli: Cli, tiny: Path, tmp_path: Path) -> Path:
    """One of each."""
    cli.ok("params", tiny, "-o", tmp_path / "p.json")
    cli.ok("params", tiny, "-o", tmp_path / "p.npz")
    cli.ok("probe", "hash", "-o", tmp_path / "probe.json")
    cli.ok("probe", "gate", "-o", tmp_path / "probe.npz", "--hidden-size", 64)
    cli.ok("hash", "--ids", "1,2", "-o", tmp_path / "r.npy")
    cli.ok("hash", "--ids", "1,2", "-o", tmp_path / "r.jsonl")
    cli.ok("hash", "--ids", "1,2", "-o", tmp_path / "r.tsv")
    np.savez(tmp_path / "other.npz", gate=np.zeros(3))
    (tmp_path / "some.json").write_text('{"a": 1}')
    for name in ("config.json", "model.safetensors.index.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((tiny / name).read_bytes())
    return tmp_path


FILES = {
    "p.json": ("hash constants of params", "check params "),
    "p.npz": ("hash constants in npz", "check params "),
    "probe.json": ("a probe for hashes", "check hash DUMP --probe "),
    "probe.npz": ("hidden states in npz, for the gate", "check gate "),
    "r.npy": ("an npy file", "check hash, check values"),
    "other.npz": ("an npz or zip file", "check hash, check values"),
    "r.jsonl": ("rows of hash in jsonl", "check hash "),
    "r.tsv": ("a text file", ""),
    "some.json": ("a JSON file", ""),
    "config.json": ("a model's config", "give the folder it is in"),
    "model.safetensors.index.json": ("the index of a checkpoint", "give the folder it is in"),
    "tokenizer.json": ("a tokenizer", "map "),
}


def test_show_says_what_it_is_and_what_takes_it(cli: Cli, folder: Path) -> None:
    for name, (kind, hint) in FILES.items():
        refusal = cli.refused_twice(folder, "show", folder / name)
        assert (refusal.where, refusal.expected, refusal.found) == (str(folder / name), SHOWN, kind)
        assert refusal.hint.startswith(hint)
        assert bool(refusal.hint) == bool(hint)


def test_none_of_them_is_taken_for_a_token_map(cli: Cli, folder: Path, tiny: Path) -> None:
    for name, (kind, _) in FILES.items():
        if name not in ("tokenizer.json", "r.npy"):
            for words in (("map",), ("check", "map"), ("hash", "--ids", "1", "--token-map")):
                refusal = cli.refused(folder, *words, folder / name)
                assert (refusal.expected, refusal.found) == (MAPS, kind)
    shard = next(tiny.glob("*.safetensors"))
    assert cli.refused(folder, "map", shard).found == "a safetensors file"
    assert cli.refused(folder, "check", "file", shard).found == "a safetensors file"
    refusal = cli.refused(folder, "map", "-", stdin=(folder / "p.json").read_bytes())
    assert (refusal.where, refusal.hint.split(" compares")[0]) == ("standard input", "check params -")


def test_maps_in_every_form_are_read_as_ever(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    words = ("--allow-mismatch", "-o", tmp_path / "x", "--force")
    for form in ("u32", "i64", "npy", "json"):
        cli.ok("map", tiny / "tokenizer.json", "--allow-mismatch", "--to", form, "-o", tmp_path / f"m.{form}")
        cli.ok("map", tmp_path / f"m.{form}", *words)
        assert (tmp_path / "x").read_bytes() == (tmp_path / "m.u32").read_bytes()
    (tmp_path / "object.json").write_text(
        '{"multipliers": [1], "token_map": ' + (tmp_path / "m.json").read_text() + "}"
    )
    cli.ok("map", tmp_path / "object.json", *words)
    assert (tmp_path / "x").read_bytes() == (tmp_path / "m.u32").read_bytes()


@pytest.mark.parametrize(
    ("text", "expected", "found"),
    [
        ('{"layers": }', "JSON", '"}"'),
        ('{"layers": "x', "JSON", 'a text without its end: "\\"x"'),
        ('{"layers":', "JSON", "the end of it"),
    ],
)
def test_broken_json_is_told_in_words_of_ours(cli: Cli, tmp_path: Path, text: str, expected: str, found: str) -> None:
    (tmp_path / "p.json").write_text(text)
    refusal = cli.refused(tmp_path, "hash", "--ids", "1", "--params", tmp_path / "p.json")
    assert (refusal.expected, refusal.found) == (expected, found)


def test_so_are_a_broken_tokenizer_and_a_broken_list(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"model": 1}')
    refusal = cli.refused(tmp_path, "map", tmp_path / "t.json")
    assert refusal.expected == "a tokenizer.json"
    assert refusal.found.startswith('what tokenizers refuses: "')
    (tmp_path / "m.json").write_text("[1,2")
    assert cli.refused(tmp_path, "map", tmp_path / "m.json").found == "text that is none from character 4"
