"""At the release's sizes: rows beyond 2**31, 2**32 and 2**33 bytes are right through repack, lookup, check packing."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path
from typing import BinaryIO

import ml_dtypes
import numpy as np
import pytest
from cli_helpers import Cli
from gguf import GGUFReader

from formats.gguf_file import read_header

ROWS = {1: 384_006_168, 14: 384_016_682}  # deepseek-ai/DeepSeek-V4.1-Flash config.json, engram_num_embeddings
ROW = 264
# the rows on both sides of each line that a 32-bit offset, or a signed one, breaks at: by row bytes, and by code bytes
LINES = [line // width + step for line in (2**31, 2**32, 2**33) for width in (ROW, 256) for step in (0, 1)]
FIRST_HEADS = {1: 16_000_057, 14: 16_000_477}


def telling(layer: int) -> list[int]:
    ends = [0, 1, ROWS[layer] - 1, 16383, 16384, FIRST_HEADS[layer] - 1, FIRST_HEADS[layer]]
    return sorted({*ends, *LINES, 16_268_815, 16_268_816})


def spans(checkpoint: Path) -> dict[str, tuple[Path, int]]:
    """Where each tensor begins, from the shards' headers alone."""
    found = {}
    for path in checkpoint.glob("*.safetensors"):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            for name, entry in json.loads(file.read(length)).items():
                found[name] = (path, 8 + length + entry["data_offsets"][0])
    return found


def source_rows(checkpoint: Path, layer: int, rows: list[int]) -> np.ndarray:
    """[n, 264] raw rows by plain seeks in the shards."""
    parts = []
    for name, width in (("weight", 256), ("scale", 8)):
        path, start = spans(checkpoint)[f"layers.{layer}.engram.embed.{name}"]
        parts.append(read_at(path, [start + row * width for row in rows], width))
    return np.concatenate(parts, axis=1)


def read_at(path: Path, offsets: list[int], width: int) -> np.ndarray:
    with path.open("rb") as file:
        found = []
        for offset in offsets:
            file.seek(offset)
            found.append(np.frombuffer(file.read(width), np.uint8))
    return np.stack(found)


def copy_data(path: Path, start: int, size: int, made: BinaryIO, to: int) -> None:
    """What is no hole of a stretch of a file."""
    with path.open("rb") as file:
        at = start
        while at < start + size:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            end = min(os.lseek(file.fileno(), at, os.SEEK_HOLE), start + size)
            if at < end:
                file.seek(at)
                made.seek(to + at - start)
                made.write(file.read(end - at))
            at = end


@pytest.fixture(scope="module")
def starts(full_container: Path) -> dict[int, int]:
    """Where each layer's table begins, by the gguf library."""
    tensors = {t.name: t for t in GGUFReader(full_container).tensors}
    tables = {layer: tensors[f"blk.{layer}.engram_embd.weight"] for layer in ROWS}
    assert {layer: table.shape.tolist() for layer, table in tables.items()} == {k: [ROW, v] for k, v in ROWS.items()}
    found = {layer: int(table.data_offset) for layer, table in tables.items()}
    assert found[1] % 16384 == 0
    assert found[14] == found[1] + 101_377_628_352 + 10_048  # the table, and the padding that ds4 writes after it
    assert full_container.stat().st_size == found[14] + 101_380_404_048 + 3_248
    return found


def test_the_marked_rows_are_the_telling_ones(full: Path) -> None:
    for layer in ROWS:
        rows = source_rows(full, layer, telling(layer))
        assert (rows[:, :256] != 0).any(axis=1).all()
        assert (rows[:, 256:] != 0).all()
        assert len({row.tobytes() for row in rows}) == len(rows)  # each its own, so none can stand in for another


def test_row_16268815_lies_across_the_four_gigabyte_line() -> None:
    assert 16_268_815 * ROW + 136 == 2**32


def test_repack_puts_every_telling_row_in_its_place(full: Path, full_container: Path, starts: dict[int, int]) -> None:
    for layer, start in starts.items():
        rows = telling(layer)
        found = read_at(full_container, [start + row * ROW for row in rows], ROW)
        assert np.array_equal(found, source_rows(full, layer, rows))


def test_rows_that_were_marked_nowhere_are_zeros(full_container: Path, starts: dict[int, int]) -> None:
    """A wrapped offset would have left its row among these."""
    for layer, start in starts.items():
        rows = sorted({row + step for row in telling(layer) for step in (100, 300)} | {r % 2**24 + 7 for r in LINES})
        rows = [row for row in rows if row < ROWS[layer]]
        assert not read_at(full_container, [start + row * ROW for row in rows], ROW).any()


@pytest.mark.parametrize("layer", [1, 14])
@pytest.mark.parametrize("form", ["raw", "bf16", "f32"])
def test_lookup_reads_them_from_either_side(
    cli: Cli, full: Path, full_container: Path, layer: int, form: str, tmp_path: Path
) -> None:
    rows = telling(layer)[::-1]
    raw = source_rows(full, layer, rows)
    values = raw[:, :256].view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    values = values * np.repeat(raw[:, 256:].view(ml_dtypes.float8_e8m0fnu).astype(np.float32), 32, axis=1)
    want = {"raw": raw, "f32": values, "bf16": values.astype(ml_dtypes.bfloat16).view(np.uint16)}[form]
    words = ("--layer", layer, "--rows", ",".join(map(str, rows)), "--to", form)
    for source in (full, full_container):
        got = np.load(io.BytesIO(cli.ok("lookup", source, *words).out))
        assert got.dtype == want.dtype
        assert np.array_equal(got, want)


def test_check_packing_samples_the_telling_rows(cli: Cli, full: Path, full_container: Path) -> None:
    done = cli.ok("check", "packing", full, full_container, "--sample", 16, "--json").json
    assert done["ok"] is True
    assert done["coverage"]["sampled"] is True
    assert done["coverage"]["checked"] >= sum(len(telling(layer)) for layer in ROWS)
    assert done["coverage"]["of"] == sum(ROWS.values())


def test_check_packing_counts_all_rows_of_a_sparse_file(cli: Cli, full: Path, full_container: Path) -> None:
    done = cli.ok("check", "packing", full, full_container, "--json").json
    assert done["coverage"] == {
        "unit": "rows",
        "checked": sum(ROWS.values()),
        "of": sum(ROWS.values()),
        "sampled": False,
    }


@pytest.mark.parametrize(("layer", "row"), [(1, 8_134_408), (1, 16_268_816), (14, 33_554_432), (14, ROWS[14] - 1)])
def test_check_packing_sees_one_wrong_bit_beyond_each_line(
    cli: Cli, full: Path, starts: dict[int, int], layer: int, row: int, tmp_path: Path
) -> None:
    cli.ok("repack", full, "-o", tmp_path / "bad.gguf")
    at = starts[layer] + row * ROW + 261
    with (tmp_path / "bad.gguf").open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    for more in (("--sample", "0"), (), ("--rows", f"{row - 1}:{row + 1}", "--layer", str(layer))):
        done = cli("check", "packing", full, tmp_path / "bad.gguf", "--json", *more)
        assert done.code == 1, done.err
        (finding,) = done.json["findings"]
        assert f"layer {layer} row {row} byte 261" in finding["where"]
        assert int(finding["expected"], 0) == byte
        assert int(finding["found"], 0) == byte ^ 1


def test_one_file_without_a_config_takes_the_profiles_sizes(
    cli: Cli, full: Path, full_container: Path, starts: dict[int, int], tmp_path: Path
) -> None:
    """Both layers' twelve tensors in one sparse safetensors file of 203 GB."""
    path = tmp_path / "engram.safetensors"
    header, pieces, at = {}, [], 0
    for name, (shard, start) in spans(full).items():
        with shard.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            entry = json.loads(file.read(length))[name]
        size = entry["data_offsets"][1] - entry["data_offsets"][0]
        header[name] = entry | {"data_offsets": [at, at + size]}
        pieces.append((shard, start, at, size))
        at += size
    text = json.dumps(header).encode()
    base = 8 + len(text)
    with path.open("wb") as made:
        made.truncate(base + at)
        made.write(len(text).to_bytes(8, "little") + text)
        for shard, start, to, size in pieces:
            copy_data(shard, start, size, made, base + to)
    refusal = cli.refused(tmp_path, "repack", path, "-o", tmp_path / "out.gguf")
    assert refusal.found == "none"
    assert "--profile" in refusal.hint
    cli.ok("repack", path, "-o", tmp_path / "out.gguf", "--profile", "deepseek-v4.1-flash")
    made_tables = {t.name: t for t in read_header(tmp_path / "out.gguf").tensors}
    for layer in ROWS:
        start = made_tables[f"blk.{layer}.engram_embd.weight"].start
        rows = telling(layer)
        found = read_at(tmp_path / "out.gguf", [start + row * ROW for row in rows], ROW)
        assert np.array_equal(found, source_rows(full, layer, rows))
    keys = read_header(tmp_path / "out.gguf").keys
    assert "deepseek41.config" not in keys
    assert "deepseek41.hidden_size" not in keys
    done = cli("check", "packing", path, tmp_path / "out.gguf", "--profile", "deepseek-v4.1-flash", "--sample", 4)
    assert done.code == 0, done.out


def test_all_of_it_takes_seconds(full: Path, cli: Cli, tmp_path: Path) -> None:
    begun = time.process_time()
    cli.ok("repack", full, "-o", tmp_path / "out.gguf")
    cli.ok("show", tmp_path / "out.gguf", "--json")
    cli.ok("show", full, "--json")
    assert time.process_time() - begun < 10
