"""Dumps as engines make them: raw integers, text, arrays by layer, axes in any order, buckets; read or asked for."""

from __future__ import annotations

import io
import json
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from checks import differs, npy, passes
from cli_helpers import Cli
from hashing import formula
from published import release
from safetensors.numpy import save

from engramctl import axes
from engramctl.source import open_source
from formats import row264

T, L, N, H = 7, 2, 3, 8
IDS = [5, 6, 7, 129264, 42, 0, 99]
TURNED = "read as [L,T,C]: that way it agrees with the reference"
WORDS = ("--ids", ",".join(map(str, IDS)))


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return formula(release(), np.array(IDS))


# Raw integers.


@pytest.mark.parametrize("kind", ["<u4", "<u8", "<i8"])
def test_raw_integers_are_told_by_number_and_content(cli: Cli, tmp_path: Path, rows: np.ndarray, kind: str) -> None:
    dump = tmp_path / "rows.bin"
    dump.write_bytes(rows.astype(kind).tobytes())
    passes(cli, "hash", dump, *WORDS)
    passes(cli, "hash", "-", *WORDS, stdin=dump.read_bytes())
    named = "u32" if kind == "<u4" else "u64" if kind == "<u8" else "i64"
    passes(cli, "hash", dump, *WORDS, "--dump-form", named)
    dump.rename(tmp_path / f"rows.{named}")
    passes(cli, "hash", tmp_path / f"rows.{named}", *WORDS)


@pytest.mark.parametrize("kind", ["<u4", "<i8"])
def test_raw_integers_of_one_layer_or_turned_are_told_by_their_content(
    cli: Cli, tmp_path: Path, rows: np.ndarray, kind: str
) -> None:
    dump = tmp_path / "rows.bin"
    dump.write_bytes(rows[:, 1].astype(kind).tobytes())
    asked = cli.refused(tmp_path, "check", "hash", dump, *WORDS)
    assert (asked.expected, asked.hint) == ("rows as [7, 2, 24], all layers", "--layer L says which of 1, 14 it is")
    assert passes(cli, "hash", dump, *WORDS, "--layer", "14")["coverage"]["of"] == T * 24
    assert differs(cli, "hash", dump, *WORDS, "--layer", "1")["findings_total"] == T * 24
    dump.write_bytes(rows.swapaxes(0, 1).astype(kind).tobytes())
    assert passes(cli, "hash", dump, *WORDS)["notes"][0] == TURNED


def test_negative_raw_rows_stay_negative(cli: Cli, tmp_path: Path, rows: np.ndarray) -> None:
    wrong = rows.copy()
    wrong[:, :, 0] -= 2**31
    (tmp_path / "rows.i64").write_bytes(wrong.astype("<i8").tobytes())
    report = differs(cli, "hash", tmp_path / "rows.i64", *WORDS)
    assert report["findings"][0]["found"] == f"row {wrong[0, 0, 0]}"


# Text.


def savetxt(rows: np.ndarray, **more: str) -> str:
    """As NumPy writes text unless told otherwise: blanks between numbers, # before a header."""
    text = io.StringIO()
    np.savetxt(text, rows, fmt="%d", **more)
    return text.getvalue()


def test_bare_lines_and_nested_lists_are_read(cli: Cli, tmp_path: Path, rows: np.ndarray) -> None:
    flat, whole = rows.reshape(T * L, 24), rows.reshape(T, L * 24)
    named = ["position,layer," + ",".join(f"c{i}" for i in range(24))]
    named += [f"{t},{layer}," + ",".join(map(str, rows[t, i])) for t in range(T) for i, layer in enumerate((1, 14))]
    forms = {
        "flat.tsv": "\n".join("\t".join(map(str, line)) for line in flat),
        "whole.tsv": "\n".join("\t".join(map(str, line)) for line in whole),
        "flat.csv": "\n".join(",".join(map(str, line)) for line in flat),
        "named.csv": "\n".join(named),
        "flat.txt": savetxt(flat),
        "named.txt": savetxt(flat, header="rows by layer and column"),
        "aligned": "\n".join(" ".join(f"{row:>10}" for row in line) for line in whole),
        "lists.jsonl": "\n".join(json.dumps(line.tolist()) for line in rows),
        "flat.jsonl": "\n".join(json.dumps(line.tolist()) for line in flat),
        "one.jsonl": json.dumps(rows.tolist()),
        "layers.jsonl": "\n".join(json.dumps(rows[:, i].tolist()) for i in range(L)),
    }
    for name, text in forms.items():
        (tmp_path / name).write_text(text)
        passes(cli, "hash", tmp_path / name, *WORDS)
        passes(cli, "hash", "-", *WORDS, stdin=text.encode())


@pytest.mark.parametrize(
    "line",
    ["[[1, 2], [3]]", "[1.5]", "[true]", '["a"]', "[[[[]]]]", "[1]\n[1, 2]", "[" * 5000, "[1, 99999999999999999999]"],
)
def test_lists_that_do_not_fit_are_refused_in_one_line(cli: Cli, tmp_path: Path, line: str) -> None:
    (tmp_path / "r.jsonl").write_text(line)
    cli.refused_twice(tmp_path, "check", "hash", tmp_path / "r.jsonl", *WORDS)


# Arrays: every order of axes.


@pytest.mark.parametrize("order", ["".join(order) for order in permutations("TLC")])
def test_every_order_of_axes_is_recognised(cli: Cli, tmp_path: Path, rows: np.ndarray, order: str) -> None:
    turned = rows.transpose(["TLC".index(letter) for letter in order])
    passes(cli, "hash", npy(tmp_path / "r.npy", turned), *WORDS)
    passes(cli, "hash", npy(tmp_path / "r.npy", turned), *WORDS, "--axes", ",".join(order))


def test_orders_and_heads_apart_flat_and_in_a_batch(cli: Cli, tmp_path: Path, rows: np.ndarray) -> None:
    apart = rows.reshape(T, L, N, H)
    for array in (apart, apart.transpose(1, 2, 3, 0), apart.transpose(0, 3, 2, 1), rows[None], rows.reshape(-1)):
        passes(cli, "hash", npy(tmp_path / "r.npy", array), *WORDS)
    passes(cli, "hash", npy(tmp_path / "r.npy", rows.reshape(T, -1)), *WORDS)
    passes(cli, "hash", npy(tmp_path / "r.npy", rows.swapaxes(0, 1).reshape(-1, 24)), *WORDS)
    passes(cli, "hash", npy(tmp_path / "r.npy", rows[:1]), "--ids", "5")


def test_where_two_orders_fit_the_natural_one_counts_unless_another_agrees(cli: Cli, tmp_path: Path) -> None:
    right = formula(release(), np.array([5, 6]))
    words = ("--ids", "5,6")
    assert TURNED not in passes(cli, "hash", npy(tmp_path / "r.npy", right), *words)["notes"]
    turned = npy(tmp_path / "t.npy", right.swapaxes(0, 1))
    assert passes(cli, "hash", turned, *words)["notes"][0] == TURNED
    assert differs(cli, "hash", turned, *words, "--axes", "T,L,C")["findings_total"] == 48  # off the diagonal
    assert differs(cli, "hash", npy(tmp_path / "w.npy", right + 1), *words)["findings_total"] == 4 * 24


def test_what_stays_open_is_asked_for_in_one_line_that_names_the_option(cli: Cli, tmp_path: Path) -> None:
    ids = list(range(50, 74))
    words = ("--ids", ",".join(map(str, ids)))
    wrong = formula(release(), np.array(ids)) + 1
    refusal = cli.refused_twice(tmp_path, "check", "hash", npy(tmp_path / "a.npy", wrong.swapaxes(1, 2)), *words)
    assert refusal.expected == "rows as [24, 2, 24], or --axes to say which of T,C,L or C,T,L it is"
    report = differs(cli, "hash", tmp_path / "a.npy", *words, "--axes", "TCL")
    assert report["findings_total"] == 24 * 48
    refusal = cli.refused_twice(tmp_path, "check", "hash", npy(tmp_path / "b.npy", wrong[:, 0]), *words)
    assert (refusal.found, refusal.hint) == ("[24, 24], one layer", "--layer L says which of 1, 14 it is")
    refusal = cli.refused_twice(tmp_path, "check", "hash", tmp_path / "a.npy", *words, "--axes", "T,L,C")
    assert refusal.expected == "an order that [24, 24, 2] allows: T,C,L or C,T,L"
    assert cli.refused(tmp_path, "check", "hash", tmp_path / "a.npy", *words, "--axes", "T,Q").where == "--axes"


def test_one_array_for_each_layer_is_put_together(cli: Cli, tmp_path: Path, rows: np.ndarray) -> None:
    np.savez(tmp_path / "r.npz", layer_1=rows[:, 0], layer_14=rows[:, 1])
    passes(cli, "hash", tmp_path / "r.npz", *WORDS)
    names = {"layers.14.rows": np.ascontiguousarray(rows[:, 1].T), "layers.1.rows": np.ascontiguousarray(rows[:, 0].T)}
    (tmp_path / "r.safetensors").write_bytes(save(names | {"ids": np.array(IDS)}))
    passes(cli, "hash", tmp_path / "r.safetensors", *WORDS)
    passes(cli, "hash", tmp_path / "r.safetensors", *WORDS, "--layer", "14")
    np.savez(tmp_path / "one.npz", engram14=rows[:, 1], other=np.zeros(3))
    report = differs(cli, "hash", tmp_path / "one.npz", *WORDS)
    assert [each["where"] for each in report["findings"]] == ["layer 1"]
    assert passes(cli, "hash", tmp_path / "one.npz", *WORDS, "--layer", "14")["coverage"]["of"] == T * 24
    np.savez(tmp_path / "odd.npz", a1=rows[:, 0], b1=rows[:, 1])
    assert "one named rows" in cli.refused(tmp_path, "check", "hash", tmp_path / "odd.npz", *WORDS).expected


def test_buckets_are_compared_as_buckets_when_that_is_said_and_named_otherwise(
    cli: Cli, tmp_path: Path, rows: np.ndarray
) -> None:
    buckets = rows - release().offsets.astype(np.int64)
    dump = npy(tmp_path / "b.npy", buckets.astype(np.uint32))
    passes(cli, "hash", dump, *WORDS, "--rows-are", "buckets")
    passes(cli, "hash", npy(tmp_path / "t.npy", buckets.transpose(2, 1, 0)), *WORDS, "--rows-are", "buckets")
    report = differs(cli, "hash", dump, *WORDS)
    assert (report["diagnosis"]["name"], report["diagnosis"]["explains"]) == ("offsets-missing", 1.0)
    assert "--rows-are buckets" in report["diagnosis"]["entries"][0]["fix"]


# Values and projections.


def test_values_and_projections_in_any_order_of_axes(cli: Cli, tmp_path: Path, tiny: Path) -> None:
    ids = np.array([3, 1, 4, 1, 5])
    with open_source(tiny) as source:
        looked = [formula(source.params(), ids)[:, i] for i in range(2)]
        values = np.stack([row264.decode_bf16(source.table(layer).read(looked[i])) for i, layer in enumerate((1, 14))])
    words = (tiny, "--layer", 14, "--ids", "3,1,4,1,5")
    right = values[1]  # [T, C, W]
    for array in (right, right.reshape(5, -1), right.swapaxes(0, 1), right.transpose(2, 0, 1), right[None], values):
        passes(cli, "values", npy(tmp_path / "v.npy", array), *words)
    passes(cli, "values", npy(tmp_path / "v.npy", right.reshape(5, 3, 8, 256).swapaxes(1, 2)), *words)
    cli.ok("run", tiny, "--layer", 14, "--ids", "3,1,4,1,5", "--stop-at", "kv", "-o", tmp_path / "kv.npy")
    kv = np.load(tmp_path / "kv.npy")  # [T, S + 1, D], and T = S + 1
    assert kv.shape == (5, 5, 64)
    turned = npy(tmp_path / "k.npy", kv.swapaxes(0, 1))
    assert differs(cli, "kv", turned, *words)["ok"] is False
    passes(cli, "kv", turned, *words, "--axes", "S,T,D")
    passes(cli, "kv", npy(tmp_path / "k.npy", kv.reshape(5, -1)), *words)
    asked = cli.refused(tmp_path, "check", "kv", npy(tmp_path / "d.npy", kv.transpose(2, 0, 1)), *words)
    assert (asked.where, asked.expected) == ("--axes", "which of D,T,S or D,S,T [64, 5, 5] is")


def test_readings_are_all_that_fit_and_nothing_else() -> None:
    sizes = {"T": 6, "L": 2, "N": 3, "H": 4}
    assert axes.readings((6, 2, 12), sizes) == ["TLNH"]
    assert axes.readings((6, 2, 13), sizes) == []
    assert axes.readings((1, 6, 2, 1, 3, 4), sizes)[0] == "TLNH"
    every = np.arange(6 * 2 * 12).reshape(6, 2, 12)
    for order in axes.readings((12, 12), sizes):
        array = every.reshape(6, 2, 3, 4).transpose(["TLNH".index(letter) for letter in order]).reshape(12, 12)
        np.testing.assert_array_equal(axes.natural(array, order, sizes).reshape(6, 2, 12), every)
