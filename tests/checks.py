"""What the tests of `check` share: reports of a command, and containers with something wrong in them."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import rewrite
from cli_helpers import Cli

from formats import gguf_file

Report = dict[str, Any]
PREFIX = "deepseek41.engram."


def passes(cli: Cli, *words: object, stdin: bytes = b"") -> Report:
    """The JSON report of a check that finds nothing."""
    outcome = cli("check", *words, "--json", stdin=stdin)
    assert outcome.code == 0, (outcome.err, outcome.out.decode())
    report = outcome.json
    assert report["schema"] == f"engramctl/check-{words[0]}/1"
    assert (report["ok"], report["findings"], report["findings_total"]) == (True, [], 0)
    return report


def differs(cli: Cli, *words: object, stdin: bytes = b"") -> Report:
    """The JSON report of a check that finds something; the plain form has the same code."""
    outcome = cli("check", *words, "--json", stdin=stdin)
    assert outcome.code == 1, (outcome.err, outcome.out.decode())
    report = outcome.json
    assert report["ok"] is False
    assert report["diagnosis"] is None or {"name", "explains"} <= set(report["diagnosis"])
    assert report["findings_total"] >= len(report["findings"]) > 0
    assert len(report["findings"]) == min(report["findings_total"], 100)
    assert set(report["coverage"]) == {"unit", "checked", "of", "sampled"}
    plain = cli("check", *words, stdin=stdin)
    assert plain.code == 1
    assert report["findings"][0]["where"].encode() in plain.out
    return report


def found(report: Report) -> list[tuple[str, str, str]]:
    """Each finding's where, expected and found."""
    return [(each["where"], each["expected"], each["found"]) for each in report["findings"]]


def wheres(report: Report) -> list[str]:
    return [each["where"] for each in report["findings"]]


def only(report: Report) -> tuple[str, str, str]:
    """The one finding."""
    assert report["findings_total"] == 1, found(report)
    return found(report)[0]


def changed(container: Path, folder: Path, change: Callable[[bytearray], None]) -> Path:
    """A copy of a container with other bytes."""
    path = Path(shutil.copy(container, folder / "changed.gguf"))
    rewrite(path, change)
    return path


def tensor_start(container: Path, name: str) -> int:
    return gguf_file.read_header(container, strict=False).tensor(name).start


def array_at(data: bytearray, role: str, number: int = 0) -> int:
    """Where entry `number` of an array key stands; found by the key's name, its types and its count."""
    name = (PREFIX + role).encode()
    at = data.index(len(name).to_bytes(8, "little") + name) + 8 + len(name)
    kind, item, count = struct.unpack_from("<IIQ", data, at)
    assert (kind, item) in ((9, 4), (9, 10))
    assert number < count
    return at + 16 + number * (4 if item == 4 else 8)


def set_u32(role: str, number: int, value: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        struct.pack_into("<I", data, array_at(data, role, number), value)

    return change


def set_u64(role: str, number: int, value: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        struct.pack_into("<Q", data, array_at(data, role, number), value)

    return change


def scalar_at(data: bytearray, name: str) -> int:
    """Where a scalar key's value stands."""
    raw = name.encode()
    return data.index(len(raw).to_bytes(8, "little") + raw) + 8 + len(raw) + 4


def replace_text(old: str, new: str) -> Callable[[bytearray], None]:
    """Another text of the same length, at its one place."""

    def change(data: bytearray) -> None:
        assert len(old) == len(new)
        assert data.count(old.encode()) == 1
        at = data.index(old.encode())
        data[at : at + len(old)] = new.encode()

    return change


def without(key: str) -> Callable[[bytearray], None]:
    """A key under another name of the same length."""
    return replace_text(PREFIX + key, PREFIX + key[:-1] + "_")


def info_at(data: bytearray, tensor: str) -> int:
    """Where a tensor's description stands, after its name: dimensions, shape, type, offset."""
    raw = tensor.encode()
    return data.index(len(raw).to_bytes(8, "little") + raw) + 8 + len(raw)


def set_offset(tensor: str, move: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        at = info_at(data, tensor) + 4 + 16 + 4
        (offset,) = struct.unpack_from("<Q", data, at)
        struct.pack_into("<Q", data, at, offset + move)

    return change


def set_type(tensor: str, kind: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        struct.pack_into("<I", data, info_at(data, tensor) + 4 + 16, kind)

    return change


def set_extent(tensor: str, dimension: int, extent: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        struct.pack_into("<Q", data, info_at(data, tensor) + 4 + 8 * dimension, extent)

    return change


def npy(path: Path, array: np.ndarray) -> Path:
    np.save(path, array)
    return path
