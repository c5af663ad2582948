"""`lookup` and `run` with their placements: equal bytes, what they say, what they refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import Cli

from engramctl.cli.main import _times
from engramctl.table import Table

PLACES = ("auto", "mmap", "pread", "ram", "direct")
ROWS = "0,5,100:200,5"


@pytest.mark.parametrize("to", ["raw", "bf16", "f32"])
def test_lookup_writes_equal_bytes_from_every_placement(to: str, cli: Cli, container: Path, tiny: Path) -> None:
    plain = cli("lookup", container, "--layer", 1, "--rows", ROWS, "--to", to)
    assert (plain.code, plain.err) == (0, "")
    for io in PLACES:
        for source in (container, tiny):
            got = cli("lookup", source, "--layer", 1, "--rows", ROWS, "--to", to, "--io", io, "--quiet")
            assert (got.code, got.out, got.err) == (0, plain.out, "")


@pytest.mark.parametrize("stage", ["values", "kv", "gate", None])
def test_run_writes_equal_bytes_from_every_placement(
    stage: str | None, cli: Cli, container: Path, tmp_path: Path
) -> None:
    hidden = tmp_path / "h.npy"
    np.save(hidden, np.full((5, 4, 64), 0x3F80, np.uint16))
    words = ["run", container, "--layer", 14, "--ids", "3,4,5,6,7"]
    words += ["--hidden", hidden] if stage in (None, "gate") else []
    words += ["--stop-at", stage] if stage else []
    plain = cli(*words)
    assert (plain.code, plain.err) == (0, "")
    assert cli(*words, "--engine", "reference").out == plain.out
    for io in PLACES:
        got = cli(*words, "--io", io, "--quiet")
        assert (got.code, got.out, got.err) == (0, plain.out, "")


def test_auto_that_was_asked_for_says_why_and_default_says_nothing(cli: Cli, container: Path) -> None:
    words = ("lookup", container, "--layer", 1, "--rows", "0")
    assert cli(*words).err == ""
    said = cli(*words, "--io", "auto").err
    assert said == "engramctl: layer 1: auto chose pread: 1 rows are read before compiled code is loaded\n"


def test_prewarm_says_how_much_is_in_memory(cli: Cli, container: Path) -> None:
    got = cli("lookup", container, "--layer", 1, "--rows", "0", "--io", "pread", "--prewarm")
    assert re.fullmatch(r"engramctl: layer 1: prewarmed, 100\.0% of [0-9,]+ pages looked at are in memory\n", got.err)


@pytest.mark.parametrize("by", ["rows", "heads"])
def test_shards_of_lookup_and_run_add_up(by: str, cli: Cli, container: Path, tmp_path: Path) -> None:
    for words in (
        ("lookup", container, "--layer", 1, "--rows", "0:2826", "--to", "raw"),
        ("run", container, "--layer", 1, "--ids", "1,2,3,4", "--stop-at", "values"),
    ):
        assert cli(*words, "-o", tmp_path / "whole.npy", "--force").code == 0
        whole = np.load(tmp_path / "whole.npy")
        total = np.zeros(whole.shape, np.int64)
        for i in range(1, 6):
            got = cli(*words, "--shard", f"{i}/5", "--shard-by", by, "-o", tmp_path / "part.npy", "--force")
            assert got.code == 0
            assert re.match(rf"engramctl: layer 1: part {i}/5 by {by}: rows \d+ to \d+\n", got.err)
            total += np.load(tmp_path / "part.npy")
        assert np.array_equal(total, whole)


def test_a_shard_of_a_projection_is_refused(cli: Cli, container: Path) -> None:
    got = cli("run", container, "--layer", 1, "--ids", "1", "--stop-at", "kv", "--shard", "1/2")
    assert got.code == 2
    assert "--shard: expected --stop-at values" in got.err


@pytest.mark.parametrize(
    ("shard", "by"), [("0/2", "rows"), ("x", "rows"), ("1/25", "heads"), ("1/2827", "rows"), ("9/999999999", "rows")]
)
def test_bad_shards_are_one_line(shard: str, by: str, cli: Cli, container: Path) -> None:
    got = cli("lookup", container, "--layer", 1, "--rows", "0", "--shard", shard, "--shard-by", by)
    assert (got.code, got.out, got.err.count("\n")) == (2, b"", 1)
    assert got.err.startswith("engramctl: error: --shard")


def test_a_way_to_cut_without_a_part_is_refused(cli: Cli, container: Path, tmp_path: Path) -> None:
    for words in (("lookup", container, "--layer", 1, "--rows", "0"), ("run", container, "--layer", 1, "--ids", "1")):
        more = ("--stop-at", "values") if words[0] == "run" else ()
        assert cli.refused(tmp_path, *words, *more, "--shard-by", "heads", "-o", tmp_path / "x").where == "--shard-by"


def test_run_reports_its_stages_and_what_was_waited_for(cli: Cli, container: Path, tmp_path: Path) -> None:
    words = ("run", container, "--layer", 1, "--ids", "1,2,3", "--stop-at", "kv", "-o", tmp_path / "kv.npy", "--force")
    for asked in (("--times",), ("--profile",)):
        got = cli(*words, *asked)
        assert got.code == 0
        first, second = got.err.splitlines()
        assert re.fullmatch(
            r"engramctl: milliseconds for 3 tokens: hash [\d.,]+, read [\d.,]+, project [\d.,]+, gate [\d.,]+, "
            r"after [\d,]+ to load kernels and weights",
            first,
        )
        assert "were spent waiting for reads and projections" in second
    seconds = cli(*words, "--json").json["seconds"]
    assert set(seconds) == {"load", "hash", "read", "project", "gate", "wait", "total", "hidden_share"}
    assert seconds["total"] >= seconds["wait"] > 0


def test_profile_with_a_name_is_the_model_s_still() -> None:
    assert _times(["run", "f", "--profile", "engram-demo", "-o", "x"]) == [
        "run",
        "f",
        "--profile",
        "engram-demo",
        "-o",
        "x",
    ]
    assert _times(["run", "f", "--profile", "-o", "x"]) == ["run", "f", "--times", "-o", "x"]
    assert _times(["lookup", "f", "--profile"]) == ["lookup", "f", "--profile"]


def test_the_library_opens_one_table_by_itself(container: Path, tiny: Path) -> None:
    rows = np.array([[2, 0], [7, 7]])
    with Table.open(tiny, 1) as plain:
        want = plain.read(rows)
    for io in PLACES:
        with Table.open(container, 1, io=io, prewarm=io != "direct") as table:
            assert np.array_equal(table.read(rows), want)
    with Table.open(container, 14, io="ram", shard="2/3", by="heads") as part:
        assert part.here == (part.source.params().offsets[1][8], part.source.params().offsets[1][16])


def test_a_short_hash_loads_no_compiler_even_if_threads_are_set(container: Path) -> None:
    import subprocess
    import sys

    code = """
import sys
from engramctl.cli.main import run
for words in (["hash", "--ids", "0,3,42"], ["hash", "--ids", "0,3,42", "--threads", "2"],
              ["lookup", sys.argv[1], "--layer", "1", "--rows", "0:50"]):
    assert run(words) == 0
loaded = {name.split(".")[0] for name in sys.modules}
print(sorted(loaded & {"numba", "llvmlite", "rich", "gguf", "tokenizers", "pydantic"}), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code, container], capture_output=True, check=True)
    assert done.stderr == b"[]\n"


def test_help_and_hash_load_no_converter(container: Path) -> None:
    """Typer's own, pydantic's, takes as long to import as Typer itself."""
    import subprocess
    import sys

    code = """
import json, sys
from engramctl.cli.main import run
for words in (["--help"], ["hash", "--help"], ["lookup", "--help"], ["check", "hash", "--help"],
              ["hash", "--ids", "0,3,42", "--to", "sha256"], ["params"], ["profiles"]):
    assert run(words) == 0
print(json.dumps(["pydantic" in sys.modules, "numba" in sys.modules]), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stderr.splitlines()[-1]) == [False, False]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["hash", "--ids", "1", "--threads", "0"], "--threads: expected at least 1, found 0"),
        (["hash", "--ids", "1", "--threads", "two"], "--threads: expected a valid integer, found two"),
        (["hash", "--ids", "1", "--to", "TSV"], "--to: expected one of tsv, jsonl, npy, u32, sha256, found 'TSV'"),
        (["lookup"], "lookup: expected FILE|DIR, found none"),
        (["lookup", "f", "--layer", "1.5"], "--layer: expected a valid integer, found 1.5"),
        (["lookup", "f", "--rows"], "--rows: expected a value, found none"),
        (["lookup", "f", "--io", "disk"], "--io: expected one of auto, mmap, pread, ram, direct, found 'disk'"),
    ],
)
def test_values_that_typer_refuses_are_named(words: list[str], found: str, cli: Cli) -> None:
    got = cli(*words)
    assert (got.code, got.out, got.err.count("\n")) == (2, b"", 2)
    assert found in got.err


def test_every_command_line_means_what_typer_alone_makes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each option of each command, absent and given, with and without the quick way."""
    import typer

    from engramctl.cli import quick

    texts = {"int": "7", "str": "x", "Path": "some/path"}

    def parsed(name: str) -> list[object]:
        command = quick._built(name, None)
        made = []
        needed = [
            "x" if parameter.nargs == 1 else "y"
            for parameter in command.params
            if parameter.required and parameter.param_type_name == "argument"
        ]
        for parameter in command.params:
            kind = parameter.type_descriptor.annotation
            if parameter.param_type_name == "argument" or kind is bool:
                continue
            choices = [one.value for one in kind] if hasattr(kind, "__members__") else [texts[kind.__name__]]
            for value in choices:
                context = typer.Context(command)
                command.parse_args(context, [*needed, parameter.opts[0], value])
                made.append(sorted(context.params.items(), key=lambda item: item[0]))
        return made

    for name in ("hash", "lookup", "run", "repack", "map", "params", "synth", "show", "profiles"):
        quickly = parsed(name)
        with monkeypatch.context() as patch:
            patch.setattr(quick, "quicken", lambda command: command)
            assert parsed(name) == quickly
