"""The house rules, held against the source as text."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import engramctl
from engramctl.cli import quick

ROOT = Path(__file__).parent.parent
MODULES = sorted([*ROOT.glob("formats/*.py"), *ROOT.glob("engramctl/**/*.py")])
TREES = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in MODULES}
TESTS = "".join(path.read_text() for path in ROOT.glob("tests/*.py"))


def importers(pattern: str, under: str = "") -> list[str]:
    """Modules below a folder that import, anywhere in them, a module whose name matches."""
    found = []
    for name, tree in TREES.items():
        nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
        names = [f"{getattr(node, 'module', '')}.{alias.name}".lstrip(".") for node in nodes for alias in node.names]
        if name.startswith(under) and any(re.match(pattern, each) for each in names):
            found.append(name)
    return found


def test_arrows_between_modules_point_one_way() -> None:
    assert importers(r"engramctl\b", "formats/") == []
    assert importers(r"engramctl\.(repack|synth)", "engramctl/verify/") == []
    assert importers(r"(engramctl\.fast|numba)\b", "engramctl/reference.py") == []
    assert importers(r"rich\b") == ["engramctl/report.py"]
    assert importers(r"engramctl\.cli\b", "engramctl/verify/") == []


def test_modules_are_short_documented_and_silent() -> None:
    for path in MODULES:
        tree = TREES[str(path.relative_to(ROOT))]
        assert path.read_text().count("\n") <= 300, path
        assert ast.get_docstring(tree) or not tree.body, path
        called = [n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
        assert "print" not in called, path
    assert all(getattr(engramctl, name).__doc__ for name in engramctl.__all__)


def test_nothing_points_outside_of_the_project() -> None:
    for path in [*MODULES, *ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("tests/*.py"), *ROOT.glob(".ci/*")]:
        assert not re.search(r"shared/(facts|design|vectors|seeds|hooks)|/work" + "/", path.read_text()), path


def test_every_table_of_numbers_in_a_spec_is_read_by_a_test() -> None:
    for page in [*ROOT.glob("formats/*.md"), *ROOT.glob("engramctl/*.md")]:
        for table in re.findall(r"^\| (.+?) \|.*\n\| ---.*\n((?:\|.*\n)+)", page.read_text(), re.MULTILINE):
            if re.search(r"\| [\d,]+ \|", table[1]):
                assert re.search(rf'table\("[./a-z]*{page.name}", "{re.escape(table[0])}"\)', TESTS), (page, table[0])


def test_every_command_in_the_readme_exists() -> None:
    commands = set(quick.HOMES)
    used = set(
        re.findall(r"(?:^\$ |\| |&& \.venv/bin/)engramctl ([a-z]+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    )
    assert used == commands
