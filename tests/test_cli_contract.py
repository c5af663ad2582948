"""What scripts rely on: exit codes, streams, one-line errors, JSON, signals, and every form of the command line."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_helpers import ROOT, Cli, parse, process, python, snapshot

from engramctl.cli import edge

COMMANDS = ["demo", "hash", "lookup", "map", "params", "profiles", "repack", "run", "show", "synth"]
CHECKS = ["map", "params", "hash", "values", "kv", "gate", "packing", "file", "source"]
EVERY = [(), *((name,) for name in COMMANDS), ("check",), *(("check", name) for name in CHECKS)]
ESCAPE = "\x1b"


def words_of(path: tuple[str, ...]) -> str:
    return "-".join(path) or "engramctl"


# help and version


@pytest.mark.parametrize("path", EVERY, ids=words_of)
def test_every_help_prints_the_exit_codes(cli: Cli, path: tuple[str, ...]) -> None:
    done = cli.ok(*path, "--help")
    text = " ".join(done.out.decode().split())
    assert "Exit codes: 0" in text
    assert "1 something differs" in text
    assert "2 could not tell" in text
    assert "130 Ctrl-C, 141 a closed pipe, 143 terminated" in text
    assert done.err == ""


HELPS = """
import io, sys
from contextlib import redirect_stdout
from engramctl.cli.main import run
for path in {every!r}:
    with redirect_stdout(io.StringIO()):
        assert run([*path, "--help"]) == 0
    loaded = {{"numba", "tokenizers"}} & sys.modules.keys()
    assert not loaded, (path, loaded)
print("none")
"""


def test_no_help_loads_numba_or_tokenizers() -> None:
    done = python(HELPS.format(every=EVERY))
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"none\n"


def test_help_names_every_command(cli: Cli) -> None:
    text = cli.ok("--help").out.decode()
    assert all(re.search(rf"^ +{name} ", text, re.MULTILINE) for name in [*COMMANDS, "check"])
    text = cli.ok("check", "--help").out.decode()
    assert all(re.search(rf"^ +{name} ", text, re.MULTILINE) for name in CHECKS)


def test_version(cli: Cli) -> None:
    assert re.fullmatch(r"engramctl \d+\.\d+\.\d+\n", cli.ok("--version").out.decode())


# usage errors


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("nope",),
        ("check",),
        ("check", "nope"),
        ("--nope",),
        ("hash", "--nope"),
        ("hash", "--to", "xml"),
        ("hash", "--ids"),
        ("repack",),
        ("repack", "a", "b"),
        ("lookup", "x", "--layer", "one"),
        ("synth", "x", "--seed", "-1"),
        ("synth", "x", "--seed", "x"),
        ("hash", "--ids", "1", "--threads", "0"),
        ("check", "packing", "one"),
        ("check", "packing", "a", "b", "--sample", "-1"),
        ("profiles", "nope"),
        ("hash", "--ids", "1", "--profile", "nope"),
        ("params", "--profile", "../x"),
    ],
)
def test_usage_errors_are_one_line(cli: Cli, tmp_path: Path, words: tuple[str, ...]) -> None:
    plain = cli.refused(tmp_path, *words)
    if words and words[-1] != "--ids":
        assert cli.refused(tmp_path, *words, "--json") == plain or "--json" in cli(*words, "--json").err


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("show", ""), "FILE|DIR"),
        (("hash", ""), "FILE"),
        (("map", ""), "TOKENIZER|MAP"),
        (("params", "-o", ""), "--output"),
        (("map", "--output="), "--output"),
        (("hash", "--ids", "1", "--params", ""), "--params"),
        (("hash", "--ids", "1", "--token-map", ""), "--token-map"),
        (("check", "packing", "x", ""), "FILE"),
        (("check", "values", "", "x"), "DUMP"),
        (("check", "map", "x", "--tokenizer", ""), "--tokenizer"),
        (("unpack", "x", "-o", ""), "--output"),
        (("probe", "hash", "-o", ""), "--output"),
        (("repack", "", "-o", "x"), "CHECKPOINT"),
    ],
)
def test_an_empty_path_is_not_the_folder_where_one_stands(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], where: str
) -> None:
    monkeypatch.chdir(tmp_path)
    refusal = cli.refused(tmp_path, *words)
    assert (refusal.where, refusal.expected, refusal.found) == (where, "a path", "an empty one")


@pytest.mark.parametrize("path", [("show",), ("profiles",), ("check",), *(("check", name) for name in CHECKS)])
def test_every_command_that_reports_can_be_told_to_be_quiet(cli: Cli, path: tuple[str, ...]) -> None:
    assert "-q, --quiet" in cli.ok(*path, "--help").out.decode()


def test_quiet_reports_say_as_much_on_standard_output(cli: Cli, container: Path) -> None:
    for words in (("show", container), ("profiles",), ("check", "--list"), ("check", "params", container)):
        loud, quiet = cli.ok(*words), cli.ok(*words, "-q")
        assert (quiet.out, quiet.err) == (loud.out, "")


def test_official_activation_and_the_fast_engine_exclude_each_other(cli: Cli, container: Path, tmp_path: Path) -> None:
    words = ("run", container, "--layer", 1, "--ids", 1, "--stop-at", "kv", "--activation", "official")
    refusal = cli.refused(tmp_path, *words, "--engine", "fast")
    assert refusal.expected == "--engine reference"
    cli.ok(*words)
    cli.ok(*words, "--engine", "reference")


def test_threads_come_from_the_environment_too(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENGRAMCTL_THREADS", "many")
    assert "ENGRAMCTL_THREADS" in str(cli.refused(tmp_path, "hash", "--ids", 1))
    monkeypatch.setenv("ENGRAMCTL_THREADS", "2")
    two = cli.ok("hash", "--ids", 1).out
    monkeypatch.delenv("ENGRAMCTL_THREADS")
    assert cli.ok("hash", "--ids", 1, "--threads", 3).out == two


def test_a_bug_keeps_its_traceback_and_exits_2(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from engramctl import profiles

    def broken(name: str = "") -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(profiles, "load", broken)
    done = cli("params")
    assert done.code == 2
    assert "Traceback" in done.err
    assert "ZeroDivisionError: a bug" in done.err


@pytest.mark.parametrize("kind", [EOFError, RecursionError, MemoryError, AssertionError])
def test_whatever_the_bug_it_is_no_interruption(cli: Cli, monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    from engramctl import profiles

    def broken(name: str = "") -> None:
        raise kind

    monkeypatch.setattr(profiles, "load", broken)
    assert cli("params").code == 2


# colours, progress, terminals


def in_a_terminal(*words: object, env: dict[str, str], stdout_too: bool = True) -> tuple[int, str, bytes]:
    """Exit code, what the terminal showed, and what a piped standard output got."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "engramctl", *map(str, words)]
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM", "COLORTERM")} | env
    out = theirs if stdout_too else subprocess.PIPE
    shown, deadline = b"", time.monotonic() + 60
    with subprocess.Popen(command, cwd=ROOT, stdin=theirs, stdout=out, stderr=theirs, env=environment) as running:
        os.close(theirs)
        while time.monotonic() < deadline:
            ready, _, _ = select.select([ours], [], [], 0.05)
            try:
                piece = os.read(ours, 1 << 16) if ready else b""
            except OSError:  # Linux's way to say that nobody writes any more
                break
            shown += piece
            if not piece and running.poll() is not None:
                break
        piped = running.stdout.read() if running.stdout else b""
    os.close(ours)
    return running.returncode, shown.decode(), piped


COLOURS = {"TERM": "xterm-256color"}


@pytest.mark.parametrize(
    ("env", "coloured"),
    [(COLOURS, True), (COLOURS | {"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
    ids=["terminal", "no-color", "dumb"],
)
def test_colours_are_for_terminals_that_want_them(container: Path, env: dict[str, str], coloured: bool) -> None:
    code, shown, _ = in_a_terminal("profiles", env=env)
    assert code == 0
    assert "deepseek-v4.1-flash" in shown
    colours = re.findall(r"\x1b\[[0-9;]*3[0-9][0-9;]*m", shown)
    assert not colours or coloured
    code, shown, _ = in_a_terminal("check", "file", container, env=env)
    assert code == 0
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9][0-9;]*m", shown)) == coloured
    if env.get("TERM") == "dumb":
        assert ESCAPE not in shown


def test_nothing_escapes_where_there_is_no_terminal(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    for words in (
        ("profiles",),
        ("show", container),
        ("show", tiny),
        ("check", "file", container),
        ("repack", tiny, "--dry-run"),
        ("repack", tiny, "-o", tmp_path / "out.gguf"),
        ("--help",),
    ):
        done = cli.ok(*words)
        assert ESCAPE not in done.out.decode() + done.err


def test_progress_is_shown_on_a_terminal_alone(tiny: Path, tmp_path: Path) -> None:
    words = ("repack", tiny, "--force", "-o", tmp_path / "out.gguf")
    code, shown, piped = in_a_terminal(*words, env=COLOURS, stdout_too=False)
    assert code == 0
    assert piped == b""
    assert re.search(r"\d+(\.\d+)?/10\.\d MB", shown)  # the bar's counter
    assert "/s" in shown
    code, shown, _ = in_a_terminal(*words, "--quiet", env=COLOURS)
    assert (code, shown) == (0, "")
    done = process(*words)
    assert done.returncode == 0
    assert done.stderr.count(b"\n") == 1


def test_progress_on_a_dumb_terminal_moves_no_cursor(tiny: Path, tmp_path: Path) -> None:
    code, shown, _ = in_a_terminal("repack", tiny, "-o", tmp_path / "out.gguf", env={"TERM": "dumb"})
    assert code == 0
    assert ESCAPE not in shown


# pipes and signals


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_ends_silently(monkeypatch: pytest.MonkeyPatch, unbuffered: str) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    for command in ("hash - --to tsv", "hash - --to npy"):
        script = f"seq 0 6000 | {sys.executable} -m engramctl {command} | head -1 > /dev/null; echo ${{PIPESTATUS[1]}}"
        done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, check=True, timeout=60)
        assert (done.stdout, done.stderr) == (b"141\n", b""), command


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("--version",),
        ("profiles",),
        ("profiles", "--json"),
        ("check", "--list"),
        ("params",),
        ("hash", "--ids", "1"),
    ],
)
def test_a_pipe_that_was_closed_before_the_first_word(words: tuple[str, ...]) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "engramctl", *words, *(("--quiet",) if words[0] in ("params", "hash") else ())]
    done = subprocess.run(command, cwd=ROOT, stdout=theirs, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [("params",), ("map", "-o", "-"), ("show", "CONTAINER"), ("profiles", "--json")])
def test_a_full_standard_output_is_one_line(
    container: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], unbuffered: str
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    words = tuple(str(container) if word == "CONTAINER" else word for word in words)
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "engramctl", *words]
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, check=False, timeout=60)
    assert done.returncode == 2
    assert parse(done.stderr.decode()).found == "no space left on device"


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
@pytest.mark.parametrize(
    "words", [("hash", "-"), ("map", "-"), ("lookup", "CONTAINER", "--layer", "1", "--rows-file", "-")]
)
def test_signals_end_a_command_with_one_line(
    container: Path, number: int, code: int, word: str, words: tuple[str, ...]
) -> None:
    """While it waits for standard input."""
    words = tuple(str(container) if each == "CONTAINER" else each for each in words)
    with subprocess.Popen(
        [sys.executable, "-m", "engramctl", *words],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        wait_until_it_reads(running.pid)
        running.send_signal(number)
        running.wait(60)
        assert running.returncode == code
        assert running.stdout is not None
        assert running.stderr is not None
        assert (running.stdout.read(), running.stderr.read()) == (b"", f"engramctl: {word}\n".encode())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_that_a_library_made_another_error_of_is_one(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def call(app: object, arguments: list[str]) -> int:
        try:
            os.kill(os.getpid(), number)
            time.sleep(10)
        except BaseException:
            raise ImportError("numpy._core.multiarray failed to import") from None
        return 0

    monkeypatch.setattr(edge, "call", call)
    outcome = cli("profiles")
    word = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[number]
    assert (outcome.code, outcome.err) == (128 + number, f"engramctl: {word}\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_import_is_let_end_before_it_is_interrupted(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int
) -> None:
    """Broken off, it may keep the lock of all imports, and the command would hang in another thread's next one."""
    name = f"struck_by_{number}"
    (tmp_path / f"{name}.py").write_text(
        f"import os, time\nos.kill(os.getpid(), {number})\ntime.sleep(0.1)\nwhole = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def call(app: object, arguments: list[str]) -> int:
        assert __import__(name).whole
        time.sleep(10)
        return 0

    monkeypatch.setattr(edge, "call", call)
    assert cli("profiles").code == 128 + number
    assert sys.modules[name].whole


def wait_until_it_reads(pid: int) -> None:
    """Until the process sleeps in a read of its standard input, as Linux says; elsewhere, long enough."""
    place, deadline = Path(f"/proc/{pid}/syscall"), time.monotonic() + 30
    if not place.exists():
        time.sleep(10)
        return
    while time.monotonic() < deadline:
        number, *arguments = place.read_text().split()
        if number in ("0", "63") and arguments[:1] == ["0x0"]:  # read(0, ...) on x86 and on ARM
            return
        time.sleep(0.02)
    pytest.fail("it never read")


# standard input and output


def test_ids_from_everywhere_give_the_same_rows(cli: Cli, tmp_path: Path) -> None:
    ids = [0, 3, 42, 129_279]
    text = ",".join(map(str, ids))
    want = cli.ok("hash", "--ids", text).out
    forms: dict[str, bytes] = {
        "a.txt": b"0 3\n42\t129279\n",
        "b.txt": text.encode(),
        "c.jsonl": b"0\n[3, 42]\n\n[]\n129279",
        "d.npy": npy(np.array(ids)),
        "e.npy": npy(np.array(ids, "<u4")),
        "f.npy": npy(np.array(ids, ">i4")),
    }
    for name, data in forms.items():
        (tmp_path / name).write_bytes(data)
        assert cli.ok("hash", tmp_path / name).out == want, name
        assert cli.ok("hash", "--ids-file", tmp_path / name).out == want, name
        more = ("--ids-format", "jsonl") if name.endswith("jsonl") else ()
        assert cli.ok("hash", "-", *more, stdin=data).out == want, name
        assert cli.ok("hash", "--ids-file", "-", *more, stdin=data).out == want, name
    data = np.array(ids, "<u4").tobytes()
    assert cli.ok("hash", "-", "--ids-format", "u32", stdin=data).out == want
    assert cli.ok("hash", "--ids", " 0, 3 ,42, 129279, ").out == want


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_a_shells_pipe_is_a_file_of_ids(cli: Cli) -> None:
    script = f"{sys.executable} -m engramctl hash <(echo 0 3 42) --mask-file <(echo 1 1 0)"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, check=True, timeout=60)
    assert done.stdout == cli.ok("hash", "--ids", "0,3,42", "--mask", "1,1,0").out


def test_masks_and_rows_from_everywhere(cli: Cli, container: Path, tmp_path: Path) -> None:
    want = cli.ok("hash", "--ids", "5,6,7", "--mask", "1,0,1").out
    for name, data in {
        "m.txt": b"1\n0\n1\n",
        "m.npy": npy(np.array([1, 0, 1])),
        "b.npy": npy(np.arange(3) != 1),
    }.items():
        (tmp_path / name).write_bytes(data)
        assert cli.ok("hash", "--ids", "5,6,7", "--mask-file", tmp_path / name).out == want
        assert cli.ok("hash", "--ids", "5,6,7", "--mask-file", "-", stdin=data).out == want
    words = ("lookup", container, "--layer", 14)
    want = cli.ok(*words, "--rows", "9,3,3,100:103").out
    assert np.load(io.BytesIO(want)).shape == (6, 256)
    for name, data in {"r.txt": b"9,3 3\n100:103\n", "r.npy": npy(np.array([9, 3, 3, 100, 101, 102]))}.items():
        (tmp_path / name).write_bytes(data)
        assert cli.ok(*words, "--rows-file", tmp_path / name).out == want
        assert cli.ok(*words, "--rows-file", "-", stdin=data).out == want


def test_outputs_go_to_standard_output_or_a_file_alike(cli: Cli, container: Path, tmp_path: Path) -> None:
    ids = ("--layer", 1, "--ids", "1,2,3")
    for number, words in enumerate(
        (
            ("hash", "--ids", "1,2,3"),
            ("hash", "--ids", "1,2,3", "--to", "npy"),
            ("hash", "--ids", "1,2,3", "--to", "sha256"),
            ("map",),
            ("map", "--to", "npy"),
            ("params",),
            ("params", "--to", "npz"),
            ("lookup", container, "--layer", 1, "--rows", "0:9"),
            ("run", container, *ids, "--stop-at", "values"),
        )
    ):
        path = tmp_path / str(number)
        cli.ok(*words, "-o", path)
        assert cli.ok(*words, "-o", "-").out == path.read_bytes()
        assert cli.ok(*words, "--output", "-").out == path.read_bytes()
        assert [each.name for each in tmp_path.iterdir() if not each.name.isdigit()] == []


def test_hidden_states_and_dumps_from_standard_input(cli: Cli, container: Path, tmp_path: Path) -> None:
    hidden = npy(np.ones((2, 4, 64), np.float32))
    (tmp_path / "h.npy").write_bytes(hidden)
    words = ("run", container, "--layer", 1, "--ids", "1,2", "--hidden")
    assert cli.ok(*words, "-", stdin=hidden).out == cli.ok(*words, tmp_path / "h.npy").out
    rows = cli.ok("hash", "--ids", "1,2", "--to", "npy").out
    cli.ok("check", "hash", "-", "--ids", "1,2", stdin=rows)


# hash, in every form


ROWS_OF = ("--ids", "5,6,7", "--mask", "1,1,0", "--history", "9,-1")


@pytest.fixture
def rows(cli: Cli) -> np.ndarray:
    return np.load(io.BytesIO(cli.ok("hash", *ROWS_OF, "--to", "npy").out))


def test_hash_forms_hold_the_same_rows(cli: Cli, rows: np.ndarray) -> None:
    assert rows.shape == (3, 2, 24)
    assert rows.dtype == np.dtype("<i8")
    tsv = cli.ok("hash", *ROWS_OF, "--to", "tsv").out.decode()
    assert tsv == cli.ok("hash", *ROWS_OF).out.decode()  # the default
    lines = [[int(cell) for cell in line.split("\t")] for line in tsv.splitlines()]
    assert [line[:2] for line in lines] == [[position, layer] for position in range(3) for layer in (1, 14)]
    assert [line[2:] for line in lines] == rows.reshape(6, 24).tolist()
    jsonl = [json.loads(line) for line in cli.ok("hash", *ROWS_OF, "--to", "jsonl").out.splitlines()]
    assert [list(line) for line in jsonl] == [["position", "layer", "rows"]] * 6
    assert [[line["position"], line["layer"], *line["rows"]] for line in jsonl] == lines
    u32 = cli.ok("hash", *ROWS_OF, "--to", "u32").out
    assert np.array_equal(np.frombuffer(u32, "<u4"), rows.reshape(-1))
    digest = hashlib.sha256(rows.astype("<u8").tobytes()).hexdigest()
    assert cli.ok("hash", *ROWS_OF, "--to", "sha256").out.decode() == f"{digest}  -\n"


def test_rows_are_global_in_their_layer(rows: np.ndarray) -> None:
    """Bucket plus offset: column 23 lies in the last 16 million rows."""
    assert (rows[:, 0, 23] >= 368_005_705).all()
    assert (rows[:, 0, 23] < 384_006_168).all()


def test_the_exact_digest_of_the_whole_vocabulary(cli: Cli) -> None:
    """Published: InfoSystemic/duck-duck-llama engineering/2026-09-08/archive/serving/fleet-0903."""
    ids = "\n".join(map(str, range(129_280))).encode()
    line = cli.ok("hash", "-", "--to", "sha256", stdin=ids).out.decode()
    assert line == "14aa36cc77ba3bdf00ba1224e03070c1bc934ccf01c9d5371f811198169fff27  -\n"


def test_sums_of_several_files_and_their_check(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["a.txt", "b c.txt", "d.npy", "ü.jsonl"]
    for name in names:
        Path(name).write_bytes(
            npy(np.array([7, 8])) if name.endswith("npy") else b"[7, 8]" if "json" in name else b"7 8"
        )
    done = cli.ok("hash", *names, "--to", "sha256", "-o", "SUMS")
    assert done.out == b""
    lines = Path("SUMS").read_text().splitlines()
    assert [line.split("  ", 1)[1] for line in lines] == names
    assert len({line.split()[0] for line in lines}) == 1
    assert lines[0].split()[0] == cli.ok("hash", "--ids", "7,8", "--to", "sha256").out.decode().split()[0]
    good = cli.ok("hash", "--check", "SUMS", "--json").json
    assert good["ok"] is True
    assert good["coverage"] == {"unit": "files", "checked": 4, "of": 4, "sampled": False}

    Path("d.npy").write_bytes(npy(np.array([8, 7])))
    differs = cli("hash", "--check", "SUMS", "--json")
    assert differs.code == 1
    (finding,) = differs.json["findings"]
    assert finding["where"] == "d.npy"
    assert finding["expected"] == lines[0].split()[0]
    assert differs.json["findings_total"] == 1
    plain = cli("hash", "--check", "SUMS")
    assert plain.code == 1
    assert "d.npy" in plain.out.decode()
    assert cli("hash", "--check", "SUMS", "--quiet").out == b""

    assert (
        cli.ok(
            "hash",
            "--check",
            "-",
            stdin="\n".join(lines[:2])
            .upper()
            .replace(".TXT", ".txt")
            .replace("A.", "a.")
            .replace("B C.", "b c.")
            .encode(),
        ).code
        == 0
    )
    Path("d.npy").unlink()
    assert cli.refused_twice(tmp_path, "hash", "--check", "SUMS").where == "d.npy"
    for text in ("", "nonsense", "12  a.txt", f"{'0' * 64} a.txt", f"{'0' * 64}  a\0b"):
        Path("BAD").write_text(text + "\n")
        refusal = cli.refused_twice(tmp_path, "hash", "--check", "BAD")
        assert "BAD" in refusal.where


def test_names_that_are_no_utf8_stand_in_sums_as_they_are(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"\xff\xfe.txt")
    Path(name).write_text("1 2")
    line = cli.ok("hash", name, "--to", "sha256").out
    assert line.endswith(b"  \xff\xfe.txt\n")
    Path("SUMS").write_bytes(line)
    cli.ok("hash", "--check", "SUMS")


def test_odd_names_in_sums_are_escaped_as_sha256sum_does(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["a\\nb", "a\nb", "\u2028.txt", " x "]
    for name in names:
        Path(name).write_text("1 2")
    done = cli.ok("hash", *names, "--to", "sha256", "-o", "SUMS")
    assert done.out == b""
    theirs = subprocess.run(["sha256sum", *names], capture_output=True, check=True).stdout.splitlines()
    ours = Path("SUMS").read_bytes().splitlines()
    assert [line.partition(b" ")[2] for line in ours] == [line.partition(b" ")[2] for line in theirs]
    assert [line[:1] == b"\\" for line in ours] == [True, True, False, False]
    assert cli.ok("hash", "--check", "SUMS", "--json").json["coverage"]["checked"] == 4


def test_sums_and_sha256sum_agree_on_the_format(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sha256sum` of the u64 rows is the digest, and its line is our line."""
    monkeypatch.chdir(tmp_path)
    Path("ids.txt").write_text("1 2 3")
    ours = cli.ok("hash", "ids.txt", "--to", "sha256").out
    rows = np.load(io.BytesIO(cli.ok("hash", "ids.txt", "--to", "npy").out))
    Path("ids.txt").write_bytes(rows.astype("<u8").tobytes())
    assert ours == subprocess.run(["sha256sum", "ids.txt"], capture_output=True, check=True).stdout


# JSON


def reports(tiny: Path, container: Path, tmp: Path) -> dict[str, tuple[Any, ...]]:
    """Every command that reports, with words that make it succeed."""
    ids = ("--layer", 1, "--ids", "1,2")
    return {
        "profiles": ("profiles",),
        "map": ("map", "-o", tmp / "map.bin"),
        "synth": ("synth", tmp / "synth"),
        "repack": ("repack", tiny, "-o", tmp / "out.gguf"),
        "show": ("show", container),
        "check-map": ("check", "map", tmp / "map.bin"),
        "check-params": ("check", "params", container),
        "check-hash": ("check", "hash", tmp / "rows.npy", "--ids", "1,2"),
        "check-values": ("check", "values", tmp / "values.npy", container, *ids),
        "check-kv": ("check", "kv", tmp / "kv.npy", container, *ids),
        "check-packing": ("check", "packing", tiny, container),
        "check-file": ("check", "file", container),
        "check-source": ("check", "source", tiny),
    }


def test_json_is_exactly_one_object_with_schema_and_ok(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    ids = ("--layer", 1, "--ids", "1,2")
    cli.ok("hash", "--ids", "1,2", "--to", "npy", "-o", tmp_path / "rows.npy")
    for stage in ("values", "kv"):
        cli.ok("run", container, *ids, "--stop-at", stage, "-o", tmp_path / f"{stage}.npy")
    for name, words in reports(tiny, container, tmp_path).items():
        done = cli.ok(*words, "--json")
        report = done.json
        assert report["schema"] == f"engramctl/{name}/1"
        assert report["ok"] is True, name
        assert done.out.endswith(b"}\n")
        if name.startswith("check-"):
            assert report["findings"] == []
            assert report["findings_total"] == 0
            assert report["diagnosis"] is None or {"name", "explains"} <= set(report["diagnosis"])
            assert isinstance(report["notes"], list)
            assert list(report["coverage"]) == ["unit", "checked", "of", "sampled"]
            assert 0 < report["coverage"]["checked"] <= report["coverage"]["of"]
            assert cli.ok(*words).out.startswith(f"check {name.removeprefix('check-')} ".encode())


def test_a_difference_is_exit_code_1_with_findings(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    rows = np.load(io.BytesIO(cli.ok("hash", "--ids", "1,2", "--to", "npy").out))
    rows[1, 1, 5] += 1
    np.save(tmp_path / "rows.npy", rows)
    done = cli("check", "hash", tmp_path / "rows.npy", "--ids", "1,2", "--json")
    assert done.code == 1
    assert done.json["ok"] is False
    assert done.json["findings_total"] == 1
    (finding,) = done.json["findings"]
    assert list(finding) == ["check", "where", "expected", "found"]
    assert finding["expected"].endswith(str(rows[1, 1, 5] - 1))
    assert finding["found"].endswith(str(rows[1, 1, 5]))
    plain = cli("check", "hash", tmp_path / "rows.npy", "--ids", "1,2")
    assert plain.code == 1
    assert f"expected {finding['expected']}, found {finding['found']}" in plain.out.decode()


def test_at_most_a_hundred_findings_are_listed_and_all_are_counted(cli: Cli, tmp_path: Path) -> None:
    rows = np.load(io.BytesIO(cli.ok("hash", "--ids", "1,2,3,4", "--to", "npy").out))
    np.save(tmp_path / "rows.npy", rows[::-1])
    report = cli("check", "hash", tmp_path / "rows.npy", "--ids", "1,2,3,4", "--json").json
    assert len(report["findings"]) == 100
    assert report["findings_total"] == (rows != rows[::-1]).sum()


def test_map_against_the_profile_is_the_other_exit_code_1(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    before = snapshot(tmp_path)
    done = cli("map", tiny / "tokenizer.json", "-o", tmp_path / "map.bin")
    assert done.code == 1
    lines = done.err.splitlines()
    assert lines[0].startswith("engramctl: error: ")
    for number in ("99092", "129280", "310", "384", "c60a86322ec17b41"):  # both counts, both digests
        assert number in lines[0]
    assert snapshot(tmp_path) == before
    assert cli("map", tiny / "tokenizer.json", "-o", tmp_path / "map.bin", "--json").json["ok"] is False
    cli.ok("map", tiny / "tokenizer.json", "-o", tmp_path / "map.bin", "--allow-mismatch")
    assert (tmp_path / "map.bin").stat().st_size == 4 * 384


def test_json_beside_data_on_standard_output_is_refused(cli: Cli, tmp_path: Path) -> None:
    cli.refused(tmp_path, "map", "-o", "-", "--json")
    cli.refused(tmp_path, "hash", "--ids", 1, "--json")


# the forms that the contract writes out


def test_the_exact_forms(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: Path) -> None:
    """Word for word; those whose input is the real release, on what `synth` made."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(tokenizer, "tokenizer.json")

    def run(line: str, stdin: bytes = b"") -> bytes:
        return cli.ok(*shlex.split(line)[1:], stdin=stdin).out

    run("engramctl map tokenizer.json -o engram_token_map.bin")
    assert hashlib.sha256(Path("engram_token_map.bin").read_bytes()).hexdigest().startswith("c60a86322ec17b41")
    run("engramctl params -o params.json")
    assert json.loads(Path("params.json").read_text())["pad_id"] == 2
    run("engramctl synth ckpt --seed 7")
    assert run("engramctl --version").startswith(b"engramctl ")
    run("engramctl repack ckpt -o engram.gguf")
    run("engramctl repack ckpt -o engram.gguf --resume")  # finished already: nothing to do
    run("engramctl hash --ids 0,3,42 --mask 1,1,0 --to npy -o rows.npy")
    assert np.load("rows.npy").shape == (3, 2, 24)
    assert len(run('engramctl hash --text "Only Alexander the Great" --to sha256')) == 64 + 4
    run("engramctl hash --ids 5,6 --history 4015,9933,-1 --to tsv")
    run("engramctl lookup engram.gguf --layer 1 --rows 0,2825 --to f32 -o values.npy")
    assert np.load("values.npy").dtype == np.float32
    np.save("h.npy", np.ones((3, 4, 64), np.float32))
    run("engramctl run engram.gguf --layer 1 --ids 0,3,42 --mask 1,1,0 --hidden h.npy -o out.npy")
    assert np.load("out.npy").shape == (3, 4, 64)
    assert json.loads(run("engramctl check hash rows.npy --ids 0,3,42 --mask 1,1,0 --json"))["ok"] is True
    assert json.loads(run("engramctl check packing ckpt engram.gguf --json"))["ok"] is True
    assert json.loads(run("engramctl check file engram.gguf --loader ds4 --json"))["ok"] is True
    Path("broken.gguf").write_bytes(Path("engram.gguf").read_bytes())
    shown = json.loads(run("engramctl show broken.gguf --json"))
    assert shown["dialect"] == "ds4"
    assert shown["missing"] == []
    assert shown["loaders"]["ds4"]["accepts"] is True


@pytest.fixture(scope="module")
def tokenizer() -> Path:
    """The real tokenizer.json, of the `deepseek` extra."""
    from engramctl.vocabulary import extra_tokenizer

    path = extra_tokenizer()
    if path is None:
        pytest.skip("the deepseek extra is not installed")
    return path


def test_the_kernel_cache_may_be_unwritable(container: Path, tmp_path: Path) -> None:
    """Everything works without it: here its place is a file."""
    (tmp_path / "cache").write_text("")
    words = ("run", container, "--layer", 1, "--ids", "1,2", "--stop-at", "values")
    done = process(*words, env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert (done.returncode, done.stderr) == (0, b"")


def test_only_a_bare_dash_is_a_stream(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-").write_text("5,6")
    assert cli.ok("hash", "./-").out == cli.ok("hash", "--ids", "5,6").out
    assert cli.ok("hash", "-", stdin=b"5,6").out == cli.ok("hash", "--ids", "5,6").out
    assert cli.ok("hash", "--ids", "7", "-o", "./-", "--force").out == b""
    assert (tmp_path / "-").read_bytes() == cli.ok("hash", "--ids", "7").out
