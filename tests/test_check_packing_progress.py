"""check packing goes on where it was stopped, and ends with the report of a run that was not."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from checks import changed
from cli_helpers import Cli, parse
from test_check_packing import flips

from engramctl import row_blocks
from engramctl.verify import packing
from formats import disk, tree_digest


class Breaking(disk.System):
    """Reading a table breaks after so many blocks."""

    def __init__(self, reads: int) -> None:
        self.left, self.bytes = reads, 0

    def pread_into(self, fd: int, view: memoryview, offset: int) -> int:
        if len(view) in (50 * 256, 50 * 264):  # a block of rows
            self.left -= 1
            self.bytes += len(view)
            if self.left < 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().pread_into(fd, view, offset)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_digest, "LEAF_ROWS", 50)
    monkeypatch.setattr(row_blocks, "SPAN_BLOCKS", 2)
    monkeypatch.setattr(packing, "SAVE_BYTES", 100_000)


def report(cli: Cli, *words: object) -> dict[str, Any]:
    found = cli("check", "packing", *words, "--digest", "tree", "--json")
    assert found.code in (0, 1), found.err
    return found.json


def test_a_stopped_check_goes_on_and_says_the_same(
    cli: Cli, tiny: Path, container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = changed(container, tmp_path, flips(container, 14, range(5, 5 + 3 * 150, 3), 100))
    expected, kept, runs = report(cli, tiny, made), tmp_path / "progress", 0
    assert expected["findings_total"] == 150
    while True:
        with monkeypatch.context() as patch:
            patch.setattr(disk, "system", Breaking(40))
            outcome = cli("check", "packing", tiny, made, "--digest", "tree", "--json", "--resume", kept)
        if outcome.code != 2:
            break
        assert parse(outcome.err).found == "input/output error"
        assert kept.exists()
        runs += 1
    assert outcome.json == expected
    assert runs > 3
    assert not kept.exists()


def test_what_was_compared_is_not_read_again(
    cli: Cli, tiny: Path, container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "progress"
    monkeypatch.setattr(disk, "system", first := Breaking(1 << 30))
    cli.ok("check", "packing", tiny, container)
    monkeypatch.setattr(disk, "system", Breaking(250))
    assert cli("check", "packing", tiny, container, "--resume", kept).code == 2
    monkeypatch.setattr(disk, "system", second := Breaking(1 << 30))
    cli.ok("check", "packing", tiny, container, "--resume", kept)
    assert second.bytes < first.bytes * 0.7


@pytest.mark.parametrize("keep", [True, False])
def test_an_interruption_says_where_the_progress_is(
    cli: Cli, tiny: Path, container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    take, taken = packing._take, iter(range(20))

    def interrupted(*all_of_it: Any) -> None:  # noqa: ANN401
        if next(taken, None) is None:
            raise KeyboardInterrupt
        take(*all_of_it)

    kept = tmp_path / "progress"
    more = ("--resume", kept) if keep else ()
    with monkeypatch.context() as patch:
        patch.setattr(packing, "_take", interrupted)
        outcome = cli("check", "packing", tiny, container, *more)
    words = f"; {kept} keeps the progress, and the same command goes on" if keep else ""
    assert (outcome.code, outcome.err) == (130, f"engramctl: interrupted{words}\n")
    cli.ok("check", "packing", tiny, container, *more)
    assert not kept.exists()


def test_progress_of_other_files_is_refused_by_name(
    cli: Cli, tiny: Path, container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "progress"
    with monkeypatch.context() as patch:
        patch.setattr(disk, "system", Breaking(60))
        assert cli("check", "packing", tiny, container, "--resume", kept).code == 2
    other = changed(container, tmp_path, lambda data: None)
    refusal = cli.refused(tmp_path, "check", "packing", tiny, other, "--resume", kept)
    assert str(other) in refusal.where + refusal.found + refusal.expected or "size of" in refusal.where
    refusal = cli.refused(tmp_path, "check", "packing", tiny, container, "--resume", kept, "--layer", 1)
    assert refusal.where.endswith(": layer")
    changes = '"point":[1,', '"point":[14,', '"point":[1e999,', '"point":["x",'
    written = kept.read_text()
    assert changes[0] in written
    for change in changes[1:]:
        kept.write_text(written.replace(changes[0], change))
        refusal = cli.refused(tmp_path, "check", "packing", tiny, container, "--resume", kept)
        assert (refusal.where, refusal.expected) == (str(kept), "the progress of a check, as it was written")
    kept.write_text("{}")
    assert cli.refused(tmp_path, "check", "packing", tiny, container, "--resume", kept).where == str(kept)


@pytest.mark.parametrize("more", [("--sample", 5), ("--rows", "0:5")])
@pytest.mark.parametrize("what", [("--digest", "tree"), ("--resume", "x")])
def test_a_part_of_the_rows_has_neither_digest_nor_progress(
    cli: Cli, tiny: Path, container: Path, tmp_path: Path, more: tuple[object, ...], what: tuple[str, ...]
) -> None:
    assert cli.refused(tmp_path, "check", "packing", tiny, container, *more, *what).where == what[0]


def test_sha256_is_not_offered(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    assert cli.refused(tmp_path, "check", "packing", tiny, container, "--digest", "sha256").expected == "one of tree"
