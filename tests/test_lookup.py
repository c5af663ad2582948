"""lookup, and Table behind it: rows by number, in the order given, whatever file and layout they lie in."""

from __future__ import annotations

import io
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from checkpoints import Mini, read_tensors
from cli_helpers import Cli
from faults import Faulty

from engramctl.errors import EngramctlError
from engramctl.source import open_source
from formats import disk

LAYERS = [1, 14]


def raw_rows(checkpoint: Path, layer: int) -> np.ndarray:
    """[rows, 264] by the safetensors library."""
    source, name = read_tensors(checkpoint), f"layers.{layer}.engram.embed."
    parts = [np.frombuffer(source[name + n][2], np.uint8).reshape(-1, w) for n, w in (("weight", 256), ("scale", 8))]
    return np.concatenate(parts, axis=1)


def values_of(raw: np.ndarray) -> np.ndarray:
    """Exact values, by ml_dtypes."""
    scales = raw[..., 256:].copy().view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    return raw[..., :256].copy().view(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.repeat(scales, 32, axis=-1)


@pytest.mark.parametrize("layer", LAYERS)
def test_every_row_in_every_form_from_either_side(cli: Cli, tiny: Path, container: Path, layer: int) -> None:
    raw = raw_rows(tiny, layer)
    values = values_of(raw)
    want = {"raw": raw, "f32": values, "bf16": values.astype(ml_dtypes.bfloat16).view(np.uint16)}
    dtypes = {"raw": "uint8", "f32": "float32", "bf16": "uint16"}
    words = ("--layer", layer, "--rows", f"0:{len(raw)}")
    for source in (tiny, container):
        for form, array in want.items():
            got = np.load(io.BytesIO(cli.ok("lookup", source, *words, "--to", form).out))
            assert got.dtype.name == dtypes[form]
            assert got.tobytes() == np.ascontiguousarray(array).tobytes()
    assert cli.ok("lookup", container, *words).out == cli.ok("lookup", container, *words, "--to", "bf16").out


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("7", [7]),
        ("5,3,5,0:3", [5, 3, 5, 0, 1, 2]),
        ("10:12,9,11", [10, 11, 9, 11]),
        (" 1 , 2:4 ", [1, 2, 3]),
        ("2825", [2825]),
    ],
)
def test_order_and_duplicates_are_kept(cli: Cli, tiny: Path, container: Path, rows: str, expected: list[int]) -> None:
    got = np.load(io.BytesIO(cli.ok("lookup", container, "--layer", 1, "--rows", rows, "--to", "raw").out))
    assert np.array_equal(got, raw_rows(tiny, 1)[expected])


def test_raw_is_what_is_there_even_where_it_has_no_value(cli: Cli, tmp_path: Path) -> None:
    made = Mini()
    made.edit("layers.1.engram.embed.weight", 256 * 4 + 9, 0x7F)
    checkpoint = made.write(tmp_path / "ckpt")
    words = ("lookup", checkpoint, "--layer", 1, "--rows", "3:6")
    raw = np.load(io.BytesIO(cli.ok(*words, "--to", "raw").out))
    assert raw[1, 9] == 0x7F
    for form in ("bf16", "f32"):
        refusal = cli.refused(tmp_path, *words, "--to", form)
        assert "layer 1 row 4 byte 9" in refusal.where


@pytest.mark.parametrize(("layer", "row"), [(1, 2826), (14, 5940), (1, 10**17)])
def test_a_row_outside_the_table_is_refused(cli: Cli, container: Path, tmp_path: Path, layer: int, row: int) -> None:
    for more in (("--rows", f"0,{row}"), ("--rows-file", "-")):
        refusal = cli.refused(tmp_path, "lookup", container, "--layer", layer, *more, stdin=f"0 {row}".encode())
        assert str(row) in refusal.found
        assert f"0..{2825 if layer == 1 else 5939}" in refusal.expected
    file = io.BytesIO()
    np.save(file, np.array([0, row]))
    for data in (file.getvalue(), file.getvalue()[:-8] + (-1 & 2**64 - 1).to_bytes(8, "little")):
        refusal = cli.refused(tmp_path, "lookup", container, "--layer", layer, "--rows-file", "-", stdin=data)
        assert refusal.found in (str(row), "-1")


def test_the_only_layer_need_not_be_named(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    cli.ok("repack", tiny, "-o", tmp_path / "one.gguf", "--layers", 14)
    got = np.load(io.BytesIO(cli.ok("lookup", tmp_path / "one.gguf", "--rows", 3, "--to", "raw").out))
    assert np.array_equal(got, raw_rows(tiny, 14)[[3]])
    assert cli.refused(tmp_path, "lookup", tmp_path / "one.gguf", "--layer", 1, "--rows", 3).expected == "one of 14"


# Table


@pytest.mark.parametrize("shape", [(0,), (1,), (5, 24), (2, 3, 4), (0, 24), ()])
def test_a_table_answers_in_the_shape_of_the_question(tiny: Path, container: Path, shape: tuple[int, ...]) -> None:
    rows = np.random.default_rng(0).integers(0, 2826, shape)
    want = raw_rows(tiny, 1)[rows]
    for path in (tiny, container):
        with open_source(path) as source:
            got = source.table(1).read(rows)
        assert got.shape == (*shape, 264)
        assert got.dtype == np.uint8
        assert np.array_equal(got, want)


@pytest.mark.parametrize("row", [-1, 2826, -(2**63), 2**63 - 1])
def test_a_table_refuses_rows_that_it_has_not(container: Path, row: int) -> None:
    with open_source(container) as source, pytest.raises(EngramctlError, match=f"rows in 0..2825 .*found {row}"):
        source.table(1).read(np.array([0, row]))


def test_each_distinct_row_is_read_once_in_file_order(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_source(container) as source:
        table = source.table(14)
        table.read(np.array([0]))
        monkeypatch.setattr(disk, "system", system := Faulty())
        table.read(np.array([[9, 5, 9], [5, 700, 9]]))
    assert system.calls == [("read", 264)] * 3


def test_short_and_interrupted_reads_give_the_same_rows(
    tiny: Path, container: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "system", Faulty(piece=7, interrupted=True))
    for path in (tiny, container):
        with open_source(path) as source:
            assert np.array_equal(source.table(1).read(np.array([8, 2])), raw_rows(tiny, 1)[[8, 2]])


def test_a_closed_source_gives_no_rows(container: Path) -> None:
    with open_source(container) as source:
        table = source.table(1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        table.read(np.array([1]))


def test_an_npy_of_too_many_row_numbers_is_refused(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "many.npy", np.zeros(16_777_217, np.uint8))
    refusal = cli.refused(tmp_path, "lookup", tiny, "--layer", "1", "--rows-file", tmp_path / "many.npy")
    assert (refusal.expected, refusal.found) == ("at most 16777216 rows", "16777217")


def test_row_numbers_without_an_end_are_refused(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    refusal = cli.refused(tmp_path, "lookup", tiny, "--layer", "1", "--rows-file", "/dev/zero")
    assert (refusal.where, refusal.expected) == ("/dev/zero", "at most 16777216 bytes")
    with (tmp_path / "long.npy").open("wb") as file:
        file.truncate(16_777_216 * 40 + 1)  # a hole
    refusal = cli.refused(tmp_path, "lookup", tiny, "--layer", "1", "--rows-file", tmp_path / "long.npy")
    assert refusal.expected == "at most 671088640 bytes"
    for words in (("--ids-file", "/dev/zero"), ("--ids", "1", "--mask-file", "/dev/zero")):
        assert cli.refused(tmp_path, "hash", "--profile", "blt", *words).expected == "at most 16777216 bytes"
