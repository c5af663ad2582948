"""Where a sibling's table lies: every placement and every part gives the rows that the files hold."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import Cli
from test_siblings_files import LAYER, PLE, library

import engramctl
from engramctl import profiles
from engramctl.placement.place import NAMES as PLACES
from engramctl.siblings import synth

NAMES = ("engram-demo", "qwen3.8-flash-next", "qwen3.8-flash-next:fp8", "longcat-2.0", "engram-peft", "blt")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("siblings")
    for name in NAMES:
        synth.make(folder / name, profiles.load(name), 7, real_tokens=False, full_size=False)
    return {name: folder / name for name in NAMES}


def array(out: bytes) -> np.ndarray:
    return np.load(io.BytesIO(out))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", NAMES)
def test_every_placement_gives_the_files_bytes(cli: Cli, made: dict[str, Path], name: str, place: str) -> None:
    layer = str(profiles.load(name).sizes.layers[0])
    words = ("lookup", made[name], "--layer", layer, "--to", "raw", "-o", "-", "--rows", "300,0:200,7,7")
    want = array(cli.ok(*words).out)
    outcome = cli.ok(*words, "--io", place)
    np.testing.assert_array_equal(array(outcome.out), want)
    assert "layer" in outcome.err or place in ("mmap", "pread", "direct")
    if name == NAMES[1]:
        shard = library(made[name])[f"{PLE}ple_embedding.ngram_embedding.shard_2.weight"]
        np.testing.assert_array_equal(want[0], np.frombuffer(bytes(shard["data"]), np.uint8).reshape(130, -1)[40])


@pytest.mark.parametrize("by", ["rows", "heads"])
@pytest.mark.parametrize("place", [None, "mmap", "ram"])
@pytest.mark.parametrize("name", ["qwen3.8-flash-next", "longcat-2.0"])
def test_parts_add_up(cli: Cli, made: dict[str, Path], name: str, place: str | None, by: str) -> None:
    """Each row is in one part of the five and zeros in the others, whichever piece of the table it is in."""
    words = ("lookup", made[name], "--to", "raw", "-o", "-", "--rows", "0:1520,3")
    want, parts = array(cli.ok(*words).out), []
    for i in range(1, 6):
        more = ("--shard", f"{i}/5", "--shard-by", by, *(() if place is None else ("--io", place)))
        parts.append(array(cli.ok(*words, *more).out))
    assert ((np.array(parts) != 0).any(axis=2).sum(axis=0) <= 1).all()
    np.testing.assert_array_equal(np.sum(parts, axis=0, dtype=np.uint8), want)


def test_a_table_of_its_own_is_placed_and_cut(made: dict[str, Path]) -> None:
    with engramctl.Table.open(made[NAMES[1]], 1, io="mmap", shard="1/2") as part:
        rows = part.read(np.array([0, 1559]))
    assert rows[0].any()
    assert not rows[1].any()


def test_run_takes_a_place_and_parts_of_values_only(cli: Cli, made: dict[str, Path], tmp_path: Path) -> None:
    words = ("run", made[NAMES[1]], "--ids", "5,6,7", "-o", "-")
    want = cli.ok(*words, "--stop-at", "kv").out
    assert cli.ok(*words, "--stop-at", "kv", "--io", "mmap").out == want
    assert cli.refused(tmp_path, *words, "--stop-at", "kv", "--shard", "1/2").where == "--shard"
    values = [array(cli.ok(*words, "--stop-at", "values", "--shard", f"{i}/2").out) for i in (1, 2)]
    np.testing.assert_array_equal(values[0] | values[1], array(cli.ok(*words, "--stop-at", "values").out))
    assert "float64" in cli.ok(*words, "--stop-at", "kv").err
    for option in (("--round-hidden",), ("--times",), ("--kernel", "portable")):
        assert cli.refused(tmp_path, *words, "--stop-at", "kv", *option).where == option[0]


@pytest.mark.parametrize("name", NAMES)
def test_run_reports_as_json_what_it_says(cli: Cli, made: dict[str, Path], tmp_path: Path, name: str) -> None:
    words = ("run", made[name], "--layer", LAYER[name], "--ids", "5,6,7", "-o", tmp_path / "x.npy", "--force", "--json")
    report = cli.ok(*words, "--stop-at", "values", "--io", "ram").json
    assert (report["io"], report["layer"], report["tokens"], report["notes"]) == ("ram", LAYER[name], 3, [])
    assert cli.ok(*words, "--stop-at", "rows").json["io"] in ("pread", "mmap")
    if LAYER[name] > 0:
        (note,) = cli.ok(*words, "--stop-at", "kv").json["notes"]
        assert "float64" in note


def test_a_row_beyond_the_table_is_refused_wherever_it_lies(cli: Cli, made: dict[str, Path], tmp_path: Path) -> None:
    for place in PLACES:
        words = ("lookup", made[NAMES[1]], "--rows", "1560", "--io", place, "-o", "-")
        assert cli.refused(tmp_path, *words).found == "1560"
