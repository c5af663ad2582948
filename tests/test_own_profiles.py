"""Profiles that no release has: even moduli, rows of 24, one head, padding in between, columns in any order. Every
command works on them, and their rows are those of the rule written out."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import Cli

LENGTHS = "lists of the lengths"
MULTIPLIERS = [1234567, 7654321, 1111111, 2222223, 3333333, 987653]
MODULI, GAPS, BACKWARDS = [10, 12, 100, 64, 2], [0, 10, 30, 150, 400], [400, 300, 200, 100, 0]
IDS, EOS = [5, 6, 3, 7, 8, 49, 5, 6], 3


def profile(
    moduli: list[int], offsets: list[int], rows: int, width: int, shards: int, layers: list[int], more: str = ""
) -> str:
    """Qwen3.8's rule with other numbers, which no derivation gives."""
    count, size = len(layers), len(moduli) + 1
    roles = ("key", "value", "norm_key", "norm_query", "norm_conv", "conv")
    tensors = "\n".join(f'{role} = {{ name = "l{{layer}}.{role}", dtype = "BF16" }}' for role in roles)
    return f"""
name = "mine"
title = "My own"
[sources]
[sizes]
layers = {layers}
rows = {[rows] * count}
size = {size}
heads = 1
width = {width}
base = 10
vocabulary = 50
compressed = 50
pad_token_id = {EOS}
eos_token_id = {EOS}
hidden = 16
streams = 2
eps = 1e-6
[storage]
layout = "shards"
encoding = "bf16"
shards = {shards}
[module]
projection = "key_value"
bias = false
norm = "one_plus"
gate = "sign"
clamp = 1e-6
kernel = 4
dilation = 3
conv_eps = 1e-6
combine = "add"
[rule]
id_space = "raw"
order = "newest_first"
align = "current"
boundary = ["start", "eos"]
filler = "eos"
sticky = true
mix = "xor_mul"
mix_scope = "order"
[derivation]
moduli = "explicit"
multipliers = "explicit"
[constants]
moduli = {[moduli] * count}
offsets = {[offsets] * count}
multipliers = {[MULTIPLIERS[:size]] * count}
[tensors]
table = {{ name = "l{{layer}}.table.{{i}}", dtype = "BF16" }}
moduli = {{ name = "l{{layer}}.moduli", dtype = "I64" }}
{tensors}
{more}
"""


SIZES = (
    "layers", "rows", "size", "heads", "width", "base", "vocabulary", "compressed", "pad_token_id", "eos_token_id",
    "hidden", "streams", "eps",
)  # fmt: skip
KEYS = "\n".join(["[config_keys]", *(f'{size} = ["my_{size}"]' for size in SIZES)])
PROFILES = {
    "even": profile(MODULI, GAPS, 420, 24, 7, [0], KEYS),
    "without config": profile(MODULI, GAPS, 420, 24, 7, [0]),
    "backwards": profile(MODULI, BACKWARDS, 420, 24, 7, [0], KEYS),
    "one row": profile([1], [5], 8, 3, 8, [2, 0, 7], KEYS),
}


def by_hand(moduli: list[int], offsets: list[int]) -> list[list[int]]:
    """Rows of IDS: an EOS ends its segment, and stands wherever nothing may be seen."""
    rows = []
    for t in range(len(IDS)):
        start = max((at + 1 for at in range(t) if IDS[at] == EOS), default=0)
        window = [IDS[at] if at >= start else EOS for at in range(t, t - len(moduli) - 1, -1)]
        mixed, row = window[0] * MULTIPLIERS[0], []
        for column, (modulus, offset) in enumerate(zip(moduli, offsets, strict=True)):
            mixed ^= window[column + 1] * MULTIPLIERS[column + 1]
            row.append(mixed % modulus + offset)
        rows.append(row)
    return rows


@pytest.mark.parametrize("name", PROFILES)
def test_every_command_takes_it(cli: Cli, tmp_path: Path, name: str) -> None:
    mine, folder, ids = tmp_path / "my.toml", tmp_path / "ckpt", ",".join(map(str, IDS))
    mine.write_text(PROFILES[name])
    model = ("--profile", mine)
    moduli, offsets = ([1], [5]) if name == "one row" else (MODULI, BACKWARDS if name == "backwards" else GAPS)
    rows = np.load(io.BytesIO(cli.ok("hash", *model, "--ids", ids, "--to", "npy").out))
    for number in range(rows.shape[1]):
        assert rows[:, number].tolist() == by_hand(moduli, offsets)
    (tmp_path / "rows.npy").write_bytes(cli.ok("hash", *model, "--ids", ids, "--to", "npy").out)
    cli.ok("check", "hash", tmp_path / "rows.npy", *model, "--ids", ids)
    assert "stored only" in cli.ok("params", *model, "-o", tmp_path / "p.json").err
    assert cli.refused(tmp_path, "synth", folder, *model).expected.startswith("--full-size")
    cli.ok("synth", folder, *model, "--full-size")
    assert cli.ok("show", folder, *model, "--json").json["dialect"] == "hf"
    report = cli.ok("check", "source", folder, *model, "--all-rows", "--json").json
    used = max(offset + modulus for offset, modulus in zip(offsets, moduli, strict=True))
    assert report["coverage"]["of"] == used * rows.shape[1]
    assert cli.ok("check", "params", folder, *model, "--json").json["ok"]
    layer = ("--layer", 2 if name == "one row" else 0)
    values = cli.ok("run", folder, *model, *layer, "--ids", ids, "--stop-at", "values").out
    (tmp_path / "values.npy").write_bytes(values)
    cli.ok("check", "values", tmp_path / "values.npy", folder, *model, *layer, "--ids", ids)
    listed = ",".join(map(str, rows[:, 0].reshape(-1)))
    looked = np.load(io.BytesIO(cli.ok("lookup", folder, *model, *layer, "--rows", listed).out))
    np.testing.assert_array_equal(np.load(io.BytesIO(values)).reshape(looked.shape), looked)
    hidden = np.random.default_rng(1).normal(size=(len(IDS), 2, 16)).astype(np.float32)
    np.save(tmp_path / "hidden.npy", hidden)
    cli.ok("run", folder, *model, *layer, "--ids", ids, "--hidden", tmp_path / "hidden.npy")
    if name == "one row":  # three layers, which no container of this kind holds
        assert cli.refused(tmp_path, "repack", folder, *model, "-o", tmp_path / "x").found == "several"
        return
    for dialect in ("qwen4exp", "ple-sidecar"):
        out = tmp_path / f"{dialect}.gguf"
        cli.ok("repack", folder, *model, "-o", out, "--dialect", dialect, "--row-type", "bf16")
        assert cli.ok("check", "packing", folder, out, *model, "--json").json["coverage"]["checked"] == 420
        cli.ok("check", "file", out)
    for bad in ("50", "-1"):
        assert bad in cli.refused(tmp_path, "hash", *model, f"--ids=5,{bad}").found
        assert bad in cli.refused(tmp_path, "run", folder, *model, f"--ids=5,{bad}", "--stop-at", "rows").found


WRONG = [
    ("compressed = 50", "compressed = 51", "sizes.compressed", "50, as the vocabulary"),
    ("\neos_token_id = 3", "\neos_token_id = 50", "sizes.eos_token_id", "a token id below 50"),
    ("\neos_token_id = 3", "", "sizes.eos_token_id", "a token id, which the rule names"),
    ("pad_token_id = 3", "pad_token_id = 99", "sizes.pad_token_id", "a token id below 50"),
    ("shards = 7", "shards = 8", "storage.shards", "shards that share 420 rows evenly"),
    ("shards = 7", "shards = 0", "storage.shards", "1 to 4096"),
    ("layers = [0]", "layers = [0, 0]", "sizes.rows", "2 row counts"),
    ("size = 6", "size = 7", "constants.moduli", LENGTHS),
    ("heads = 1", "heads = 2", "constants.moduli", LENGTHS),
    ("[1234567, ", "[", "constants.multipliers", LENGTHS),
    ("bias = false", "bias = true", "tensors.key_bias", "a name and a dtype"),
    ("table = {", "tabel = {", "tensors.table", "a name and a dtype"),
    ("norm_conv = {", "rest = {", "tensors.norm_conv", "a name and a dtype"),
    ("norm_query = {", "spare = { name = \"s\", dtype = \"BF16\" }\nnorm_query = {", "tensors.spare", "one of"),
    ('moduli", dtype = "I64"', 'moduli", dtype = "BF17"', "tensors.moduli", "a dtype of I64"),
    ("table.{i}", "table", "tensors.table", "a name with {i} in it"),
    ("l{layer}.conv", "l{layer}.key", "tensors.conv", "a name of its own"),
    ("kernel = 4", "kernel = 65", "module.kernel", "at most 64"),
    ('layout = "shards"', 'layout = "columns"', "storage.layout", "one that is defined"),
    ('["my_eps"]', '["my_eps"]\nratio = ["r"]', "config_keys.ratio", "one of"),
    ('eps = ["my_eps"]', "", "config_keys.eps", "keys for"),
    ('name = "mine"', 'name = ""', "name", "a text"),
    ('name = "mine"', 'name = "mi\\nne"', "name", "a text"),
    ("[sources]", "[sources]\n[variants]\nx = 5", "variants.x", "a table with a title"),
    ("sticky = true", "sticky = true\nfiler = \"pad\"", "rule.filer", "one of id_space"),
    ("[sources]", "[sources]\n[digests]\ntoken_map = \"00\"", "digests.token_map", "one of token_map_u32"),
    ("[sources]", "[sources]\n[digests]\ntoken_map_u32 = 5", "digests.token_map_u32", "a word"),
    ("[sources]", "[sources]\n[token_map]\nof = 5", "token_map", "a table"),
    ("[sources]", "[sources]\n[token_map]\nreplaced = { 7 = 70 }", "token_map.replaced", "token ids below 50"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "where", "expected"), WRONG)
def test_what_does_not_fit_together_is_named(
    cli: Cli, tmp_path: Path, old: str, new: str, where: str, expected: str
) -> None:
    """By whatever command reads it first."""
    mine = tmp_path / "my.toml"
    assert old in PROFILES["even"]
    mine.write_text(PROFILES["even"].replace(old, new, 1))
    for words in (("hash", "--ids", "5"), ("synth", tmp_path / "x", "--full-size"), ("params", "-o", tmp_path / "p")):
        refusal = cli.refused(tmp_path, *words, "--profile", mine)
        assert refusal.where == f"{mine} at {where}"
        assert expected in refusal.expected
