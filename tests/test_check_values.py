"""check values and check kv: looked up bit for bit, projected within the bound; ml_dtypes says what is expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import OUTPUTS, ROWS, STREAMS, Mini, read_tensors, rewrite
from checks import differs, found, npy, only, passes, tensor_start, wheres
from cli_helpers import Cli
from safetensors.numpy import save

FP8, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16
ROWSET = "3,0:2,17,3"
LISTED = [3, 0, 1, 17, 3]


@pytest.fixture
def mini(tmp_path: Path) -> Path:
    return Mini().write(tmp_path / "ckpt")


def decoded(folder: Path, layer: int) -> np.ndarray:
    """[rows, 256] exact values by another library."""
    tensors = read_tensors(folder)
    codes = np.frombuffer(tensors[f"layers.{layer}.engram.embed.weight"][2], FP8).astype(np.float64)
    scales = np.frombuffer(tensors[f"layers.{layer}.engram.embed.scale"][2], np.uint8)
    return codes.reshape(-1, 256) * np.repeat(2.0 ** (scales.reshape(-1, 8) - 127.0), 32, axis=1)


def as_bits(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).astype(BF16).view(np.uint16)


def words(folder: Path, *more: object) -> tuple[object, ...]:
    return (folder, "--layer", 1, "--token-map", folder.with_name("map.json"), *more)


def test_every_dtype_and_form_of_right_values_passes(cli: Cli, mini: Path, tmp_path: Path) -> None:
    values = decoded(mini, 1)[LISTED]
    tensors = read_tensors(mini)
    codes = np.frombuffer(tensors["layers.1.engram.embed.weight"][2], np.uint8).reshape(-1, 256)[LISTED]
    scales = np.frombuffer(tensors["layers.1.engram.embed.scale"][2], np.uint8).reshape(-1, 8)[LISTED]
    for name, array in {
        "bits": as_bits(values),
        "exact": values.astype(np.float32),
        "raw": np.concatenate([codes, scales], axis=1),
        "library": values.astype(np.float32).astype(BF16),
    }.items():
        report = passes(cli, "values", npy(tmp_path / f"{name}.npy", array), *words(mini, "--rows", ROWSET))
        assert report["coverage"] == {"unit": "rows", "checked": 5, "of": 5, "sampled": False}
    (tmp_path / "v.safetensors").write_bytes(save({"values": as_bits(values)}))
    passes(cli, "values", "-", *words(mini, "--rows", ROWSET), stdin=(tmp_path / "v.safetensors").read_bytes())
    (tmp_path / "rows.txt").write_text("3\n0:2\n17\n3\n")
    passes(cli, "values", tmp_path / "bits.npy", *words(mini, "--rows-file", tmp_path / "rows.txt"))


def test_one_other_bit_is_named(cli: Cli, mini: Path, tmp_path: Path) -> None:
    bits = as_bits(decoded(mini, 1)[LISTED])
    bits[3, 200] ^= 1
    report = differs(cli, "values", npy(tmp_path / "v.npy", bits), *words(mini, "--rows", ROWSET))
    where, expected, got = only(report)
    assert where == "row 17 (number 3 of the list) element 200"
    assert expected.endswith(f"(bits {bits[3, 200] ^ 1:#06x})")
    assert got.endswith(f"(bits {bits[3, 200]:#06x})")
    assert report["differing_numbers"] == 1


def test_a_zero_of_the_other_sign_is_another_value(cli: Cli, tmp_path: Path) -> None:
    made = Mini()
    made.edit("layers.1.engram.embed.weight", 5, 0x80)
    folder = made.write(tmp_path / "ckpt")
    values = decoded(folder, 1)[:1].astype(np.float32)
    passes(cli, "values", npy(tmp_path / "a.npy", values), *words(folder, "--rows", "0"))
    values[0, 5] = 0.0
    got = only(differs(cli, "values", npy(tmp_path / "b.npy", values), *words(folder, "--rows", "0")))
    assert got == ("row 0 (number 0 of the list) element 5", "-0", "0")


def test_float32_values_that_were_rounded_as_a_model_does_pass_with_a_note(cli: Cli, tmp_path: Path) -> None:
    made = Mini()
    made.edit("layers.1.engram.embed.scale", 0, 0)  # 2**-127: a code with bits beyond BF16's is rounded there
    made.edit("layers.1.engram.embed.weight", 0, 0x0F)
    folder = made.write(tmp_path / "ckpt")
    exact = decoded(folder, 1)[:1].astype(np.float32)
    rounded = exact.astype(BF16).astype(np.float32)
    assert not np.array_equal(exact, rounded)
    report = passes(cli, "values", npy(tmp_path / "v.npy", rounded), *words(folder, "--rows", "0"))
    assert "rounded to BF16" in report["notes"][0]


def test_values_of_a_sequence(cli: Cli, container: Path, tiny: Path, tmp_path: Path) -> None:
    ids = ("--ids", "3,1,4,1,5", "--mask", "1,1,1,0,1")
    cli.ok("run", container, "--layer", 14, *ids, "--stop-at", "values", "-o", tmp_path / "v.npy")
    cli.ok("run", container, "--layer", 14, *ids, "--stop-at", "rows", "-o", tmp_path / "r.npy")
    rows = np.load(tmp_path / "r.npy")
    values = as_bits(decoded(tiny, 14)[rows])
    passes(cli, "values", npy(tmp_path / "mine.npy", values), container, "--layer", 14, *ids)
    flat = npy(tmp_path / "flat.npy", values.reshape(5, -1))
    passes(cli, "values", flat, tiny, "--layer", 14, *ids)
    report = differs(cli, "values", flat, tiny, "--layer", 14, "--ids", "3,1,4,1,6", "--mask", "1,1,1,0,1")
    assert report["findings_total"] == 24
    assert all(where.startswith("position 4 column ") for where in wheres(report))
    values[2, 7, 100] ^= 0x8000
    where = only(differs(cli, "values", npy(tmp_path / "w.npy", values), container, "--layer", 14, *ids))[0]
    assert where == f"position 2 column 7 (row {rows[2, 7]}) element 100"


def test_all_wrong_values_are_counted_by_row(cli: Cli, container: Path, tmp_path: Path) -> None:
    dump = npy(tmp_path / "v.npy", np.full((600, 256), 0x7FC0, np.uint16))
    report = differs(cli, "values", dump, container, "--layer", 1, "--rows", "0:600")
    assert (report["findings_total"], len(report["findings"])) == (600, 100)
    assert found(report)[0][2] == "nan (bits 0x7fc0)"


def exact_kv(folder: Path, rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """[T, N] in float64 and the sums of magnitudes."""
    tensors = read_tensors(folder)
    codes = np.frombuffer(tensors["layers.1.engram.wkv.weight"][2], FP8).astype(np.float64).reshape(OUTPUTS, -1)
    scales = np.frombuffer(tensors["layers.1.engram.wkv.scale"][2], np.uint8).reshape(OUTPUTS // 32, -1)
    weight = codes * np.kron(2.0 ** (scales - 127.0), np.ones((32, 32)))
    inputs = decoded(folder, 1).astype(np.float32).astype(BF16).astype(np.float64)[rows].reshape(-1, 512)
    return inputs @ weight.T, np.abs(inputs) @ np.abs(weight).T


def test_projections_pass_as_bf16_and_float32(cli: Cli, mini: Path, tmp_path: Path) -> None:
    exact, _ = exact_kv(mini, [3, 9, 0, 17])
    for name, array in {
        "bits": as_bits(exact).reshape(2, STREAMS + 1, -1),
        "flat": as_bits(exact),
        "f32": exact.astype(np.float32),
    }.items():
        report = passes(cli, "kv", npy(tmp_path / f"{name}.npy", array), *words(mini, "--rows", "3,9,0,17"))
        assert report["coverage"] == {"unit": "outputs", "checked": 2 * OUTPUTS, "of": 2 * OUTPUTS, "sampled": False}
        assert 0 <= report["largest_share_of_bound"] <= 0.51


def test_the_next_number_is_allowed_and_the_third_is_not(cli: Cli, mini: Path, tmp_path: Path) -> None:
    exact, magnitude = exact_kv(mini, [3, 9])
    bits = as_bits(exact)
    spot = int((np.abs(exact[0]) / magnitude[0]).argmax())
    rounded = bits[0, spot : spot + 1].view(BF16).astype(np.float64)[0]
    away = np.int16(1 if abs(rounded) < abs(exact[0, spot]) else -1)  # to the exact one's other side
    bits.view(np.int16)[0, spot] += away
    passes(cli, "kv", npy(tmp_path / "a.npy", bits), *words(mini, "--rows", "3,9"))
    bits.view(np.int16)[0, spot] += 2 * away
    where, expected, _ = only(differs(cli, "kv", npy(tmp_path / "b.npy", bits), *words(mini, "--rows", "3,9")))
    part, element = divmod(spot, 32)
    assert where == f"position 0 {'value' if part == 2 else f'key {part}'} element {element} (output {spot})"
    assert expected.startswith(f"{exact[0, spot]:.9g} within ")


def test_value_first_is_a_difference(cli: Cli, mini: Path, tmp_path: Path) -> None:
    exact, _ = exact_kv(mini, [3, 9])
    wrong = np.roll(as_bits(exact), 32, axis=1)
    assert differs(cli, "kv", npy(tmp_path / "k.npy", wrong), *words(mini, "--rows", "3,9"))["findings_total"] > 60


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 3e38])
def test_a_projection_that_is_no_number_is_a_finding(cli: Cli, mini: Path, tmp_path: Path, number: float) -> None:
    exact, _ = exact_kv(mini, [3, 9])
    wrong = exact.astype(np.float32)
    wrong[0, 40] = number
    report = differs(cli, "kv", npy(tmp_path / "k.npy", wrong), *words(mini, "--rows", "3,9"))
    assert only(report)[0] == "position 0 key 1 element 8 (output 40)"


def test_the_kv_of_a_sequence_passes(cli: Cli, container: Path, tiny: Path, tmp_path: Path) -> None:
    ids = ("--ids", "3,1,4", "--history", "7,-1")
    cli.ok("run", container, "--layer", 1, *ids, "--stop-at", "kv", "-o", tmp_path / "kv.npy")
    stored, expanded = (passes(cli, "kv", tmp_path / "kv.npy", of, "--layer", 1, *ids) for of in (tiny, container))
    assert stored["largest_share_of_bound"] == expanded["largest_share_of_bound"] > 0
    kv = np.load(tmp_path / "kv.npy")
    report = differs(cli, "kv", npy(tmp_path / "w.npy", kv[::-1]), container, "--layer", 1, *ids)
    assert report["findings_total"] > 500


@pytest.mark.parametrize(
    ("stage", "array", "more", "expected"),
    [
        ("values", np.zeros((5, 255), np.uint16), (), "[5, 256] or [5, 264]"),
        ("values", np.zeros((4, 256), np.uint16), (), "[5, 256] or [5, 264]"),
        ("values", np.zeros((5, 264), np.uint16), (), "256 numbers a row"),
        ("values", np.zeros((5, 256), np.float64), (), "of float32 or uint16 or uint8"),
        ("values", np.zeros((5, 256), np.float16), (), "of float32 or uint16 or uint8"),
        ("kv", np.zeros((1, 96), np.uint16), ("--rows", "1,2,3"), "2 for each token"),
        ("kv", np.zeros((2, 96), np.uint16), ("--rows", "1,2"), "[1, 3, 32] or [1, 96]"),
        ("kv", np.zeros((1, 96), np.int32), ("--rows", "1,2"), "of float32 or uint16"),
        ("values", np.zeros((5, 256), np.uint16), ("--rows", "1", "--ids", "1"), "token ids or rows"),
        ("values", np.zeros((5, 256), np.uint16), ("--rows", "18"), "rows in 0..17"),
        ("values", np.zeros((5, 256), np.uint16), ("--rows", "-1"), "row numbers and ranges, as in 0,5,100:200"),
        ("values", np.zeros((5, 256), np.uint16), ("--rows", "5:5"), "ranges that hold a row"),
        ("values", np.zeros((5, 256), np.uint16), ("--rows", "0:99999999999999999999"), "row numbers and ranges"),
        ("values", np.zeros((5, 256), np.uint16), ("--rows", "1", "--rows-file", "x"), "one of --rows and --rows-file"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    cli: Cli, mini: Path, tmp_path: Path, stage: str, array: np.ndarray, more: tuple[Any, ...], expected: str
) -> None:
    dump = npy(tmp_path / "d.npy", array)
    given = words(mini, *(more or ("--rows", ROWSET)))
    assert expected in cli.refused_twice(tmp_path, "check", stage, dump, *given).expected


def test_the_layer_has_to_be_said(cli: Cli, mini: Path, tmp_path: Path) -> None:
    dump = npy(tmp_path / "d.npy", np.zeros((1, 256), np.uint16))
    given = (mini, "--token-map", tmp_path / "map.json", "--rows", "0")
    assert cli.refused(tmp_path, "check", "values", dump, *given).expected == "one of 1, 14"
    assert cli.refused(tmp_path, "check", "values", dump, *given, "--layer", 2).found == "2"
    assert cli.refused(tmp_path, "check", "values", dump, *given[:3], "--layer", 1).where == "token ids"


def test_a_row_without_values_in_the_source_cannot_be_checked(cli: Cli, mini: Path, tmp_path: Path) -> None:
    def nan(data: bytearray) -> None:
        at = len(data) - sum(len(data) for _, _, data in read_tensors(mini).values())
        data[at + 256 * 3 + 9] = 0x7F

    assert ROWS[1] > 3
    rewrite(mini / "model.safetensors", nan)
    dump = npy(tmp_path / "d.npy", np.zeros((5, 256), np.uint16))
    refusal = cli.refused(tmp_path, "check", "values", dump, *words(mini, "--rows", ROWSET))
    assert refusal.where.endswith("layer 1 row 3 byte 9")


@pytest.mark.parametrize(
    ("kind", "raw"), [("bf16", b"\xc0\x7f"), ("bf16", b"\x80\xff"), ("f16", b"\0\x7e"), ("f32", b"\0\0\x80\x7f")]
)
def test_a_container_whose_projection_is_no_number_cannot_be_used(
    cli: Cli, mini: Path, tmp_path: Path, kind: str, raw: bytes
) -> None:
    path = tmp_path / "mini.gguf"
    cli.ok("repack", mini, "-o", path, "--kv-type", kind, "--token-map", mini.with_name("map.json"), "-q")
    start = tensor_start(path, "blk.1.engram_kv.weight") + len(raw) * 5
    rewrite(path, lambda data: data.__setitem__(slice(start, start + len(raw)), raw))
    dump = npy(tmp_path / "kv.npy", np.zeros((1, OUTPUTS), np.float32))
    refusal = cli.refused(tmp_path, "check", "kv", dump, path, "--layer", 1, "--rows", "0,1")
    assert "blk.1.engram_kv.weight" in refusal.where
    cli.ok("lookup", path, "--layer", 1, "--rows", 0, "-o", tmp_path / "v.npy")
