"""check file: each of the loader's rules, broken alone, is the one that is reported; the release's rows are known."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from checks import (
    PREFIX,
    array_at,
    changed,
    differs,
    found,
    info_at,
    passes,
    replace_text,
    scalar_at,
    set_extent,
    set_offset,
    set_type,
    set_u32,
    set_u64,
    tensor_start,
    wheres,
)
from cli_helpers import Cli

from engramctl import profiles
from engramctl.errors import EngramctlError
from engramctl.verify.container import check
from engramctl.verify.loader_rules import LOADERS
from formats import gguf_file
from formats.errors import FormatError
from formats.gguf_file import read_header

Change = Callable[[bytearray], None]
TABLE = "blk.{}.engram_embd.weight"
I8, F32, F16, BF16 = 24, 0, 1, 30  # ggml's numbers


def broken(report: dict[str, object]) -> dict[str, list[tuple[str, str, str]]]:
    """Findings by rule."""
    by_rule: dict[str, list[tuple[str, str, str]]] = {}
    for each, three in zip(report["findings"], found(report), strict=True):
        by_rule.setdefault(each["check"], []).append(three)
    return by_rule


def test_what_repack_writes_is_accepted(cli: Cli, container: Path, full_container: Path) -> None:
    for path in (container, full_container):
        report = passes(cli, "file", path, "--loader", "ds4")
        assert (report["dialect"], report["loader"], report["accepts"]) == ("ds4", "ds4", True)
        assert report["notes"] == [
            "weights' numbers are in no loader's rules: check source and check packing look at them",
            "engram-only: no main weights",
            "not the release: its config says that it is synthetic",
        ]
        assert report["coverage"] == {"unit": "rules", "checked": 21, "of": 21, "sampled": False}


def test_every_rule_names_its_source() -> None:
    for rules in LOADERS.values():
        assert len({rule.id for rule in rules}) == len(rules)
        for rule in rules:
            assert rule.demands
            assert rule.source.count("/") >= 1


def test_an_unknown_loader_is_refused_with_those_there_are(cli: Cli, container: Path, tmp_path: Path) -> None:
    refusal = cli.refused_twice(tmp_path, "check", "file", container, "--loader", "ollama")
    assert (refusal.where, refusal.found) == ("--loader", "ollama")
    assert "ds4, llamacpp, split-i8, all" in refusal.expected


def rename(old: str, new: str) -> Change:
    return replace_text(old, new)


def key(name: str) -> str:
    return f"key {PREFIX}{name}"


def tensor(name: str) -> str:
    return f"tensor {name}"


def version_2(data: bytearray) -> None:
    data[4] = 2


def key_type(key: str, kind: int) -> Change:
    """Another scalar type of equal width."""

    def change(data: bytearray) -> None:
        struct.pack_into("<I", data, scalar_at(data, key) - 4, kind)

    return change


def item_type(role: str, kind: int) -> Change:
    """Another item type of equal width: INT32 for UINT32."""

    def change(data: bytearray) -> None:
        struct.pack_into("<I", data, array_at(data, role) - 12, kind)

    return change


def scalar(key: str, value: int) -> Change:
    def change(data: bytearray) -> None:
        struct.pack_into("<I", data, scalar_at(data, key), value)

    return change


def several(*changes: Change) -> Change:
    def change(data: bytearray) -> None:
        for each in changes:
            each(data)

    return change


L1, L14 = TABLE.format(1), TABLE.format(14)
L15, HC, END = TABLE.format(15), "key deepseek41.hc_mult", ("end of file", None)
KV1, KV14, K14 = (f"blk.{name}.weight" for name in ("1.engram_kv", "14.engram_kv", "14.engram_k_norm"))
OFF, LAST, SIZE, UNDERWAY = "encoding", 2**63 // 310 | 1, "compressed_vocab_size", "conversion_underway"


def architecture(data: bytearray) -> None:
    at = scalar_at(data, "general.architecture") + 8
    assert data[at : at + 10] == b"deepseek41"
    data[at + 9] = ord("2")


ONE = several(set_u32("primes", 0, 1), set_u32("primes", 1, 127))
Where = dict[str, tuple[str, str | None]]  # by rule: where, and what was found there
CASES: list[tuple[str, Change, Where]] = [
    ("GGUF version 2", version_2, {"version": ("version", "2")}),
    ("another architecture", architecture, {"architecture": ("key general.architecture", "'deepseek42'")}),
    ("no pad", rename(PREFIX + "pad_id", PREFIX + "pad_it"), {"keys": (key("pad_id"), "no such key")}),
    ("layer ids as INT32", item_type("layer_ids", 5), {"keys": (key("layer_ids"), "i32[]")}),
    ("token map as INT32", item_type("token_map", 5), {"keys": (key("token_map"), "i32[]")}),
    ("multipliers as INT64", item_type("multipliers", 11), {"keys": (key("multipliers"), "i64[]")}),
    ("pad as INT32", key_type(PREFIX + "pad_id", 5), {"keys": (key("pad_id"), "i32")}),
    ("layer 2 for 1", set_u32("layer_ids", 0, 2), {"layers": (key("layer_ids"), "[2, 14]")}),
    ("a map entry too large", set_u32("token_map", 203, 310), {"map": (key("token_map, token id 203"), "310")}),
    ("a pad too large", scalar(PREFIX + "pad_id", 310), {"map": (key("pad_id"), "310")}),
    ("an even multiplier", set_u64("multipliers", 5, 24), {"multipliers": (key("multipliers, entry 5"), "24")}),
    ("a large multiplier", set_u64("multipliers", 5, LAST), {"multipliers": (key("multipliers, entry 5"), f"{LAST}")}),
    ("primes of another sum", set_u32("primes", 30, 191), {"primes": (key("primes, layer 14"), None)}),
    ("a prime of 1", ONE, {"primes": (key("primes, entry 0"), "1")}),
    ("another compressed size", scalar(PREFIX + SIZE, 311), {"counts": (key(SIZE), "311")}),
    ("another hc_mult", scalar("deepseek41.hc_mult", 5), {"hyperparameters": (HC, "5")}),
    ("hc_mult as F32", key_type("deepseek41.hc_mult", 6), {"hyperparameters": (HC, "f32")}),
    ("no hc_mult", rename("41.hc_mult", "41.hc_mulf"), {"hyperparameters": (HC, "no such key")}),
    ("an unknown type", set_type(L14, 999), {"types": (tensor(L14), "type 999"), "tables": (tensor(L14), None)}),
    ("fewer rows", set_extent(L14, 1, 5939), {"rows": (tensor(L14), "5939")}),
    ("rows of 260 bytes", set_extent(L14, 0, 260), {"tables": (tensor(L14), "I8 [260, 5940]"), "end": END}),
    ("past the end", set_extent(L14, 1, 50_000), {"spans": (tensor(L14), None), "rows": (tensor(L14), "50000")}),
    ("a table of layer 15", rename(L14, L15), {"tables": ("layer 14", "none"), "tail": (tensor(L15), None)}),
    ("Q8_0 projection", set_type(KV1, 8), {"weights": (tensor(KV1), "Q8_0 [6144, 320]")}),
    ("norms as F16", set_type(K14, F16), {"weights": (tensor(K14), "F16 [64, 4]")}),
    ("no projection", rename(KV14, "blk.14.engram_kw.weight"), {"weights": ("layer 14", "none")}),
    ("trailing bytes", lambda data: data.extend(bytes(5)), {"end": END}),
    ("another encoding", rename("row264", "row265"), {OFF: (key(OFF), "'e4m3_e8m0_32_row265'")}),
    ("a conversion under way", rename("e4m3_e8m0_32_row264", UNDERWAY), {OFF: (key(OFF), repr(UNDERWAY))}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "expected"), CASES, ids=[name for name, _, _ in CASES])
def test_a_broken_rule_is_the_one_reported(
    cli: Cli, container: Path, tmp_path: Path, name: str, change: Change, expected: Where
) -> None:
    report = differs(cli, "file", changed(container, tmp_path, change))
    rules = broken(report)
    assert {f"ds4.{rule}" for rule in expected} == set(rules), name
    for rule, (where, got) in expected.items():
        matching = [each for each in rules[f"ds4.{rule}"] if each[0] == where]
        assert matching, rules
        assert got in (None, matching[0][2])
    assert report["accepts"] is False
    assert {f"ds4.{rule['id']}" for rule in report["rules"] if not rule["ok"]} == set(rules)


def test_rows_that_are_not_the_primes_sum_break_two_rules(cli: Cli, container: Path, tmp_path: Path) -> None:
    rules = broken(differs(cli, "file", changed(container, tmp_path, set_u32("rows", 0, 2827))))
    assert rules == {
        "ds4.layers": [(key("rows"), "[2826, 5940]", "[2827, 5940]")],
        "ds4.primes": [(key("primes, layer 1"), "a sum of 2827, the layer's rows", "2826")],
    }


def test_tables_moved_by_32_bytes_are_off_the_page(cli: Cli, container: Path, tmp_path: Path) -> None:
    rules = broken(differs(cli, "file", changed(container, tmp_path, set_offset(L1, -32))))
    start = tensor_start(container, L1)
    assert rules["ds4.page"] == [(tensor(L1), "an offset that 16384 divides", f"{start - 32}")]
    assert tensor(L1) in [where for where, _, _ in rules["ds4.spans"]]


def test_tables_that_overlap_break_the_tail(cli: Cli, container: Path, tmp_path: Path) -> None:
    rules = broken(differs(cli, "file", changed(container, tmp_path, set_offset(L14, -16384))))
    end = tensor_start(container, L1) + 2826 * 264
    start = tensor_start(container, L14) - 16384
    assert rules["ds4.tail"] == [(tensor(L14), f"its start at or after {end}, the end of {L1}", f"{start}")]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"architectures"', '"architectures:', "a JSON object"),
        ('"engram_max_ngram_size": 4', '"engram_max_ngram_size": 1', "an integer from 2 to 64"),
        ('"engram_n_heads"', '"engram_m_heads"', "engram_n_heads"),
    ],
)
def test_a_config_that_says_nothing_is_a_finding(
    cli: Cli, container: Path, tmp_path: Path, old: str, new: str, expected: str
) -> None:
    rules = broken(differs(cli, "file", changed(container, tmp_path, rename(old, new))))
    assert expected in rules["config"][0][1]


def test_a_table_whose_offset_only_suits_small_pages_is_noted(cli: Cli, container: Path, tmp_path: Path) -> None:
    report = differs(cli, "file", changed(container, tmp_path, set_offset(L1, -4096)))
    assert f"{L1} is aligned to 4096: loaders on machines with pages of 4096 take it" in report["notes"]


def test_a_weight_after_the_tables_breaks_the_tail(cli: Cli, container: Path, tmp_path: Path) -> None:
    name = "blk.1.engram_q_norm.weight"
    end = tensor_start(container, L14) + -(-5940 * 264 // 16384) * 16384
    move = end - tensor_start(container, name)

    def change(data: bytearray) -> None:
        set_offset(name, move)(data)
        data.extend(bytes(16384))

    assert broken(differs(cli, "file", changed(container, tmp_path, change))) == {
        "ds4.tail": [(f"tensor {name}", f"its end at or before {L1} at {tensor_start(container, L1)}", f"{end + 1024}")]
    }


@pytest.mark.parametrize(
    ("row", "byte", "value", "what"),
    [(0, 5, 0x7F, "NaN"), (5939, 255, 0xFF, "NaN"), (1, 256, 255, "NaN"), (5939, 260, 254, None)],
)
def test_a_telling_row_without_numbers_is_found(
    cli: Cli, container: Path, tmp_path: Path, row: int, byte: int, value: int, what: str | None
) -> None:
    at = tensor_start(container, L14) + row * 264

    def change(data: bytearray) -> None:
        data[at + 128] = 0x7E  # 448: with scale 254 it is beyond what a float holds
        data[at + byte] = value

    rules = broken(differs(cli, "file", changed(container, tmp_path, change)))
    ((where, _, got),) = rules["ds4.numbers"]
    assert where.startswith(f"layer 14 row {row} byte ")
    assert what is None or what in got


def test_main_weights_make_it_more_than_an_engram(cli: Cli, container: Path, tmp_path: Path) -> None:
    path = changed(container, tmp_path, rename("blk.1.engram_q_norm.weight", "blk.1.attn__q_norm.weight_"))
    report = differs(cli, "file", path)
    assert set(broken(report)) == {"ds4.weights"}
    assert not any("engram-only" in note for note in report["notes"])


def test_an_exact_bf16_projection_is_a_note(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    cli.ok("repack", tiny, "-o", tmp_path / "bf16.gguf", "--kv-type", "bf16", "-q")
    notes = passes(cli, "file", tmp_path / "bf16.gguf")["notes"]
    assert "blk.1.engram_kv.weight is BF16; ds4's own converter writes F16" in notes


@pytest.mark.parametrize("length", [0, 3, 4, 11, 100, 2000])
def test_a_header_that_cannot_be_parsed_is_damage(cli: Cli, container: Path, tmp_path: Path, length: int) -> None:
    (tmp_path / "cut.gguf").write_bytes(container.read_bytes()[:length])
    cli.refused_twice(tmp_path, "check", "file", tmp_path / "cut.gguf")


def test_what_is_no_container_is_refused(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    assert cli.refused(tmp_path, "check", "file", tiny).found == "a folder"
    assert cli.refused(tmp_path, "check", "file", tiny / "config.json").expected == "a GGUF container"


def not_synthetic(data: bytearray) -> None:
    replace_text('"engramctl_synthetic": true', '"engramctl_synthesis": true')(data)


@pytest.fixture
def claims(cli: Cli, tmp_path: Path) -> Path:
    """A container that says it is the release: real sizes and constants, and nothing that says synthetic."""
    cli.ok("synth", tmp_path / "full", "--full-size", "-q")
    config = tmp_path / "full" / "config.json"
    config.write_text(config.read_text().replace('"engramctl_synthetic": true', '"engramctl_synthetic": false'))
    cli.ok("repack", tmp_path / "full", "-o", tmp_path / "full.gguf", "-q")
    return tmp_path / "full.gguf"


def test_the_releases_rows_are_known(cli: Cli, claims: Path) -> None:
    report = differs(cli, "file", claims)
    assert report["release"] is True
    assert report["accepts"] is True  # a loader cannot tell
    assert report["findings_total"] == 96  # codes and scales of 48 rows
    assert found(report)[0][:2] == (
        "layer 1 row 5873501 codes",
        "SHA-256 02d568d36427723fb1468ad59c24f2d38496284d64aa22aab8d18434fff716db as published",
    )
    real = profiles.load().real_rows()
    with claims.open("r+b") as file:  # the scale bytes were published as digests and recovered by search
        for layer, rows in real.items():
            for row in rows:
                file.seek(tensor_start(claims, TABLE.format(layer)) + row["row"] * 264 + 256)
                file.write(bytes(row["scales"]))
    report = differs(cli, "file", claims)
    assert report["findings_total"] == 48
    assert all(where.endswith(" codes") for where in wheres(report))


def test_the_release_can_be_insisted_on(cli: Cli, container: Path, full_container: Path) -> None:
    assert differs(cli, "file", full_container, "--release")["findings_total"] == 96
    report = differs(cli, "file", container, "--release")
    assert found(report)[0] == ("layer 1 row 5873501", "the release's row", "no such row")


def test_a_release_with_another_constant_is_not_the_release(cli: Cli, claims: Path) -> None:
    with claims.open("r+b") as file:
        head = bytearray(file.read(1 << 20))
        at = array_at(head, "multipliers", 3)
        file.seek(at)
        file.write(np.array([7], "<u8").tobytes())
    report = passes(cli, "file", claims)  # ds4's loader demands no more of a multiplier than that it is odd
    assert "not the release: other constants than are published: multipliers" in report["notes"]
    assert differs(cli, "params", claims)["findings_total"] == 1


def test_names_out_of_a_file_do_no_harm(cli: Cli, container: Path, tmp_path: Path) -> None:
    def change(data: bytearray) -> None:
        at = info_at(data, "blk.1.engram_q_norm.weight")
        data[at - 26 : at] = b"\x1b[31m[red]blk\n\x07 tensor\xc2\xa0xx"

    path = changed(container, tmp_path, change)
    out = cli("check", "file", path).out
    assert b"\x1b" not in out
    assert b"\x07" not in out


def test_headers_with_any_bit_flipped_give_a_report_or_a_refusal(container: Path, tmp_path: Path) -> None:
    """A stride through the header; every rule meets every kind of nonsense."""
    path, end = changed(container, tmp_path, lambda data: None), read_header(container).header_end
    data, reported = path.read_bytes()[:end], 0
    with path.open("r+b", buffering=0) as file:
        for bit in range(5, 8 * end, 8 * end // 150):
            at = bit // 8
            file.seek(at)
            file.write(bytes([data[at] ^ 1 << bit % 8]))
            try:
                report = check(path, profiles.load())
                reported += 1
                assert report.ok or all(finding.where and finding.expected for finding in report.findings)
            except (FormatError, EngramctlError) as error:
                assert str(path) in str(error)  # noqa: PT017
            file.seek(at)
            file.write(data[at : at + 1])
    assert reported > 40


def test_wide_numbers_are_refused_not_cut(cli: Cli, container: Path, tmp_path: Path) -> None:
    header = gguf_file.read_header(container)
    keys = dict(header.keys)
    ids = keys["deepseek41.engram.token_map"].value.astype(np.uint64)
    ids[3] += 2**32
    keys["deepseek41.engram.token_map"] = gguf_file.u64s(ids)
    tensors = [(each.name, each.type, each.shape, each.size) for each in header.tensors]
    layout = gguf_file.encode_header(list(keys.items()), tensors, header.alignment)
    path = tmp_path / "wide.gguf"
    path.write_bytes(layout.header + container.read_bytes()[header.data_start :])
    refusal = cli.refused(tmp_path, "run", path, "--layer", 1, "--ids", 0, "--stop-at", "rows")
    assert (refusal.expected, refusal.found) == ("numbers below 4294967296", f"{ids[3]}")


def test_a_map_of_a_million_wrong_entries_is_counted_not_listed(cli: Cli, container: Path, tmp_path: Path) -> None:
    def change(data: bytearray) -> None:
        at = array_at(data, "token_map")
        data[at : at + 4 * 384] = b"\xff" * (4 * 384)

    report = cli("check", "file", changed(container, tmp_path, change), "--json").json
    where = "key deepseek41.engram.token_map"
    more = [each for each in report["findings"] if each["where"] == where]
    named = [each for each in report["findings"] if each["where"].startswith(f"{where}, token id")]
    assert len(named) <= 100
    assert report["findings_total"] < 120
    assert len(more) + len(named) >= 100
