"""A user's own profile: it hashes as the shipped one that it copies, and what is odd in it is named with its place."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cli_helpers import Cli

from engramctl import profiles
from engramctl.errors import EngramctlError
from formats.errors import FormatError

DATA = Path(profiles.__file__).parent / "data"
NAMES = sorted(path.stem for path in DATA.glob("*.toml"))
Words = tuple[str, ...]


def own(folder: Path, name: str, *changes: tuple[str, str]) -> Path:
    """A copy of a shipped profile with some of its text changed."""
    text = (DATA / f"{name}.toml").read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    path = folder / "my.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", [name for name in NAMES if name != "engram-27b"])
def test_a_copy_hashes_as_the_shipped_one(cli: Cli, tmp_path: Path, name: str) -> None:
    mine = own(tmp_path, name, (f'name = "{name}"', 'name = "mine"'))
    if name == "deepseek-v4.1-flash":  # its map is shipped under its name
        mine.write_text(mine.read_text() + '\n[token_map]\nof = "deepseek-v4.1-flash"\n')
    words = ("--ids", "5,6,2,9,10,11", "--to", "sha256")
    want = cli.ok("hash", "--profile", name, *words).out
    assert cli.ok("hash", "--profile", mine, *words).out == want
    assert cli.ok("profiles", mine, "--json").json["profile"]["name"] == "mine"


def test_a_profile_of_ones_own_sizes_is_made_and_used(cli: Cli, tmp_path: Path) -> None:
    """LongCat's rule with two orders and two tables each, derived constants written by hand."""
    text = """
name = "mine"
title = "My own"
config = "longcat"
[sources]
[sizes]
layers = [-1]
rows = [168]
size = 3
heads = 2
width = 4
base = 38
vocabulary = 96
compressed = 96
pad_token_id = 0
eos_token_id = 1
hidden = 16
streams = 1
eps = 0.0
ratio = 0.4
[storage]
layout = "columns"
encoding = "bf16"
[module]
projection = "columns"
bias = false
norm = "none"
gate = "none"
clamp = 0.0
kernel = 0
dilation = 0
conv_eps = 0.0
combine = "mean"
[rule]
id_space = "raw"
order = "newest_first"
align = "current"
boundary = ["start", "dead", "eos"]
filler = "zero"
sticky = true
mix = "poly_mod"
mix_scope = "column"
[derivation]
moduli = "odd_walk"
multipliers = "vocabulary"
[constants]
moduli = [[39, 41, 43, 45]]
offsets = [[0, 39, 80, 123]]
multipliers = [[[1, 18, 0], [1, 14, 0], [1, 10, 14], [1, 6, 36]]]
[tensors]
table = { name = "own.{i}.weight", dtype = "BF16" }
projection = { name = "own_proj.{i}.weight", dtype = "BF16" }
"""
    mine = tmp_path / "my.toml"
    mine.write_text(text)
    rows = cli.ok("hash", "--profile", mine, "--ids", "7,5,1,3").out.decode().splitlines()

    # 39, 41, 43, 45 tables; 7; 5 + 7*96; 1 + 5*96 (+ 7*96**2); 3 after an EOS
    def local(*parts: int) -> list[int]:
        return [sum(t * 96**d for d, t in enumerate(parts[:n])) % m for n, m in ((2, 39), (2, 41), (3, 43), (3, 45))]

    grams = [(7,), (5, 7), (1, 5, 7), (3,)]
    want = [[x + o for x, o in zip(local(*gram), (0, 39, 80, 123), strict=True)] for gram in grams]
    assert [[int(x) for x in row.split("\t")[2:]] for row in rows] == want


BROKEN = [
    (("mix = \"xor_mul\"", 'mix = "md5"'), "rule.mix", "one of xor_mul, poly_mod, wrap_poly"),
    (("sticky = true", "sticky = false"), "rule", "a combination that is defined for xor_mul"),
    (('filler = "eos"', 'filler = "zero"'), "rule", "a combination that is defined for xor_mul"),
    (('boundary = ["start", "eos"]', 'boundary = ["start", "page"]'), "rule.boundary", "words of start"),
    (('order = "newest_first"\n', ""), "rule", "a word for order"),
    (('layout = "shards"', 'layout = "heads"'), "storage", "layout and encoding as"),
    (('gate = "sign"', 'gate = "copysign"'), "module", "projection, norm, gate and combine as"),
    (("kernel = 4", "kernel = -4"), "module.kernel", "a whole number from 0"),
    (("bias = false", "bias = 0"), "module.bias", "true or false"),
    (("dilation = 3", "dilation = 0"), "module.dilation", "a kernel and a dilation"),
    (("heads = 8", 'heads = "8"'), "sizes.heads", "a whole number from 1"),
    (("hidden = 2560", "hidden = 2560\nlayerz = 3"), "sizes.layerz", "one of"),
    (("size = 3", "size = 1"), "sizes.size", "a whole number from 2"),
    (("layers = [1]", "layers = [1, 2]"), "sizes.rows", "2 row counts, one a layer"),
    (("eps = 1e-6\n", "eps = nan\n"), "sizes.eps", "a finite number"),
    (('multipliers = "splitmix64"', 'multipliers = "md5"'), "derivation.multipliers", "one of pcg64"),
    (("seed = 1234", "seed = -1"), "derivation.seed", "a whole number below 2**64"),
    (("[images]", "[pictures]"), "pictures", "one of the tables"),
    (('title = "Qwen3.8-Flash-Next PLE"', "title = 5"), "title", "a text"),
    (('config = "ple"', 'config = "yaml"'), "config", "one of plain"),
    (("20_000_003, ", ""), "constants.moduli", "lists of the lengths [1, 16]"),
    (("20_000_003, 20_000_023", "20_000_003.5, 20_000_023"), "constants.moduli", "lists of whole numbers"),
    (("key_proj.weight", "key_proj.{oops}"), "tensors.key", "a name"),
    (('streams = ["hc_count"]', "streams = []"), "config_keys.streams", "a list of spellings"),
    (("[sources]", "[sources]\nx = 07:32:00"), "sources.x", "a text, a number"),
    (("[sources]", "[sources]\nx = 3"), "sources.x", "a text"),
    (("[images]", "[images]\nx = 1979-05-27"), "images.x", "a text, a number"),
    (("[images]", "[images]\nx = [[nan]]"), "images.x.0.0", "a finite number"),
    (("[images]", "[images]\nx = 0x1_0000_0000_0000_0000"), "images.x", "a number of at most 64 bits"),
    (("[images]", "[images]\nx = [[[[[[[[[1]]]]]]]]]"), "images.x.0.0.0.0.0.0.0", "at most 8 tables and lists"),
    (("[images]", "[digests]\nmoduli_i64 = 3\n[images]"), "digests.moduli_i64", "a word"),
    (("[images]", '[digests]\nmoduli_i64 = "3"\n[images]'), "digests.moduli_i64", "64 hex digits"),
    (("[images]", "[shards]\na = { bytes = 3 }\n[images]"), "shards.a", "a table of file, bytes, header_sha256"),
    (("[images]", "[shards]\nsource = 3\n[images]"), "shards.source", "a text"),
    (("[variants.fp8]", "[variants.fp8.name]\n[variants.fp8]"), "variants.fp8.name", "what lies over a table"),
    (('config = "ple"', 'config = "ple"\nunpublished = 3'), "unpublished", "a text"),
    (('config = "ple"', 'config = "ple"\nshards = 3'), "shards", "a table"),
    (('config = "ple"', 'config = "ple"\ntoken_map = 3'), "token_map", "a table"),
    (("[images]", f"[token_map.replaced]\n{'9' * 60} = 3\n[images]"), "token_map.replaced", "token ids below"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "where", "expected"), BROKEN)
def test_what_is_odd_is_named_with_its_place(
    cli: Cli, tmp_path: Path, change: tuple[str, str], where: str, expected: str
) -> None:
    mine = own(tmp_path, "qwen3.8-flash-next", change)
    refusal = cli.refused(tmp_path, "hash", "--profile", mine, "--ids", "5")
    assert refusal.where == f"{mine} at {where}"
    assert expected in refusal.expected


@pytest.mark.parametrize("content", [b"", b"name = ", b"\xff\xfe", b"[rule]\nmix = 1979-05-27", b"a = " + b"[" * 5000])
def test_what_is_no_profile_is_refused_in_one_line(cli: Cli, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "my.toml").write_bytes(content)
    cli.refused(tmp_path, "hash", "--profile", tmp_path / "my.toml", "--ids", "5")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="found nothing there"):
        profiles.load(str(tmp_path / "none.toml"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises((FormatError, EngramctlError), match="found a folder"):
        profiles.load(str(tmp_path / "folder.toml"))


def test_constants_that_do_not_fit_are_refused_when_they_are_used(cli: Cli, tmp_path: Path) -> None:
    mine = own(tmp_path, "qwen3.8-flash-next", ("[23_703_573_157_769", "[23_703_573_157_768"))
    assert "odd multipliers" in cli.refused(tmp_path, "hash", "--profile", mine, "--ids", "5").expected
    mine = own(tmp_path, "longcat-2.0", ("rows = [263_630_608]", "rows = [263_630_607]"))
    assert "ends within 263630607 rows" in cli.refused(tmp_path, "hash", "--profile", mine, "--ids", "5").expected


def test_ones_own_variants_are_taken_by_name(cli: Cli, tmp_path: Path) -> None:
    mine, words = own(tmp_path, "longcat-2.0"), ("hash", "--ids", "5,2,7")
    want = cli.ok(*words, "--profile", "longcat-2.0:eos-ignored").out
    assert cli.ok(*words, "--profile", f"{mine}:eos-ignored").out == want
    assert cli.ok(*words, "--profile", mine).out != want
    assert "eos-zeroed" in cli.refused(tmp_path, *words, "--profile", f"{mine}:nope").expected


@pytest.mark.parametrize("command", [("show",), ("check", "file"), ("check", "params")])
def test_a_profile_that_cannot_read_a_config_says_so(cli: Cli, tmp_path: Path, container: Path, command: Words) -> None:
    """A record without constants, and an own profile without the keys' spellings."""
    refusal = cli.refused(tmp_path, *command, container, "--profile", "engram-27b")
    assert refusal.where == "profile engram-27b"
    assert refusal.found.startswith("none: no weights")
    text = (DATA / "deepseek-v4.1-flash.toml").read_text()
    start = text.index("[config_keys]")
    mine = tmp_path / "my.toml"
    mine.write_text(text[:start] + text[text.index("\n[", start) + 1 :])
    refusal = cli.refused(tmp_path, *command, container, "--profile", mine)
    assert "[config_keys]" in refusal.expected


BOMBS = {
    "a key of many parts": ("\n\nx" + ".a" * 20_000 + " = 1", "line 3", "at most 64 dots"),
    "a table's name of many parts": ("[x" + " . a" * 20_000 + "]", "line 1", "at most 64 dots"),
    "quoted parts": ('x."\\""' + ".'a'" * 20_000 + " = 1", "line 1", "at most 64 dots"),
    "digits": ("x = " + "9" * 5000, "line 1", "numbers of at most 64 digits"),
    "digits apart": ("x = 1" + "_1" * 5000, "line 1", "numbers of at most 64 digits"),
    "an exponent": ("x = 1e" + "9" * 5000, "line 1", "numbers of at most 64 digits"),
    "hex digits": ("x = 0x" + "f" * 5000, "line 1", "numbers of at most 64 digits"),
    "an odd date": ("x = 0000-00-00", None, "TOML"),
    "lists in lists": ("x = " + "[" * 100_000, None, "TOML"),
    "bytes": ("#" * (256 << 10) + "\n", None, "a profile of at most 262144 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_would_keep_the_reader_busy_is_refused_at_once(cli: Cli, tmp_path: Path, name: str) -> None:
    text, line, expected = BOMBS[name]
    path = tmp_path / "my.toml"
    path.write_text(text)
    began = time.process_time()
    refusal = cli.refused(tmp_path, "profiles", path)
    assert refusal.where == (str(path) if line is None else f"{path} at {line}")
    assert refusal.expected == expected
    assert time.process_time() - began < 5  # tens of seconds and a GB without the limits
