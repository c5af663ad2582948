"""run: token ids and hidden states to new hidden states; equal bits by either engine, from either side, in pieces."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import HIDDEN, STREAMS, TOKEN_MAP, Mini, read_shard, read_tensors, shard, token_map_of
from cli_helpers import Cli

import engramctl
from engramctl import maps, pipeline
from engramctl.errors import EngramctlError
from engramctl.fast import cpu
from engramctl.source import open_source
from formats.gguf_file import read_header

T, S, D = 37, 4, 64
LAYERS = [1, 14]
STAGES = ["rows", "values", "kv", "gate", "out"]


def ids_of(count: int, seed: int = 0, below: int = 384) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, below, count)


def hidden_of(count: int, seed: int = 0, shape: tuple[int, int] = (S, D)) -> np.ndarray:
    """BF16 bits of numbers around 1, some of them zeros of either sign."""
    bits = np.random.default_rng(seed).integers(0, 1 << 16, (count, *shape), np.uint16) & 0x80FF | 0x3F00
    bits[:, 0, :2] = (0x0000, 0x8000)
    return bits


def mask_of(count: int) -> np.ndarray:
    return np.random.default_rng(9).random(count) > 0.3


def run(path: Path, layer: int = 1, count: int = T, **more: Any) -> np.ndarray:  # noqa: ANN401
    """The library's run, with the usual tokens and hidden states."""
    more = {"hidden": hidden_of(count), "mask": mask_of(count)} | more
    with open_source(path) as source:
        return pipeline.run(source, layer, ids_of(count), **more)


@pytest.fixture(scope="module")
def answers(tiny: Path) -> dict[tuple[int, str], np.ndarray]:
    """Every stage of each layer by the reference, from the checkpoint."""
    return {(la, st): run(tiny, la, stop_at=st, engine="reference") for la in LAYERS for st in STAGES}


# either engine, either side


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("stage", STAGES)
def test_reference_and_fast_give_equal_bits_from_checkpoint_and_container(
    tiny: Path, container: Path, answers: dict[tuple[int, str], np.ndarray], layer: int, stage: str
) -> None:
    want = answers[layer, stage]
    for path, engine in ((container, "reference"), (tiny, "fast"), (container, "fast")):
        got = run(path, layer, stop_at=stage, engine=engine)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("kind", ["bf16", "f32"])
def test_the_projections_type_in_the_container_changes_no_bit(
    cli: Cli, tiny: Path, answers: dict[tuple[int, str], np.ndarray], tmp_path: Path, kind: str
) -> None:
    cli.ok("repack", tiny, "-o", tmp_path / "x.gguf", "--kv-type", kind, "--layers", 14)
    assert run(tmp_path / "x.gguf", 14).tobytes() == answers[14, "out"].tobytes()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_number_of_threads_changes_no_bit(
    tiny: Path, answers: dict[tuple[int, str], np.ndarray], threads: int
) -> None:
    assert run(tiny, threads=threads).tobytes() == answers[1, "out"].tobytes()


# what comes out


def test_each_stage_has_the_contracts_shape_and_dtype(answers: dict[tuple[int, str], np.ndarray]) -> None:
    shapes = {
        "rows": ("int64", (T, 24)),
        "values": ("uint16", (T, 24, 256)),
        "kv": ("uint16", (T, S + 1, D)),
        "gate": ("float32", (T, S)),
        "out": ("uint16", (T, S, D)),
    }
    for (_, stage), array in answers.items():
        assert (array.dtype.name, array.shape) == shapes[stage]


def test_rows_are_those_of_hash(cli: Cli, tiny: Path, answers: dict[tuple[int, str], np.ndarray]) -> None:
    ids, mask = ",".join(map(str, ids_of(T))), ",".join(map(str, mask_of(T).astype(int)))
    rows = np.load(io.BytesIO(cli.ok("hash", "--ids", ids, "--mask", mask, "--params", tiny, "--to", "npy").out))
    for number, layer in enumerate(LAYERS):
        assert np.array_equal(answers[layer, "rows"], rows[:, number])


def bf16(bits: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(bits).view(ml_dtypes.bfloat16).astype(np.float64)


@pytest.mark.parametrize("layer", LAYERS)
def test_every_stage_is_what_the_released_code_computes(
    tiny: Path, answers: dict[tuple[int, str], np.ndarray], layer: int
) -> None:
    """In float64 with ml_dtypes and the safetensors library, from the rows on; within a few roundings of BF16."""
    source, name = read_tensors(tiny), f"layers.{layer}.engram."

    def tensor(role: str, dtype: Any) -> np.ndarray:  # noqa: ANN401
        _, shape, data = source[name + role]
        return np.frombuffer(data, dtype).reshape(shape).astype(np.float64)

    rows = answers[layer, "rows"]
    scale = np.repeat(tensor("embed.scale", ml_dtypes.float8_e8m0fnu)[rows], 32, axis=-1)
    values = tensor("embed.weight", ml_dtypes.float8_e4m3fn)[rows] * scale
    assert np.array_equal(bf16(answers[layer, "values"]), values.astype(ml_dtypes.bfloat16).astype(np.float64))

    blocks = tensor("wkv.scale", ml_dtypes.float8_e8m0fnu)
    weight = tensor("wkv.weight", ml_dtypes.float8_e4m3fn) * np.kron(blocks, np.ones((32, 32)))
    kv = (bf16(answers[layer, "values"]).reshape(T, -1) @ weight.T).reshape(T, S + 1, D)
    assert np.allclose(bf16(answers[layer, "kv"]), kv, rtol=2**-7, atol=1e-4 * np.abs(kv).max())

    kv, h, alive = bf16(answers[layer, "kv"]), bf16(hidden_of(T)), mask_of(T)
    key, value = kv[:, :-1], kv[:, -1]
    rms = [np.sqrt((x**2).mean(-1) + 1e-20) for x in (h, key)]
    dot = (h * tensor("q_weight", ml_dtypes.bfloat16) * tensor("k_weight", ml_dtypes.bfloat16) * key).sum(-1)
    dot = dot / rms[0] / rms[1] / np.sqrt(D)
    gate = 1 / (1 + np.exp(-np.copysign(np.sqrt(np.maximum(np.abs(dot), 1e-6)), dot)))
    gate[~alive] = 0
    assert np.allclose(answers[layer, "gate"], gate, atol=1e-5)
    out = h + answers[layer, "gate"][..., None] * value[:, None, :]
    assert np.allclose(bf16(answers[layer, "out"]), out, rtol=2**-7, atol=1e-6)


def test_masked_positions_keep_their_bits(answers: dict[tuple[int, str], np.ndarray]) -> None:
    dead = ~mask_of(T)
    assert 0 < dead.sum() < T
    for layer in LAYERS:
        assert np.array_equal(answers[layer, "out"][dead], hidden_of(T)[dead])  # zeros with their signs
        assert not answers[layer, "gate"][dead].any()
        assert answers[layer, "gate"][~dead].all()
        assert (answers[layer, "out"][~dead] != hidden_of(T)[~dead]).any()


def test_all_masked_is_the_input(tiny: Path) -> None:
    for engine in ("fast", "reference"):
        out = run(tiny, mask=np.zeros(T, bool), engine=engine)
        assert np.array_equal(out, hidden_of(T))


# the official activation


@pytest.mark.parametrize("layer", LAYERS)
def test_the_official_activation_changes_nothing_on_fp8_tables(
    tiny: Path, answers: dict[tuple[int, str], np.ndarray], layer: int
) -> None:
    for stage in ("kv", "gate", "out"):
        official = run(tiny, layer, stop_at=stage, engine="reference", activation="official")
        assert official.tobytes() == answers[layer, stage].tobytes()


@pytest.mark.parametrize("scale", [2, 100])  # a scale byte of 2 or less; a block whose largest value is below 1e-4
def test_the_official_activation_differs_only_where_it_says_so(tmp_path: Path, scale: int) -> None:
    made = Mini()
    name = "layers.1.engram.embed.scale"
    dtype, shape, data = made.tensors[name]
    made.tensors[name] = (dtype, shape, bytes([scale]) * len(data))
    checkpoint = made.write(tmp_path / "ckpt")
    with open_source(checkpoint, None, maps.given(token_map_of(checkpoint))) as source:
        ids = ids_of(20, below=len(TOKEN_MAP))
        kv = [
            pipeline.run(source, 1, ids, stop_at="kv", engine="reference", activation=activation)
            for activation in ("plain", "official")
        ]
    assert (kv[0] != kv[1]).any()


def test_the_official_activation_needs_the_reference(tiny: Path) -> None:
    with pytest.raises(EngramctlError, match="expected --engine reference"):
        run(tiny, activation="official")


# any cut


@pytest.mark.parametrize("size", [1, 8, T - 1, T])
@pytest.mark.parametrize("stage", STAGES)
def test_chunks_are_invisible(
    tiny: Path, answers: dict[tuple[int, str], np.ndarray], monkeypatch: pytest.MonkeyPatch, size: int, stage: str
) -> None:
    monkeypatch.setattr(pipeline, "CHUNK_TOKENS", size)
    assert run(tiny, stop_at=stage).tobytes() == answers[1, stage].tobytes()


def test_more_tokens_than_a_chunk_holds(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = pipeline.CHUNK_TOKENS + 1
    parts = run(tiny, count=count)
    monkeypatch.setattr(pipeline, "CHUNK_TOKENS", count)
    assert parts.tobytes() == run(tiny, count=count).tobytes()


@pytest.mark.parametrize("engine", ["fast", "reference"])
@pytest.mark.parametrize("cuts", [[1], [2, 3, 5], [16, 17], [36]])
def test_a_sequence_in_pieces_with_history_is_the_sequence(
    tiny: Path, answers: dict[tuple[int, str], np.ndarray], engine: str, cuts: list[int]
) -> None:
    ids, mask, hidden = ids_of(T), mask_of(T), hidden_of(T)
    with open_source(tiny) as source:
        past, parts = engramctl.History(source.params()), []
        for start, end in zip([0, *cuts], [*cuts, T], strict=True):
            some = slice(start, end)
            parts.append(pipeline.run(source, 1, ids[some], hidden[some], mask[some], past.tail(), engine=engine))
            past.append(ids[some], mask[some])
    assert np.concatenate(parts).tobytes() == answers[1, "out"].tobytes()


def test_history_on_the_command_line(cli: Cli, tiny: Path, answers: dict[tuple[int, str], np.ndarray]) -> None:
    with open_source(tiny) as source:
        ids = np.where(mask_of(T), source.token_map().ids[ids_of(T)].astype(int), -1)
    history = ",".join(map(str, ids[17:20]))
    some = ",".join(map(str, ids_of(T)[20:])), ",".join(map(str, mask_of(T)[20:].astype(int)))
    words = ("--layer", 14, "--ids", some[0], "--mask", some[1], f"--history={history}", "--stop-at", "kv")
    got = np.load(io.BytesIO(cli.ok("run", tiny, *words).out))
    assert np.array_equal(got, answers[14, "kv"][20:])


# hidden states in every form, and back


FORMS = {
    "f32.npy": "float32",
    "bits.npy": "uint16",
    "fortran.npy": "float32",
    "big-endian.npy": "float32",
    "f32.safetensors": "F32",
    "bf16.safetensors": "BF16",
    "u16.safetensors": "U16",
}


def written(path: Path, bits: np.ndarray) -> Path:
    values = bf16(bits).astype(np.float32)
    if path.suffix == ".safetensors":
        kind = FORMS[path.name]
        data = values.astype("<f4").tobytes() if kind == "F32" else bits.astype("<u2").tobytes()
        shard(path, {"other": ("U8", (3,), b"abc"), "hidden": (kind, bits.shape, data)})
    else:
        array = {"bits.npy": bits, "fortran.npy": np.asfortranarray(values), "big-endian.npy": values.astype(">f4")}
        np.save(path, array.get(path.name, values))
    return path


def read_back(data: bytes, folder: Path) -> tuple[str, np.ndarray]:
    """The dtype in the file's own words, and the values."""
    if data.startswith(b"\x93NUMPY"):
        array = np.load(io.BytesIO(data))
        return array.dtype.name, bf16(array) if array.dtype == np.uint16 else array.astype(np.float64)
    (folder / "back.safetensors").write_bytes(data)
    ((name, (kind, shape, raw)),) = read_shard(folder / "back.safetensors").items()
    assert name == "hidden"
    values = np.frombuffer(raw, "<f4") if kind == "F32" else bf16(np.frombuffer(raw, "<u2"))
    return kind, values.astype(np.float64).reshape(shape)


@pytest.mark.parametrize("form", FORMS)
def test_hidden_states_come_back_in_the_form_they_came_in(
    cli: Cli, container: Path, answers: dict[tuple[int, str], np.ndarray], tmp_path: Path, form: str
) -> None:
    (tmp_path / "ids.txt").write_text(" ".join(map(str, ids_of(T))))
    (tmp_path / "mask.txt").write_text(" ".join(map(str, mask_of(T).astype(int))))
    words = ("run", container, "--layer", 1, "--ids-file", tmp_path / "ids.txt", "--mask-file", tmp_path / "mask.txt")
    path = written(tmp_path / form, hidden_of(T))
    kind, values = read_back(cli.ok(*words, "--hidden", path).out, tmp_path)
    assert kind == FORMS[form]
    assert np.array_equal(values, bf16(answers[1, "out"]))
    assert np.array_equal(np.signbit(values), np.signbit(bf16(answers[1, "out"])))


def test_npy_written_by_ml_dtypes_is_bf16(
    cli: Cli, container: Path, answers: dict[tuple[int, str], np.ndarray], tmp_path: Path
) -> None:
    np.save(tmp_path / "h.npy", hidden_of(5).view(ml_dtypes.bfloat16))
    words = ("run", container, "--layer", 1, "--ids", ",".join(map(str, ids_of(T)[:5])))
    kind, values = read_back(cli.ok(*words, "--hidden", tmp_path / "h.npy").out, tmp_path)
    assert kind == "uint16"
    assert values.shape == (5, S, D)


def test_rounding_is_to_the_nearest_even_and_only_when_asked(cli: Cli, container: Path, tmp_path: Path) -> None:
    values = np.random.default_rng(3).normal(size=(5, S, D)).astype(np.float32)
    np.save(tmp_path / "h.npy", values)
    np.save(tmp_path / "rounded.npy", values.astype(ml_dtypes.bfloat16).astype(np.float32))
    words = ("run", container, "--layer", 1, "--ids", "1,2,3,4,5", "--hidden")
    refusal = cli.refused(tmp_path, *words, tmp_path / "h.npy")
    inexact = int((values.astype(ml_dtypes.bfloat16).astype(np.float32) != values).sum())
    assert refusal.found.split()[0] == str(inexact)
    got = cli.ok(*words, tmp_path / "h.npy", "--round-hidden").out
    assert got == cli.ok(*words, tmp_path / "rounded.npy").out


# what else is refused


def test_a_layer_must_be_named_where_there_are_several(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    cli.ok("repack", tiny, "-o", tmp_path / "one.gguf", "--layers", 14)
    assert cli.refused(tmp_path, "run", tiny, "--ids", 1, "--stop-at", "rows").where == "--layer"
    one = cli.ok("run", tmp_path / "one.gguf", "--ids", 1, "--stop-at", "rows").out
    assert one == cli.ok("run", tiny, "--layer", 14, "--ids", 1, "--stop-at", "rows").out


@pytest.mark.parametrize("kernel", ["amx", "avx512", "avx2", "portable"])
def test_kernels_give_equal_bits_or_are_refused(cli: Cli, container: Path, tmp_path: Path, kernel: str) -> None:
    words = ("run", container, "--layer", 1, "--ids", 1, "--stop-at", "kv", "--kernel")
    if kernel in cpu.paths():
        assert cli.ok(*words, kernel).out == cli.ok(*words, "auto").out
    else:
        refusal = cli.refused(tmp_path, *words, kernel)
        assert (refusal.where, refusal.found) == ("--kernel", kernel)


def test_a_projection_in_the_container_must_be_exact_in_bf16(cli: Cli, container: Path, tmp_path: Path) -> None:
    data = bytearray(container.read_bytes())
    start = read_header(container).tensor("blk.1.engram_kv.weight").start
    data[start : start + 6] = np.array([1 + 2**-10, 1, 2 + 2**-9], "<f2").tobytes()  # two that need more bits
    (tmp_path / "x.gguf").write_bytes(data)
    words = ("run", tmp_path / "x.gguf", "--layer", 1, "--ids", 1, "--stop-at", "kv")
    refusal = cli.refused(tmp_path, *words)
    assert "blk.1.engram_kv.weight" in refusal.where
    assert refusal.found.startswith("2 of ")


def test_another_model_by_its_own_map(cli: Cli, tmp_path: Path) -> None:
    """Two n-gram columns, two streams: nothing of the sizes is the profile's."""
    checkpoint = Mini().write(tmp_path / "ckpt")
    given = ("--token-map", token_map_of(checkpoint))
    cli.ok("repack", checkpoint, "-o", tmp_path / "x.gguf", *given)
    np.save(tmp_path / "h.npy", hidden_of(3, shape=(STREAMS, HIDDEN)))
    words = ("--layer", 14, "--ids", "1,2,9", "--hidden", tmp_path / "h.npy")
    outs = [cli.ok("run", tmp_path / "x.gguf", *words, "--engine", engine).out for engine in ("fast", "reference")]
    outs.append(cli.ok("run", checkpoint, *words, *given).out)
    assert len(set(outs)) == 1
    assert np.load(io.BytesIO(outs[0])).shape == (3, STREAMS, HIDDEN)


def test_run_is_public() -> None:
    assert engramctl.run is pipeline.run
