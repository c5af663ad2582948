"""repair: the published files' ailments, mended without a table byte that moves, and taken up again from any step."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import dialect_files as files
import numpy as np
import pytest
from checkpoints import rewrite
from checks import array_at, changed, differs, passes, replace_text, scalar_at
from cli_helpers import Cli, snapshot
from dialect_files import NEW, OLD, Model
from gguf import GGUFReader, GGUFValueType

from engramctl import pieces, repair, repair_journal
from formats import disk, gguf_file, ranges
from formats.gguf_write import encode_parts

CONSTANTS = ("multipliers", "primes", "offsets", "token_map", "pad_id")


@pytest.fixture(scope="module")
def model(tiny: Path, container: Path) -> Model:
    return files.read_model(tiny, container)


@pytest.fixture(scope="module")
def published(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As llama.cpp's files were: old prefixes, five constants never written."""
    keys = files.llamacpp_keys(model, OLD)
    for name in CONSTANTS:
        del keys[f"{OLD}{name}"]
    keys["tokenizer.ggml.tokens"] = ("string[]", [f"t{i}" for i in range(len(model.token_map))])
    return files.write(tmp_path_factory.mktemp("published") / "model.gguf", keys, files.quantised(model))


def bodies(path: Path) -> dict[str, str]:
    """Each tensor's bytes, by the gguf library."""
    made = {
        t.name: hashlib.sha256(np.ascontiguousarray(t.data).tobytes()).hexdigest() for t in GGUFReader(path).tensors
    }
    files.gc.collect()
    return made


@pytest.mark.parametrize("way", ["copy", "in place"])
def test_published_files_get_the_nine_keys_that_their_loader_wants_and_no_table_byte_changes(
    cli: Cli, tiny: Path, model: Model, published: Path, tmp_path: Path, way: str
) -> None:
    path, made = Path(shutil.copy(published, tmp_path / "model.gguf")), tmp_path / "model.gguf"
    before = bodies(path)
    assert len(differs(cli, "file", path)["findings"]) > 5
    if way == "copy":
        made = tmp_path / "fixed.gguf"
        cli.ok("repair", path, "--from", tiny, "-o", made)
        assert path.read_bytes() == published.read_bytes()
    else:
        cli.ok("repair", path, "--from", tiny, "--in-place")
    assert bodies(made) == before
    fields = GGUFReader(made).fields
    for name, (kind, value) in files.llamacpp_keys(model).items():
        field = fields[name]
        assert field.contents() == value
        assert field.types[-1] == files.WORDS[kind.removesuffix("[]")]
    assert not any(name.startswith(OLD) for name in fields)
    passes(cli, "file", made, "--loader", "llamacpp")
    passes(cli, "params", made, "--source", tiny)
    passes(cli, "packing", tiny, made)
    assert cli.ok("show", made, "--json").json["dialect"] == "llamacpp"
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"model.gguf", "fixed.gguf"} if way == "copy" else left == {"model.gguf"}


def test_a_healthy_file_is_left_alone(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(container, tmp_path / "engram.gguf"))
    before = snapshot(tmp_path)
    for words in (("-o", tmp_path / "fixed.gguf"), ("--in-place",), ("--dry-run",)):
        report = cli.ok("repair", path, "--from", tiny, *words, "--json").json
        assert (report["healthy"], report["changes"], report["way"]) == (True, [], "nothing to do")
        assert "left alone" in cli.ok("repair", path, "--from", tiny, *words).err
    assert snapshot(tmp_path) == before


def test_wrong_constants_of_a_ds4_file_are_mended_in_its_own_header_space(
    cli: Cli, tiny: Path, container: Path, tmp_path: Path
) -> None:
    def spoil(data: bytearray) -> None:
        data[array_at(data, "multipliers", 3)] ^= 0x10
        data[array_at(data, "token_map", 9)] ^= 1
        data[scalar_at(data, f"{NEW}pad_id")] = 2  # the raw pad

    path = changed(container, tmp_path, spoil)
    size, before = path.stat().st_size, bodies(path)
    report = cli.ok("repair", path, "--from", tiny, "--in-place", "--json").json
    assert {each["what"] for each in report["changes"]} == {
        f"{NEW}{name}" for name in ("multipliers", "token_map", "pad_id")
    }
    assert (path.stat().st_size, report["data_moves_by"]) == (size, 0)
    assert bodies(path) == before
    passes(cli, "file", path)
    passes(cli, "packing", tiny, path)


def test_what_ds4_wants_of_the_config_is_written_from_the_config(
    cli: Cli, tiny: Path, model: Model, tmp_path: Path
) -> None:
    """Its loader reads sizes from keys of their own, not from the config's text; a width of another type is one too."""
    rows = {layer: model.rows264(layer).view("i1") for layer in model.layers}
    keys = files.ds4_keys(model, "e4m3_e8m0_32_row264")
    keys["deepseek41.config"] = ("string", (tiny / "config.json").read_text())
    keys["deepseek41.vocab_size"] = ("u64", keys["deepseek41.vocab_size"][1])
    path = files.write(tmp_path / "bare.gguf", keys, files.ds4_tensors(model, rows), alignment=16384)
    assert len(differs(cli, "file", path)["findings"]) > 30
    shown = cli.ok("repair", path, "--from", tiny, "--dry-run").out.decode()
    assert "deepseek41.rope_theta" in shown
    report = cli.ok("repair", path, "--from", tiny, "--in-place", "--json").json
    was = {each["what"]: (each["was"], each["now"]) for each in report["changes"]}
    assert was["deepseek41.vocab_size"] == ("u64", "u32")
    assert was["deepseek41.compress_ratios"] == ("missing", "u32[]")
    assert report["left"] == []
    passes(cli, "file", path)
    passes(cli, "packing", tiny, path)
    assert "left alone" in cli.ok("repair", path, "--from", tiny, "--in-place").err


def test_a_file_of_another_kind_is_called_what_it_is(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.zeros(3))
    refusal = cli.refused(tmp_path, "repair", tmp_path / "rows.npy", "--from", tiny, "-o", tmp_path / "x.gguf")
    assert (refusal.expected, refusal.found) == ("a GGUF container", "an npy file")


def test_what_stays_wrong_is_shown_to_people_in_ten_lines(cli: Cli, tiny: Path, model: Model, tmp_path: Path) -> None:
    rows = {layer: model.rows264(layer).view("i1") for layer in model.layers}
    keys = files.ds4_keys(model, "e4m3_e8m0_32_row264")
    text = (tiny / "config.json").read_text().replace('"rope_theta": 10000', '"rope_theta": -1')  # that no u32 holds
    keys["deepseek41.config"] = ("string", text)
    path = files.write(tmp_path / "bare.gguf", keys, files.ds4_tensors(model, rows), alignment=16384)
    said = cli.ok("repair", path, "--from", tiny, "--in-place").err.splitlines()
    assert sum("still not as ds4 wants it" in line for line in said) == 10
    assert f"more: engramctl check file {path}" in said[-2]
    assert said[-1].endswith(
        "no constant mends that; the file has to be written anew, as repack CHECKPOINT --dialect ds4 does"
    )


def without_constants(container: Path, folder: Path, kept: tuple[str, ...] = ("general.",)) -> Path:
    """A container whose keys are only those that begin so."""
    header = gguf_file.read_header(container)
    keys = [(name, value) for name, value in header.keys.items() if name.startswith(kept)]
    head = encode_parts(keys, [(t.name, t.type, t.shape, t.offset) for t in header.tensors])
    made = Path(shutil.copy(container, folder / "nohash.gguf"))
    rewrite(made, lambda data: data.__setitem__(slice(0, header.data_start), head.ljust(header.data_start, b"\0")))
    return made


def test_a_container_with_a_config_gives_what_its_checkpoint_gives(
    cli: Cli, tiny: Path, container: Path, tmp_path: Path
) -> None:
    path = without_constants(container, tmp_path)
    for source, name in ((tiny, "x.gguf"), (container, "y.gguf")):
        report = cli.ok("repair", path, "--from", source, "-o", tmp_path / name, "--json").json
        assert (report["left"], report["supplies"]) == ([], None)
    passes(cli, "file", tmp_path / "y.gguf")
    assert (tmp_path / "x.gguf").read_bytes() == (tmp_path / "y.gguf").read_bytes()
    assert {name: (v.type, v.item) for name, v in gguf_file.read_header(tmp_path / "y.gguf").keys.items()} == {
        name: (v.type, v.item) for name, v in gguf_file.read_header(container).keys.items()
    }


def test_a_config_of_other_hidden_states_is_not_written(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    path = without_constants(container, tmp_path)
    other = tmp_path / "other"
    shutil.copytree(tiny, other)
    rewrite(other / "config.json", replace_text('"hidden_size": 64', '"hidden_size": 96'))
    refusal = cli.refused(tmp_path, "repair", path, "--from", other, "-o", tmp_path / "x.gguf")
    assert (refusal.expected, refusal.found) == (f"[96, 4], as the config of {other} has them", "[64, 4]")


def mended_by(path: Path) -> str:
    return f"constants are mended by: engramctl repair {path} --from CHECKPOINT -o NEW"


@pytest.mark.parametrize("case", ["none", "old names", "wrong type", "wrong value"])
def test_reports_of_missing_and_wrong_constants_name_the_command(
    cli: Cli, tiny: Path, model: Model, container: Path, published: Path, tmp_path: Path, case: str
) -> None:
    if case == "none":
        path = without_constants(container, tmp_path)
    elif case == "old names":
        path = published
    elif case == "wrong type":
        keys = files.llamacpp_keys(model)
        keys[f"{NEW}primes"] = ("u32[]", keys[f"{NEW}primes"][1])
        path = files.write(tmp_path / "x.gguf", keys, files.quantised(model))
    else:
        path = changed(container, tmp_path, lambda data: data.__setitem__(scalar_at(data, f"{NEW}pad_id"), 2))
    if case != "wrong value":  # which no loader looks at
        assert mended_by(path) in cli.ok("show", path, "--json").json["notes"]
        assert mended_by(path) in differs(cli, "file", path)["notes"]
    if case != "wrong type":  # whose meaning is right
        assert mended_by(path) in differs(cli, "params", path, "--source", tiny)["notes"]
    cli.ok("repair", path, "--from", tiny, "-o", tmp_path / "new.gguf")  # as the note says
    assert "mended" not in cli.ok("show", tmp_path / "new.gguf").out.decode()


def test_no_repair_is_named_where_it_would_be_refused_or_has_nothing_to_do(
    cli: Cli, tiny: Path, model: Model, container: Path, tmp_path: Path
) -> None:
    cut = Path(shutil.copy(without_constants(container, tmp_path), tmp_path / "cut.gguf"))
    os.truncate(cut, cut.stat().st_size - 10_000)
    quantised = files.make("deepstrix", tmp_path, model)  # whose shards' names nobody knows
    rewrite(quantised, replace_text("table_shards", "table_sharts"))
    behind = ("a.weight", np.zeros(8, np.float32), None)
    rows = {layer: model.rows264(layer).view(np.int8) for layer in model.layers}
    keys = files.ds4_keys(model, "e4m3_e8m0_32_row264")
    tail = files.write(tmp_path / "tail.gguf", keys, [*files.ds4_tensors(model, rows), behind], alignment=16384)
    for path in (cut, quantised, tail, container):
        assert "mended" not in cli.ok("show", path).out.decode()
        assert "mended" not in cli("check", "file", path).out.decode()
    assert "mended" not in cli("check", "file", container, "--loader", "llamacpp").out.decode()
    for path in (cut, quantised):
        assert cli("repair", path, "--from", tiny, "-o", tmp_path / "no.gguf").code == 2


def test_what_the_loader_still_refuses_is_the_last_word_and_names_what_supplies_it(
    cli: Cli, tiny: Path, container: Path, tmp_path: Path
) -> None:
    path = without_constants(container, tmp_path, tuple(f"{NEW}{first}" for first in "clmprt"))  # and no encoding
    out, params = tmp_path / "x.gguf", tmp_path / "params.npz"
    cli.ok("params", tiny, "-o", params)
    done = cli.ok("repair", path, "--from", params, "-o", out)
    last = done.err.splitlines()[-1]
    assert f"{out}: the ds4 loader refuses it still, " in last
    assert "without deepseek41.config, which --from a checkpoint or a container with it supplies" in last
    report = cli.ok("repair", path, "--from", params, "--dry-run", "--json").json
    assert (report["ok"], report["healthy"]) == (True, False)
    assert report["left"]
    assert last.endswith(report["supplies"])
    differs(cli, "file", out)


@pytest.mark.parametrize("source", ["checkpoint", "tokenizer", "container", "params"])
def test_constants_come_from_a_checkpoint_a_tokenizer_another_container_or_a_params_file(
    cli: Cli, tiny: Path, container: Path, tmp_path: Path, source: str
) -> None:
    path = changed(container, tmp_path, lambda data: data.__setitem__(array_at(data, "primes", 5), 1))
    given = {"checkpoint": tiny, "tokenizer": tiny / "tokenizer.json", "container": container}
    if source == "params":
        given["params"] = tmp_path / "params.npz"
        cli.ok("params", tiny, "--to", "npz", "-o", given["params"])
    cli.ok("repair", path, "--from", given[source], "-o", tmp_path / "fixed.gguf")
    passes(cli, "file", tmp_path / "fixed.gguf")
    passes(cli, "params", tmp_path / "fixed.gguf")


def test_the_profiles_constants_go_into_a_file_of_the_release(cli: Cli, full_container: Path, tmp_path: Path) -> None:
    path = tmp_path / "full.gguf"
    made = gguf_file.read_header(full_container)
    with full_container.open("rb") as whole, path.open("wb") as file:
        file.write(whole.read(made.data_start))
        file.truncate(made.file_size)
    rewrite_head(path, lambda data: data.__setitem__(array_at(data, "primes", 47), 0))
    assert differs(cli, "params", path)["findings_total"] == 1
    blocks = path.stat().st_blocks
    cli.ok("repair", path, "--in-place")
    assert path.stat().st_size >= made.file_size
    assert path.stat().st_blocks - blocks < 4096  # 203 GB stay a hole
    passes(cli, "params", path)


def rewrite_head(path: Path, change: Callable[[bytearray], None]) -> None:
    with path.open("r+b") as file:
        data = bytearray(file.read(1 << 20))
        change(data)
        file.seek(0)
        file.write(data)


def test_values_that_contradict_their_derivation_are_not_written(cli: Cli, container: Path, tmp_path: Path) -> None:
    wrong = Path(shutil.copy(container, tmp_path / "wrong.gguf"))
    rewrite(wrong, lambda data: data.__setitem__(array_at(data, "multipliers", 0), 7))
    refusal = cli.refused_twice(tmp_path, "repair", container, "--from", wrong, "-o", tmp_path / "x.gguf")
    assert "multipliers" in refusal.expected


def test_constants_of_another_model_are_refused_by_the_tables_rows(cli: Cli, container: Path, tmp_path: Path) -> None:
    refusal = cli.refused_twice(tmp_path, "repair", container, "-o", tmp_path / "x.gguf")
    assert (refusal.expected[:14], refusal.found) == ("384006168 rows", "2826")
    assert "--from" in refusal.hint


def test_a_file_of_old_architecture_is_renamed_whole(cli: Cli, tiny: Path, model: Model, tmp_path: Path) -> None:
    keys = files.llamacpp_keys(model, OLD) | {"deepseek4.block_count": ("u32", 40)}
    path = files.write(tmp_path / "old.gguf", keys, files.quantised(model), "deepseek4")
    cli.ok("repair", path, "--from", tiny, "--in-place")
    fields = GGUFReader(path).fields
    assert fields["general.architecture"].contents() == "deepseek41"
    assert fields["deepseek41.block_count"].contents() == 40
    assert not any(name.startswith("deepseek4.") for name in fields)
    passes(cli, "file", path)


def test_to_dialect_renames_where_row_bytes_and_shapes_fit(cli: Cli, tiny: Path, model: Model, tmp_path: Path) -> None:
    path = files.make("llamacpp", tmp_path, model)
    before = sorted(bodies(path).values())
    cli.ok("repair", path, "--from", tiny, "--to-dialect", "split-table", "-o", tmp_path / "other.gguf")
    assert cli.ok("show", tmp_path / "other.gguf", "--json").json["dialect"] == "split-table"
    assert sorted(bodies(tmp_path / "other.gguf").values()) == before
    cli.ok("repair", tmp_path / "other.gguf", "--from", tiny, "--to-dialect", "llamacpp", "--in-place")
    passes(cli, "file", tmp_path / "other.gguf", "--loader", "llamacpp")


@pytest.mark.parametrize(
    ("made", "target"),
    [
        ("llamacpp", "ds4"),
        ("ds4", "llamacpp"),
        ("split-i8", "ds4"),
        ("ds4", "deepstrix"),
        ("split-i8", "tensor-constants"),
    ],
)
def test_to_dialect_refuses_what_would_need_other_table_bytes_or_tensors(
    cli: Cli, tiny: Path, model: Model, tmp_path: Path, made: str, target: str
) -> None:
    path = files.make(made, tmp_path, model)
    words = ("repair", path, "--from", tiny, "--to-dialect", target, "-o", tmp_path / "x.gguf")
    refusal = cli.refused_twice(tmp_path, *words)
    assert refusal.found


def test_tables_off_their_page_are_put_on_one(cli: Cli, tiny: Path, model: Model, tmp_path: Path) -> None:
    """antirez/ds4: tables must follow the page-aligned main weights; an offset of 32 more is rejected."""
    rows = {layer: model.rows264(layer).view(np.int8) for layer in model.layers}
    keys = files.ds4_keys(model, "e4m3_e8m0_32_row264")
    small = ("a.weight", np.zeros(8, np.float32), None)
    path = files.write(tmp_path / "off.gguf", keys, [small, *files.ds4_tensors(model, rows)])
    start = gguf_file.read_header(path).tensor(files.table(1)).start
    assert start % 16384
    assert {each["check"] for each in differs(cli, "file", path)["findings"]} == {"ds4.page"}
    before = bodies(path)
    refusal = cli.refused(tmp_path, "repair", path, "--from", tiny, "--in-place")
    assert refusal.expected.startswith("room to be made before the tables in whole blocks of ")
    assert "-o NEW for --in-place writes a repaired copy" in refusal.hint
    report = cli.ok("repair", path, "--from", tiny, "-o", tmp_path / "fixed.gguf", "--json").json
    (moved,) = (each for each in report["changes"] if each["what"] == "start of the tensor data")
    old, new = gguf_file.read_header(path).data_start, gguf_file.read_header(tmp_path / "fixed.gguf").data_start
    assert (moved["was"], moved["now"][: len(f"byte {new},")]) == (f"byte {old}", f"byte {new},")
    assert gguf_file.read_header(tmp_path / "fixed.gguf").tensor(files.table(1)).start % 16384 == 0
    assert bodies(tmp_path / "fixed.gguf") == before
    passes(cli, "file", tmp_path / "fixed.gguf")


class KilledError(BaseException):
    """As if the process had been killed: nothing of it runs any more."""


class Killing(disk.System):
    """Ends everything before the n-th call that changes something; half of a write may have happened."""

    def __init__(self, at: int, torn: bool) -> None:
        self.at, self.torn, self.count, self.dead = at, torn, 0, False

    def step(self) -> bool:
        if self.dead:
            raise KilledError
        self.count += 1
        if self.count == self.at:
            self.dead = True
            return True
        return False

    def pwrite(self, fd: int, view: memoryview, offset: int) -> int:
        if self.step():
            if self.torn:
                super().pwrite(fd, view[: len(view) // 2], offset)
            raise KilledError
        return super().pwrite(fd, view, offset)

    def fsync(self, fd: int) -> None:
        if self.step():
            raise KilledError
        super().fsync(fd)

    def unlink(self, path: disk.PathLike) -> None:
        if self.step():
            raise KilledError
        super().unlink(path)

    def link(self, source: disk.PathLike, target: disk.PathLike) -> None:
        if self.step():
            raise KilledError
        super().link(source, target)


class Room(ranges.Calls):
    """Ranges put in and taken out, counted with the other steps."""

    def __init__(self, killing: Killing) -> None:
        self.killing = killing

    def fallocate(self, fd: int, mode: int, offset: int, length: int) -> None:
        if self.killing.step():
            raise KilledError
        super().fallocate(fd, mode, offset, length)


def steps(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], torn: bool) -> Iterator[int]:
    """Run something, killed before its first, second, third ... change, until it comes through."""
    for at in range(1, 200):
        killing = Killing(at, torn)
        with monkeypatch.context() as patched:
            patched.setattr(disk, "system", killing)
            patched.setattr(ranges, "calls", Room(killing))
            try:
                act()
            except KilledError:
                pass
            else:
                assert at > 5
                return
        yield at
    raise AssertionError("it never ends")


@pytest.mark.parametrize("torn", [False, True])
def test_killed_at_every_step_it_is_finished_or_undone(
    tiny: Path, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    from engramctl.cli.mend import _plan

    original, path = published.read_bytes(), tmp_path / "model.gguf"
    shutil.copy(published, path)
    repair.in_place(_plan(path, tiny, None, None))
    mended = path.read_bytes()
    assert mended != original

    def act() -> None:
        shutil.copy(published, path)
        for left in tmp_path.glob("*.repair*"):
            left.unlink()
        made = _plan(path, tiny, None, None)
        repair.in_place(made)

    for _ in steps(monkeypatch, act, torn):
        begun = repair_journal.journal_of(path).exists()
        state = path.read_bytes()
        if not begun:
            assert state in (original, mended)
            continue
        kept = repair_journal.journal_of(path).read_bytes()
        repair.resume(path)
        assert path.read_bytes() == mended
        path.write_bytes(state)
        repair_journal.journal_of(path).write_bytes(kept)
        repair.undo(path)
        assert path.read_bytes() == original
        assert not repair_journal.journal_of(path).exists()


def test_resume_and_undo_may_be_killed_as_well(
    tiny: Path, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engramctl.cli.mend import _plan

    original, path = published.read_bytes(), tmp_path / "model.gguf"
    shutil.copy(published, path)
    repair.in_place(_plan(path, tiny, None, None))
    mended = path.read_bytes()
    shutil.copy(published, path)
    killing = Killing(10, torn=True)
    with monkeypatch.context() as patched:
        patched.setattr(disk, "system", killing)
        patched.setattr(ranges, "calls", Room(killing))
        with pytest.raises(KilledError):
            repair.in_place(_plan(path, tiny, None, None))
    state, journal = path.read_bytes(), repair_journal.journal_of(path).read_bytes()
    for act, wanted in ((repair.resume, mended), (repair.undo, original)):

        def again(act: Callable[[Path], str] = act) -> None:
            path.write_bytes(state)
            repair_journal.journal_of(path).write_bytes(journal)
            act(path)

        for at in range(1, 30):
            killing = Killing(at, torn=True)
            with monkeypatch.context() as patched:
                patched.setattr(disk, "system", killing)
                patched.setattr(ranges, "calls", Room(killing))
                try:
                    again()
                except KilledError:
                    pass
                else:
                    break
            if repair_journal.journal_of(path).exists():
                act(path)
            assert path.read_bytes() == wanted


def test_an_interrupted_repair_is_named_and_nothing_else_touches_it(
    cli: Cli, tiny: Path, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copy(published, tmp_path / "model.gguf"))
    with monkeypatch.context() as patched:
        patched.setattr(repair, "_write_head", lambda path, head: os.kill(0, 0) or (_ for _ in ()).throw(KilledError))
        with pytest.raises(KilledError):
            cli("repair", path, "--from", tiny, "--in-place")
    refusal = cli.refused(tmp_path, "repair", path, "--from", tiny, "--in-place")
    assert "--resume" in refusal.hint
    assert "interrupted repair" in cli.refused(tmp_path, "show", path).expected
    cli.ok("repair", path, "--resume")
    passes(cli, "file", path)
    assert cli.refused(tmp_path, "repair", path, "--resume").where.endswith(".repair")


def test_a_file_system_without_ranges_says_so_and_the_file_is_as_it_was(
    cli: Cli, tiny: Path, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copy(published, tmp_path / "model.gguf"))

    class No(ranges.Calls):
        def fallocate(self, fd: int, mode: int, offset: int, length: int) -> None:
            raise OSError(95, "operation not supported")

    monkeypatch.setattr(ranges, "calls", No())
    refusal = cli.refused(tmp_path, "repair", path, "--from", tiny, "--in-place")
    assert "ext4" in refusal.expected
    assert "-o" in refusal.hint
    assert path.read_bytes() == published.read_bytes()


@pytest.mark.parametrize("way", ["reflink", "copy_file_range", "plain copy"])
def test_a_copy_takes_the_best_way_there_is_and_keeps_holes(
    cli: Cli, tiny: Path, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    class Ways(ranges.Calls):
        def clone(self, target: int, source: int, source_offset: int, length: int, target_offset: int) -> None:
            assert source_offset % 4096 == target_offset % 4096 == 0
            assert length in (0, ranges.BLOCK)  # all of the file, or the block by which it is tried
            if way != "reflink":
                raise OSError(95, "operation not supported")
            data = os.pread(source, length or 1 << 30, source_offset)
            os.pwrite(target, data, target_offset)

        def copy(self, source: int, target: int, count: int, source_offset: int, target_offset: int) -> int:
            if way == "plain copy":
                raise OSError(18, "cross-device link")
            return super().copy(source, target, min(count, 100_000), source_offset, target_offset)

    monkeypatch.setattr(ranges, "calls", Ways())
    report = cli.ok("repair", published, "--from", tiny, "-o", tmp_path / "fixed.gguf", "--json").json
    assert report["way"] == way
    assert bodies(tmp_path / "fixed.gguf") == bodies(published)


def test_a_copy_that_a_full_disk_stopped_goes_on_with_resume(
    cli: Cli, tiny: Path, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "COPIED", 1 << 20)

    class Full(ranges.Calls):
        def copy(self, source: int, target: int, count: int, source_offset: int, target_offset: int) -> int:
            if source_offset > 5 << 20:
                raise OSError(28, "no space left on device")
            return super().copy(source, target, count, source_offset, target_offset)

    out = tmp_path / "fixed.gguf"
    words = ("repair", published, "--from", tiny, "-o", out)
    with monkeypatch.context() as patched:
        patched.setattr(ranges, "calls", Full())
        stopped = cli(*words)
    assert stopped.code == 2
    assert "space" in stopped.err
    assert {path.name for path in tmp_path.iterdir()} == {"fixed.gguf.partial", "fixed.gguf.journal"}
    assert "--resume" in cli.refused(tmp_path, *words).hint
    read: list[int] = []

    class Counting(ranges.Calls):
        def copy(self, source: int, target: int, count: int, source_offset: int, target_offset: int) -> int:
            read.append(source_offset)
            return super().copy(source, target, count, source_offset, target_offset)

    monkeypatch.setattr(ranges, "calls", Counting())
    cli.ok(*words, "--resume")
    assert min(read) >= 5 << 20
    assert [path.name for path in tmp_path.iterdir()] == ["fixed.gguf"]
    assert bodies(out) == bodies(published)
    passes(cli, "file", out, "--loader", "llamacpp")


def test_too_little_disk_for_a_copy_is_said_before_anything_is_written(
    cli: Cli, tiny: Path, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda path: 1 << 20)
    refusal = cli.refused(tmp_path, "repair", published, "--from", tiny, "-o", tmp_path / "fixed.gguf")
    assert refusal.expected.endswith("free bytes")


def test_two_runs_in_place_never_meet(cli: Cli, tiny: Path, published: Path, tmp_path: Path) -> None:
    """The second would put room in for a header that the first has written already."""
    path = Path(shutil.copy(published, tmp_path / "model.gguf"))
    with repair.alone(path):
        for words in (("repair", path, "--from", tiny, "--in-place"), ("repair", path, "--resume")):
            assert cli.refused(tmp_path, *words).found == "one that is being changed"
        refusal = cli.refused(tmp_path, "repack", tiny, "--append-to", path, "--in-place")
        assert refusal.found == "one that is being changed"
    cli.ok("repair", path, "--from", tiny, "--in-place")


def test_the_journal_is_beside_the_file_whichever_link_led_to_it(
    tiny: Path, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engramctl.cli.mend import _plan

    (tmp_path / "folder").mkdir()
    path = Path(shutil.copy(published, tmp_path / "folder" / "model.gguf"))
    link = tmp_path / "link.gguf"
    link.symlink_to(path)
    killing = Killing(6, torn=False)
    with monkeypatch.context() as patched:
        patched.setattr(disk, "system", killing)
        patched.setattr(ranges, "calls", Room(killing))
        with pytest.raises(KilledError):
            repair.in_place(_plan(link, tiny, None, None))
    assert path.with_name("model.gguf.repair").exists()
    repair.undo(link)
    assert path.read_bytes() == published.read_bytes()


def test_a_journal_of_another_file_is_refused(cli: Cli, tiny: Path, published: Path, tmp_path: Path) -> None:
    from engramctl.cli.mend import _plan

    path = Path(shutil.copy(published, tmp_path / "model.gguf"))
    made = _plan(path, tiny, None, None)
    old = path.read_bytes()[: made.header.data_start]
    repair_journal.begin(path, old, made.head, made.moved, path.stat().st_size, "0" * 64)
    assert "other bytes" in cli.refused(tmp_path, "repair", path, "--resume").found
    place = repair_journal.journal_of(path)
    place.write_bytes(place.read_bytes()[:-1])
    assert "heads" in cli.refused(tmp_path, "repair", path, "--resume").expected
    place.write_text("not a journal\n")
    cli.refused(tmp_path, "repair", path, "--undo")


def test_repair_wants_exactly_one_way(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    for words in (
        (),
        ("-o", tmp_path / "x", "--in-place"),
        ("--resume", "--undo"),
        ("--to-dialect", "nope", "--dry-run"),
    ):
        cli.refused_twice(tmp_path, "repair", container, "--from", tiny, *words)


def test_every_written_key_has_exactly_its_dialects_type(cli: Cli, tiny: Path, container: Path, tmp_path: Path) -> None:
    """The tolerant reading of other widths does not survive a repair: ds4 rejects INT32 where it wrote UINT32."""
    path = changed(container, tmp_path, replace_text(f"{NEW}rows", f"{NEW}rowz"))
    cli.ok("repair", path, "--from", tiny, "--in-place")
    field = GGUFReader(path).fields[f"{NEW}rows"]
    assert field.types == [GGUFValueType.ARRAY, GGUFValueType.UINT32]


@pytest.mark.parametrize(("made", "target"), [("sidecar-contract", "split-i8"), ("deepstrix", "llamacpp")])
def test_a_file_without_tables_becomes_none_that_wants_them(
    cli: Cli, tiny: Path, model: Model, tmp_path: Path, made: str, target: str
) -> None:
    path = files.make(made, tmp_path, model)
    refusal = cli.refused(tmp_path, "repair", path, "--from", tiny, "--to-dialect", target, "-o", tmp_path / "x.gguf")
    assert refusal.found.startswith("none")


@pytest.mark.parametrize("name", ["deepstrix", "deepseek4-external", "sidecar-contract"])
def test_constants_beside_tables_in_other_files_are_mended_too(
    cli: Cli, tiny: Path, model: Model, tmp_path: Path, name: str
) -> None:
    path = files.make(name, tmp_path, model)
    whole = path.read_bytes()
    assert "healthy" in cli.ok("repair", path, "--from", tiny, "--in-place").err
    assert path.read_bytes() == whole
    prefix = NEW if name == "sidecar-contract" else OLD
    rewrite(
        path,
        lambda data: data.__setitem__(
            slice(None), data.replace(f"{prefix}head_count".encode(), f"{prefix}head_kount".encode())
        ),
    )
    cli.ok("repair", path, "--from", tiny, "--in-place")
    shown = cli.ok("show", path, "--json").json
    assert (shown["dialect"], shown["missing"]) == (name, [])


def test_constants_that_are_tensors_become_keys_and_no_tensor_is_left_over(
    cli: Cli, tiny: Path, model: Model, tmp_path: Path
) -> None:
    """llama.cpp counts tensors: four that nobody asks for would keep the whole model from loading."""
    path = files.make("tensor-constants", tmp_path, model)
    kept = {name: digest for name, digest in bodies(path).items() if not name.startswith("engram_")}
    words = ("repair", path, "--from", tiny, "--to-dialect", "split-i8")
    cli.ok(*words, "-o", tmp_path / "copy.gguf")
    cli.ok(*words, "--in-place")
    for made in (path, tmp_path / "copy.gguf"):
        assert sorted(bodies(made).values()) == sorted(kept.values())
        passes(cli, "file", made, "--loader", "split-i8")
        passes(cli, "packing", tiny, made)


def test_constants_that_are_tensors_may_stand_last_but_not_between(
    cli: Cli, tiny: Path, model: Model, tmp_path: Path
) -> None:
    tensors = files.tensor_constants(model)
    keys = files.tensor_constants_keys(model)
    last = files.write(tmp_path / "last.gguf", keys, tensors[4:] + tensors[:4])
    cli.ok("repair", last, "--from", tiny, "--to-dialect", "split-i8", "--in-place")
    passes(cli, "file", last, "--loader", "split-i8")
    between = files.write(tmp_path / "between.gguf", keys, tensors[4:6] + tensors[:4] + tensors[6:])
    refusal = cli.refused(tmp_path, "repair", between, "--from", tiny, "--to-dialect", "split-i8", "--in-place")
    assert "between" in refusal.found


def test_wrong_constants_in_tensors_are_no_healthy_file(cli: Cli, tiny: Path, model: Model, tmp_path: Path) -> None:
    path = files.make("tensor-constants", tmp_path, model)
    start = gguf_file.read_header(path).tensor("engram_multipliers.weight").start
    rewrite(path, lambda data: data.__setitem__(start, data[start] ^ 2))
    refusal = cli.refused(tmp_path, "repair", path, "--from", tiny, "--in-place")
    assert refusal.where.endswith("engram_multipliers.weight")
    cli.ok("repair", path, "--from", tiny, "--to-dialect", "split-i8", "--in-place")
    passes(cli, "params", path, "--source", tiny)


def test_where_rows_are_is_the_files_own_affair(cli: Cli, tiny: Path, model: Model, tmp_path: Path) -> None:
    keys = files.ds4_keys(model, "q4_k_row144") | {f"{NEW}storage": ("string", "external")}
    rows = {layer: files.q4_k(model.values(layer)) for layer in model.layers}
    tensors = [tensor for tensor in files.ds4_tensors(model, rows) if "embd" not in tensor[0]]
    path = files.write(tmp_path / "x.gguf", keys, tensors, alignment=16384)
    assert "healthy" in cli.ok("repair", path, "--from", tiny, "--in-place").err


def test_what_no_constant_mends_is_said(cli: Cli, tiny: Path, model: Model, tmp_path: Path) -> None:
    rows = {layer: model.rows264(layer).view(np.int8) for layer in model.layers}
    behind = ("a.weight", np.zeros(8, np.float32), None)
    keys = files.ds4_keys(model, "e4m3_e8m0_32_row264")
    path = files.write(tmp_path / "x.gguf", keys, [*files.ds4_tensors(model, rows), behind], alignment=16384)
    said = cli.ok("repair", path, "--from", tiny, "--in-place").err
    assert "nothing to repair" in said
    assert "still not as ds4 wants it: tensor a.weight" in said
    report = cli.ok("repair", path, "--from", tiny, "--dry-run", "--json").json
    assert (report["healthy"], [each["rule"] for each in report["left"]]) == (False, ["tail"])


def test_constants_that_are_tensors_go_whichever_info_comes_first(
    cli: Cli, tiny: Path, model: Model, tmp_path: Path
) -> None:
    """Infos in another order than the offsets: no tensor starts before the data."""
    path = files.make("tensor-constants", tmp_path, model)
    header = gguf_file.read_header(path)
    infos = [(t.name, t.type, t.shape, t.offset) for t in reversed(header.tensors)]
    head = encode_parts(list(header.keys.items()), infos)
    rewrite(path, lambda data: data.__setitem__(slice(0, len(head)), head))
    kept = {name: digest for name, digest in bodies(path).items() if not name.startswith("engram_")}
    cli.ok("repair", path, "--from", tiny, "--to-dialect", "split-i8", "-o", tmp_path / "copy.gguf")
    assert sorted(bodies(tmp_path / "copy.gguf").values()) == sorted(kept.values())


@pytest.mark.parametrize("name", ["blt", "longcat-2.0", "engram-demo", "qwen3.8-flash-next"])
def test_a_profile_of_other_layers_is_refused(cli: Cli, published: Path, tmp_path: Path, name: str) -> None:
    refusal = cli.refused(tmp_path, "repair", published, "--dry-run", "--profile", name)
    assert refusal.expected == "a profile with its layers (1, 14)"
