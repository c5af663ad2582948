"""Slices compose: any parts that cover everything once, in any order, give the one container; nothing else does."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from checkpoints import ROWS, Mini, token_map_of
from cli_helpers import ROOT, Cli, parse
from faults import Faulty

from engramctl import journal_file, slices
from engramctl.errors import EngramctlError
from engramctl.profiles import load
from formats import disk, tree_digest

TOTAL = sum(ROWS.values())


class Shared:
    """A checkpoint, and an output that parts share."""

    def __init__(self, cli: Cli, folder: Path) -> None:
        self.cli, checkpoint = cli, Mini().write(folder / "ckpt")
        (folder / "out").mkdir()
        self.folder, self.output = folder / "out", folder / "out" / "engram.gguf"
        self.words = ("repack", checkpoint, "--token-map", token_map_of(checkpoint))
        self.digest = cli.ok(*self.words, "-o", folder / "whole.gguf", "--digest", "tree").out
        self.expected = (folder / "whole.gguf").read_bytes()

    def part(self, *more: object) -> None:
        self.cli.ok(*self.words, "-o", self.output, *more)

    def refused(self, *more: object) -> str:
        refusal = self.cli.refused(self.folder, *self.words, "-o", self.output, *more)
        return f"{refusal.where}: {refusal.expected}: {refusal.found}: {refusal.hint}"

    def merged(self, *more: object) -> bytes:
        out = self.cli.ok(*self.words, "-o", self.output, "--merge", *more).out
        assert self.output.read_bytes() == self.expected
        assert self.left() == ["engram.gguf"]
        return out

    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def shared(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shared:
    monkeypatch.setattr(tree_digest, "LEAF_ROWS", 5)
    return Shared(cli, tmp_path)


@pytest.mark.parametrize(
    "more",
    [
        ("--resume",),
        ("--part", "1/2", "--resume"),
        ("--layer", "1", "--rows", "3:9", "--resume"),
        ("--merge",),
        ("--merge", "--resume"),
    ],
)
def test_what_is_finished_already_is_said_and_left_alone(shared: Shared, more: tuple[str, ...]) -> None:
    for i in (1, 2):
        shared.part("--part", f"{i}/2")
    shared.merged()
    before = shared.output.stat()
    outcome = shared.cli.ok(*shared.words, "-o", shared.output, *more)
    assert outcome.out == b""
    assert outcome.err == "engramctl: engram.gguf is finished already: nothing to do (check packing compares it)\n"
    report = shared.cli.ok(*shared.words, "-o", shared.output, *more, "--digest", "tree", "--json").json
    assert report["ok"]
    assert report["finished"]
    if "--part" not in more and "--layer" not in more:
        assert {line.split()[0] for line in shared.digest.decode().splitlines()} == set(report["digests"].values())
    assert shared.left() == ["engram.gguf"]
    assert shared.output.stat().st_mtime_ns == before.st_mtime_ns
    assert shared.output.stat().st_ino == before.st_ino


@pytest.mark.parametrize(
    "leaves",
    [
        f'[[6,0,"{"ab" * 32}*{2**60}"]]',
        f'[[6,0,"{"ab" * 32}*0"]]',
        f'[[6,0,"{"ab" * 32}*{2**22} {"ab" * 32}*{2**22}"]]',
        *(f'[[{tensor},{block},"{"ab" * 32}"]]' for tensor, block in (("1e999", 0), ("NaN", 0), (-1, 0), (6, "0.5"))),
    ],
)
def test_leaves_that_nobody_wrote_are_refused_at_once(shared: Shared, leaves: str) -> None:
    shared.part("--part", "1/2", "--digest", "tree")
    journal = next(path for path in shared.folder.iterdir() if path.suffix == ".journal")
    forged = journal_file.summed({"done": [99, 0], "leaves": json.loads(leaves)}).decode()
    journal.write_text(journal.read_text().replace('{"finished"', forged + '{"finished"'))
    refused = shared.refused("--part", "1/2", "--resume")
    assert refused.startswith(f"{journal} at line ")
    assert "leaves of a digest" in refused


@pytest.mark.parametrize("more", [("--resume",), ("--part", "1/2", "--resume"), ("--merge", "--resume"), ("--merge",)])
def test_another_file_is_not_taken_for_the_finished_one(shared: Shared, more: tuple[str, ...]) -> None:
    shared.output.write_bytes(shared.expected[:-1])
    assert ("--force" in shared.refused(*more)) == (more == ("--merge",))
    shared.output.write_bytes(b"X" + shared.expected[1:])
    assert ("--force" in shared.refused(*more)) == (more == ("--merge",))
    assert shared.left() == ["engram.gguf"]


def test_a_part_resumed_before_the_merge_was_ended_leaves_it_to_merge(shared: Shared) -> None:
    shared.part("--part", "1/1", "--digest", "tree")
    journal = next(path for path in shared.folder.iterdir() if path.suffix == ".journal")
    kept = journal.read_bytes()
    shared.merged()
    journal.write_bytes(kept)  # the merge was killed here
    shared.part("--part", "1/1", "--resume")
    assert shared.left() == ["engram.gguf", journal.name]
    shared.merged()


@pytest.mark.parametrize("count", [1, 2, 3, 7, TOTAL])
def test_n_parts_in_any_order_are_the_container(shared: Shared, count: int) -> None:
    order = list(range(1, count + 1))
    random.Random(count).shuffle(order)
    for i in order:
        shared.part("--part", f"{i}/{count}", "--digest", "tree")
        assert not shared.output.exists()
    assert shared.merged("--digest", "tree") == shared.digest


@pytest.mark.parametrize("seed", range(8))
def test_rows_of_layers_cut_anywhere_are_the_container(shared: Shared, seed: int) -> None:
    rng = random.Random(seed)
    parts = []
    for layer, rows in ROWS.items():
        edges = [0, *sorted(rng.sample(range(1, rows), rng.randrange(0, 5))), rows]
        parts += [(layer, f"{a}:{b}") for a, b in pairwise(edges)]
    rng.shuffle(parts)
    for layer, rows in parts:
        with_digest = ("--digest", "tree") if rng.random() < 0.7 else ()
        shared.part("--layer", layer, "--rows", rows, *with_digest)
    assert shared.merged("--digest", "tree") == shared.digest


def test_a_merge_reads_again_only_the_blocks_that_parts_cut(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    for rows in ("0:7", "7:18"):
        shared.part("--layer", 1, "--rows", rows, "--digest", "tree")
    shared.part("--layer", 14, "--digest", "tree")
    done = shared.cli.ok(*shared.words, "-o", shared.output, "--merge", "--digest", "tree")
    assert [line for line in done.err.splitlines() if "reading" in line] == [
        "engramctl: reading rows 5:10 of layer 1 again for the digest"
    ]
    assert done.out == shared.digest


def test_sha256_is_for_the_merge(shared: Shared) -> None:
    assert "--merge" in shared.refused("--part", "1/2", "--digest", "sha256")
    shared.part("--part", "1/1")
    other = shared.cli.ok(*shared.words, "-o", shared.folder.parent / "b.gguf", "--digest", "sha256").out
    assert shared.merged("--digest", "sha256") == other


def test_missing_and_doubled_rows_are_named(shared: Shared) -> None:
    shared.part("--layer", 1, "--rows", "0:10")
    assert "a part that holds layer 1 rows 10:18 and layer 14 rows 0:30: none" in shared.refused("--merge")
    assert "a part with layer 1 rows 0:10" in shared.refused("--layer", 1, "--rows", "9:12")
    assert "a part with layer 1 rows 0:10" in shared.refused("--part", "1/2")
    assert "--force gives the parts up" in shared.refused()
    shared.part("--layer", 14)
    assert "layer 1 rows 10:18: none" in shared.refused("--merge")
    shared.part("--layer", 1, "--rows", "10:18")
    before = (shared.folder / "engram.gguf.part-0-10.journal").read_text()
    head = json.loads(before.splitlines()[0]) | {"slice": [0, 9]}
    del head[journal_file.DIGEST]
    doubled = shared.folder / "engram.gguf.part-0-9.journal"
    doubled.write_text(journal_file.summed(head).decode() + "".join(before.splitlines(keepends=True)[1:]))
    assert "layer 1 rows 0:9 in one part: in two parts" in shared.refused("--merge")
    doubled.unlink()
    shared.merged()


def test_an_unfinished_part_is_resumed_and_only_then_merged(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    shared.part("--part", "2/2")
    with monkeypatch.context() as patch:
        patch.setattr(disk, "system", Faulty(room=9000))
        outcome = shared.cli(*shared.words, "-o", shared.output, "--part", "1/2")
    assert parse(outcome.err).found == "no space left on device"
    assert "--resume" in shared.refused("--part", "1/2")
    assert "an unfinished one: --resume" in shared.refused("--merge")
    shared.part("--part", "1/2", "--resume")
    shared.part("--part", "1/2", "--resume")  # done already: nothing to do
    shared.merged()


def test_parts_of_another_plan_are_refused_by_name(shared: Shared) -> None:
    shared.part("--part", "1/2")
    shared.part("--part", "2/2")
    assert "kv_type" in shared.refused("--merge", "--kv-type", "f32")
    shared.merged()


def test_a_part_of_another_plan_than_the_parts_there_is_refused_when_it_begins(shared: Shared) -> None:
    shared.part("--part", "1/2")
    assert ".part-0-24.journal: the journal's plan: kv_type" in shared.refused("--part", "2/2", "--kv-type", "f32")
    assert "kv_type" in shared.refused("--part", "2/2", "--kv-type", "f32", "--resume")
    shard = next(shared.words[1].glob("*.safetensors"))
    before = shard.stat()
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    for more in ((), ("--resume",)):
        said = shared.refused("--part", "2/2", *more)
        assert f"the journal's plan: time of {shard.name}" in said
        assert "bring back what changed, or write each part again with --part i/n --force" in said
    for i in (1, 2):  # which the hint promises
        shared.part("--part", f"{i}/2", "--force")
    shared.merged()


@pytest.mark.parametrize(
    ("first", "then", "way"),
    [
        (("--part", "1/2"), ("--part", "1/3"), "--part i/2 makes the other parts"),
        (("--part", "3/3"), ("--layer", 14), "--part i/3 makes the other parts"),
        (("--layer", 1, "--rows", "0:10"), ("--part", "1/3"), "--layer and --rows make the other parts"),
    ],
)
def test_parts_that_overlap_are_refused_with_ways_that_work(
    shared: Shared, first: tuple[object, ...], then: tuple[object, ...], way: str
) -> None:
    shared.part(*first)
    for more in ((), ("--resume",), ("--force",)):
        said = shared.refused(*then, *more)
        assert f"{way}, --merge puts finished parts together; --force without --part, --layer and --rows" in said
    shared.part("--force")
    assert shared.output.read_bytes() == shared.expected


def test_a_conversion_that_is_there_whole_is_not_called_a_part(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(disk, "system", Faulty(room=9000))
        assert shared.cli(*shared.words, "-o", shared.output).code == 2
    for more in (("--part", "1/2"), ("--part", "1/2", "--force"), ("--merge",)):
        assert "without --part, --layer, --rows and --merge: --resume finishes it" in shared.refused(*more)
    shared.part("--resume")
    assert shared.output.read_bytes() == shared.expected


def test_a_partial_is_finished_as_the_journals_beside_it_say(shared: Shared) -> None:
    partial = shared.folder / "engram.gguf.partial"
    shared.part("--part", "1/2")
    assert "1 part is done; when all are, repack --merge finishes it" in shared.cli.ok("show", partial).out.decode()
    shared.part("--part", "2/2")
    way = "2 parts are done; when all are, repack --merge finishes it"
    assert shared.cli.ok("show", partial, "--json").json["way_on"] == way
    assert way in shared.cli("check", "file", partial).out.decode()
    assert way in shared.cli("lookup", partial, "--layer", 1, "--rows", 0, "-o", "-").err
    journal = shared.folder / "engram.gguf.part-0-24.journal"
    journal.write_text(journal.read_text().splitlines(keepends=True)[0])
    assert "--resume finishes each part, --merge then" in shared.cli.ok("show", partial).out.decode()
    shared.part("--part", "1/2", "--resume")
    shared.merged()


def test_parts_whose_bytes_were_taken_away_are_not_merged(shared: Shared) -> None:
    """A `.partial` made anew by a later part is not the one that the earlier part wrote into."""
    shared.part("--part", "1/2")
    (shared.folder / "engram.gguf.partial").unlink()
    shared.part("--part", "2/2")
    assert "the unfinished output that engram.gguf.part-0-24.journal is about: another one" in shared.refused("--merge")
    assert "another one" in shared.refused("--part", "1/2", "--resume")
    shared.part("--part", "1/2", "--force")
    shared.merged()


def test_a_journal_that_is_finished_before_its_last_row_is_not_believed(shared: Shared) -> None:
    """One put together by hand, or from two: its plan, and `finished`, with no row in between."""
    shared.part("--part", "1/2")
    shared.part("--part", "2/2")
    path = shared.folder / "engram.gguf.part-0-24.journal"
    first, *_, last = path.read_text().splitlines(keepends=True)
    path.write_text(first + last)
    assert "finished only after the last row of the slice is done" in shared.refused("--merge")
    assert "finished only after the last row" in shared.refused("--part", "1/2", "--resume")


def test_a_part_names_the_file_it_wrote_into(shared: Shared) -> None:
    said = shared.cli.ok(*shared.words, "-o", shared.output, "--part", "1/2").err
    assert "engram.gguf.partial: layer 1 rows 0:18 and layer 14 rows 0:6 written" in said


def test_force_gives_all_parts_up(shared: Shared) -> None:
    shared.part("--part", "1/3")
    shared.part("--force")
    assert shared.left() == ["engram.gguf"]
    assert shared.output.read_bytes() == shared.expected


def test_an_unfinished_file_is_no_container(shared: Shared) -> None:
    """The header comes last: what a copy of all rows lacks is exactly that."""
    shared.part("--part", "1/1")
    partial = (shared.folder / "engram.gguf.partial").read_bytes()
    assert partial[:18] == b"engramctl partial "
    assert partial[16384:] == shared.expected[16384:]
    assert len(partial) == len(shared.expected)


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("--part", "0/3"), "--part"),
        (("--part", "4/3"), "--part"),
        (("--part", "1"), "--part"),
        (("--part", "1/x"), "--part"),
        (("--rows", "0:5"), "--rows"),
        (("--layer", 2), "--layer"),
        (("--layer", 1, "--rows", "0:19"), "--rows"),
        (("--layer", 1, "--rows", "0:3,5:7"), "--rows"),
        (("--layer", 1, "--rows", "5:5"), "--rows"),
        (("--layer", 1, "--part", "1/2"), "--part"),
        (("--merge", "--part", "1/2"), "--merge"),
        (("--merge",), "engram.gguf"),
    ],
)
def test_what_is_no_slice_is_refused(shared: Shared, words: tuple[object, ...], where: str) -> None:
    assert where in shared.refused(*words).split(":")[0]
    assert shared.left() == []


def test_bad_content_in_one_part_leaves_the_others(cli: Cli, tmp_path: Path) -> None:
    made = Mini()
    made.edit("layers.14.engram.embed.weight", 256 * 20 + 7, 0x7F)
    folder = tmp_path / "out"
    folder.mkdir()
    words = ("repack", made.write(tmp_path / "ckpt"), "--token-map", token_map_of(tmp_path / "ckpt"))
    words = (*words, "-o", folder / "out.gguf")
    cli.ok(*words, "--layer", 1)
    before = sorted(path.name for path in folder.iterdir())
    outcome = cli(*words, "--layer", 14)
    assert "layer 14 row 20 byte 7" in parse(outcome.err).where
    assert sorted(path.name for path in folder.iterdir()) == before
    (folder / "out.gguf.part-0-18.journal").unlink()
    (folder / "out.gguf.partial").unlink()
    assert cli(*words, "--layer", 14).code == 2
    assert list(folder.iterdir()) == []


# together at the same time


def test_processes_share_the_work(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_digest, "LEAF_ROWS", 4096)  # as it is in theirs
    digest = shared.cli.ok(*shared.words, "-o", shared.folder.parent / "b.gguf", "--digest", "tree").out
    command = [sys.executable, "-m", "engramctl", *map(str, shared.words), "-o", str(shared.output)]
    running = [
        subprocess.Popen([*command, "--part", f"{i}/4", "--digest", "tree", "-q"], cwd=ROOT, stdout=subprocess.PIPE)
        for i in range(1, 5)
    ]
    for one in running:
        one.communicate(timeout=60)
        assert one.returncode == 0
    assert shared.merged("--digest", "tree") == digest


BEGIN = """
import sys, time
from pathlib import Path
from engramctl import workspace
time.sleep(max(0, float(sys.argv[2]) - time.time()))
sys.stdout.write(workspace.shared_partial(Path(sys.argv[1]), 5000))
"""


def test_the_file_is_made_by_one_of_many(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BEGIN, str(tmp_path / "x.gguf"), str(time.time() + 1.5)]
    running = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) for _ in range(4)]
    marks = {one.communicate(timeout=60)[0] for one in running}
    assert len(marks) == 1
    assert marks.pop().startswith(b"engramctl partial ")
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf.partial"]


# arithmetic


def test_parts_of_the_release_are_even_and_cut_between_blocks() -> None:
    sizes = load().sizes
    for count in (1, 2, 3, 16, 100):
        parts = [slices.of_part(sizes, f"{i}/{count}") for i in range(1, count + 1)]
        slices.require_cover(parts, sizes, "here")
        lengths = [part.last - part.first for part in parts]
        assert max(lengths) - min(lengths) <= 2 * 4096
        starts = {0: 0, 1: sizes.rows[0]}
        for part in parts[1:]:
            layer = 0 if part.first < sizes.rows[0] else 1
            assert (part.first - starts[layer]) % 4096 == 0


@pytest.mark.parametrize("seed", range(30))
def test_a_cover_is_exact_or_refused(seed: int) -> None:
    rng, sizes = random.Random(seed), load().sizes
    total = sum(sizes.rows)
    edges = [0, *sorted(rng.sample(range(1, total), 6)), total]
    parts = [slices.Slice(a, b) for a, b in pairwise(edges)]
    slices.require_cover([*parts, slices.Slice(5, 5)], sizes, "here")
    odd = rng.randrange(len(parts))
    with pytest.raises(EngramctlError, match="a part that holds"):
        slices.require_cover([*parts[:odd], *parts[odd + 1 :]], sizes, "here")
    for first, last in ((-1, 0), (0, 1)):
        changed = slices.Slice(parts[odd].first + first, parts[odd].last + last)
        if changed.first >= 0 and changed.last <= total:
            with pytest.raises(EngramctlError, match="in two parts"):
                slices.require_cover([*parts[:odd], changed, *parts[odd + 1 :]], sizes, "here")
