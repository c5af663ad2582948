"""Where a table lies changes nothing about its rows: every placement, every file, every odd place in it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from faults import Faulty

from engramctl import fast, reference
from engramctl.errors import EngramctlError
from engramctl.placement import choose, in_memory, on_disk, spans
from engramctl.placement.place import Extent, Part
from engramctl.table import Table
from formats import disk, page_cache, row264
from formats.disk import ReadFile
from formats.errors import FormatError

PLACES = ("mmap", "pread", "ram", "direct", "auto")
START = 4096 - 132  # the first row lies across a page boundary, and so does another in every page
ROWS = 5000


def content(rows: int, seed: int = 5) -> np.ndarray:
    """Valid rows, with every scale byte and code among them."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (rows, row264.WIDTH), dtype=np.uint8)
    codes[codes & 0x7F == 0x7F] ^= 1
    scales = rng.integers(0, 247, (rows, row264.SCALES), dtype=np.uint8)
    return np.concatenate([codes, scales], axis=1)


def python(code: str, *words: object) -> subprocess.CompletedProcess[str]:
    """A process of its own, which may end by a signal."""
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def write(folder: Path, raw: np.ndarray, start: int = START) -> list[tuple[Path, int, int]]:
    """The same rows as a container keeps them and as a checkpoint does: (file, start, stride) of each part."""
    (folder / "rows").write_bytes(b"\xff" * start + raw.tobytes())
    (folder / "codes").write_bytes(b"\xff" * 24 + raw[:, : row264.WIDTH].tobytes())
    (folder / "scales").write_bytes(b"\xff" * 8 + raw[:, row264.WIDTH :].tobytes())
    return [
        (folder / "rows", start, row264.ROW_BYTES),
        (folder / "codes", 24, row264.WIDTH),
        (folder / "scales", 8, row264.SCALES),
    ]


@pytest.fixture(params=["container", "checkpoint"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Table]:
    made = write(tmp_path, content(ROWS))
    chosen = made[:1] if request.param == "container" else made[1:]
    files = [ReadFile.open(path) for path, _, _ in chosen]
    yield Table(1, ROWS, tuple(Part(f, start, stride) for f, (_, start, stride) in zip(files, chosen, strict=True)))
    for file in files:
        file.close()


@pytest.fixture
def raw() -> np.ndarray:
    return content(ROWS)


def asked() -> np.ndarray:
    """Out of order, repeated, neighbours, the ends, and enough for compiled code."""
    rng = np.random.default_rng(9)
    return np.concatenate([[ROWS - 1, 0, 0, 7, 6, 5, ROWS - 1], np.arange(300, 900), rng.integers(0, ROWS, 6000)])


@pytest.mark.parametrize("io", PLACES)
def test_every_placement_gives_the_file_s_bytes(io: str, table: Table, raw: np.ndarray) -> None:
    with table.placed(io) as placed:
        for rows in (asked(), np.array([ROWS - 1]), np.array([[3, 3], [0, 2]]), np.empty(0, np.int64)):
            placed.want(rows)
            assert np.array_equal(placed.read(rows), raw[rows])


@pytest.mark.parametrize("tier", [reference, fast], ids=["reference", "fast"])
@pytest.mark.parametrize("io", PLACES)
def test_every_placement_gives_the_reference_s_values(io: str, tier: ModuleType, table: Table, raw: np.ndarray) -> None:
    with table.placed(io) as placed:
        got = placed.values(asked().reshape(-1, 1), tier)
    assert np.array_equal(got[:, 0], row264.decode_bf16(raw[asked()]))


def test_decoding_on_the_way_gives_the_reference_s_bits_for_every_code_under_every_scale(tmp_path: Path) -> None:
    codes = np.tile(np.arange(256, dtype=np.uint8), (256, 1))
    every = np.concatenate([codes, np.repeat(np.arange(256, dtype=np.uint8)[:, None], row264.SCALES, 1)], axis=1)
    from engramctl.fast import gather

    out = np.empty((256, row264.WIDTH), np.uint16)
    flat = every.reshape(-1)
    doubtful = gather.values(flat, row264.ROW_BYTES, flat[row264.WIDTH :], row264.ROW_BYTES, np.arange(256), out)
    number = (codes & 0x7F) != 0x7F
    assert np.array_equal(out[number], row264.decode_bf16(every)[number])
    assert doubtful.all()  # each has its NaN codes
    clean = every.copy()
    clean[:, :256][~number] = 0
    doubtful = gather.values(
        clean.reshape(-1), row264.ROW_BYTES, clean.reshape(-1)[256:], row264.ROW_BYTES, np.arange(256), out
    )
    assert np.flatnonzero(doubtful).tolist() == list(range(247, 256))  # scales under which some number has no value


@pytest.mark.parametrize("io", PLACES)
@pytest.mark.parametrize("byte", [0, 31, 255, 256, 263])
def test_every_placement_names_the_first_invalid_row(io: str, byte: int, tmp_path: Path) -> None:
    raw = content(3000)
    raw[2222, byte] = 0xFF
    path, start, stride = write(tmp_path, raw)[0]
    with ReadFile.open(path) as file, Table(7, 3000, (Part(file, start, stride),)).placed(io) as placed:
        for tier in (reference, fast):
            with pytest.raises(FormatError, match=f"layer 7 row 2222 byte {byte}: expected"):
                placed.values(np.arange(2000, 2500), tier)
        placed.values(np.arange(2000, 2200), fast)


@pytest.mark.parametrize("io", PLACES)
def test_rows_outside_the_table_are_refused(io: str, table: Table) -> None:
    with table.placed(io) as placed:
        for bad in (-1, ROWS, 2**62):
            for call in (placed.read, placed.want, lambda rows: placed.values(rows, fast)):
                with pytest.raises(EngramctlError, match=f"rows in 0..{ROWS - 1} of layer 1, found {bad}"):
                    call(np.array([0, bad]))


@pytest.mark.parametrize("start", [0, 1, 4095, 4096, 8192 - 264, 65536 + 17])
@pytest.mark.parametrize("io", ["mmap", "direct", "ram"])
def test_tables_begin_and_end_anywhere_in_a_page(io: str, start: int, tmp_path: Path) -> None:
    for rows in (1, 2, 15, 16, 31):
        raw = content(rows)
        path, at, stride = write(tmp_path, raw, start)[0]
        with ReadFile.open(path) as file, Table(1, rows, (Part(file, at, stride),)).placed(io) as placed:
            assert np.array_equal(placed.read(np.arange(rows)), raw)
            assert np.array_equal(placed.values(np.arange(rows), fast), row264.decode_bf16(raw))


@pytest.mark.parametrize("by", ["rows", "heads"])
@pytest.mark.parametrize("io", ["mmap", "pread", "ram", "direct"])
def test_the_parts_of_a_sharded_table_add_up(io: str, by: str, table: Table, raw: np.ndarray) -> None:
    class Source:
        """Six columns; heads are cut at their edges."""

        class Params:
            layers = (0, 1)
            offsets = np.array([[0] * 6, [0, 1000, 1500, 2500, 2600, 4990]], np.uint64)

        def params(self) -> type:
            return self.Params

    rows, n = asked(), 4
    total, held = np.zeros((rows.size, row264.ROW_BYTES), np.int64), np.zeros(rows.size, np.int64)
    ends = []
    for i in range(1, n + 1):
        with table.sharded(f"{i}/{n}", by, Source()).placed(io) as part:
            first, last = part.here
            ends.append(last)
            got = part.read(rows)
            inside = (rows >= first) & (rows < last)
            assert not got[~inside].any()
            values = part.values(rows, fast)
            assert np.array_equal(values[inside], row264.decode_bf16(raw[rows[inside]]))
            assert not values[~inside].any()
            total, held = total + got, held + inside
    assert (held == 1).all()
    assert np.array_equal(total, raw[rows])
    assert ends == ([1250, 2500, 3750, 5000] if by == "rows" else [1000, 2500, 2600, 5000])


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/", "a/b", "1/0", "-1/2", "1/2/3"])
def test_shards_are_numbered_from_one(text: str, table: Table) -> None:
    with pytest.raises(EngramctlError, match="--shard: expected i/n with i from 1 to n, found"):
        table.sharded(text, "rows", None)


@pytest.mark.parametrize("io", ["mmap", "pread", "ram", "direct", "auto"])
def test_a_table_cut_short_before_it_is_read_is_refused(io: str, tmp_path: Path) -> None:
    path, start, stride = write(tmp_path, content(ROWS))[0]
    with ReadFile.open(path) as file:
        os.truncate(path, start + (ROWS - 1) * stride + 263)
        with pytest.raises(FormatError, match=r"rows: expected|byte \d+: expected"):  # noqa: SIM117
            with Table(1, ROWS, (Part(file, start, stride),)).placed(io) as placed:
                placed.read(np.array([ROWS - 1]))


def test_a_map_cut_short_while_it_is_read_ends_in_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, start, stride = write(tmp_path, content(ROWS))[0]
    with ReadFile.open(path) as file, Table(1, ROWS, (Part(file, start, stride),)).placed("mmap") as placed:
        truth = in_memory.Mapped._refuse_cut
        calls = []

        def look(self: in_memory.Mapped) -> None:
            truth(self)
            calls.append(1)
            if len(calls) == 1:  # between the look at its size and the gather
                os.truncate(path, 4096)

        monkeypatch.setattr(in_memory.Mapped, "_refuse_cut", look)
        for call in (placed.read, lambda rows: placed.values(rows, fast)):
            with pytest.raises(FormatError, match=r"rows: expected 1323964 bytes up to the last row of layer 1.*4096"):
                call(asked())
    assert threading.active_count() >= 1  # still here


SHRINKING = """
import os, sys, threading, time
import numpy as np
from engramctl.table import Part, Table
from engramctl import fast
from formats.disk import ReadFile
from formats.errors import FormatError
path, start, stride, count = sys.argv[1], *map(int, sys.argv[2:])
fast.lookup(np.zeros((1, 264), np.uint8))
whole, rows, seen, deadline = open(path, "rb").read(), np.arange(count), set(), time.monotonic() + 60
def cut():
    times = 0
    while time.monotonic() < deadline and (times < 150 or "refused" not in seen):
        times += 1
        os.truncate(path, 4096)
        with open(path, "r+b") as out: out.write(whole)
thread = threading.Thread(target=cut, daemon=True)  # whatever ends the reader ends the process
thread.start()
while thread.is_alive():
    try:
        with ReadFile.open(path) as file, Table(1, count, (Part(file, start, stride),)).placed("mmap") as table:
            for _ in range(50):
                table.values(rows, fast)
                seen.add("read")
    except FormatError as error:
        assert chr(10) not in str(error)
        seen.add("refused")
print(sorted(seen))
"""


def test_a_file_that_shrinks_and_grows_under_readers_never_ends_the_process(tmp_path: Path) -> None:
    path, start, stride = write(tmp_path, content(ROWS))[0]
    done = python(SHRINKING, path, start, stride, ROWS)
    assert (done.returncode, done.stdout.strip()) in ((0, "['read', 'refused']"), (0, "['refused']")), done.stderr


def test_bus_errors_of_others_go_to_whoever_had_the_signal(tmp_path: Path) -> None:
    code = f"""
import faulthandler, mmap, os
faulthandler.enable()
from engramctl.placement.guard import Watch
for early in (True, False):
    path = {str(tmp_path / "other")!r}
    with open(path, "w+b") as file:
        file.write(bytes(8192)); file.flush()
        foreign = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        watch = Watch(4096, 4096)
        if early: continue
        os.truncate(path, 0)
        foreign[5000]
"""
    done = python(code)
    assert done.returncode < 0
    assert done.stderr.count("Fatal Python error: Bus error") == 1


@pytest.mark.parametrize("faults", [{"piece": 7}, {"interrupted": True}, {"piece": 100, "interrupted": True}])
@pytest.mark.parametrize("io", ["pread", "direct", "ram"])
def test_short_and_interrupted_reads_give_the_same_rows(
    io: str, faults: dict, table: Table, raw: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "system", Faulty(**faults))
    rows = asked()[:700]
    with table.placed(io) as placed:
        assert np.array_equal(placed.read(rows), raw[rows])


@pytest.mark.parametrize("io", ["pread", "direct", "ram"])
def test_an_unreadable_byte_is_an_error_that_names_the_file(
    io: str, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = table.parts[0].start + 40 * table.parts[0].stride
    monkeypatch.setattr(disk, "system", Faulty(broken_at=broken))
    with pytest.raises(OSError, match=str(table.parts[0].file.path)), table.placed(io) as placed:
        placed.read(np.arange(30, 50))


def test_compiled_and_plain_reads_agree_where_a_file_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, start, stride = write(tmp_path, content(ROWS))[0]
    for native in (True, False):
        monkeypatch.setattr(spans, "compiled", lambda count, native=native: native)
        with ReadFile.open(path) as file:
            os.truncate(path, start + 100 * stride + 5)
            with pytest.raises(FormatError) as error:
                Table(1, ROWS, (Part(file, start, stride),)).read(np.array([3, 90, 100, 4000]))
        assert (error.value.at, error.value.expected) == (start + 100 * stride, "264 bytes of layer 1 row 100")
        assert error.value.found == "5"
        with path.open("ab") as out:
            out.write(content(ROWS).tobytes()[100 * stride + 5 :])


def test_without_the_system_s_advice_every_placement_reads_the_same(
    table: Table, raw: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS: no posix_fadvise, no O_DIRECT; F_NOCACHE and F_RDADVISE instead, which Linux refuses or ignores."""
    asked_for = []

    def fcntl(fd: int, command: int, argument: object = 0) -> int:
        asked_for.append(command)
        return 0

    monkeypatch.delattr(os, "posix_fadvise")
    monkeypatch.delattr(os, "O_DIRECT")
    monkeypatch.setattr(page_cache.fcntl, "F_NOCACHE", 48, raising=False)
    monkeypatch.setattr(page_cache.fcntl, "fcntl", fcntl)
    for io in PLACES:
        with table.placed(io) as placed:
            placed.want(asked()[:50])
            assert np.array_equal(placed.read(asked()), raw[asked()])
    assert {page_cache.F_RDADVISE, page_cache.F_RDAHEAD, page_cache.F_NOCACHE} <= set(asked_for)


def test_without_any_advice_direct_says_so(table: Table, raw: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fadvise")
    monkeypatch.delattr(os, "O_DIRECT")
    assert not page_cache.can_advise()
    with pytest.raises(EngramctlError, match=r"--io direct: .*expected a file system with uncached reads"):
        table.placed("direct")
    with table.placed("pread") as placed:
        assert np.array_equal(placed.read(asked()), raw[asked()])


def test_without_mincore_auto_reads_and_prewarm_says_so(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "_mincore", lambda address, length: None)
    with table.placed("auto") as placed:
        assert placed.place.name == "pread"
        assert "does not say what is in memory" in placed.place.said[0]
    with table.placed("pread", prewarm=True) as placed:
        assert placed.place.said == ["layer 1: prewarmed; this system does not say what is in memory"]


def test_without_a_signal_guard_a_map_is_looked_at_before_each_gather(
    table: Table, raw: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_memory.guard, "available", lambda: False)
    with table.placed("mmap") as placed:
        assert np.array_equal(placed.read(asked()), raw[asked()])
        os.truncate(table.parts[-1].file.path, 4096)
        with pytest.raises(FormatError, match="up to the last row of layer 1, as when it was opened, found 4096"):
            placed.read(asked())


def test_auto_says_why(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(**how: object) -> str:
        with table.placed("auto", **how) as placed:
            return placed.place.said[0]

    assert said(wanted=100) == "layer 1: auto chose pread: 100 rows are read before compiled code is loaded"
    monkeypatch.setattr(choose.residency, "share", lambda extent: (0.95, 1000))
    assert said() == "layer 1: auto chose mmap: 95% of its pages are in memory"
    monkeypatch.setattr(choose.residency, "share", lambda extent: (0.12, 1000))
    assert said() == "layer 1: auto chose pread: 12% of its pages are in memory, so reads are asked for ahead"


@pytest.mark.parametrize("io", ["mmap", "pread", "auto"])
def test_prewarm_brings_every_page_in_and_says_so(io: str, table: Table) -> None:
    for part in table.parts:
        page_cache.drop(part.file, 0, part.file.size)
    with table.placed(io, prewarm=True) as placed:
        assert "prewarmed, 100.0% of" in placed.place.said[-1]


def test_prewarm_and_direct_contradict(table: Table) -> None:
    with pytest.raises(EngramctlError, match="--prewarm: expected --io mmap, pread, ram or auto"):
        table.placed("direct", prewarm=True)


def test_ram_reports_huge_pages_and_warns_below_98_percent(
    table: Table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for share, lines in ((1.0, 1), (0.979, 2), (None, 1)):
        monkeypatch.setattr(in_memory.memory.Arena, "huge_share", lambda self, share=share: share)
        with table.placed("ram") as placed:
            assert len(placed.place.said) == lines
            assert ("warning" in placed.place.said[-1]) == (lines == 2)
    smaps = tmp_path / "smaps"
    smaps.write_text(
        "7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \nSize: 4096 kB\nAnonHugePages:      2048 kB\n"
        "7f0000400000-7f0000800000 rw-p 00000000 00:00 0 \nSize: 4096 kB\nAnonHugePages:      4096 kB\n"
    )
    assert in_memory.memory.mapping_kib(0x7F0000000000, "AnonHugePages", smaps) == 2048
    assert in_memory.memory.mapping_kib(0x7F00007FFFFF, "AnonHugePages", smaps) == 4096
    assert in_memory.memory.mapping_kib(0x7F0000800000, "AnonHugePages", smaps) is None
    assert in_memory.memory.mapping_kib(0, "AnonHugePages", tmp_path / "none") is None


def test_a_table_larger_than_memory_is_not_begun(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_memory.memory, "free_bytes", lambda: 1000)
    with pytest.raises(EngramctlError, match=r"--io ram: layer 1: expected .* free bytes of memory, found 1,000"):
        table.placed("ram")


@pytest.mark.parametrize("io", PLACES)
def test_an_empty_table_has_no_rows_anywhere(io: str, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"head")
    with ReadFile.open(tmp_path / "empty") as file:
        table = Table(1, 0, (Part(file, 4, row264.ROW_BYTES),))
        with table.placed(io) as placed:
            assert placed.read(np.empty(0, np.int64)).shape == (0, row264.ROW_BYTES)


def test_neighbours_are_one_read_up_to_a_length() -> None:
    firsts, counts = spans.runs(np.array([0, 1, 2, 5, 254, 255, 256, 257, 900]))
    assert firsts.tolist() == [0, 5, 254, 256, 900]
    assert counts.tolist() == [3, 1, 2, 2, 1]


def test_a_sparse_table_beyond_4_gib_is_addressed_right(tmp_path: Path) -> None:
    rows, marked = 20_000_000, (0, 16_268_815, 16_268_816, 19_999_999)
    raw = content(len(marked))
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(264 * rows + 100)
        for row, data in zip(marked, raw, strict=True):
            file.seek(100 + 264 * row)
            file.write(data.tobytes())
    with ReadFile.open(path) as file:
        for io in ("mmap", "pread", "direct"):
            with Table(1, rows, (Part(file, 100, 264),)).placed(io) as placed:
                assert np.array_equal(placed.read(np.array(marked)), raw)
                assert not placed.read(np.array([1, 16_268_814, 19_999_998])).any()


def test_dropped_pages_are_seen_to_be_gone_and_nothing_more_than_asked_for_comes_back(tmp_path: Path) -> None:
    path, start, stride = write(tmp_path, content(40_000))[0]
    with ReadFile.open(path) as file:
        extent = Extent(1, (Part(file, start, stride),), 0, 40_000)
        for make in (on_disk.OnDisk, in_memory.Mapped):
            assert page_cache.drop(file, 0, file.size)
            look = page_cache.Mapping(file, 0, file.size)
            before = look.resident()
            place = make(extent)
            if before.any():
                pytest.skip("this file system keeps pages whatever it is told")
            rows = np.array([100, 20_000, 39_000])
            place.read(rows)
            pages = {
                p
                for row in rows.tolist()
                for p in ((start + row * stride) // 4096, (start + row * stride + 263) // 4096)
            }
            assert set(np.flatnonzero(look.resident()).tolist()) == pages
            place.close()
            look.close()
