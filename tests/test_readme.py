"""The README's examples are run as they stand, in order, in one folder, and must print what it says they print."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
BLOCK = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
SCRIPT = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```", re.DOTALL | re.MULTILINE)
CUT = "..."  # a line of the README that stands for any number of lines


def examples() -> list[tuple[str, list[str]]]:
    """(command, lines it prints) of every console block."""
    found: list[tuple[str, list[str]]] = []
    for block in BLOCK.findall(README):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line.rstrip())
    return found


def run(command: str, folder: Path) -> list[str]:
    """What a command prints, standard output and error together, as in a terminal that is no terminal."""
    commands = folder.parent / "bin"
    if not commands.exists():
        commands.mkdir()
        for name, words in (("engramctl", "-m engramctl"), ("python", "")):
            (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
            (commands / name).chmod(0o755)
    environment = os.environ | {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "100",
    }
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return [line.rstrip() for line in done.stdout.splitlines()]


def matches(printed: list[str], shown: list[str]) -> bool:
    """Line by line; a line that is CUT skips any number of lines, and one that ends in it is only begun."""
    if not shown:
        return not printed
    if shown[0] == CUT:
        return any(matches(printed[skip:], shown[1:]) for skip in range(len(printed) + 1))
    if not printed:
        return False
    same = printed[0].startswith(shown[0][: -len(CUT)]) if shown[0].endswith(CUT) else printed[0] == shown[0]
    return same and matches(printed[1:], shown[1:])


def test_every_example_prints_what_the_readme_shows(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    assert examples()
    for name, text in SCRIPT.findall(README):
        (folder / name).write_text(text)
    for command, shown in examples():
        printed = run(command, folder)
        assert matches(printed, shown), f"$ {command}\nprints:\n" + "\n".join(printed) + "\nshown:\n" + "\n".join(shown)


def test_every_command_has_an_example() -> None:
    from engramctl.cli import check, quick

    names = set(quick.HOMES) - {"check"}
    checks = {f"check {command.name}" for command in check.app.registered_commands}
    shown = " \n".join(command for command, _ in examples()) + " "
    missing = sorted(
        name for name in names | checks if f"engramctl {name} " not in shown and f"engramctl {name}\n" not in shown
    )
    assert missing == ["demo"]  # it is the first of the two set-up commands


def test_both_set_up_commands_stand_in_the_readme() -> None:
    for mark in ("demo", "tests"):
        block = README.split(f"<!-- {mark}: begin -->")[1].split(f"<!-- {mark}: end -->")[0]
        assert "python3 -m venv .venv" in block
        assert ".venv/bin/" in block
