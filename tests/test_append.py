"""repack --append-to: what a model, its file system or another run may do to it, and its tensors stay as they were."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from cli_helpers import Cli, Refusal, parse
from faults import Faulty

from engramctl import journal_file, repair, repair_journal
from formats import disk, ranges
from formats import gguf_file as gguf
from formats.gguf_write import encode_parts

KEYS = [("general.architecture", gguf.string("deepseek41"))]
UNKNOWN = 250  # no ggml type


def small(path: Path, kind: int = 0, more: bytes = b"") -> Path:
    """A model of one tensor of 128 bytes."""
    layout = gguf.encode_header(KEYS, [("a.weight", kind, (32,), 128)])
    path.write_bytes(layout.header + bytes(range(128)) + more)
    return path


def refused_both_ways(cli: Cli, tiny: Path, folder: Path, model: Path) -> list[Refusal]:
    """By a copy and in place, and the model is as it was."""
    ways = (("-o", folder / "full.gguf"), ("--in-place",))
    return [cli.refused(folder, "repack", tiny, "--append-to", model, *way) for way in ways]


def test_tensors_of_unknown_size_are_not_written_over(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    for refusal in refused_both_ways(cli, tiny, tmp_path, small(tmp_path / "model.gguf", UNKNOWN)):
        assert (refusal.expected, refusal.found) == ("a ggml type of known size", f"type {UNKNOWN}")


@pytest.mark.parametrize("more", [1, 32, 100_000])
def test_bytes_behind_the_last_tensor_are_neither_lost_nor_taken_over(
    cli: Cli, tiny: Path, tmp_path: Path, more: int
) -> None:
    for refusal in refused_both_ways(cli, tiny, tmp_path, small(tmp_path / "model.gguf", more=b"x" * more)):
        assert (refusal.expected, refusal.found) == ("a file that ends with its last tensor", f"{more} bytes more")


def begun(path: Path, tail: int = 1000) -> Path:
    """A model whose append was interrupted in its tail; the journal's place."""
    header, data = gguf.read_header(path), path.read_bytes()
    old, body = data[: header.data_start], data[header.data_start :]
    with repair.ReadFile.open(path) as file:
        sample = repair_journal.sample(file, len(old), len(body))
    repair_journal.begin(path, old, old, 0, len(data), sample, tail, grown=True)
    os.truncate(path, len(data) + tail)
    return repair_journal.journal_of(path)


def test_undo_takes_the_tail_away_again(cli: Cli, tmp_path: Path) -> None:
    path = small(tmp_path / "model.gguf")
    whole, place = path.read_bytes(), begun(path)
    assert "an append" in cli.refused(tmp_path, "repair", path, "--resume").found
    cli.ok("repair", path, "--undo")
    assert path.read_bytes() == whole
    assert not place.exists()


def test_undo_looks_whose_journal_it_is_before_it_cuts(cli: Cli, tmp_path: Path) -> None:
    path = small(tmp_path / "model.gguf")
    size = path.stat().st_size
    begun(path)
    for at, change in ((-1, b"another, and longer" * 1000), (size - 128, b"x"), (10, b"x")):
        data = bytearray(path.read_bytes())
        data[at : len(data) if at == -1 else at + 1] = change
        kept = path.read_bytes()
        path.write_bytes(data)
        cli.refused(tmp_path, "repair", path, "--undo")
        path.write_bytes(kept)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("size", 2**63),
        ("size", 2**63 - 1),
        ("size", 5),
        ("size", True),
        ("tail", -1),
        ("grown", 0),
        ("grown", False),
        ("inserted", 4096),
        ("old_end", 2**62),
        ("schema", "engramctl/repair-journal/1"),
        ("sha256", []),
    ],
)
def test_a_journals_numbers_are_under_its_digest(cli: Cli, tmp_path: Path, name: str, value: object) -> None:
    path = small(tmp_path / "model.gguf")
    place = begun(path)
    line, _, heads = place.read_bytes().partition(b"\n")
    place.write_bytes(json.dumps(json.loads(line) | {name: value}).encode() + b"\n" + heads)
    for way in ("--undo", "--resume"):
        assert cli.refused(tmp_path, "repair", path, way).where.startswith(str(place))


def test_a_huge_journal_is_not_read(cli: Cli, tmp_path: Path) -> None:
    path = small(tmp_path / "model.gguf")
    os.truncate(begun(path), 1 << 40)
    assert "at most" in cli.refused(tmp_path, "repair", path, "--undo").expected


def test_a_model_of_keys_alone_may_end_before_its_padding(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf.encode_header([*KEYS, ("a", gguf.u8(1))], []).header.rstrip(b"\0"))
    header = gguf.read_header(path)
    assert header.data_start > header.file_size
    cli.ok("repack", tiny, "--append-to", path, "-o", tmp_path / "full.gguf")
    cli.ok("repack", tiny, "--append-to", path, "--in-place")
    assert path.read_bytes() == (tmp_path / "full.gguf").read_bytes()


class NoRoom(ranges.Calls):
    """A file system without insertion, always or from its second time on."""

    def __init__(self, works: int = 0, code: int = errno.EOPNOTSUPP) -> None:
        self.works, self.code = works, code

    def fallocate(self, fd: int, mode: int, offset: int, length: int) -> None:
        self.works -= 1
        if self.works < 0:
            raise OSError(self.code, os.strerror(self.code))
        super().fallocate(fd, mode, offset, length)


def test_where_no_room_can_be_put_in_nothing_is_written(
    cli: Cli, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "calls", NoRoom())
    path = small(tmp_path / "model.gguf")
    refusal = cli.refused(tmp_path, "repack", tiny, "--append-to", path, "--in-place")
    assert (refusal.found, refusal.hint) == ("one that does not", "-o FILE writes a copy")


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSPC, errno.EPERM])
def test_where_the_room_fails_after_the_tail_the_tail_goes(
    cli: Cli, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(ranges, "calls", NoRoom(1, code))
    path = small(tmp_path / "model.gguf")
    whole = path.read_bytes()
    assert cli("repack", tiny, "--append-to", path, "--in-place").code == 2
    assert path.read_bytes() == whole
    assert [each.name for each in tmp_path.iterdir()] == ["model.gguf"]


def test_a_full_disk_in_the_tail_names_the_way_back(
    cli: Cli, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small(tmp_path / "model.gguf")
    whole = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(disk, "system", Faulty(room=1_000_000))
        outcome = cli("repack", tiny, "--append-to", path, "--in-place")
    refusal = parse(outcome.err)
    assert (outcome.code, refusal.found) == (2, "no space left on device")
    assert refusal.hint.endswith(f"engramctl repair {path} --undo")
    for words in (("repack", tiny, "--append-to", path, "--in-place"), ("repair", path, "--dry-run")):
        again = cli.refused(tmp_path, *words)
        assert (again.found, again.hint) == ("an append that was writing its tail", refusal.hint[-len(again.hint) :])
    assert f"engramctl repair {path} --undo" in str(cli.ok("show", path, "--json").json["notes"])
    (finding,) = cli("check", "file", path, "--json").json["findings"]
    assert f"engramctl repair {path} --undo" in finding["found"]
    cli.ok("repair", path, "--undo")
    assert path.read_bytes() == whole


def test_a_checkpoint_that_is_bad_in_the_middle_leaves_nothing_behind(
    cli: Cli, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small(tmp_path / "model.gguf")
    whole = path.read_bytes()
    monkeypatch.setattr(disk, "system", Faulty(ends_at=1_500_000))
    assert cli("repack", tiny, "--append-to", path, "--in-place").code == 2
    assert path.read_bytes() == whole
    assert [each.name for each in tmp_path.iterdir()] == ["model.gguf"]


def test_a_header_that_is_not_there_yet_is_no_unknown_file(cli: Cli, tmp_path: Path) -> None:
    path = small(tmp_path / "model.gguf")
    begun(path)
    data = path.read_bytes()
    path.write_bytes(bytes(4) + data[4:])
    assert cli.refused(tmp_path, "show", path).hint.endswith("--undo")
    assert cli("check", "file", path).code == 1


def test_a_loop_of_links_and_the_root_have_no_journal(cli: Cli, tmp_path: Path) -> None:
    loop = tmp_path / "loop.gguf"
    loop.symlink_to(loop)
    for path in (loop, Path("/")):
        for way in ("--undo", "--resume", "--in-place", "--dry-run"):
            cli.refused(tmp_path, "repair", path, way)


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("ending", ["", ".partial", ".journal"])
def test_no_output_is_written_over_one_of_its_sources(
    cli: Cli, tiny: Path, container: Path, tmp_path: Path, ending: str, link: bool
) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "ckpt"))
    shard = max(folder.glob("*.safetensors"))
    model, broken = small(tmp_path / "model.gguf"), Path(shutil.copy(container, tmp_path / "engram.gguf"))
    broken.write_bytes(broken.read_bytes().replace(b"engram.rows", b"engram.rowz"))
    for source in (shard, folder / "config.json", model):
        output = tmp_path / "out.gguf"
        taken = output.with_name(output.name + ending)
        if link:
            taken.symlink_to(source)
        else:
            os.link(source, taken)
        ways: list[tuple[object, ...]] = [("repack", folder, "--append-to", model, "-o", output)]
        if source is not model:
            ways += [("repack", folder, "--dialect", "split-i8", "-o", output)]
            ways += [("repair", broken, "--from", folder, "-o", output)]
        for words in ways:
            assert cli.refused(tmp_path, *words, "--force").expected == "an output that is none of its own sources"
        taken.unlink()
    for words in (("--append-to", model, "-o", model), ("--dialect", "split-i8", "-o", shard)):
        assert "sources" in cli.refused(tmp_path, "repack", folder, *words, "--force").expected


@pytest.mark.parametrize("change", ["done", "negative", "short", "nested", "true"])
def test_a_copys_journal_is_not_believed(
    cli: Cli, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    words = ("repack", tiny, "--dialect", "split-i8", "-o", tmp_path / "out.gguf")
    whole = tmp_path / "whole.gguf"
    cli.ok("repack", tiny, "--dialect", "split-i8", "-o", whole)
    with monkeypatch.context() as patched:
        patched.setattr(disk, "system", Faulty(room=5_000_000))
        assert cli(*words).code == 2
    partial, journal = tmp_path / "out.gguf.partial", tmp_path / "out.gguf.journal"
    who, done, _ = journal.read_bytes().split(b"\n")
    assert json.loads(done)["done"] > 0
    if change == "short":
        os.truncate(partial, 100)
    else:
        points = {"done": 99, "negative": -1, "true": True}
        nested = b"[" * 200_000 + b"\n"
        done = journal_file.summed({"done": points[change]}) if change in points else nested
        journal.write_bytes(who + b"\n" + done)
    if change in ("done", "short"):
        refusal = cli.refused(tmp_path, *words, "--resume")
        assert (refusal.where, refusal.hint) == (str(journal), "start again with --force")
        cli.ok(*words, "--force")
    else:
        cli.ok(*words, "--resume")
    assert (tmp_path / "out.gguf").read_bytes() == whole.read_bytes()


def test_another_conversions_unfinished_work_is_not_resumed_away(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    """Both kinds of conversion call their files NAME.partial and NAME.journal."""
    output = tmp_path / "out.gguf"
    partial, journal = tmp_path / "out.gguf.partial", tmp_path / "out.gguf.journal"
    plan = b'{"plan":{"version":"0.1.0"},"slice":[0,9],"mark":"x"}\n{"done":[6,9]}\n'
    for data, said in ((b"work of hours", plan), (b"work of hours", None), (b"", b"a diary\n"), (None, b"a diary\n")):
        for path, content in ((partial, data), (journal, said)):
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content)
        refusal = cli.refused(tmp_path, "repack", tiny, "--dialect", "split-i8", "-o", output, "--resume")
        assert refusal.where == str(journal)
        assert "--force" in refusal.hint
    journal.write_bytes(bytes(20))  # of a crash: nothing is lost with it
    cli.ok("repack", tiny, "--dialect", "split-i8", "-o", output, "--resume")
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


def test_a_pipe_is_not_waited_for(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    output = tmp_path / "out.gguf"
    os.mkfifo(tmp_path / "out.gguf.partial")
    for words in (
        *(("repair", pipe, way) for way in ("--in-place", "--undo", "--resume")),
        ("repack", tiny, "--append-to", pipe, "--in-place"),
        *(("repack", tiny, "--dialect", "split-i8", "-o", output, *more) for more in ((), ("--resume",))),
    ):
        assert cli.refused(tmp_path, *words).found == "a device or a pipe"


def test_a_huge_alignment_takes_no_memory(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for power in (21, 28, 31):
        keys = [*KEYS, (gguf.ALIGNMENT_KEY, gguf.u32(1 << power))]
        path.write_bytes(encode_parts(keys, [("a.weight", 0, (32,), 0)]))
        os.truncate(path, (1 << power) + 128)
        for refusal in refused_both_ways(cli, tiny, tmp_path, path):
            assert (refusal.expected, refusal.found) == ("an alignment of at most 1048576", f"{1 << power}")
    header, data = gguf.read_header(container), container.read_bytes()
    keys = [*header.keys.items()]
    keys = [(name, gguf.u32(1 << 28) if name == gguf.ALIGNMENT_KEY else value) for name, value in keys]
    keys = [(name, value) for name, value in keys if not name.endswith(".rows")]
    infos = [(t.name, t.type, t.shape, n << 28) for n, t in enumerate(header.tensors)]
    path.write_bytes(encode_parts(keys, infos))
    os.truncate(path, (len(infos) + 1) << 28)
    assert len(data) < path.stat().st_size
    for way in ("--in-place", "--dry-run"):
        assert "alignment" in cli.refused(tmp_path, "repair", path, "--from", tiny, way).expected
