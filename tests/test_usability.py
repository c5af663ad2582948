"""What people meet first: files of the wrong kind, usage, notes, and what a message tells them to do next."""

from __future__ import annotations

import io
import json
import os
import pty
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from checks import differs, npy, only, passes
from cli_helpers import ROOT, Cli, Copy, process
from faults import Faulty

import engramctl
from engramctl import demo, kinds, repack, report, vocabulary
from engramctl.errors import EngramctlError
from formats import disk
from formats.errors import FormatError

EXTRA = vocabulary.extra_tokenizer()


def test_a_text_needs_the_tokenizer_of_its_map(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    tokenizer = ("--text", "a b", "--tokenizer", tiny / "tokenizer.json")
    cli.ok("hash", *tokenizer, "--params", tiny, "-o", tmp_path / "r.npy", "--to", "npy")
    for words in (("hash",), ("check", "hash", tmp_path / "r.npy")):
        refusal = cli.refused(tmp_path, *words, *tokenizer)
        assert ("129280 ids" in refusal.expected, refusal.found) == (True, "384")
        assert "--params" in refusal.hint
        assert "--token-map" in refusal.hint
    if EXTRA is not None:
        for words in (("run", container, "--stop-at", "kv"), ("check", "kv", tmp_path / "r.npy", container)):
            refusal = cli.refused(tmp_path, *words, "--layer", 1, "--text", "a", "--tokenizer", EXTRA)
            assert refusal.found == "129280"


def test_an_unfinished_output_is_a_finding(cli: Cli, container: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(container, tmp_path / "a.gguf"))
    assert cli.ok("show", path, "--json").json["unfinished"] is False
    (tmp_path / "a.gguf.journal").write_bytes(b"")
    assert only(differs(cli, "file", path))[2] == "a.gguf.journal beside it: repack --resume finishes it"
    assert cli.ok("show", path, "--json").json["unfinished"] is True
    partial = path.rename(tmp_path / "b.gguf.partial")
    assert differs(cli, "file", partial)["accepts"] is True
    partial.write_bytes(b"engramctl partial ".ljust(64) + bytes(1000))
    assert "a .partial" in only(differs(cli, "file", partial))[2]
    assert cli.ok("show", partial, "--json").json["unfinished"] is True
    assert b"--resume" in cli.ok("show", partial).out
    refusal = cli.refused(tmp_path, "lookup", partial.rename(tmp_path / "c.gguf"), "--rows", 1, "-o", tmp_path / "x")
    assert (refusal.found, refusal.hint) == (kinds.UNFINISHED, "repack --resume finishes it")


def test_repack_notes_another_map_and_missing_layers(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    cli.ok("map", tiny / "tokenizer.json", "-o", tmp_path / "own.bin", "--allow-mismatch")
    ids = np.fromfile(tmp_path / "own.bin", "<u4")
    ids[[5, 6]] = ids[[6, 5]]
    ids.tofile(tmp_path / "other.bin")
    words = ("repack", tiny, "--dry-run", "--json", "--token-map")
    assert cli.ok(*words, tmp_path / "own.bin").json["notes"] == []
    done = cli.ok(*words, tmp_path / "other.bin")
    assert "is not the token map that" in done.json["notes"][0]
    assert "engramctl: note: " in done.err
    done = cli.ok("repack", tiny, "-o", tmp_path / "e.gguf", "--layers", "14", "--json")
    assert done.json["notes"] == ["layers [14] of [1, 14]: ds4's loader wants all of them in one file"]


def test_a_source_that_repack_would_refuse_is_a_finding(cli: Cli, tiny: Path, copied: Copy) -> None:
    path = copied(tiny)
    (path / "model.safetensors.index.json").unlink()
    assert "no model.safetensors.index.json: every shard in the folder was read" in passes(cli, "source", path)["notes"]
    (path / "tokenizer.json").unlink()
    assert only(differs(cli, "source", path))[1].startswith("tokenizer.json")


def test_ten_findings_are_shown_and_how_many_there_are(cli: Cli, tmp_path: Path) -> None:
    cli.ok("hash", "--ids", "5,6,7", "--to", "npy", "-o", tmp_path / "r.npy")
    done = cli("check", "hash", tmp_path / "r.npy", "--ids", "5,6,8")
    lines = done.out.decode().splitlines()
    assert lines[0].endswith(": 48 of 144 row numbers differ")
    assert sum(line.startswith("  position") for line in lines) == 10
    assert "  and 38 more (--json lists up to 100)" in lines
    ok = cli.ok("check", "hash", tmp_path / "r.npy", "--ids", "5,6,7").out.decode()
    assert "ok (144 of 144 row numbers)" in ok
    assert "compared with the constants of profile deepseek-v4.1-flash" in ok


def test_rows_of_one_layer_need_its_name(cli: Cli, tmp_path: Path) -> None:
    dump = npy(tmp_path / "r.npy", np.zeros((2, 24), np.int64))
    refusal = cli.refused(tmp_path, "check", "hash", dump, "--ids", "1,2")
    assert "[2, 2, 24]" in refusal.expected
    assert "--layer" in refusal.hint
    (tmp_path / "r.u32").write_bytes(bytes(4 * 48))
    assert "--layer" in cli.refused(tmp_path, "check", "hash", tmp_path / "r.u32", "--ids", "1,2").hint


def test_differences_at_dead_positions_alone_are_said_to_be(cli: Cli, tmp_path: Path) -> None:
    words = ("--ids", "1,2", "--mask", "1,0")
    cli.ok("hash", *words, "--to", "npy", "-o", tmp_path / "r.npy")
    rows = np.load(tmp_path / "r.npy")
    rows[1] = 0
    note = "all differences are at dead positions: --skip-dead ignores them"
    assert note in differs(cli, "hash", npy(tmp_path / "d.npy", rows), *words)["notes"]
    rows[0] = 0
    assert note not in differs(cli, "hash", npy(tmp_path / "e.npy", rows), *words)["notes"]


def test_row_numbers_of_any_shape_are_looked_up(cli: Cli, container: Path, tmp_path: Path) -> None:
    words = (container, "--layer", 1, "-o")
    cli.ok("run", *words, tmp_path / "rows.npy", "--ids", "5,6", "--stop-at", "rows")
    cli.ok("run", *words, tmp_path / "values.npy", "--ids", "5,6", "--stop-at", "values")
    cli.ok("lookup", *words, tmp_path / "looked.npy", "--rows-file", tmp_path / "rows.npy")
    assert np.array_equal(np.load(tmp_path / "looked.npy"), np.load(tmp_path / "values.npy").reshape(48, 256))


def wrong_kinds(folder: Path, tiny: Path) -> dict[str, Path]:
    ids = np.array([*range(100), 5], np.uint32)
    np.save(folder / "a.npy", ids)
    np.savez(folder / "a.npz", ids=ids)
    ids.tofile(folder / "map.bin")
    (folder / "a.json").write_text('{"a": 1}')
    (folder / "a.txt").write_text("1, 2, 3\n")
    names = {"an npy file": "a.npy", "an npz or zip file": "a.npz", "a token map": "map.bin"}
    names |= {"a JSON file": "a.json", "a text file": "a.txt"}
    return {kind: folder / name for kind, name in names.items()} | {"a tokenizer": tiny / "tokenizer.json"}


def test_a_file_of_the_wrong_kind_is_called_what_it_is(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    for kind, path in wrong_kinds(tmp_path, tiny).items():
        for words in (
            ("show", path),
            ("lookup", path, "--rows", 1, "-o", tmp_path / "x"),
            ("repack", path, "--dry-run"),
            ("check", "source", path),
            ("check", "file", path),
            ("check", "packing", path, container),
        ):
            if words[0] != "show" or kind not in ("a token map", "an npy file"):  # maps, which show describes
                assert cli.refused(tmp_path, *words).found == kind, words
    for words, way in (
        (("repack", container, "--dry-run"), "unpack "),
        (("check", "source", container), "check file "),
    ):
        refusal = cli.refused(tmp_path, *words)
        assert (refusal.expected, refusal.found) == ("a checkpoint folder or a safetensors file", "a GGUF container")
        assert refusal.hint.startswith(way)


@pytest.mark.parametrize(
    ("words", "where", "expected", "found"),
    [
        ("", "engramctl", "a command", "none"),
        ("check", "check", "a command", "none"),
        ("bogus", "bogus", "a command that --help lists", "bogus"),
        ("hash --bogus", "hash", "an option that --help lists", "--bogus"),
        ("hash --ids", "--ids", "a value", "none"),
        ("hash --ids 1 --to bad", "--to", "one of tsv, jsonl, npy, u32, sha256", "'bad'"),
        ("run", "run", "FILE|DIR", "none"),
        ("map a b", "map", "no more arguments", "b"),
    ],
)
def test_usage_errors_say_what_was_expected(
    cli: Cli, tmp_path: Path, words: str, where: str, expected: str, found: str
) -> None:
    refusal = cli.refused(tmp_path, *words.split())
    assert (refusal.where, refusal.expected, refusal.found) == (where, expected, found)
    assert refusal.hint.endswith("--help")


@pytest.mark.parametrize("words", ["lookup x --layer a", "hash --threads 0 --ids 1", "synth d --seed -1"])
def test_numbers_that_are_none_or_too_small_are_named(cli: Cli, tmp_path: Path, words: str) -> None:
    refusal = cli.refused(tmp_path, *words.split())
    assert refusal.where in ("--layer", "--threads", "--seed")
    assert refusal.found in ("a", "0", "-1")


def test_an_interrupted_repack_says_what_is_kept(
    cli: Cli, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*words: object) -> None:
        (tmp_path / "e.gguf.partial").write_bytes(b"")
        raise KeyboardInterrupt

    monkeypatch.setattr(repack, "run", stop)
    done = cli("repack", tiny, "-o", tmp_path / "e.gguf")
    kept = f"engramctl: interrupted; {tmp_path}/e.gguf.partial is kept, and --resume goes on\n"
    assert (done.code, done.err) == (130, kept)


def test_binary_ids_and_params_without_a_map_come_with_a_way_on(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    for data in (np.arange(5, dtype="<u4").tobytes(), b"\xff\xfe"):
        (tmp_path / "ids").write_bytes(data)
        refusal = cli.refused(tmp_path, "hash", tmp_path / "ids")
        assert (refusal.found, "--ids-format u32" in refusal.hint) == ("binary data", True)
    cli.ok("params", tiny, "-o", tmp_path / "p.json")
    hint = cli.refused(tmp_path, "hash", "--ids", 1, "--params", tmp_path / "p.json").hint
    assert ("--token-map" in hint, "npz" in hint) == (True, True)


def test_bytes_are_not_written_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from engramctl.cli.options import STDIN
    from engramctl.cli.output import refuse_existing

    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal, os.fdopen(leader, "rb"):
        monkeypatch.setattr(sys, "stdout", terminal)
        refuse_existing(STDIN, False)
        with pytest.raises(EngramctlError, match="standard output: expected a file or a pipe for binary data"):
            refuse_existing(STDIN, False, binary=True)


def test_tables_end_their_lines_where_the_text_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    report.table(("a", "b"), [("long cell", "x"), ("y", "another")])
    assert out.getvalue() == "a          b\nlong cell  x\ny          another\n"


def test_show_lists_once_and_explains_both_pads(cli: Cli, container: Path) -> None:
    lines = cli.ok("show", container).out.decode().splitlines()
    assert sum(line.startswith("container ") for line in lines) == 1
    sizes = next(line for line in lines if line.startswith("sizes"))
    assert "layers [1, 14]" in sizes
    assert "pad_token_id (raw) 2" in sizes
    assert any("pad_id (compressed" in line or "(compressed: what" in line for line in lines)


def test_a_stopped_demo_proposes_nothing_that_went_with_its_folder(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(self: object) -> None:
        raise KeyboardInterrupt("engramctl-demo-x/engram.gguf.partial is kept, and --resume goes on")

    monkeypatch.setattr(demo._Demo, "run", stopped)
    outcome = cli("demo", "--quiet")
    assert (outcome.code, outcome.err) == (130, "engramctl: interrupted\n")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("repak",), "did you mean engramctl repack?"),
        (("zzzzz",), "engramctl --help"),
        (("check", "fil"), "did you mean engramctl check file?"),
        (("check", "zzzzz"), "engramctl check --help"),
        (("repack", "--nope"), "engramctl repack --help"),
    ],
)
def test_a_command_that_is_none_hints_at_one_that_is(
    cli: Cli, tmp_path: Path, words: tuple[str, ...], hint: str
) -> None:
    assert cli.refused(tmp_path, *words).hint == hint


def test_the_demo_ends_in_a_verdict(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [demo.Step("map tiny/a", "x", "y", "z", True), demo.Step("map tiny/b", "x", "y", "z", True)]
    monkeypatch.setattr(demo, "run", lambda say=None: steps)
    assert cli.ok("demo").out.decode().splitlines()[-1] == "2 checks, all as expected"


def test_the_public_names_are_seen_and_take_plain_values(container: Path) -> None:
    assert set(engramctl.__all__) <= set(dir(engramctl))
    params = engramctl.published(engramctl.profiles.load())
    rows = engramctl.hash_rows([0, 3, 42], params, [True, True, False])
    assert np.array_equal(rows, engramctl.hash_rows(np.array([0, 3, 42]), params, np.array([True, True, False])))
    history = engramctl.History(params)
    assert np.array_equal(history.append([0, 3]), rows[:2])
    for bad in ([0.5], ["a"], [[1], [1, 2]], [True], [2**70]):
        with pytest.raises(EngramctlError, match="token ids: expected a row of integers"):
            history.append(bad)
    with engramctl.open_source(str(container)) as source:
        assert source.sizes.layers == (1, 14)


def test_a_changed_plan_is_named_as_the_journals(tmp_path: Path) -> None:
    from engramctl.journal import Said

    said = Said(tmp_path / "j", {"plan": {"config": "a"}, "slice": [0, 1], "mark": "m"})
    with pytest.raises(EngramctlError, match="j: the journal's plan: config: expected a, found b"):
        said.require_plan({"config": "b"})


def test_kinds_are_only_said_where_they_are_sure(tmp_path: Path) -> None:
    assert kinds.name(tmp_path) is None
    (tmp_path / "x").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    assert kinds.name(tmp_path / "x") is None
    (tmp_path / "y").write_bytes(os.urandom(1) + b"\xff" * 99)
    assert kinds.name(tmp_path / "y") is None
    (tmp_path / "z").write_text(json.dumps("é" * 70_000))
    assert kinds.name(tmp_path / "z") == "a text file"
    with pytest.raises(FormatError):
        vocabulary.load_tokenizer(tmp_path / "y")


@pytest.mark.parametrize("command", ["lookup", "run", "map", "params"])
def test_nothing_is_written_over_what_it_is_read_from(cli: Cli, container: Path, tmp_path: Path, command: str) -> None:
    path = tmp_path / "engram.gguf"
    path.write_bytes(container.read_bytes())
    (tmp_path / "link").symlink_to(path)
    words = {
        "lookup": ("--layer", 1, "--rows", "5"),
        "run": ("--layer", 1, "--ids", "5", "--stop-at", "rows"),
        "map": ("--allow-mismatch",),
        "params": (),
    }[command]
    for output in (path, tmp_path / "link"):
        refusal = cli.refused(tmp_path, command, path, *words, "-o", output, "--force")
        assert refusal.expected == "an output that is none of its own sources"


def test_an_output_is_of_the_form_that_its_name_ends_in(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    begins = {"a.npy": b"\x93NUMPY", "a.jsonl": b'{"position"', "a.u32": b"", "a.txt": b"0\t1\t"}
    for name, first in begins.items():
        cli.ok("hash", "--ids", "5", "--params", tiny, "-o", tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(first)
    assert (tmp_path / "a.u32").stat().st_size == 4 * 48
    for name, first in {"p.h": b"/*", "p.rs": b"//!", "p.npz": b"PK", "p.json": b"{", "p.own": b"{"}.items():
        cli.ok("params", tiny, "-o", tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(first)
    cli.ok("params", tiny, "-o", tmp_path / "c.npz", "--to", "c")
    assert (tmp_path / "c.npz").read_bytes().startswith(b"/*")
    for name, first in {"m.npy": b"\x93NUMPY", "m.json": b"[", "m.bin": bytes(4), "m.i64": bytes(8)}.items():
        cli.ok("map", tiny / "tokenizer.json", "--allow-mismatch", "-o", tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(first)


def test_a_name_that_says_a_form_that_is_not_written_is_refused_unless_the_form_is_asked_for(
    cli: Cli, container: Path, tiny: Path, tmp_path: Path
) -> None:
    sequence = (container, "--layer", 1, "--ids", "5")
    np.save(tmp_path / "h.npy", np.zeros((1, 4, 64), np.float32))
    for words, names, can in (
        (("hash", "--ids", "5"), ("x.json", "x.npz", "x.i64", "X.JSON"), ".tsv"),
        (("map",), ("m.txt", "m.safetensors", "m.npz", "m.gguf"), ".u32"),
        (("params",), ("p.txt", "p.npy", "p.toml"), ".json"),
        (("lookup", container, "--layer", 1, "--rows", 1), ("x.json", "x.safetensors"), ".npy"),
        (("run", *sequence, "--stop-at", "kv"), ("x.safetensors", "x.npz"), ".npy"),
        (("run", *sequence, "--hidden", tmp_path / "h.npy"), ("x.safetensors",), ".npy"),
        (("probe", "hash"), ("p.npz", "p.txt"), ".json"),
        (("probe", "gate"), ("p.json", "p.npy"), ".npz"),
    ):
        for name in names:
            said = cli.refused(tmp_path, *words, "-o", tmp_path / name)
            assert (said.where, said.found) == ("--output", name)
            assert said.expected.startswith("a name that ends in ")
            assert can in said.expected
            assert ("--to" in said.hint) == (words[0] in ("hash", "map", "params"))
    cli.ok("hash", "--ids", "5", "--to", "jsonl", "-o", tmp_path / "x.json")
    cli.ok("map", "--to", "i64", "-o", tmp_path / "m.txt")
    cli.ok("params", "--to", "json", "-o", tmp_path / "p.txt")


def test_help_is_short_for_help_and_lists_whole_sentences(cli: Cli) -> None:
    for words in ((), ("check",), ("check", "packing"), ("probe",), ("hash",)):
        assert cli.ok(*words, "-h").out == cli.ok(*words, "--help").out
    for group in ("check", "probe"):
        assert b"..." not in cli.ok(group, "--help").out.partition(b"Options:")[2]


def test_lists_of_ids_may_have_brackets(cli: Cli, tmp_path: Path) -> None:
    plain = cli.ok("hash", "--ids", "5,6").out
    assert cli.ok("hash", "--ids", "[5, 6]").out == plain
    assert cli.ok("hash", "-", stdin=b"[5,6]\n").out == plain
    assert cli.refused(tmp_path, "hash", "--ids", "[[5]]").found.startswith("'[5]'")
    assert cli.refused(tmp_path, "hash", "5,6").hint == "--ids 5,6 takes token ids"
    assert "--ids-file -" in cli.refused(tmp_path, "hash").hint


def test_constants_are_checked_from_standard_input(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    made = cli.ok("params").out
    assert b"check params standard input: ok" in cli.ok("check", "params", "-", stdin=made).out
    assert cli.ok("hash", "--params", "-", "--ids", "5", stdin=made).out == cli.ok("hash", "--ids", "5").out
    assert cli.refused(tmp_path, "check", "params", "-", stdin=b"x").where == "standard input"


def test_the_other_check_is_named(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    assert "check source" in cli.refused(tmp_path, "check", "file", tiny).hint
    assert "check file" in cli.refused(tmp_path, "check", "source", container).hint
    refusal = cli.refused(tmp_path, "repair", container, "--undo", "--from", tiny)
    assert refusal.where == "--undo"
    assert "nothing was interrupted" in cli.refused(tmp_path, "repair", container, "--undo").found


def test_profiles_are_listed_with_their_sizes(cli: Cli) -> None:
    listed = {each["name"]: each for each in cli.ok("profiles", "--json").json["profiles"]}
    assert listed["deepseek-v4.1-flash"]["rows"] == [384006168, 384016682]
    assert listed["engram-27b"]["rows"] is None


def test_what_was_searched_of_a_long_dump_is_said(cli: Cli, tmp_path: Path) -> None:
    ids = np.arange(40_000) % 129280
    words = ("--ids-file", npy(tmp_path / "i.npy", ids))
    cli.ok("hash", *words, "-o", tmp_path / "r.npy")
    rows = np.load(tmp_path / "r.npy")
    rows[20_000:20_010] += 1
    notes = differs(cli, "hash", npy(tmp_path / "w.npy", rows), *words)["notes"]
    assert any("of 40000 were searched" in note for note in notes), notes


def test_another_models_constants_are_pointed_to_their_source(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    cli.ok("params", tiny, "-o", tmp_path / "p.json")
    assert "--source CHECKPOINT" in differs(cli, "params", tmp_path / "p.json")["notes"][0]
    assert "--source" not in str(passes(cli, "params", tmp_path / "p.json", "--source", tiny)["notes"])
    words = ("hash", "--params", tmp_path / "p.json", "--ids", "5")
    assert (
        cli.ok(*words, "--token-map", tiny / "tokenizer.json").out == cli.ok("hash", "--params", tiny, *words[3:]).out
    )


def test_nor_over_any_other_input(cli: Cli, container: Path, tiny: Path, tmp_path: Path) -> None:
    rows, mask, params, ckpt = (tmp_path / name for name in ("rows", "mask", "params.json", "ckpt"))
    rows.write_text("1,2")
    mask.write_text("1,1")
    cli.ok("params", container, "-o", params)
    shutil.copytree(tiny, ckpt)
    for output, words in (
        (rows, ("lookup", container, "--layer", 1, "--rows-file", rows)),
        (rows, ("hash", "--ids-file", rows)),
        (rows, ("hash", rows)),
        (mask, ("hash", rows, "--mask-file", mask)),
        (params, ("hash", rows, "--params", params)),
        (params, ("probe", "hash", "--params", params)),
        (ckpt / "config.json", ("hash", rows, "--params", ckpt)),
        (rows, ("run", container, "--layer", 1, "--ids-file", rows, "--stop-at", "rows")),
        (mask, ("run", container, "--layer", 1, "--ids", "1,2", "--mask-file", mask, "--stop-at", "rows")),
    ):
        refusal = cli.refused(tmp_path, *words, "-o", output, "--force")
        assert refusal.expected == "an output that is none of its own sources", words


def test_nor_over_a_profile_of_ones_own_or_the_map_that_was_given(
    cli: Cli, container: Path, tiny: Path, tmp_path: Path
) -> None:
    own, given = tmp_path / "own.toml", tmp_path / "map.bin"
    shipped = (ROOT / "engramctl" / "data" / "deepseek-v4.1-flash.toml").read_text("utf-8")
    own.write_text(shipped.replace('name = "deepseek-v4.1-flash"', 'name = "mine"'))
    cli.ok("map", tiny / "tokenizer.json", "-o", given, "--allow-mismatch")
    for words in (
        ("hash", "--ids", "5"),
        ("lookup", container, "--layer", 1, "--rows", "5"),
        ("run", container, "--layer", 1, "--ids", "5", "--stop-at", "rows"),
        ("params",),
        ("map", tiny),
        ("probe", "hash"),
        ("probe", "gate"),
        ("repack", tiny),
        ("repack", tiny, "--dialect", "split-i8"),
        ("repair", container),
    ):
        refusal = cli.refused(tmp_path, *words, "--profile", own, "-o", own, "--force")
        assert refusal.expected == "an output that is none of its own sources", words
    for more in ((), ("--dialect", "split-i8")):
        refusal = cli.refused(tmp_path, "repack", tiny, "--token-map", given, "-o", given, *more, "--force")
        assert refusal.expected == "an output that is none of its own sources"


def test_a_profile_of_ones_own_converts_to_the_same_bytes_and_is_known_by_its_facts(
    cli: Cli, container: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = (ROOT / "engramctl" / "data" / "deepseek-v4.1-flash.toml").read_text("utf-8")
    own = tmp_path / "own.toml"
    own.write_text(shipped.replace('name = "deepseek-v4.1-flash"', 'name = "mine"'))
    words = ("repack", tiny, "--profile", own, "-o", tmp_path / "o.gguf")
    with monkeypatch.context() as patch:
        patch.setattr(disk, "system", Faulty(room=container.stat().st_size // 2))
        assert cli(*words).code == 2
    own.write_text(own.read_text("utf-8") + "\n# nothing new\n")
    cli.ok(*words, "--resume")
    assert (tmp_path / "o.gguf").read_bytes() == container.read_bytes()


@pytest.mark.parametrize("output", [".", "/"])
def test_an_output_needs_a_name(cli: Cli, container: Path, tiny: Path, tmp_path: Path, output: str) -> None:
    for words in (("unpack", container), ("repack", tiny), ("repack", tiny, "--dialect", "split-i8")):
        refusal = cli.refused(tmp_path, *words, "-o", output)
        assert refusal.expected == "the name of an output", words


def test_a_probe_wider_than_any_model_is_refused(cli: Cli, tmp_path: Path) -> None:
    refusal = cli.refused(tmp_path, "probe", "gate", "-o", tmp_path / "p.npz", "--hidden-size", 10**23)
    assert refusal.where == "--hidden-size"


def test_nothing_of_python_shows_through(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    for name in ("blt", "engram-27b"):
        text = cli.ok("profiles", name).out.decode()
        assert "(" not in text.replace("Engram-27B", "")
        assert "None" not in text
    lines = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert {lines[name] for name in ("rows", "width", "vocabulary", "hidden")} == {"not public"}
    cli.ok("repack", tiny, "--dialect", "row264-bare", "-o", tmp_path / "bare")
    assert "row_bytes 264, rows 2826, ranges 0:2826\n" in cli.ok("show", tmp_path / "bare").out.decode()
    for name in ("hash", "map", "params", "profiles", "bench"):
        text = cli.ok(name, "--help").out.decode()
        assert "list[" not in text
        assert "[[" not in text


def test_what_stands_beside_check_is_named(cli: Cli, tmp_path: Path) -> None:
    refusal = cli.refused(tmp_path, "hash", "x", "--check", "SUMS", "--ids", "1", "--mask", "1")
    assert refusal.found == "FILE and --ids and --mask"


@pytest.mark.parametrize(
    ("text", "position"), [("1,,2", 1), (",1", 0), ("1,2, ,3", 2), ("1 2\n,\n,3", 2), ("[1,,2]", 1)]
)
def test_an_entry_that_is_not_there_is_refused(cli: Cli, tmp_path: Path, text: str, position: int) -> None:
    refusal = cli.refused(tmp_path, "hash", "--ids", text)
    assert (refusal.where, refusal.found) == ("--ids", f"nothing between commas at position {position}")
    assert cli.ok("hash", "--ids", "1,2,").out == cli.ok("hash", "--ids", "1,2").out


def test_real_tokens_of_a_model_of_bytes_are_refused(cli: Cli, tmp_path: Path) -> None:
    refusal = cli.refused(tmp_path, "synth", tmp_path / "new", "--profile", "blt", "--tokens", "real")
    assert (refusal.where, refusal.found) == ("--tokens", "real")
    cli.ok("synth", tmp_path / "new", "--profile", "blt")


def test_refusals_name_the_way_on(cli: Cli, container: Path, tiny: Path, tmp_path: Path) -> None:
    words = ("run", container, "--layer", 1, "--ids", "1")
    assert cli.refused(tmp_path, *words).hint == "--stop-at kv needs none"
    cli.ok(*words, "--stop-at", "kv")
    assert cli.refused(tmp_path, "repack", tiny).hint.startswith("--dry-run ")
    cli.ok("repack", tiny, "--dry-run")
    (tmp_path / "folder").mkdir()
    assert "check source" in cli.refused(tmp_path, "check", "params", tmp_path / "folder").hint
    cli.ok("map", tiny / "tokenizer.json", "-o", tmp_path / "map.bin", "--allow-mismatch")
    words = ("check", "map", tmp_path / "map.bin", "--tokenizer", tiny / "tokenizer.json")
    assert "--allow-mismatch" in cli(*words, "--json").json["notes"][-1]
    cli.ok(*words, "--allow-mismatch")


def test_outputs_go_straight_to_devices_and_pipes(cli: Cli, container: Path, tmp_path: Path) -> None:
    data = cli.ok("hash", "--ids", "5").out
    assert cli.ok("hash", "--ids", "5", "-o", "/dev/null").out == b""
    assert Path("/dev/null").is_char_device()
    assert cli.ok("hash", "--ids", "5", "-o", "/dev/stdout").out == data
    assert cli.refused(tmp_path, "hash", "--ids", "5", "-o", "/dev/full").found == "no space left on device"
    assert cli.refused(tmp_path, "repack", container, "-o", "/dev/stdout").where == "--output"
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit((tmp_path / "pipe").read_bytes)
        assert process("hash", "--ids", "5", "-o", tmp_path / "pipe").returncode == 0
        assert read.result(30) == data
    assert (tmp_path / "pipe").is_fifo()
