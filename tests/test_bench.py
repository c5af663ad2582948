"""bench: its arithmetic, its cold that is cold, its peers that agree, and what it advises."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import ROOT, Cli

from engramctl import fast
from engramctl.bench import advice, cold, lookups, measure, peers, run, stages
from engramctl.bench.measure import Line
from engramctl.errors import EngramctlError
from engramctl.fast import cpu
from engramctl.placement.place import Io
from engramctl.source import open_source
from engramctl.table import Table
from formats import page_cache
from formats.floats import from_bf16


def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Callable[[], None]]:
    """Work that takes exactly as long as it says."""
    now = [0.0]
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(measure.time, "sleep", lambda seconds: None)

    def taking(*seconds: float) -> Callable[[], None]:
        calls = [0]

        def work() -> None:
            now[0] += seconds[min(calls[0], len(seconds) - 1)]
            calls[0] += 1

        return work

    return taking


def test_ratios_are_to_the_peer_of_the_same_case_best_against_best(monkeypatch: pytest.MonkeyPatch) -> None:
    taking = clock(monkeypatch)
    works = {"ours": taking(1.9, 1.9, 0.5), "peer": taking(1.0)}
    ours, peer = measure.compare("lookup", "warm", 100, "rows", works, "peer", rounds=3)
    assert (ours.best, ours.middle, ours.ratio, ours.rate) == (0.5, 0.5, 2.0, 200.0)  # the first two only warm up
    assert (peer.best, peer.ratio) == (1.0, 1.0)


def test_what_is_prepared_before_each_call_is_neither_timed_nor_warmed_away(monkeypatch: pytest.MonkeyPatch) -> None:
    taking = clock(monkeypatch)
    before: list[int] = []
    prepare, work = taking(50.0), taking(2.0, 1.0, 3.0)
    lines = measure.compare(
        "lookup", "cold", 1, "rows", {"a": work}, "a", rounds=3, before=lambda: (prepare(), before.append(1))
    )
    assert (lines[0].best, lines[0].middle, len(before)) == (1.0, 2.0, 3)


def test_short_calls_are_timed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    taking, calls = clock(monkeypatch), list[int]()
    short = taking(9e-4, 2.5e-4, 2.5e-4)
    (line,) = measure.compare("gate", "x", 1, "tokens", {"a": lambda: (short(), calls.append(1))}, "a", rounds=1)
    assert (len(calls), line.best) == (2 + 8, pytest.approx(2.5e-4))


def test_long_work_is_called_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    taking = clock(monkeypatch)
    calls: list[int] = []
    slow = taking(5.0)
    measure.compare("repack", "x", 1, "bytes", {"a": lambda: (slow(), calls.append(1))}, "a", rounds=2)
    assert len(calls) == 2


def test_cold_rows_are_seen_to_be_gone_or_nothing_is_measured(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Table.open(container, 1, io="pread") as table:
        rows = lookups.pick(table, 200)
        table.read(rows)
        assert cold.resident(table, rows) == 1.0
        cold.make_cold(table, rows)
        assert cold.resident(table, rows) == 0.0
        table.read(rows)
        monkeypatch.setattr(page_cache, "drop", lambda file, start, end: False)
        with pytest.raises(EngramctlError, match="expected pages that leave the page cache, found 100% of them there"):
            cold.make_cold(table, rows)
        monkeypatch.setattr(page_cache, "_mincore", lambda address, length: None)
        with pytest.raises(EngramctlError, match="found a system that does not say"):
            cold.make_cold(table, rows)


def test_rows_to_measure_are_different_the_same_each_time_and_never_holes(full_container: Path) -> None:
    with Table.open(full_container, 1, io="pread") as table:
        rows = lookups.pick(table, 10_000)
        assert np.array_equal(rows, lookups.pick(table, 10_000))
        assert np.unique(rows).size == rows.size > 10
        assert rows.min() >= 0
        assert rows.max() < table.rows


def test_numpy_s_hash_and_gate_are_the_same_stages(container: Path) -> None:
    with open_source(container) as source:
        params, tokens = source.params(), stages.tokens_of(source, 50)
        assert np.array_equal(peers.numpy_hash(params.compress(tokens, None), params), fast.hash_rows(tokens, params))
        sizes, weights = source.sizes, source.weights(1)
        hidden, kv = stages.bits((9, sizes.streams, sizes.hidden)), stages.bits((9, sizes.streams + 1, sizes.hidden), 3)
        want = fast.gate(
            hidden,
            np.ascontiguousarray(kv[:, :-1]),
            np.ascontiguousarray(kv[:, -1]),
            weights.q_weight,
            weights.k_weight,
        )[1]
        got = peers.numpy_gate(from_bf16(hidden), from_bf16(kv), weights, sizes.eps, source.profile.clamp)
        assert np.allclose(got, from_bf16(want), rtol=2**-7, atol=2**-9)


def test_a_peer_that_computes_something_else_is_not_timed(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "torch", lambda: None)
    monkeypatch.setattr(peers, "numpy_gate", lambda hidden, kv, weights, eps, clamp: hidden)
    monkeypatch.setattr(peers, "numpy_hash", lambda ids, params: np.zeros((ids.size, 2, 24), np.int64))
    with open_source(container) as source:
        with pytest.raises(EngramctlError, match="bench: hash by NumPy: expected the same rows, found others"):
            list(stages.hashing(source, 50, 1))
        with pytest.raises(EngramctlError, match="bench: gate by NumPy: expected the same numbers as ours"):
            list(stages.gating(source, 1, (3,), 1))


@pytest.mark.parametrize("io", ["mmap", "ram"])
def test_both_layers_in_a_chain_are_the_peers_too(container: Path, io: Io, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SETTLE", 0.0)
    with open_source(container) as source:
        lines = list(stages.whole(source, (1, 14), (3,), 1, io=io))
        assert [line.candidate for line in lines][:2] == [f"engramctl --io {io}", "NumPy"]
        assert {(line.case, line.amount) for line in lines} == {("3 tokens", 3)}
        monkeypatch.setattr(peers, "numpy_gate", lambda hidden, kv, weights, eps, clamp: hidden)
        with pytest.raises(EngramctlError, match="bench: pipeline by NumPy: expected the same numbers as ours"):
            list(stages.whole(source, (14,), (3,), 1, io=io))


def test_bench_reports_every_group_as_json_and_as_a_table(
    cli: Cli, container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        run, "QUICK", dataclasses.replace(run.QUICK, base=61, hidden=64, hashed=50, rows=50, batches=(1, 3))
    )
    monkeypatch.setattr(measure, "SETTLE", 0.0)
    monkeypatch.setattr(run.files, "COPIED", 1 << 16)
    got = cli("bench", container, "--quick", "--json", "--folder", tmp_path)
    assert (got.code, got.err) == (0, "")
    report = got.json
    assert (report["schema"], report["ok"], report["file"]) == ("engramctl/bench/1", True, str(container))
    groups = {line["group"] for line in report["lines"]}
    assert groups == {*run.GROUPS, "memory"}
    for line in report["lines"]:
        assert line["best"] > 0
        assert line["per_second"] == line["amount"] / line["best"]
        same = [each for each in report["lines"] if (each["group"], each["case"]) == (line["group"], line["case"])]
        assert line["peer"] in {each["candidate"] for each in same}
    placements = {line["candidate"] for line in report["lines"] if line["case"] == "warm rows"}
    assert {"--io mmap", "--io pread", "--io ram", "--io direct", "serial pread", "NumPy take"} <= placements
    assert report["advice"].startswith("The tables are 2.3 MB in 2 layers; a token needs 48 rows of them")
    assert [note[:40] for note in report["notes"]] == ["tables of 2.3 MB are too small for ratio"]
    assert list(tmp_path.iterdir()) == []  # nothing stays
    shown = cli("bench", container, "--only", "hash,gate", "--layer", 14, "--quick", "--quiet")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.decode().splitlines()[-1].startswith("The tables are")
    assert b"note: tables of 2.3 MB are too small" in shown.out


def test_an_interrupted_bench_says_so_once_and_of_nothing_that_is_gone(tmp_path: Path) -> None:
    """Ctrl-C strikes the conversion that it runs as well."""
    command = [sys.executable, "-m", "engramctl", "bench", "--quick", "--only", "repack", "--folder", str(tmp_path)]
    with subprocess.Popen(
        [*command, "--quiet"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as running:
        deadline = time.monotonic() + 60
        while not any(tmp_path.glob("*/repacked.gguf.lock")) and time.monotonic() < deadline:
            time.sleep(0.001)
        os.killpg(running.pid, signal.SIGINT)
        out, said = running.communicate(timeout=60)
    assert (running.returncode, out, said) == (130, b"", b"engramctl: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_a_conversion_that_fails_is_left_out_with_its_reason(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "QUICK", dataclasses.replace(run.QUICK, base=61, hidden=64))
    monkeypatch.setattr(run.files, "COPIED", 1 << 16)
    monkeypatch.setattr(run.files.sys, "executable", shutil.which("false"))
    (skipped, *_) = cli("bench", "--quick", "--only", "repack", "--json").json["skipped"]
    assert skipped == "repack: engramctl repack: expected a conversion that ends, found exit code 1"


@pytest.mark.parametrize("kernel", ["amx", "avx512", "avx2", "portable"])
def test_a_kernel_is_measured_or_refused(
    kernel: str, cli: Cli, container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, hold = list[str](), fast.hold
    monkeypatch.setattr(fast, "hold", lambda weight, path="auto": (used.append(path), hold(weight, path))[1])
    monkeypatch.setattr(run, "QUICK", dataclasses.replace(run.QUICK, batches=(1,)))
    words = ("bench", container, "--quick", "--only", "projection,pipeline", "--kernel", kernel)
    if kernel in cpu.paths():
        assert cli(*words, "--json").json["machine"]["kernel"] == kernel
        assert used == [kernel, kernel]
        return
    refusal = cli.refused(tmp_path, *words)
    assert (refusal.where, refusal.found, used) == ("--kernel", kernel, [])


def test_without_a_file_one_is_made(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "QUICK", dataclasses.replace(run.QUICK, base=61, hidden=64, hashed=50))
    got = cli("bench", "--quick", "--only", "hash", "--json", "--folder", tmp_path)
    assert got.json["file"] == "a synthetic table, made for this"
    assert {line["group"] for line in got.json["lines"]} == {"hash"}


def test_what_cannot_be_measured_is_said(cli: Cli, container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "drop", lambda file, start, end: False)
    monkeypatch.setattr(run, "QUICK", dataclasses.replace(run.QUICK, rows=50))
    got = cli("bench", container, "--quick", "--only", "lookup", "--json").json
    assert [line.split(":")[0] for line in got["skipped"]] == ["lookup cold", "lookup token"]
    assert all("expected pages that leave the page cache" in line for line in got["skipped"])


@pytest.mark.parametrize(
    ("words", "found"),
    [(["--only", "disk"], "--only: expected groups among hash"), (["--layer", "3"], "--layer: expected one of 1, 14")],
)
def test_bad_requests_are_one_line(words: list[str], found: str, cli: Cli, container: Path) -> None:
    got = cli("bench", container, "--quick", *(["--only", "hash"] if "--only" not in words else []), *words, "--quiet")
    assert (got.code, got.out, got.err.count("\n")) == (2, b"", 1)
    assert found in got.err


@pytest.mark.parametrize("name", ["engram-demo", "longcat-2.0"])
def test_a_sibling_is_refused_by_name(cli: Cli, tmp_path: Path, name: str) -> None:
    cli.ok("synth", tmp_path / "ckpt", "--profile", name)
    refusal = cli.refused(tmp_path, "bench", tmp_path / "ckpt", "--quick", "--only", "lookup")
    assert (refusal.where, refusal.found) == (str(tmp_path / "ckpt"), name)


def line(group: str, case: str, candidate: str, amount: float, best: float) -> Line:
    return Line(group, case, candidate, amount, "rows", best, best, candidate, 1.0)


def test_large_tables_have_no_note(container: Path) -> None:
    with open_source(container) as source:
        source.sizes = dataclasses.replace(source.sizes, rows=(384_006_168, 384_016_682))
        assert advice.notes(source) == []


def advised(
    container: Path, free: int | None, monkeypatch: pytest.MonkeyPatch, rows: tuple[int, ...] | None = None
) -> str:
    monkeypatch.setattr(advice.memory, "free_bytes", lambda: free)
    lines = [
        line("lookup", "warm rows", "--io mmap", 1000, 0.0001), line("lookup", "warm rows", "--io ram", 1000, 0.00005),
        line("lookup", "cold rows", "--io pread", 1000, 0.008),
        line("lookup", "cold rows", "--io direct", 1000, 0.0085),
        line("lookup", "cold rows", "serial pread", 1000, 0.08),
        line("lookup", "one cold token, 48 rows", "--io pread", 1, 0.0005),
        line("pipeline", "512 tokens", "engramctl --io mmap", 512, 0.512),
    ]  # fmt: skip
    with open_source(container) as source:
        if rows:
            source.sizes = dataclasses.replace(source.sizes, rows=rows)
        return advice.paragraph(source, lines)


def test_advice_for_tables_that_fit(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = advised(container, 22 * 10**9, monkeypatch)
    assert said == (
        "The tables are 2.3 MB in 2 layers; a token needs 48 rows of them, and 22.0 GB of memory is free. "
        "In memory they cost 2 microseconds a token (--io ram). "
        "From this disk 384 microseconds a token when many are asked for at once (--io pread, 125,000 rows/s), "
        "500 microseconds for one token alone. "
        "They fit: --io mmap --prewarm; --io ram if something else could push the pages out. "
        "--io direct reads as fast and leaves the page cache to others."
    )


def test_advice_for_tables_that_do_not(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = advised(container, 22 * 10**9, monkeypatch, (384_006_168, 384_016_682))
    assert said.startswith("The tables are 202.8 GB in 2 layers")
    assert (
        "They do not fit: --io pread. Reads take 38% of the time that the rest of the pipeline takes for a prefill, so "
        "they hide behind the projections." in said
    )
    assert "is free" not in advised(container, None, monkeypatch)
