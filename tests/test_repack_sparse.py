"""repack keeps holes and stays small: what lies in a hole is neither read nor written, whatever the table's size."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
from checkpoints import Mini, codes, scales, token_map_of
from cli_helpers import Cli, peak_bytes
from gguf import GGUFReader

from formats import disk, tree_digest

ROW = 264
LIMIT = 400_000_000  # bytes of resident memory


class Watched(disk.System):
    """Which bytes of which file were read and written."""

    def __init__(self) -> None:
        self.reads: dict[str, list[tuple[int, int]]] = {}
        self.writes: dict[str, list[tuple[int, int]]] = {}
        self.names: dict[int, str] = {}

    def open(self, path: disk.PathLike, flags: int, mode: int = 0o666) -> int:
        fd = super().open(path, flags, mode)
        self.names[fd] = Path(path).name
        return fd

    def pread_into(self, fd: int, view: memoryview, offset: int) -> int:
        got = super().pread_into(fd, view, offset)
        self.reads.setdefault(self.names[fd], []).append((offset, offset + got))
        return got

    def pwrite(self, fd: int, view: memoryview, offset: int) -> int:
        put = super().pwrite(fd, view, offset)
        self.writes.setdefault(self.names[fd], []).append((offset, offset + put))
        return put


def covered(ranges: list[tuple[int, int]], size: int) -> np.ndarray:
    """[size] True for each byte in a range."""
    mask = np.zeros(size, bool)
    for start, end in ranges:
        mask[start:end] = True
    return mask


def data_mask(path: Path) -> np.ndarray:
    """[size] True for each byte that is not in a hole, by lseek."""
    size, ranges, at = path.stat().st_size, [], 0
    with path.open("rb") as file:
        while at < size:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            ranges.append((at, end))
            at = end
    return covered(ranges, size)


def primes(first: int, count: int) -> list[int]:
    found = (n for n in range(first, 10 * first) if all(n % d for d in range(2, int(n**0.5) + 1)))
    return [next(found) for _ in range(count)]


def sparse(folder: Path, seed: int) -> tuple[Path, np.ndarray, np.ndarray]:
    """A checkpoint of layer 1 with some 4,000 rows, its table's parts in holes but for stretches at odd places: the
    folder, and which rows' codes and scales are not wholly in holes."""
    rng, one = random.Random(seed), Mini()
    p, q = primes(2000, 2)
    rows = p + q
    one.text.update(engram_layer_ids=[1], engram_num_embeddings=[rows], engram_vocab_size=2000)
    rest = {name: one.tensors[name] for name in one.tensors if "layers.1." in name and "embed" not in name}
    tables = {
        "layers.1.engram.embed.weight": ("F8_E4M3", (rows, 256), bytes(rows * 256)),
        "layers.1.engram.embed.scale": ("F8_E8M0", (rows, 8), bytes(rows * 8)),
    }
    one.tensors = {**tables, **rest} if seed % 2 else {**rest, **tables}
    path = one.write(folder) / "model.safetensors"
    dense = path.read_bytes()
    length = 8 + int.from_bytes(dense[:8], "little")
    starts, at = {}, length
    for name, (_, _, data) in one.tensors.items():
        starts[name] = at
        at += len(data)
    path.unlink()
    random_codes = codes(np.random.default_rng(seed), 60_000)
    random_scales = scales(np.random.default_rng(seed), 2_000)
    with path.open("wb") as file:
        file.truncate(len(dense))
        file.write(dense[:length])
        for name, (_, _, data) in rest.items():
            file.seek(starts[name])
            file.write(data)
        for name, source, most in (("weight", random_codes, 60_000), ("scale", random_scales, 2_000)):
            start = starts[f"layers.1.engram.embed.{name}"]
            size = rows * (256 if name == "weight" else 8)
            for _ in range(4):
                count = rng.randrange(1, most)
                file.seek(start + rng.randrange(size - count))
                file.write(source[:count])
    mask = data_mask(path)
    parts = []
    for name, width in (("weight", 256), ("scale", 8)):
        start = starts[f"layers.1.engram.embed.{name}"]
        parts.append(mask[start : start + rows * width].reshape(rows, width).any(axis=1))
    return folder, parts[0], parts[1]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("chunk", [4096, 7])
def test_a_row_whose_parts_lie_in_holes_is_neither_read_nor_written(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, chunk: int
) -> None:
    checkpoint, with_codes, with_scales = sparse(tmp_path / "ckpt", seed)
    alive = with_codes | with_scales
    assert 0 < alive.sum() < alive.size
    assert (with_codes != with_scales).any()
    monkeypatch.setattr(tree_digest, "LEAF_ROWS", chunk)
    monkeypatch.setattr(disk, "system", watched := Watched())
    output = tmp_path / "out.gguf"
    cli.ok("repack", checkpoint, "-o", output, "--token-map", token_map_of(checkpoint))
    table = GGUFReader(output).tensors[-1]
    start, rows = int(table.data_offset), len(alive)

    written = covered(watched.writes["out.gguf.partial"], output.stat().st_size)[start : start + rows * ROW]
    assert np.array_equal(
        written.reshape(rows, ROW), np.repeat(alive[:, None], ROW, axis=1)
    )  # whole rows, and no other

    source = (checkpoint / "model.safetensors").read_bytes()
    header = 8 + int.from_bytes(source[:8], "little")
    was_read = covered([span for span in watched.reads["model.safetensors"] if span[0] >= header], len(source))
    tables = np.zeros(len(source), bool)
    expected = np.zeros(len(source), bool)
    for name, width in (("weight", 256), ("scale", 8)):
        at = span_of(source, f"layers.1.engram.embed.{name}")
        tables[at : at + rows * width] = True
        expected[at : at + rows * width] = np.repeat(alive, width)
    assert np.array_equal(was_read & tables, expected)

    whole = np.frombuffer(source, np.uint8)
    at = {name: span_of(source, f"layers.1.engram.embed.{name}") for name in ("weight", "scale")}
    parts = [whole[at[n] :][: rows * width].reshape(rows, width) for n, width in (("weight", 256), ("scale", 8))]
    assert np.array_equal(table.data.view(np.uint8), np.concatenate(parts, axis=1))
    holes = rows - int(alive.sum())
    assert output.stat().st_blocks * 512 < output.stat().st_size - holes * ROW + 64 * 4096


def span_of(data: bytes, name: str) -> int:
    length = int.from_bytes(data[:8], "little")
    return 8 + length + int(json.loads(data[8 : 8 + length])[name]["data_offsets"][0])


def test_a_projection_in_a_hole_stays_one(full_container: Path, full: Path) -> None:
    """At full size only the first blocks of it hold data; 629 MB of zeros would otherwise be written."""
    assert sum(path.stat().st_blocks * 512 for path in full.iterdir()) < 3_000_000
    assert full_container.stat().st_size > 200_000_000_000
    assert full_container.stat().st_blocks * 512 < 16_000_000


def test_where_holes_cannot_be_asked_for_all_is_copied(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, _, _ = sparse(tmp_path / "ckpt", 0)
    words = ("repack", checkpoint, "--token-map", token_map_of(checkpoint), "-o")
    cli.ok(*words, tmp_path / "with.gguf")
    monkeypatch.delattr(os, "SEEK_DATA")
    cli.ok(*words, tmp_path / "without.gguf")
    assert (tmp_path / "with.gguf").read_bytes() == (tmp_path / "without.gguf").read_bytes()


def test_the_disk_need_only_hold_the_data(
    cli: Cli, full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The space check counts data extents: 203 GB of holes fit on any disk."""

    class Small(disk.System):
        def free_bytes(self, path: disk.PathLike) -> int:
            return 64 << 20

    monkeypatch.setattr(disk, "system", Small())
    cli.ok("repack", full, "-o", tmp_path / "out.gguf", "--layers", 1)


# memory


def dense(folder: Path) -> Path:
    """A checkpoint of layer 1 with a table of 380 MB, every byte of it data."""
    one = Mini()
    first, columns = 700_000, 2
    p = primes(first, columns)
    rows = sum(p)
    one.text.update(engram_layer_ids=[1], engram_num_embeddings=[rows], engram_vocab_size=first)
    rest = {name: one.tensors[name] for name in one.tensors if "layers.1." in name and "embed" not in name}
    one.tensors = rest
    path = one.write(folder) / "model.safetensors"
    length = int.from_bytes(path.read_bytes()[:8], "little")
    body = path.read_bytes()[8 + length :]
    header, at = json.loads(path.read_bytes()[8 : 8 + length]), len(body)
    for name, dtype, width in (("weight", "F8_E4M3", 256), ("scale", "F8_E8M0", 8)):
        size = rows * width
        header[f"layers.1.engram.embed.{name}"] = {
            "dtype": dtype,
            "shape": [rows, width],
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header).encode()
    block = codes(np.random.default_rng(0), 1 << 20)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + body)
        for width, fill in ((256, block), (8, bytes([119]) * (1 << 20))):
            whole, rest_of_it = divmod(rows * width, len(fill))
            for _ in range(whole):
                file.write(fill)
            file.write(fill[:rest_of_it])
    return folder


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="VmHWM is Linux's")
def test_a_dense_table_streams_in_bounded_memory(tmp_path: Path) -> None:
    checkpoint, output = dense(tmp_path / "ckpt"), tmp_path / "out.gguf"
    peak = peak_bytes("repack", checkpoint, "-o", output, "--token-map", token_map_of(checkpoint))
    assert output.stat().st_size > 360_000_000
    assert peak < LIMIT
    output.unlink()
    (checkpoint / "model.safetensors").unlink()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="VmHWM is Linux's")
def test_the_full_size_checkpoint_streams_in_bounded_memory(full: Path, tmp_path: Path) -> None:
    assert peak_bytes("repack", full, "-o", tmp_path / "out.gguf") < LIMIT
    for kind in ("bf16", "f32"):
        assert peak_bytes("repack", full, "-o", tmp_path / f"{kind}.gguf", "--kv-type", kind, "--layers", 14) < LIMIT


def test_a_dry_run_of_a_full_size_checkpoint_reads_headers(
    full: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "system", watched := Watched())
    plan = cli.ok("repack", full, "--dry-run", "--json").json
    shards = {name: spans for name, spans in watched.reads.items() if name.endswith(".safetensors")}
    assert sum(end - start for spans in shards.values() for start, end in spans) < 10_000
    assert plan["data_bytes"] < 16_000_000 < 200_000_000_000 < plan["file_bytes"]
