"""Writing Qwen3.8's table: resumed after any interruption, its digests, and the way back, byte for byte."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from cli_helpers import Cli, Outcome, parse
from faults import Faulty
from test_siblings_files import PLE, library

from engramctl import durable, extents, profiles
from engramctl.siblings import synth, unpack, writing
from formats import disk
from formats import gguf_file as own

NAMES = ("qwen3.8-flash-next", "qwen3.8-flash-next:fp8")
DIALECTS = ("qwen4exp", "ple-sidecar")
TABLE = "per_layer_token_embd.weight"
BEGUN = 4000  # about what the lock, the plan in the journal and the mark take


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("ple")
    for name in NAMES:
        synth.make(folder / name, profiles.load(name), 7, real_tokens=False, full_size=False)
    return {name: folder / name for name in NAMES}


class Job:
    """One conversion, over and over, with a sync every few rows."""

    def __init__(self, cli: Cli, checkpoint: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cli, self.folder, self.monkeypatch = cli, folder, monkeypatch
        monkeypatch.setattr(os, "fsync", lambda fd: None)
        monkeypatch.setattr(os, "fdatasync", lambda fd: None)
        monkeypatch.setattr(extents, "CHUNK_ROWS", 7)
        monkeypatch.setattr(durable, "SYNC_BYTES", 20000)
        folder.mkdir()
        self.output = folder / "x.gguf"
        self.words = ("repack", checkpoint, "-o", self.output)
        system = Faulty()
        assert self.run(system=system).code == 0
        self.written = sum(size for name, size in system.calls if name == "write")
        self.expected = self.output.read_bytes()
        self.output.unlink()

    def run(self, *more: str, system: disk.System | None = None) -> Outcome:
        with self.monkeypatch.context() as patch:
            if system is not None:
                patch.setattr(disk, "system", system)
            return self.cli(*self.words, *more)

    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def finished(self, *more: str) -> None:
        outcome = self.run(*more)
        assert outcome.code == 0, outcome.err
        assert self.left() == ["x.gguf"]
        assert self.output.read_bytes() == self.expected


@pytest.fixture
def job(cli: Cli, made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    shutil.copytree(made[NAMES[0]], tmp_path / "ckpt")
    return Job(cli, tmp_path / "ckpt", tmp_path / "out", monkeypatch)


def test_a_disk_full_at_any_byte_is_one_line_and_resume_finishes(job: Job) -> None:
    rng = random.Random(1)
    for room in [0, 1, *rng.sample(range(job.written), 30)]:
        outcome = job.run(system=Faulty(room=room))
        assert outcome.code == 2
        assert parse(outcome.err).found == "no space left on device"
        if room > 2 * BEGUN:
            assert job.left() == ["x.gguf.journal", "x.gguf.partial"]
            refusal = parse(job.run().err)
            assert "--resume" in refusal.hint
            assert "--force" in refusal.hint
        job.finished("--resume")
        job.output.unlink()


def test_resume_writes_only_what_is_left(job: Job) -> None:
    assert job.run(system=Faulty(room=job.written - 100_000)).code == 2
    again = Faulty()
    assert job.run("--resume", system=again).code == 0
    assert sum(size for name, size in again.calls if name == "write") < job.written - 100_000
    assert job.output.read_bytes() == job.expected


def test_an_interruption_keeps_what_was_done_and_says_so(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, real = [0], writing.repack.converted

    def converted(*args: object) -> object:
        calls[0] += 1
        if calls[0] == 40:
            raise KeyboardInterrupt
        return real(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(writing.repack, "converted", converted)
        outcome = job.run()
    assert outcome.code == 130
    assert "--resume goes on" in outcome.err
    assert job.left() == ["x.gguf.journal", "x.gguf.partial"]
    job.finished("--resume")


def test_what_changed_meanwhile_is_named(job: Job) -> None:
    assert job.run(system=Faulty(room=job.written // 2)).code == 2
    refusal = parse(job.run("--resume", "--row-type", "f32").err)
    assert refusal.where.endswith(("row_type", "row-type"))
    shard = sorted((job.folder.parent / "ckpt").glob("*.safetensors"))[3]
    os.utime(shard, ns=(1, 1))
    assert shard.name in parse(job.run("--resume").err).where
    job.finished("--force")


def test_resume_with_nothing_to_resume_just_writes(job: Job) -> None:
    job.finished("--resume")


def test_the_output_may_not_be_the_source(job: Job) -> None:
    shard = sorted((job.folder.parent / "ckpt").glob("*.safetensors"))[3]
    before = shard.read_bytes()
    outcome = job.cli("repack", job.folder.parent / "ckpt", "-o", shard, "--force")
    assert parse(outcome.err).found == shard.name
    assert shard.read_bytes() == before


@pytest.mark.parametrize("kind", ["bf16", "f32", "q8_0"])
def test_digests_are_of_the_tables_rows(cli: Cli, made: dict[str, Path], tmp_path: Path, kind: str) -> None:
    """Put together here from the page's words, one block of 1560 rows."""
    out = tmp_path / "x.gguf"
    words = ("repack", made[NAMES[0]], "-o", out, "--row-type", kind)
    report = cli.ok(*words, "--digest", "tree", "--json").json
    tensor = own.read_header(out).tensor(TABLE)
    data = out.read_bytes()[tensor.start : tensor.start + (tensor.size or 0)]
    head = b"".join(number.to_bytes(8, "little") for number in (len(data) // 1560, 4096, 0, 1560))
    tree = blake3(b"engramctl tree digest 1\n" + head + blake3(data).digest()).hexdigest()
    assert (report["digest"], report["digests"]) == ("tree", {"1": tree})
    printed = cli.ok(*words, "--digest", "sha256", "--force").out.decode()
    assert printed == f"{hashlib.sha256(data).hexdigest()}  {TABLE}\n"


def test_a_full_size_digest_knows_holes(cli: Cli, tmp_path: Path) -> None:
    """A hole's rows are zeros, also where a whole file of them is never read."""
    synth.make(tmp_path / "ckpt", profiles.load(NAMES[0]), 7, real_tokens=True, full_size=True)
    report = cli.ok("repack", tmp_path / "ckpt", "-o", tmp_path / "x.gguf", "--digest", "tree", "--json").json
    rows, leaves = 320_001_536, []
    tensor = own.read_header(tmp_path / "x.gguf").tensor(TABLE)
    zeros = {count: blake3(bytes(count * 320)).digest() for count in (4096, rows % 4096)}
    with (tmp_path / "x.gguf").open("rb") as file:
        at = tensor.start
        held = set()
        while at < tensor.start + rows * 320:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            end = min(os.lseek(file.fileno(), at, os.SEEK_HOLE), tensor.start + rows * 320)
            held |= {*range((at - tensor.start) // (4096 * 320), -(-(end - tensor.start) // (4096 * 320)))}
            at = end
        for block in range(-(-rows // 4096)):
            count = min(4096, rows - block * 4096)
            if block in held:
                file.seek(tensor.start + block * 4096 * 320)
                leaves.append(blake3(file.read(count * 320)).digest())
            else:
                leaves.append(zeros[count])
    head = b"".join(number.to_bytes(8, "little") for number in (320, 4096, 0, rows))
    want = blake3(b"engramctl tree digest 1\n" + head + b"".join(leaves)).hexdigest()
    assert report["digests"] == {"1": want}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", NAMES)
def test_every_shard_comes_back_byte_for_byte(
    cli: Cli, made: dict[str, Path], tmp_path: Path, name: str, dialect: str
) -> None:
    """Of BF16 and of E4M3 with its scale; a sidecar gives the table and its constants, and no config."""
    out, back = tmp_path / "x.gguf", tmp_path / "back"
    cli.ok("repack", made[name], "-o", out, "--dialect", dialect, "--row-type", "bf16")
    cli.ok("repack", out, "-o", back, "--dialect", "hf", "--shards", "12")
    want, got = library(made[name]), library(back)
    module = {tensor for tensor in want if "ple_embedding" not in tensor}
    assert set(got) == (set(want) if dialect == "qwen4exp" else set(want) - module)
    for tensor, entry in got.items():
        assert (entry["dtype"], entry["shape"]) == (want[tensor]["dtype"], want[tensor]["shape"]), tensor
        assert bytes(entry["data"]) == bytes(want[tensor]["data"]), tensor
    assert (back / "config.json").exists() is (dialect == "qwen4exp")
    if dialect == "ple-sidecar":
        shutil.copy(made[name] / "config.json", back)
    for pair in ((made[name], back), (out, back), (back, out)):
        report = cli.ok("check", "packing", *pair, "--json").json
        assert report["coverage"]["checked"] == 1560
        assert any("the table alone" in note for note in report["notes"]) is (dialect == "ple-sidecar")
    if dialect == "ple-sidecar":
        words = ("run", back, "--ids", "5,6", "--stop-at", "kv", "-o", "-")
        assert cli.refused(tmp_path, *words).found == "none: this checkpoint holds the table alone"
        assert cli.ok("run", back, "--ids", "5,6", "--stop-at", "values", "-o", "-").out
        assert cli("check", "source", back).code == 1


def test_a_sidecar_in_the_releases_size_gives_its_128_shards(cli: Cli, tmp_path: Path) -> None:
    full, side, back = tmp_path / "full", tmp_path / "side.gguf", tmp_path / "back"
    marked = synth.make(full, profiles.load(NAMES[1]), 7, real_tokens=True, full_size=True).marked[1]
    cli.ok("repack", full, "-o", side, "--dialect", "ple-sidecar", "--row-type", "bf16")
    cli.ok("repack", side, "-o", back, "--dialect", "hf")
    index = json.loads((back / "model.safetensors.index.json").read_text())["weight_map"]
    assert sum("shard_" in name for name in index) == 128
    assert sum(path.stat().st_blocks for path in back.iterdir()) * 512 < 256 << 20
    rows = ",".join(map(str, marked))
    words = ("--rows", rows, "--to", "raw", "--profile", NAMES[1], "-o", "-")
    assert cli.ok("lookup", back, *words).out == cli.ok("lookup", full, *words).out


def test_codes_come_back_only_by_a_scale_that_fits(cli: Cli, made: dict[str, Path], tmp_path: Path) -> None:
    plain, scaled = tmp_path / "plain.gguf", tmp_path / "scaled.gguf"
    cli.ok("repack", made[NAMES[0]], "-o", plain)
    cli.ok("repack", made[NAMES[1]], "-o", scaled)
    back = ("-o", tmp_path / "back", "--dialect", "hf")
    refusal = cli.refused(tmp_path, "repack", plain, *back, "--row-type", "e4m3")
    assert refusal.found == "none"
    assert cli.refused(tmp_path, "repack", plain, *back, "--row-type", "q8_0").found == "q8_0"
    assert cli.refused(tmp_path, "repack", plain, *back, "--shards", "7").found == "7"
    assert cli.refused(tmp_path, "repack", plain, *back, "--digest", "tree").where == "--digest"
    tensor, data = own.read_header(scaled).tensor(TABLE), bytearray(scaled.read_bytes())
    data[tensor.start + 320 : tensor.start + 322] = b"\xcd\x3f"  # 1.6015625, which no code gives
    scaled.write_bytes(data)
    assert cli.refused(tmp_path, "repack", scaled, *back).found.startswith("1 of ")
    cli.ok("repack", scaled, *back, "--row-type", "bf16")


def test_every_code_is_found_again() -> None:
    """All 254 finite codes, both zeros among them, under scales of any size that keeps them apart."""
    from formats.floats import E4M3_VALUES

    for scale in (np.float32(2.0**-11), np.float32(0.00019931793212890625), np.float32(3), np.float32(2.0**-100)):
        codes = np.array([code for code in range(256) if np.isfinite(E4M3_VALUES[code])], np.uint8)
        values = E4M3_VALUES[codes] * scale
        order = np.argsort(values.view(np.uint32))
        table = unpack.Codes(scale, values.view(np.uint32)[order], codes[order])
        np.testing.assert_array_equal(table.of(values[None]), codes[None])


def test_a_sidecars_loader_is_not_claimed(cli: Cli, made: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "x.gguf"
    cli.ok("repack", made[NAMES[0]], "-o", out, "--dialect", "ple-sidecar")
    report = cli.ok("show", out, "--json").json
    assert report["loaders"]["ds4"]["accepts"] is None
    assert "as its converter writes it" in cli.ok("show", out).out.decode()
    assert f"{PLE}key_proj.weight" in library(made[NAMES[0]])
