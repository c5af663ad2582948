"""Rows of every layout: looked up as what they are, compared with the checkpoint byte for byte or within a bound."""

from __future__ import annotations

import functools
import gc
import json
import shutil
import struct
from pathlib import Path

import dialect_files as files
import gguf
import ml_dtypes
import numpy as np
import pytest
from checkpoints import rewrite
from checks import differs, found, passes
from cli_helpers import Cli
from dialect_files import NEW, Model
from gguf import GGMLQuantizationType as Q
from numpy.typing import NDArray

from engramctl.verify.quantised import BOUNDS, outside
from formats import dialect, row_layouts

LOSSLESS = ("ds4", "split-i8", "tensor-constants", "blocks", "bare", "paged", "engram-sidecar")
LOSSY = ("llamacpp", "split-table", "ds4-q4k", "ds4-lloyd4")


@pytest.fixture(scope="module")
def model(tiny: Path, container: Path) -> Model:
    return files.read_model(tiny, container)


@pytest.fixture(scope="module")
def made(model: Model, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("layouts")
    paths = {name: files.make(name, folder, model) for name in files.MADE}
    rows = {layer: model.blocks264(layer).view(np.int8) for layer in model.layers}
    keys = files.ds4_keys(model, "e4m3_e8m0_32_row264")
    paths["blocks"] = files.write(folder / "blocks.gguf", keys, files.ds4_tensors(model, rows), alignment=16384)
    paths["bare"] = folder / "engram-l1-packed.bin"
    paths["bare"].write_bytes(model.rows264(1).tobytes())
    paths["paged"] = paged(folder / "engram-layer-01-rank0-page15.bin", model.rows264(1), 0, 2826)
    return paths


def paged(path: Path, rows: NDArray[np.uint8], first: int, end: int) -> Path:
    """A header page, then 15 rows of 264 bytes to a page of 4096."""
    head = struct.pack("<8s7Q", b"DS41EPG2", 1, first, end, len(rows), 264, 15, 4096)
    pages = [rows[at : min(at + 15, end)].tobytes().ljust(4096, b"\0") for at in range(first, end, 15)]
    path.write_bytes(head.ljust(4096, b"\0") + b"".join(pages))
    return path


def test_rows_alone_are_known_by_where_their_scale_bytes_are(cli: Cli, model: Model, tmp_path: Path) -> None:
    path = tmp_path / "table.bin"
    path.write_bytes(model.rows264(1).tobytes())
    shown = cli.ok("show", path, "--json").json
    assert (shown["dialect"], shown["facts"]["rows"], shown["layers"]) == ("row264-bare", 2826, [])
    assert "scale bytes" in shown["sure"]
    refusal = cli.refused(tmp_path, "lookup", path, "--rows", "0", "-o", tmp_path / "x.npy")
    assert ("which layer" in refusal.expected, refusal.found) == (True, "rows alone")
    for name in ("table.bin", "engram-l1-packed.bin"):  # a name promises nothing of the rows
        (tmp_path / name).write_bytes(model.blocks264(1).tobytes())
        shown = cli.ok("show", tmp_path / name, "--json").json
        assert (shown["dialect"], shown["nearest"]) == (None, "row264-bare")
        assert [w["found"] for w in shown["wrong"]] == ["8 blocks of a scale and its 32 codes"]
        assert differs(cli, "file", tmp_path / name)["findings_total"] == 1
    path.write_bytes(np.random.default_rng(3).integers(0, 256, (100, 264), np.uint8).tobytes())
    for command in (("show", path), ("lookup", path, "--rows", "0", "-o", tmp_path / "x.npy")):
        assert cli.refused(tmp_path, *command).found == "data of no kind that is known here"


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_layouts_give_the_checkpoints_bytes_as_codes_then_scales(
    cli: Cli, tiny: Path, model: Model, made: dict[str, Path], name: str, tmp_path: Path
) -> None:
    wanted = "0,1,14,15,16,2825,5"
    cli.ok("lookup", made[name], "--layer", "1", "--rows", wanted, "--to", "raw", "-o", tmp_path / "raw.npy")
    rows = [int(word) for word in wanted.split(",")]
    assert np.array_equal(np.load(tmp_path / "raw.npy"), model.rows264(1)[rows])
    cli.ok("lookup", made[name], "--layer", "1", "--rows", wanted, "--to", "f32", "-o", tmp_path / "f32.npy")
    assert np.array_equal(np.load(tmp_path / "f32.npy"), model.values(1)[rows])
    report = cli("check", "packing", tiny, made[name], "--layer", "1", "--json").json
    assert [
        each for each in report["findings"] if not each["where"].startswith("config.")
    ] == []  # the tests' own is shorter
    assert report["coverage"]["checked"] == 2826


@pytest.mark.parametrize("name", LOSSY)
def test_lossy_layouts_are_decoded_and_within_their_bound(
    cli: Cli, tiny: Path, model: Model, made: dict[str, Path], name: str, tmp_path: Path
) -> None:
    cli.ok("lookup", made[name], "--layer", "14", "--rows", "0:5940", "--to", "f32", "-o", tmp_path / "f32.npy")
    values, exact = np.load(tmp_path / "f32.npy"), model.values(14)
    off = np.sqrt(((values.astype(np.float64) - exact) ** 2).mean(axis=1))
    kind = {"ds4-q4k": "Q4_K", "ds4-lloyd4": "lloyd136"}.get(name, "Q8_0")
    assert (off > 0).any()
    assert (off <= BOUNDS[kind].of(exact.astype(np.float64))).all()
    report = passes(cli, "packing", tiny, made[name])
    assert any("re-encoded" in note for note in report["notes"])
    assert report["coverage"]["checked"] == 8766


@pytest.mark.parametrize("name", LOSSY)
def test_a_lossy_row_in_another_rows_place_is_found(
    cli: Cli, tiny: Path, made: dict[str, Path], name: str, tmp_path: Path
) -> None:
    path = Path(shutil.copy(made[name], tmp_path / "wrong.gguf"))
    reader = gguf.GGUFReader(path)
    tensor = next(t for t in reader.tensors if t.name == files.table(1))
    row, at = tensor.n_bytes // 2826, int(tensor.data_offset)
    del reader, tensor  # its memory map is an open file
    gc.collect()

    def swap(data: bytearray) -> None:
        data[at + 7 * row : at + 8 * row] = data[at + 8 * row : at + 9 * row]

    rewrite(path, swap)
    report = differs(cli, "packing", tiny, path)
    assert [where for where, _, _ in found(report)] == ["layer 1 row 7"]


def test_a_wrong_byte_in_a_lossless_layout_is_named_as_codes_then_scales(
    cli: Cli, tiny: Path, made: dict[str, Path], tmp_path: Path
) -> None:
    path = Path(shutil.copy(made["paged"], tmp_path / "engram-layer-01-rank0-page15.bin"))
    rewrite(path, lambda data: data.__setitem__(4096 + 4096 + 3 * 264 + 257, data[4096 + 4096 + 3 * 264 + 257] ^ 1))
    report = differs(cli, "packing", tiny, path, "--layer", "1")
    assert [where for where, _, _ in found(report)] == ["layer 1 row 18 byte 257"]


def test_lloyd4_rows_decode_as_their_own_engine_does(model: Model, made: dict[str, Path]) -> None:
    """dongnh311/ds4-metal-qwen ds4_engram.c: low nibble first, 8 magnitudes, scale bytes of E5M3 with bias 16."""
    from formats.row_layouts import LLOYD136

    raw = np.zeros((1, 136), np.uint8)
    raw[0, 0], raw[0, 16], raw[0, 128], raw[0, 129] = 0x9F, 0x07, 16 << 3 | 2, 255
    values = LLOYD136.decode(raw)[0]
    assert values[0] == -1.0 * (10 / 16)
    assert values[1] == np.float32(-np.float32(0.095) * np.float32(10 / 16))
    assert values[32] == 15 / 16 * 2.0**15
    assert values[33] == 0


@pytest.mark.parametrize("kind", dialect.QUANTS + dialect.FLOATS)
def test_every_ggml_type_is_looked_up_as_the_gguf_library_decodes_it(
    cli: Cli, model: Model, kind: str, tmp_path: Path
) -> None:
    block, size = gguf.GGML_QUANT_SIZES[Q[kind]]
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 256, (40, 256 // block * size), np.uint8)
    with np.errstate(all="ignore"):
        decoded = rows.view({"F32": "<f4", "F16": "<f2"}[kind]).astype(np.float32) if kind in ("F32", "F16") else None
        values = gguf.quants.dequantize(rows, Q[kind]) if decoded is None else decoded
    good = np.flatnonzero(np.isfinite(values).all(axis=1))[:5]
    if not good.size:
        rows[:] = 0
        values, good = np.zeros((40, 256), np.float32), np.arange(3)
    tensor = (files.table(1), rows, Q[kind])
    path = files.write(tmp_path / "x.gguf", {f"{NEW}key_length": ("u32", 256)}, [tensor])
    wanted = ",".join(map(str, good))
    cli.ok("lookup", path, "--rows", wanted, "--to", "f32", "-o", tmp_path / "f32.npy")
    assert np.array_equal(np.load(tmp_path / "f32.npy"), values[good])
    cli.ok("lookup", path, "--rows", wanted, "--to", "raw", "-o", tmp_path / "raw.npy")
    assert np.array_equal(np.load(tmp_path / "raw.npy"), rows[good])
    assert kind in BOUNDS


def test_a_row_without_finite_values_is_refused(cli: Cli, tmp_path: Path) -> None:
    rows = np.full((3, 272), 255, np.uint8)
    path = files.write(tmp_path / "x.gguf", {}, [(files.table(1), rows, Q.Q8_0)])
    assert "layer 1 row 2" in cli.refused(tmp_path, "lookup", path, "--rows", "2").where


def test_a_ranks_part_holds_its_own_rows_and_no_others(cli: Cli, tiny: Path, model: Model, tmp_path: Path) -> None:
    path = paged(tmp_path / "engram-layer-01-rank1-page15.bin", model.rows264(1), 1000, 2826)
    cli.ok("lookup", path, "--rows", "1000,1014,1015,2825", "--to", "raw", "-o", tmp_path / "raw.npy")
    assert np.array_equal(np.load(tmp_path / "raw.npy"), model.rows264(1)[[1000, 1014, 1015, 2825]])
    assert "1000..2825" in cli.refused(tmp_path, "lookup", path, "--rows", "999").expected
    report = passes(cli, "packing", tiny, path, "--layer", "1")
    assert report["coverage"]["checked"] == 1826
    shown = cli.ok("show", path, "--json").json
    assert (shown["dialect"], shown["facts"]["first"]) == ("row264-paged", 1000)


def test_a_packed_file_is_compared_where_its_manifest_says_that_it_holds_rows(
    cli: Cli, tiny: Path, model: Model, tmp_path: Path
) -> None:
    """FujitsuPolycom/sparkring: global row numbers, holes where another rank's rows are."""
    rows = model.rows264(1).copy()
    rows[1000:] = 0
    path = tmp_path / "engram-l1-packed.bin"
    path.write_bytes(rows.tobytes())
    manifest = {"layer": 1, "rows": 2826, "row_bytes": 264, "dim": 256, "sb": 8, "ranges": [[0, 500], [500, 1000]]}
    path.with_name(path.name + ".json").write_text(json.dumps(manifest))
    report = passes(cli, "packing", tiny, path, "--layer", "1")
    assert report["coverage"]["checked"] == 1000
    shutil.copy(path, tmp_path / "engram-l14-packed.bin")
    path.with_name(path.name + ".json").write_text(json.dumps(manifest | {"rows": 2825}))
    assert "2825" in cli.refused(tmp_path, "lookup", path, "--rows", "0").expected


def sidecar(path: Path, rows: int, size: int, layer: int = 1) -> Path:
    head = struct.pack("<8s6I", b"DS4ENG4B", 1, 1, 256, 128, 132, 4096) + struct.pack("<16f", *np.arange(16.0))
    head += struct.pack("<IIQQQ", layer, rows, 4096, 7946240, 0)
    path.write_bytes(head.ljust(4096, b"\0") + bytes(size))
    return path


def test_a_4_bit_sidecars_header_is_read_and_its_rows_are_refused_with_the_reason(cli: Cli, tmp_path: Path) -> None:
    path = sidecar(tmp_path / "x.engram4", 10, 1320)
    shown = cli.ok("show", path, "--json").json
    assert (shown["dialect"], shown["facts"]["table_entries"][0]["rows"]) == ("ds4-hlwq", 10)
    refusal = cli.refused(tmp_path, "lookup", path, "--layer", "1", "--rows", "0")
    assert "Hadamard" in refusal.expected
    cut = sidecar(tmp_path / "cut.engram4", 11, 1320)
    assert cli("check", "file", cut).code == 1
    assert cli.ok("show", cut, "--json").json["wrong"][0]["where"] == "table of layer 1"
    other = sidecar(tmp_path / "other.engram4", 10, 1320, layer=5)  # a layer that the model has no table in
    assert cli("check", "file", other).code == 0


def shapes_of_rows() -> dict[str, np.ndarray]:
    """[n, 256] rows as FP8 holds them: even, heavy-tailed, sparse, with one large value, in blocks far apart."""
    rng, n = np.random.default_rng(5), 60
    made = {
        "normal": rng.normal(size=(n, 256)),
        "heavy tails": rng.standard_t(3, size=(n, 256)),
        "uniform": rng.uniform(-1, 1, (n, 256)),
        "one large value": np.where(np.arange(256) == 7, 30, rng.normal(size=(n, 256))),
        "sparse": rng.normal(size=(n, 256)) * (rng.random((n, 256)) < 0.05),
        "blocks apart": rng.normal(size=(n, 256)) * np.repeat(2.0 ** rng.integers(-8, 8, (n, 8)), 32, axis=1),
        "no zero": np.abs(rng.normal(size=(n, 256))) + 3,
    }
    for name, values in made.items():
        groups = values.reshape(n, 8, 32)
        step = np.exp2(np.ceil(np.log2(np.maximum(np.abs(groups).max(axis=2, keepdims=True), 1e-30) / 448)))
        codes = (groups / step).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
        made[name] = (codes * step).reshape(n, 256)
    return made


QUANTISERS = ("Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1", "TQ1_0", "TQ2_0", "MXFP4", "BF16", "F16", "Q4_K", "lloyd136")


@pytest.mark.parametrize("kind", QUANTISERS)
@pytest.mark.parametrize("scale", [-24, -7, 0, 4])
def test_right_conversions_are_within_their_bound_and_another_rows_values_are_not(kind: str, scale: int) -> None:
    own = {"Q4_K": files.q4_k, "lloyd136": files.lloyd4}
    layout = row_layouts.LAYOUTS.get(kind) or row_layouts.ggml(kind)
    assert layout is not None
    for name, values in shapes_of_rows().items():
        want = values * 2.0**scale
        with np.errstate(all="ignore"):
            quantise = own.get(kind) or functools.partial(gguf.quants.quantize, qtype=Q[kind])
            rows = quantise(want.astype(np.float32))
            have = layout.decode(np.ascontiguousarray(rows).view(np.uint8).reshape(len(want), -1)).astype(np.float64)
        if kind != "lloyd136" or scale <= 0:  # its largest scale is 15 / 16 * 2**15
            assert outside(want, have, kind) == [], name
        if name in ("normal", "uniform") and scale >= -7:
            assert len(outside(np.roll(want, 1, axis=0), have, kind)) == len(want), name


def test_codes_and_scales_in_two_files_are_named_and_refused_without_a_layer(cli: Cli, tmp_path: Path) -> None:
    """vllm-project/vllm 56757, closed unmerged: row range and rank are in the name, the layer is not."""
    weight, scale, done = (tmp_path / f"engram_v0_100_r0.{end}" for end in ("weight.bin", "scale.bin", "done.json"))
    weight.write_bytes(bytes(100 * 256))
    scale.write_bytes(bytes(100 * 8))
    assert cli.ok("show", scale, "--json").json["wrong"][0]["where"] == done.name
    done.write_text("{}")
    for path in (weight, scale):
        shown = cli.ok("show", path, "--json").json
        assert (shown["dialect"], shown["facts"]["rows"], shown["facts"]["rows_end"]) == ("vllm-parts", 100, 100)
        assert "layer" in cli.refused(tmp_path, "lookup", path, "--rows", "0", "-o", tmp_path / "x.npy").expected
    scale.write_bytes(bytes(99 * 8))
    assert cli.ok("show", weight, "--json").json["nearest"] == "vllm-parts"
    assert cli("check", "file", weight).code == 1
