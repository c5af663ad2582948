"""check hash: dumps in every form; what is expected comes from published rows and from a formula of the tests' own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checks import differs, found, npy, only, passes, wheres
from cli_helpers import Cli
from hashing import formula
from published import fixture, release
from safetensors.numpy import save

IDS = [5, 6, 7, 129264, 129264, 42, 0, 99]
MASK = [1, 1, 1, 0, 0, 1, 1, 1]
WORDS = ("--ids", ",".join(map(str, IDS)), "--mask", ",".join(map(str, MASK)))
CONSTANTS = "compared with the constants of profile deepseek-v4.1-flash"


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    """[8, 2, 24] of the masked sequence."""
    return formula(release(), np.array(IDS), np.array(MASK, bool))


def test_the_published_rows_of_token_42_pass(cli: Cli, tmp_path: Path) -> None:
    case = fixture("rows_published")["real_token_42"]
    dump = npy(tmp_path / "rows.npy", np.array(case["rows"])[None])
    report = passes(cli, "hash", dump, "--ids", "42")
    assert report["coverage"] == {"unit": "row numbers", "checked": 48, "of": 48, "sampled": False}


def text_forms(rows: np.ndarray) -> dict[str, bytes]:
    places = [(t, i, layer) for t in range(len(rows)) for i, layer in enumerate((1, 14))]
    tsv = "".join("\t".join(map(str, (t, layer, *rows[t, i]))) + "\n" for t, i, layer in places)
    objects = [{"position": t, "layer": layer, "rows": rows[t, i].tolist()} for t, i, layer in places]
    return {"rows.tsv": tsv.encode(), "rows.jsonl": "".join(json.dumps(each) + "\n" for each in objects).encode()}


def test_every_form_is_read(cli: Cli, tmp_path: Path, rows: np.ndarray) -> None:
    forms = text_forms(rows) | {"rows.u32": rows.astype("<u4").tobytes(), "rows.bin": rows.astype("<u4").tobytes()}
    for name, data in forms.items():
        (tmp_path / name).write_bytes(data)
        passes(cli, "hash", tmp_path / name, *WORDS)
        passes(cli, "hash", "-", *WORDS, stdin=data)
    for kind in (np.int32, np.uint32, np.int64, np.uint64, ">i8"):
        passes(cli, "hash", npy(tmp_path / "rows.npy", rows.astype(kind)), *WORDS)
    passes(cli, "hash", npy(tmp_path / "f.npy", np.asfortranarray(rows)), *WORDS)
    np.savez_compressed(tmp_path / "one.npz", whatever=rows)
    np.savez(tmp_path / "two.npz", rows=rows, other=np.zeros(3))
    (tmp_path / "rows.safetensors").write_bytes(save({"rows": rows, "x": rows[0]}))
    for name in ("one.npz", "two.npz", "rows.safetensors"):
        passes(cli, "hash", tmp_path / name, *WORDS)
        passes(cli, "hash", "-", *WORDS, stdin=(tmp_path / name).read_bytes())


def test_one_layer_is_enough_where_it_is_named(cli: Cli, tmp_path: Path, rows: np.ndarray) -> None:
    for name, array in (("flat", rows[:, 1]), ("thin", rows[:, 1:]), ("whole", rows)):
        report = passes(cli, "hash", npy(tmp_path / f"{name}.npy", array), *WORDS, "--layer", "14")
        assert report["coverage"]["of"] == 8 * 24
        assert report["notes"] == ["only layers [14] of [1, 14] were compared", CONSTANTS]
    (tmp_path / "rows.tsv").write_bytes(b"\n".join(text_forms(rows)["rows.tsv"].splitlines()[1::2]))
    passes(cli, "hash", tmp_path / "rows.tsv", *WORDS, "--layer", "14")
    (tmp_path / "rows.u32").write_bytes(rows[:, 0].astype("<u4").tobytes())
    passes(cli, "hash", tmp_path / "rows.u32", *WORDS, "--layer", "1")


def test_one_wrong_row_is_named_with_both_numbers(cli: Cli, tmp_path: Path, rows: np.ndarray) -> None:
    wrong = rows.copy()
    wrong[5, 1, 17] += 1
    report = differs(cli, "hash", npy(tmp_path / "rows.npy", wrong), *WORDS)
    where = "position 5 (token 42) layer 14 column 17"
    assert only(report) == (where, f"row {rows[5, 1, 17]}", f"row {rows[5, 1, 17] + 1}")


def test_swapped_layers_are_all_different_and_counted(cli: Cli, tmp_path: Path, rows: np.ndarray) -> None:
    report = differs(cli, "hash", npy(tmp_path / "rows.npy", rows[:, ::-1]), *WORDS)
    assert (report["findings_total"], len(report["findings"])) == (8 * 48, 100)


def test_a_lost_history_shows_at_the_first_three_positions(cli: Cli, tmp_path: Path) -> None:
    params, ids = release(), np.array([8, 9, 10, 11])
    words = ("--ids", "8,9,10,11", "--history", "4015,9933,-1")
    right = formula(params, ids, past=(4015, 9933, -1))
    assert np.array_equal(right, formula(params, ids))  # a dead position before them hides all
    words = ("--ids", "8,9,10,11", "--history", "4015,9933,17")
    passes(cli, "hash", npy(tmp_path / "a.npy", formula(params, ids, past=(4015, 9933, 17))), *words)
    report = differs(cli, "hash", npy(tmp_path / "b.npy", right), *words)
    assert report["findings_total"] == 2 * (24 + 16 + 8)


def test_dead_positions_can_be_left_out(cli: Cli, tmp_path: Path, rows: np.ndarray) -> None:
    wrong = rows.copy()
    wrong[3:5] = 0
    dump = npy(tmp_path / "rows.npy", wrong)
    assert differs(cli, "hash", dump, *WORDS)["findings_total"] == 2 * 48
    report = passes(cli, "hash", dump, *WORDS, "--skip-dead")
    assert report["coverage"] == {"unit": "row numbers", "checked": 6 * 48, "of": 8 * 48, "sampled": False}
    assert report["notes"] == ["2 dead positions were left out", CONSTANTS]


def test_a_mask_that_does_not_stick_shows_after_the_gap(cli: Cli, tmp_path: Path) -> None:
    """Rows hashed as if a dead position were skipped: only what looks back across it differs."""
    params, ids, mask = release(), np.array([5, 6, 7, 8]), np.array([1, 0, 1, 1], bool)
    wrong = formula(params, ids, mask)
    wrong[3] = formula(params, ids[3:], past=(int(params.token_map[5]), int(params.token_map[7])))[0]
    report = differs(cli, "hash", npy(tmp_path / "rows.npy", wrong), "--ids", "5,6,7,8", "--mask", "1,0,1,1")
    assert {where.split()[1] for where in wheres(report)} == {"3"}


def test_another_models_constants_are_used(cli: Cli, tmp_path: Path, tiny: Path, container: Path) -> None:
    dump = cli.ok("hash", "--params", tiny, "--ids", "3,1,4", "--to", "npy", "-o", tmp_path / "r.npy")
    assert dump.out == b""
    passes(cli, "hash", tmp_path / "r.npy", "--params", container, "--ids", "3,1,4")
    assert differs(cli, "hash", tmp_path / "r.npy", "--ids", "3,1,4")["findings_total"] == 3 * 48


def test_a_long_sequence_is_screened_and_sure(cli: Cli, tmp_path: Path) -> None:
    ids, mask = np.arange(25_000) * 31 % 129280, np.ones(25_000, int)
    mask[[7, 20_000]] = 0
    cli.ok("hash", "--ids-file", npy(tmp_path / "i.npy", ids), "--mask-file", npy(tmp_path / "m.npy", mask),
           "--to", "npy", "-o", tmp_path / "r.npy")  # fmt: skip
    rows = np.load(tmp_path / "r.npy")
    words = ("--ids-file", tmp_path / "i.npy", "--mask-file", tmp_path / "m.npy")
    report = passes(cli, "hash", tmp_path / "r.npy", *words)
    assert "compared with the fast engine's rows" in report["notes"][0]
    rows[24_321, 0, 3] ^= 1
    near = slice(24_318, 24_322)
    expected = formula(release(), ids[near])[-1, 0, 3]
    report = differs(cli, "hash", npy(tmp_path / "w.npy", rows), *words)
    where = f"position 24321 (token {ids[24_321]}) layer 1 column 3"
    assert only(report) == (where, f"row {expected}", f"row {expected ^ 1}")


def test_a_fast_tier_that_is_wrong_is_not_believed(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from engramctl import fast

    monkeypatch.setattr(fast, "hash_rows", lambda tokens, *rest: np.zeros((len(tokens), 2, 24), np.int64))
    ids = npy(tmp_path / "i.npy", np.arange(20_001))
    dump = npy(tmp_path / "r.npy", np.zeros((20_001, 2, 24), np.int64))
    assert cli.refused(tmp_path, "check", "hash", dump, "--ids-file", ids).where == "fast hash"


def test_negative_rows_are_findings(cli: Cli, tmp_path: Path, rows: np.ndarray) -> None:
    wrong = rows.copy()
    wrong[0, 0, 0] = -1
    assert found(differs(cli, "hash", npy(tmp_path / "r.npy", wrong), *WORDS))[0][2] == "row -1"


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.zeros((8, 2, 23), np.int64), "[8, 2, 24]"),
        (np.zeros((7, 2, 24), np.int64), "[8, 2, 24]"),
        (np.zeros((8, 24), np.int64), "[8, 2, 24]"),
        (np.zeros((8, 2, 24), np.float32), "integers"),
        (np.full((8, 2, 24), 2**63, np.uint64), "row numbers below 2**63"),
        (np.zeros(3, "U4"), "an array of numbers"),
        (np.zeros(3, [("a", "i4")]), "an array of numbers"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(cli: Cli, tmp_path: Path, array: np.ndarray, expected: str) -> None:
    dump = npy(tmp_path / "r.npy", array)
    assert expected in cli.refused_twice(tmp_path, "check", "hash", dump, *WORDS).expected


@pytest.mark.parametrize(
    ("line", "expected", "got"),
    [
        ("0\t1\t5", "24 rows", "1"),
        ("x\t1\t5", "position, layer and rows, separated by tabs, commas or blanks", "'x\\t1\\t5'"),
        ("8\t1" + "\t5" * 24, "a position in 0..7", "8"),
        ("-1\t1" + "\t5" * 24, "a position in 0..7", "-1"),
        ("0\t2" + "\t5" * 24, "a layer among [1, 14]", "2"),
        ("0\t1" + "\t5" * 24 + "\n0\t1" + "\t5" * 24, "each position and layer once", "position 0 layer 1 again"),
        ("0\t1" + "\t5" * 24, "a line for position 1 of layer 1", "none"),
        ("0\t1" + "\t99999999999999999999" * 24, "position, layer and rows, separated by tabs, commas or blanks", None),
        ('{"position": 0, "layer": 1}', "an object with position, layer and rows", None),
        ('{"position": true, "layer": 1, "rows": []}', "integers as position and layer, a list as rows", None),
        ('{"position": 0, "layer": 1, "rows": [1.5]}', "row numbers below 2**63", "1.5"),
        ("[" * 3000, "an object with position, layer and rows", None),
    ],
)
def test_lines_that_do_not_fit_are_refused(cli: Cli, tmp_path: Path, line: str, expected: str, got: str | None) -> None:
    dump = tmp_path / ("r.jsonl" if line[0] in "{[" else "r.tsv")
    dump.write_text(line)
    refusal = cli.refused_twice(tmp_path, "check", "hash", dump, *WORDS)
    assert refusal.expected == expected
    assert got in (None, refusal.found)


def test_what_is_no_dump_is_refused(cli: Cli, tmp_path: Path, rows: np.ndarray) -> None:
    dump = tmp_path / "r.bin"
    dump.write_bytes(b"rows are elsewhere")
    assert "or u32 in 1536 bytes" in cli.refused(tmp_path, "check", "hash", dump, *WORDS).expected
    assert cli.refused(tmp_path, "check", "hash", "-", *WORDS).found == "an empty input"
    assert cli.refused(tmp_path, "check", "hash", tmp_path, *WORDS).found == "a folder"
    good = npy(tmp_path / "r.npy", rows)
    assert cli.refused(tmp_path, "check", "hash", good, *WORDS, "--layer", "2").expected == "one of 1, 14"
    assert cli.refused(tmp_path, "check", "hash", good).where == "token ids"
    assert cli.refused(tmp_path, "check", "hash", good, *WORDS, "--dump-form", "tsv").where.endswith("line 1")


def test_a_layer_that_was_not_dumped_is_a_difference(cli: Cli, tmp_path: Path, rows: np.ndarray) -> None:
    for name, data in text_forms(rows).items():
        (tmp_path / name).write_bytes(b"\n".join(data.splitlines()[1::2]))
        report = differs(cli, "hash", tmp_path / name, *WORDS)
        assert only(report) == ("layer 1", "rows of 8 positions (or --layer)", "none")
        assert (report["coverage"]["checked"], report["coverage"]["of"]) == (8 * 24, 8 * 48)


def test_dead_positions_alone_tell_nothing(cli: Cli, tmp_path: Path) -> None:
    dump = npy(tmp_path / "rows.npy", np.zeros((2, 2, 24), np.int64))
    words = ("check", "hash", dump, "--ids", "1,2", "--mask", "0,0", "--skip-dead")
    assert cli.refused(tmp_path, *words).where == "--skip-dead"
