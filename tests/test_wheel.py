"""A built wheel installs into an empty environment, from nothing but its own metadata, and runs the demo there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def run(*words: object, **more: object) -> bytes:
    """A command in an environment of its own, outside of the sources."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run([*map(str, words)], capture_output=True, check=False, env=clean, **more)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    return bytes(done.stdout)


def test_the_wheel_runs_the_demo_where_nothing_else_is_installed(tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path / "dist", ROOT)
    (wheel,) = (tmp_path / "dist").glob("engramctl-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {"engramctl/py.typed", "formats/py.typed"} <= set(names)
    assert any(name.endswith(".token_map.u32le.gz") for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"engramctl", "formats"}

    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", wheel)
    where = run(python, "-c", "import engramctl, formats; print(engramctl.__file__, formats.__file__)", cwd=tmp_path)
    assert where.count(str(tmp_path / "venv").encode()) == 2

    report = json.loads(run(tmp_path / "venv" / "bin" / "engramctl", "demo", "--json", cwd=tmp_path))
    assert report["ok"] is True
    assert len({step["command"] for step in report["steps"]}) == len(report["steps"]) > 15
    checks = {step["command"].split()[0] for step in report["steps"]}
    assert checks == {"map", "params", "hash", "values", "kv", "gate", "packing", "file", "source"}
    shown = run(tmp_path / "venv" / "bin" / "engramctl", "demo", "--quiet", cwd=tmp_path).decode()
    assert "DIFFERS" not in shown
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("dist", "venv")] == []
