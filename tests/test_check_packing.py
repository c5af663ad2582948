"""check packing: every byte of every row; what differs is named by layer, row and byte, and the rest is counted."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import dialect_files as files
import numpy as np
import pytest
from checkpoints import rewrite
from checks import (
    array_at,
    changed,
    differs,
    found,
    only,
    passes,
    replace_text,
    set_u32,
    set_u64,
    tensor_start,
    wheres,
    without,
)
from cli_helpers import Cli, Copy, peak_bytes

from engramctl import verify
from formats import tree_digest

ROWS = {1: 2826, 14: 5940}  # 24 primes from 61 upwards, and the next 24


def flip(container: Path, layer: int, row: int, byte: int) -> Callable[[bytearray], None]:
    return flips(container, layer, [row], byte)


def flips(container: Path, layer: int, rows: Sequence[int], byte: int) -> Callable[[bytearray], None]:
    """One bit of one byte in each of the rows."""
    start = tensor_start(container, f"blk.{layer}.engram_embd.weight") + byte

    def change(data: bytearray) -> None:
        for row in rows:
            data[start + row * 264] ^= 1

    return change


def test_every_byte_is_compared(cli: Cli, tiny: Path, container: Path) -> None:
    report = passes(cli, "packing", tiny, container)
    count = sum(ROWS.values())
    assert report["coverage"] == {"unit": "rows", "checked": count, "of": count, "sampled": False}
    passes(cli, "packing", container, container)
    passes(cli, "packing", container, tiny)
    passes(cli, "packing", tiny, tiny)


@pytest.mark.parametrize(("layer", "row", "byte"), [(1, 0, 0), (1, 2825, 263), (14, 4097, 255), (14, 5939, 256)])
def test_one_byte_is_named(
    cli: Cli, tiny: Path, container: Path, tmp_path: Path, layer: int, row: int, byte: int
) -> None:
    start = tensor_start(container, f"blk.{layer}.engram_embd.weight") + row * 264 + byte
    was = container.read_bytes()[start]
    path = changed(container, tmp_path, flip(container, layer, row, byte))
    got = only(differs(cli, "packing", tiny, path))
    assert got == (f"layer {layer} row {row} byte {byte}", f"{was:#04x}", f"{was ^ 1:#04x}")
    assert only(differs(cli, "packing", container, path)) == got


def test_rows_are_counted_exactly_whatever_the_chunks(
    cli: Cli, tiny: Path, container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_digest, "LEAF_ROWS", 7)

    def change(data: bytearray) -> None:
        flips(container, 14, range(5, 5 + 3 * 150, 3), 100)(data)
        flips(container, 14, range(5, 5 + 3 * 150, 3), 260)(data)

    report = differs(cli, "packing", tiny, changed(container, tmp_path, change))
    assert (report["findings_total"], len(report["findings"])) == (150, 100)
    assert wheres(report)[:2] == ["layer 14 row 5 byte 100", "layer 14 row 8 byte 100"]
    assert found(report)[0][2].endswith("(and 1 bytes more)")


def test_layers_and_rows_can_be_chosen(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    path = changed(container, tmp_path, flip(container, 14, 3000, 9))
    assert passes(cli, "packing", tiny, path, "--layer", 1)["coverage"]["of"] == ROWS[1]
    assert differs(cli, "packing", tiny, path, "--layer", 14)["coverage"]["checked"] == ROWS[14]
    report = passes(cli, "packing", tiny, path, "--layer", 14, "--rows", "0:3000,3001:5940,7,5:9")
    assert report["coverage"] == {"unit": "rows", "checked": ROWS[14] - 1, "of": ROWS[14], "sampled": False}
    report = differs(cli, "packing", tiny, path, "--layer", 14, "--rows", "2999:3002")
    assert (only(report)[0], report["coverage"]["checked"]) == ("layer 14 row 3000 byte 9", 3)


def test_a_sample_holds_the_telling_rows_and_is_seeded(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    for row in (0, 1, 60, 61, 5939):  # ends and, in layer 1, the first head's end at prime 61
        layer = 1 if row in (60, 61) else 14
        path = changed(container, tmp_path, flip(container, layer, row, 1))
        report = differs(cli, "packing", tiny, path, "--sample", 0)
        assert only(report)[0] == f"layer {layer} row {row} byte 1"
        assert report["coverage"]["sampled"] is True
    seen = [passes(cli, "packing", tiny, container, "--sample", n, "--seed", 3)["coverage"]["checked"] for n in (0, 50)]
    assert seen[0] < seen[1] <= seen[0] + 100
    whole = differs(cli, "packing", tiny, path, "--sample", 10_000)
    assert whole["coverage"]["checked"] == sum(ROWS.values())


def test_a_seed_chooses_the_same_rows_again(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    path = changed(container, tmp_path, flips(container, 14, range(ROWS[14]), 5))
    first, again, other = (
        wheres(differs(cli, "packing", tiny, path, "--layer", 14, "--sample", 20, "--seed", seed)) for seed in (1, 1, 2)
    )
    assert first == again != other


def weight_at(container: Path, name: str, number: int, size: int) -> int:
    return tensor_start(container, name) + number * size


@pytest.mark.parametrize(
    ("tensor", "number", "size", "columns"),
    [
        ("blk.1.engram_kv.weight", 6144 * 300 + 17, 2, 6144),
        ("blk.14.engram_q_norm.weight", 65, 4, 64),
        ("blk.14.engram_k_norm.weight", 255, 4, 64),
    ],
)
def test_one_number_of_a_weight_is_named(
    cli: Cli, tiny: Path, container: Path, tmp_path: Path, tensor: str, number: int, size: int, columns: int
) -> None:
    at = weight_at(container, tensor, number, size)

    def change(data: bytearray) -> None:
        data[at + size - 1] ^= 0x80  # the sign

    where, expected, got = only(differs(cli, "packing", tiny, changed(container, tmp_path, change)))
    assert where == f"tensor {tensor} row {number // columns} column {number % columns}"
    assert float(got) == -float(expected)


@pytest.mark.parametrize(
    ("change", "where", "got"),
    [
        (set_u32("token_map", 203, 0), "deepseek41.engram.token_map, token id 203", "0"),
        (set_u32("primes", 1, 68), "deepseek41.engram.primes, layer 1 column 1", "68"),
        (set_u64("multipliers", 7, 12), "deepseek41.engram.multipliers, layer 14 position 3", "12"),
        (set_u32("rows", 1, 5941), "deepseek41.engram.rows, entry 1", "5941"),
        (set_u32("layer_ids", 0, 2), "deepseek41.engram.layer_ids, entry 0", "2"),
    ],
)
def test_one_constant_is_named(
    cli: Cli, tiny: Path, container: Path, tmp_path: Path, change: Callable[[bytearray], None], where: str, got: str
) -> None:
    path = changed(container, tmp_path, change)
    for source in (tiny, container):
        name, _, have = only(differs(cli, "packing", source, path))
        assert (name, have) == (where, got)


def test_texts_are_compared_too(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    path = changed(container, tmp_path, replace_text('"engramctl_seed": 7', '"engramctl_seed": 8'))
    assert only(differs(cli, "packing", tiny, path)) == ("config.engramctl_seed", "7", "8")
    path = changed(container, tmp_path, replace_text('"quant_method"', '"quant-method"'))
    report = differs(cli, "packing", tiny, path)
    assert found(report) == [
        ("config.quantization_config.quant_method", '"fp8"', "none"),
        ('config.quantization_config."quant-method"', "none", '"fp8"'),
    ]
    path = changed(container, tmp_path, replace_text("e4m3_e8m0_32_row264", "e4m3_e8m0_32_row265"))
    assert only(differs(cli, "packing", tiny, path)) == ("encoding", "e4m3_e8m0_32_row264", "e4m3_e8m0_32_row265")


def test_a_config_counts_by_what_it_says(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    """antirez/ds4 gguf-tools/deepseek41_metadata.py writes config.json anew, with sorted keys and without blanks."""
    model = files.read_model(tiny, container)
    text = json.dumps(json.loads((tiny / "config.json").read_text()), sort_keys=True, separators=(",", ":"))
    keys = files.ds4_keys(model, "e4m3_e8m0_32_row264") | {"deepseek41.config": ("string", text)}
    rows = {layer: model.rows264(layer).view("i1") for layer in model.layers}
    path = files.write(tmp_path / "ds4.gguf", keys, files.ds4_tensors(model, rows), alignment=16384)
    passes(cli, "packing", tiny, path)
    passes(cli, "packing", container, path)


def test_another_checkpoint_differs_in_every_row(cli: Cli, container: Path, tmp_path: Path) -> None:
    cli.ok("synth", tmp_path / "other", "--seed", 8, "-q")
    report = differs(cli, "packing", tmp_path / "other", container, "--layer", 1)
    assert report["findings_total"] > ROWS[1]
    assert report["coverage"]["checked"] == ROWS[1]


def test_a_missing_layer_is_a_finding_unless_one_layer_is_asked_for(
    cli: Cli, tiny: Path, tmp_path: Path, container: Path
) -> None:
    part = tmp_path / "part.gguf"
    cli.ok("repack", tiny, "-o", part, "--layers", "14", "-q")
    assert only(differs(cli, "packing", tiny, part)) == ("layer 1", f"a table as in {tiny}", f"none in {part}")
    passes(cli, "packing", tiny, part, "--layer", 14)
    extra = differs(cli, "packing", part, container)
    assert found(extra)[0] == ("layer 1", f"no table as in {part}", f"one in {container}")
    assert cli.refused(tmp_path, "check", "packing", tiny, part, "--layer", 3).expected == "one of 1, 14"


@pytest.fixture
def own(cli: Cli, tmp_path: Path) -> tuple[Path, Path]:
    """A full-size checkpoint and its container that a test may change: sparse files must not be copied."""
    cli.ok("synth", tmp_path / "own", "--full-size", "--seed", 7, "-q")
    cli.ok("repack", tmp_path / "own", "-o", tmp_path / "own.gguf", "-q")
    return tmp_path / "own", tmp_path / "own.gguf"


def test_rows_beyond_two_to_the_32_bytes_are_where_they_belong(cli: Cli, own: tuple[Path, Path]) -> None:
    report = passes(cli, "packing", *own)
    assert report["coverage"]["checked"] == report["coverage"]["of"] == 384_006_168 + 384_016_682
    assert "lie in holes on both sides" in report["notes"][0]
    passes(cli, "packing", *own, "--sample", 30)
    start = tensor_start(own[1], "blk.14.engram_embd.weight")
    rows = (16_268_815, 16_268_816, 300_000_001, 384_016_681)  # the third lies in a hole
    with own[1].open("r+b") as file:
        for row in rows:
            file.seek(start + row * 264 + 136)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 2]))
    report = differs(cli, "packing", *own)
    assert wheres(report) == [f"layer 14 row {row} byte 136" for row in rows]
    sampled = differs(cli, "packing", *own, "--sample", 5)
    assert wheres(sampled) == [f"layer 14 row {row} byte 136" for row in rows if row != 300_000_001]


def test_memory_stays_bounded_on_full_size_files(full: Path, full_container: Path) -> None:
    assert peak_bytes("check", "packing", full, full_container) < 400e6


def test_data_against_a_hole_is_compared(cli: Cli, own: tuple[Path, Path]) -> None:
    """A row of zeros that is written out equals a hole; one of something else does not."""
    shard = own[0] / "model-00001-of-00004.safetensors"
    with shard.open("r+b") as file:
        at = 8 + int.from_bytes(file.read(8), "little") + 200_000_000 * 256
        file.seek(at)
        file.write(bytes(4096))
    passes(cli, "packing", *own, "--layer", 1)
    with shard.open("r+b") as file:
        file.seek(at + 5)
        file.write(b"\x01")
    assert only(differs(cli, "packing", *own, "--layer", 1)) == ("layer 1 row 200000000 byte 5", "0x01", "0x00")


def test_what_cannot_be_compared_is_refused(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    path = changed(container, tmp_path, lambda data: data.__delitem__(slice(len(data) - 20_000, None)))
    assert "before the file's end" in cli.refused_twice(tmp_path, "check", "packing", tiny, path).expected
    both = ("--rows", "1", "--sample", "2")
    assert cli.refused(tmp_path, "check", "packing", tiny, container, *both).found == "both"
    rows = ("--rows", f"{ROWS[14]}")
    assert cli.refused(tmp_path, "check", "packing", tiny, container, "--layer", 14, *rows).where == "--rows"
    assert cli.refused(tmp_path, "check", "packing", tiny, tmp_path / "none").found == "nothing there"
    many = ("--sample", 10**9)
    assert "at most 4194304 rows" in cli.refused(tmp_path, "check", "packing", tiny, container, *many).expected


def test_a_truncated_map_is_found_by_its_count(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    """Sixteen bytes of padding take the place of four entries: only the count and the entries say so."""

    def change(data: bytearray) -> None:
        at = array_at(data, "primes", 0)
        np.frombuffer(data, "<u4", 48, at)  # the whole array lies there
        data[at : at + 192] = data[at + 96 : at + 192] + data[at : at + 96]  # layers swapped

    report = differs(cli, "packing", tiny, changed(container, tmp_path, change))
    assert report["findings_total"] == 48


def test_nothing_that_verifies_imports_repack() -> None:
    modules = sorted(Path(verify.__file__).parent.glob("*.py"))
    assert len(modules) > 10
    for module in modules:
        for node in ast.walk(ast.parse(module.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            assert not [name for name in names if "repack" in name or name.endswith("synth")], module


def test_a_source_with_an_invalid_row_is_compared_all_the_same(
    cli: Cli, tiny: Path, container: Path, copied: Copy
) -> None:
    folder = copied(tiny)
    rewrite(folder / "model-00001-of-00004.safetensors", lambda data: data.__setitem__(-1, 0x7F))
    where, expected, _ = only(differs(cli, "packing", folder, container))
    assert (where, expected) == (f"layer 1 row {ROWS[1] - 1} byte 255", "0x7f")


@pytest.mark.parametrize("key", ["multipliers", "encoding", "pad_id"])
def test_a_constant_that_one_container_lacks_is_a_finding_in_either_order(
    cli: Cli, container: Path, tmp_path: Path, key: str
) -> None:
    lacking = changed(container, tmp_path, without(key))
    for pair in ((lacking, container), (container, lacking)):
        report = differs(cli, "packing", *pair)
        assert report["findings_total"] == 1, found(report)


def test_a_weight_that_is_no_number_on_both_sides_is_no_difference_and_said(
    cli: Cli, container: Path, tmp_path: Path
) -> None:
    start = tensor_start(container, "blk.1.engram_q_norm.weight")
    path = changed(container, tmp_path, lambda data: data.__setitem__(slice(start, start + 4), b"\0\0\xc0\x7f"))
    report = passes(cli, "packing", path, path)
    assert any("1 NaNs, in both" in note for note in report["notes"])
    assert only(differs(cli, "packing", container, path))[2] == "nan"


def swapped(rows: np.ndarray) -> None:
    rows[[5, 9]] = rows[[9, 5]]


def of_the_other_layer(container: Path) -> Callable[[np.ndarray], None]:
    start = tensor_start(container, "blk.14.engram_embd.weight")
    other = np.fromfile(container, np.uint8, 3 * 264, offset=start).reshape(3, 264)

    def change(rows: np.ndarray) -> None:
        rows[:3] = other

    return change


def test_what_is_common_to_rows_that_differ_is_said(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    start = tensor_start(container, "blk.1.engram_embd.weight")

    def shift(rows: np.ndarray) -> None:
        rows[:] = np.roll(rows, -1, axis=0)

    def scales_first(rows: np.ndarray) -> None:
        rows[:] = np.roll(rows, 8, axis=1)

    def hole(rows: np.ndarray) -> None:
        rows.reshape(-1)[1000:9000] = 0

    def scales(rows: np.ndarray) -> None:
        rows[7:30, 256:] ^= 3

    cases = {
        "first 2 rows that differ: rows changed places: 5 has row 9, 9 has row 5": swapped,
        "first 20 rows that differ: they have the bytes of the row 1 after theirs": shift,
        "first 20 rows that differ: scales stand before the codes": scales_first,
        "first 20 rows that differ: every byte that differs is zero there: not written, or a hole": hole,
        "first 20 rows that differ: scales alone differ": scales,
        "first 3 rows that differ: they have the bytes of layer 14's rows": of_the_other_layer(container),
    }
    for words, change in cases.items():
        data = bytearray(container.read_bytes())
        change(np.frombuffer(data, np.uint8, 2826 * 264, offset=start).reshape(2826, 264))
        path = tmp_path / "d.gguf"
        path.write_bytes(data)
        assert differs(cli, "packing", tiny, path)["structure"] == [f"layer 1, the {words}"]
    path = changed(container, tmp_path, flip(container, 14, 7, 258))
    expected = ["scales alone differ", "one bit is another, in byte 258"]
    assert differs(cli, "packing", tiny, path)["structure"] == [
        f"layer 14, the row that differs: {e}" for e in expected
    ]
    assert b"  what is common to the differences:\n" in cli("check", "packing", tiny, path).out
    assert passes(cli, "packing", tiny, container)["structure"] == []
