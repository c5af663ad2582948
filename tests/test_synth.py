"""synth: the same bytes everywhere, in the published form; at full size only the marked rows hold data."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cli_helpers import Cli
from faults import Faulty
from published import fixture, shipped_map
from safetensors import deserialize, safe_open

from engramctl import profiles, synth, telling, tiny_tokenizer
from engramctl.checkpoint import open_checkpoint
from engramctl.errors import EngramctlError
from formats import disk
from formats.errors import FormatError

SEED = 7  # of the session's checkpoints
INPUTS, STREAMS = 24 * 256, 4
GOLDEN = {  # SHA-256 on the day they were made; what is inside each is proved below by numbers of its own
    "config.json": "0d3d800ba597d9336c99c09dc4efd391b4ff2368f066a7cebe863e47451f8457",
    "model-00001-of-00004.safetensors": "379919ee79e2e561fa06f4108ca18e368866f80e764efb78f62d7e3fe4569dd6",
    "model-00002-of-00004.safetensors": "c9750761e3fd1447e9a618ea8b7a604cb5902dfdc2611932c0378a425599112f",
    "model-00003-of-00004.safetensors": "97adf35c3a10a1d75e2ef6ff0ecb52f737c680e070fd25e96341f6c8d07186dc",
    "model-00004-of-00004.safetensors": "9fe2b65c257d37b030eee075ebc2cd87641fd8aa34ef6046a575ca99826dfcd7",
    "model.safetensors.index.json": "1ccb0347936b6bc72a1d01b28ec1c27b813e9b388eec94924cb101f7b702b467",
    "tokenizer.json": "2be54055934896d3140df702d07e1370f4515ee9b67d79dea44f3c0fa164c344",
}


def make(
    folder: Path, seed: int = SEED, *, real_tokens: bool = False, full_size: bool = False, force: bool = False
) -> synth.Made:
    return synth.make(folder, profiles.load(), seed, real_tokens, full_size, force)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path) for path in sorted(folder.iterdir())}


# The generator once more, in Python integers.


def splitmix64(seed: int, start: int = 0) -> Iterator[int]:
    """The numbers of Steele, Lea and Flood's generator from the counter start + 1 on."""
    counter = start
    while True:
        counter += 1
        z = (seed + counter * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        yield z ^ z >> 31


def test_splitmix64_gives_its_published_first_numbers() -> None:
    assert list(islice(splitmix64(1234567), 3)) == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert synth.random_u64(1234567, 1, 2).tolist() == [3203168211198807973, 9817491932198370423]


def expected(layer: int, role: str, start: int, count: int) -> bytes:
    """Bytes start .. start + count of a tensor, one by one."""
    seed = next(splitmix64(SEED * 4096 + layer, sum(role.encode())))
    if role in ("codes", "projection"):
        draws = splitmix64(seed, start // 8)
        codes = b"".join(next(draws).to_bytes(8, "little") for _ in range(-(-(start % 8 + count) // 8)))
        return bytes(code ^ (code & 0x7F == 0x7F) for code in codes[start % 8 :][:count])
    draws = splitmix64(seed, start)
    if role in ("scales", "projection_scale"):
        low, high = (118, 121) if role == "scales" else (113, 117)
        return bytes(low + (z >> 32) % (high - low + 1) for z in islice(draws, count))
    words = ((126 + (z >> 63)) << 7 | z >> 40 & 0x7F for z in islice(draws, count // 2))
    return b"".join(word.to_bytes(2, "little") for word in words)


NAMES = {
    "codes": ("embed.weight", "F8_E4M3"),
    "scales": ("embed.scale", "F8_E8M0"),
    "projection": ("wkv.weight", "F8_E4M3"),
    "projection_scale": ("wkv.scale", "F8_E8M0"),
    "q_weight": ("q_weight", "BF16"),
    "k_weight": ("k_weight", "BF16"),
}


def shapes(rows: int, hidden: int) -> dict[str, list[int]]:
    outputs = (STREAMS + 1) * hidden
    blocks = [outputs // 32, INPUTS // 32]
    gate = [STREAMS, hidden]
    return dict(zip(NAMES, ([rows, 256], [rows, 8], [outputs, INPUTS], blocks, gate, gate), strict=True))


def primes_from(base: int) -> Iterator[int]:
    return (n for n in range(base, 10 * base) if all(n % d for d in range(2, n)))


def tiny_rows() -> list[int]:
    primes = list(islice(primes_from(61), 48))
    return [sum(primes[:24]), sum(primes[24:])]


def by_name(path: Path) -> dict[str, dict[str, Any]]:
    return dict(deserialize(path.read_bytes()))


def test_the_tiny_checkpoint_is_these_bytes_everywhere(tiny: Path) -> None:
    assert files(tiny) == GOLDEN


def test_every_tensor_has_its_published_name_dtype_shape_and_the_generators_bytes(tiny: Path) -> None:
    found: dict[str, dict[str, Any]] = {}
    for path in tiny.glob("*.safetensors"):
        found |= by_name(path)
    assert len(found) == 12
    for layer, rows in zip((1, 14), tiny_rows(), strict=True):
        for role, shape in shapes(rows, 64).items():
            name, dtype = NAMES[role]
            tensor = found[f"layers.{layer}.engram.{name}"]
            assert (tensor["dtype"], tensor["shape"]) == (dtype, shape)
            data = bytes(tensor["data"])
            assert data == expected(layer, role, 0, len(data)), f"layer {layer} {role}"


def test_no_code_is_nan_scales_are_in_their_window_and_weights_are_exact_in_f16(tiny: Path) -> None:
    with open_checkpoint(tiny) as source:
        for layer in (1, 14):
            for role, low, high in (("scales", 118, 121), ("projection_scale", 113, 117)):
                assert sorted(set(source.array(layer, role).ravel().tolist())) == list(range(low, high + 1))
            for role in ("codes", "projection"):
                codes = source.array(layer, role)
                assert not (codes & 0x7F == 0x7F).any()
                assert len(set(codes.ravel().tolist())) == 254
            scale = source.array(layer, "projection_scale").repeat(32, 0).repeat(32, 1)
            weight = source.array(layer, "projection").view(ml_dtypes.float8_e4m3fn).astype(np.float64)
            weight *= 2.0 ** (scale.astype(np.int64) - 127)
            np.testing.assert_array_equal(weight.astype(np.float16).astype(np.float64), weight)
            gate = source.array(layer, "q_weight", "<u2").view(ml_dtypes.bfloat16).astype(np.float64)
            assert ((gate >= 0.5) & (gate < 2)).all()


def test_the_config_is_in_the_published_spelling_and_says_that_it_is_synthetic(tiny: Path) -> None:
    config = json.loads((tiny / "config.json").read_text())
    assert config["engramctl_synthetic"] is True
    assert config["engramctl_seed"] == SEED
    text = config["text_config"]
    assert {key: value for key, value in text.items() if key.startswith("engram_")} == {
        "engram_layer_ids": [1, 14],
        "engram_num_embeddings": tiny_rows(),
        "engram_max_ngram_size": 4,
        "engram_vocab_size": 61,
        "engram_n_heads": 8,
        "engram_head_dim": 256,
        "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": tiny_tokenizer.COMPRESSED,
    }
    assert (text["vocab_size"], text["hidden_size"], text["hc_mult"]) == (tiny_tokenizer.COUNT, 64, STREAMS)
    assert (tiny / "tokenizer.json").read_text() == tiny_tokenizer.text()


@pytest.mark.parametrize("size", ["tiny", "full"])
def test_the_index_names_every_tensor_once_and_the_library_opens_every_shard(
    size: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(size)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    total, seen = 0, {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="np") as shard:
            for name in shard.keys():  # noqa: SIM118 - a shard is no mapping
                part = shard.get_slice(name)
                seen[name] = path.name
                total += int(np.prod([int(n) for n in part.get_shape()])) * (2 if part.get_dtype() == "BF16" else 1)
    assert index == {"metadata": {"total_size": total}, "weight_map": seen}
    assert sorted(set(seen.values())) == [f"model-{i:05d}-of-00004.safetensors" for i in range(1, 5)]
    assert total == sum(
        rows * 264 + 5 * hidden * INPUTS + 5 * hidden * INPUTS // 1024 + 2 * 2 * STREAMS * hidden
        for rows, hidden in zip(*sizes_of(size), strict=True)
    )


def sizes_of(size: str) -> tuple[list[int], list[int]]:
    return (tiny_rows(), [64, 64]) if size == "tiny" else (fixture("constants")["rows"], [5120, 5120])


def test_the_tiny_checkpoint_moves_the_pad_and_opens(tiny: Path) -> None:
    with open_checkpoint(tiny) as source:
        params = source.params()
        assert (params.pad_id, source.sizes.pad_token_id) == (1, 2)
        assert params.rows == tuple(tiny_rows())
        assert params.moduli.ravel().tolist() == list(islice(primes_from(61), 48))
        assert source.token_map().origin == "the checkpoint's tokenizer.json"


def test_one_seed_gives_one_checkpoint_and_another_differs_in_every_tensor(tiny: Path, tmp_path: Path) -> None:
    make(tmp_path / "again")
    assert files(tmp_path / "again") == files(tiny)
    for seed in (8, 0, 2**40):
        make(tmp_path / str(seed), seed)
        mine, theirs = files(tiny), files(tmp_path / str(seed))
        same = {name for name in mine if mine[name] == theirs[name]}
        assert same == {"model.safetensors.index.json", "tokenizer.json"}
    for path in tiny.glob("*.safetensors"):
        for name, tensor in by_name(path).items():
            assert tensor["data"] != by_name(tmp_path / "8" / path.name)[name]["data"], name


def test_no_two_tensors_share_their_numbers(tiny: Path) -> None:
    starts: list[bytes] = []
    for path in tiny.glob("*.safetensors"):
        starts += [bytes(tensor["data"][:256]) for tensor in by_name(path).values()]
    assert len(set(starts)) == len(starts) == 12


def test_real_tokens_take_the_shipped_map_and_no_tokenizer(tmp_path: Path) -> None:
    made = make(tmp_path / "ckpt", real_tokens=True)
    assert not (tmp_path / "ckpt" / "tokenizer.json").exists()
    assert (made.sizes.vocabulary, made.sizes.compressed) == (129_280, 99_092)
    with open_checkpoint(tmp_path / "ckpt") as source:
        np.testing.assert_array_equal(source.token_map().ids, shipped_map())
        assert source.params().rows == tuple(tiny_rows())


# Full size: sparse.

LINES = [2**bits // stride + step for bits in (31, 32, 33) for stride in (264, 256) for step in (0, 1)]


def test_the_marked_rows_are_the_telling_ones(full: Path, tmp_path: Path) -> None:
    facts, marked = fixture("constants"), make(tmp_path / "ckpt", real_tokens=True, full_size=True).marked
    for layer, rows, offsets in zip((1, 14), facts["rows"], facts["offsets"], strict=True):
        want = {0, 1, 2, 16383, 16384, 16268815, 16268816, rows - 1, *LINES, *offsets, *(o - 1 for o in offsets[1:])}
        assert set(marked[layer]) == want
        assert list(marked[layer]) == sorted(want)
    assert files_without_tables(full) == files_without_tables(tmp_path / "ckpt")


def files_without_tables(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path) for path in folder.glob("*.json")}


def data_blocks(path: Path) -> list[tuple[int, int]]:
    """The extents of a file that hold data, as its file system says."""
    extents, end = [], 0
    with path.open("rb") as file:
        while end < path.stat().st_size:
            try:
                start = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            extents.append((start, end))
    return extents


def test_full_size_shards_have_the_releases_sizes_and_hold_data_only_where_rows_are_marked(full: Path) -> None:
    assert sum(path.stat().st_blocks for path in full.iterdir()) * 512 < 4 << 20
    assert sum(path.stat().st_size for path in full.iterdir()) > 200 * 10**9
    facts = fixture("constants")
    for number, (layer, rows) in enumerate(zip((1, 14), facts["rows"], strict=True)):
        marked = telling.rows(rows, facts["offsets"][number])
        path = full / f"model-{2 * number + 1:05d}-of-00004.safetensors"
        with path.open("rb") as file:
            start = 8 + int.from_bytes(file.read(8), "little")
            for row in marked:
                file.seek(start + row * 256)
                assert file.read(256) == expected(layer, "codes", row * 256, 256), row
            for row in {row + step for row in marked for step in (-1, 1, 1000)} - set(marked):
                if 0 <= row < rows:
                    file.seek(start + row * 256)
                    assert file.read(256) == bytes(256), row
        pages = {(start + row * 256 + byte) // 4096 for row in marked for byte in (0, 255)} | {0}
        held = {page for first, last in data_blocks(path) for page in range(first // 4096, -(-last // 4096))}
        assert held <= pages
    with open_checkpoint(full) as source:
        assert source.sizes == profiles.load().sizes
        for layer in (1, 14):
            rows = np.array(telling.rows(source.table(layer).rows, []))
            raw = source.table(layer).read_valid(rows)
            for row, each in zip(rows.tolist(), raw, strict=True):
                assert each[256:].tobytes() == expected(layer, "scales", row * 8, 8)
                assert each[:256].any()


# Which rows tell.


@pytest.mark.parametrize("count", [1, 2, 3, 16384, 16385, 20_000])
def test_telling_rows_of_a_small_table_are_inside_it(count: int) -> None:
    rows = telling.rows(count, [0, 5, 9000])
    want = {0, 1, 2, 16383, 16384, count - 1, 4, 5, 8999, 9000}
    assert rows == sorted(row for row in want if 0 <= row < count)


def test_head_boundaries_are_the_published_offsets_or_follow_from_the_base() -> None:
    profile = profiles.load()
    for number, offsets in enumerate(fixture("constants")["offsets"]):
        assert telling.heads(profile, profile.sizes, number) == offsets
    sizes = synth.choose_sizes(profile, False, False)
    primes = list(islice(primes_from(61), 48))
    assert telling.heads(profile, sizes, 0) == [0, *accumulate(primes[:23])]
    assert telling.heads(profile, sizes, 1) == [0, *accumulate(primes[24:47])]


# What is in the way.


def test_a_folder_with_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(
        EngramctlError, match=r"expected a new or empty folder \(or --force\), found a folder with files"
    ):
        make(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    with pytest.raises(FormatError, match="mine: expected a folder, found a file"):
        make(tmp_path / "mine", force=True)
    assert (tmp_path / "mine").read_text() == "mine"


def test_force_replaces_a_checkpoint_whole(tiny: Path, tmp_path: Path) -> None:
    make(tmp_path, 9)
    make(tmp_path, force=True)
    assert files(tmp_path) == files(tiny)
    make(tmp_path, real_tokens=True, force=True)  # the tiny tokenizer would not fit any more
    with open_checkpoint(tmp_path) as source:
        assert source.token_map().ids.size == 129_280


def test_force_replaces_no_checkpoint_of_others(tmp_path: Path) -> None:
    make(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["engramctl_synthetic"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    before = files(tmp_path)
    with pytest.raises(EngramctlError, match="expected a checkpoint that synth made, or none"):
        make(tmp_path, 9, force=True)
    assert files(tmp_path) == before


def test_a_pipe_for_a_config_is_not_waited_for(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "ckpt").mkdir()
    os.mkfifo(tmp_path / "ckpt" / "config.json")
    assert cli.refused(tmp_path, "synth", tmp_path / "ckpt", "--force").found == "a device or a pipe"


def test_a_checkpoint_that_could_not_be_finished_does_not_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "ckpt", 9)
    with monkeypatch.context() as patch:
        patch.setattr(disk, "system", Faulty(room=2_000_000))
        with pytest.raises(OSError, match="No space left on device"):
            make(tmp_path / "ckpt", force=True)
    with pytest.raises(EngramctlError, match=r"expected a config\.json, found none"):
        open_checkpoint(tmp_path / "ckpt")


@pytest.mark.parametrize("name", ["deepseek-v4.1-flash", "qwen3.8-flash-next"])
@pytest.mark.parametrize("there", [None, (), ("notes.txt", "config.json")])
def test_an_interrupted_folder_is_none(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, there: tuple[str, ...] | None
) -> None:
    """By Ctrl-C or a full disk: what was begun goes, what was there stays, but for the config of the old checkpoint."""
    folder = tmp_path / "ckpt"
    if there is not None:
        folder.mkdir()
        for file in there:
            (folder / file).write_text('{"engramctl_synthetic": true}')
    for system in (Faulty(room=100_000), Interrupting()):
        with monkeypatch.context() as patch:
            patch.setattr(disk, "system", system)
            outcome = cli("synth", folder, "--profile", name, *(["--force"] if there else []))
        assert outcome.code == (2 if isinstance(system, Faulty) else 130)
        assert outcome.err.count("\n") == 1
        assert folder.exists() is (there is not None)
        assert [path.name for path in folder.glob("*")] == (["notes.txt"] if there else [])


class Interrupting(disk.System):
    """Ctrl-C at the tenth write."""

    writes = 0

    def pwrite(self, fd: int, view: memoryview, offset: int) -> int:
        self.writes += 1
        if self.writes == 10:
            raise KeyboardInterrupt
        return super().pwrite(fd, view, offset)
