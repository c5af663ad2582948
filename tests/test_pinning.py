"""--pin: which processors, on machines that are made up; that threads are there; and that results are the same."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import Cli
from tiers import bits

from engramctl import fast, pinning, threads
from engramctl.errors import EngramctlError
from engramctl.fast import cache

linux = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be pinned here")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    asked, places, count = threads._asked[:], threads._places[:], cache._threads.count
    yield
    threads._asked[:], threads._places[:] = asked, places
    fast.use_threads(count)


def machine(home: Path, cores: dict[int, tuple[int, str]], online: str | None = None) -> Path:
    """A made-up /sys/devices/system/cpu: processor -> package, siblings."""
    for number, (package, siblings) in cores.items():
        topology = home / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{package}\n")
        (topology / "thread_siblings_list").write_text(f"{siblings}\n")
    if online is not None:
        (home / "online").write_text(f"{online}\n")
    return home


def twice(packages: int, cores: int) -> dict[int, tuple[int, str]]:
    """Every core with two threads, numbered as Linux does: all first ones before all second ones."""
    half = packages * cores
    return {n: (n % half // cores, f"{n % half},{n % half + half}") for n in range(2 * half)}


def test_one_processor_a_core_and_a_package_a_layer(tmp_path: Path) -> None:
    system = machine(tmp_path, twice(packages=2, cores=4), "0-15")
    assert pinning.by_package(range(16), system) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [pinning.processors(range(16), turn, system)[0] for turn in range(3)] == [0, 4, 0]


def test_a_large_package_keeps_a_quarter_free(tmp_path: Path) -> None:
    system = machine(tmp_path, twice(packages=2, cores=32), "0-127")
    assert pinning.processors(range(128), 0, system) == list(range(24))
    assert pinning.processors(range(128), 1, system) == list(range(32, 56))
    assert pinning.processors(range(16), 0, system) == list(range(12))
    assert pinning.processors(range(15), 0, system) == list(range(15))


def test_only_what_is_allowed_and_online(tmp_path: Path) -> None:
    system = machine(tmp_path, twice(packages=2, cores=4), "0-4,6-15")
    assert pinning.by_package({2, 5, 10, 11, 12}, system) == [[2, 11], [12]]  # 10 is 2's sibling, 5 is offline
    assert pinning.processors({5, 6, 13}, 0, system) == [6, 13]  # 13 is 5's
    assert pinning.processors({3}, 1, system) == [3]


def test_where_the_system_tells_nothing_every_processor_is_a_core(tmp_path: Path) -> None:
    assert pinning.by_package({3, 1}, tmp_path / "none") == [[1, 3]]
    assert pinning.by_package({0, 1}, machine(tmp_path, {0: (-1, "0"), 1: (-1, "1")})) == [[0, 1]]


@linux
def test_the_kernels_threads_are_where_they_belong_and_the_caller_is_not_moved() -> None:
    allowed, seen, both = os.sched_getaffinity(0), list[set[int]](), threading.Barrier(2, timeout=60)

    class Looking:
        def ready(self) -> None:
            """Nothing to compile."""

        def __call__(self, first: int, last: int) -> None:
            if len(threads.places()) > 1:
                both.wait()
            seen.append(os.sched_getaffinity(0))

    threads._asked[:] = []
    if len(pinning.processors(allowed)) > 2:
        threads.use(2)
    threads.pin()
    cache.in_parts(Looking(), 2, 1)
    assert sorted(map(tuple, seen)) == [(place,) for place in threads.places()[:2]]
    assert os.sched_getaffinity(0) == allowed


@linux
def test_pinned_results_are_the_same() -> None:
    rows = np.random.default_rng(1).integers(0, 256, (9000, 264), np.uint8)
    want = fast.lookup(rows)
    threads._asked[:] = []
    threads.pin()
    np.testing.assert_array_equal(bits(fast.lookup(rows)), bits(want))


@linux
def test_run_pins_and_gives_the_same(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    words = ("run", tiny, "--layer", 14, "--ids", "1,2,3", "--stop-at", "kv")
    want = cli.ok(*words).out
    threads._asked[:] = []
    assert cli.ok(*words, "--pin").out == want
    assert threads.places() == tuple(pinning.processors(os.sched_getaffinity(0), 1))  # the second layer's
    assert cli.refused(tmp_path, *words, "--pin", "--engine", "reference").where == "--pin"


@linux
def test_more_threads_than_cores_are_refused() -> None:
    threads.use(100_000)
    with pytest.raises(EngramctlError, match=r"--pin: expected at most [0-9]+ threads, one a core, found 100000"):
        threads.pin()


def test_another_system_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    with pytest.raises(EngramctlError, match=f"--pin: expected Linux.*, found {sys.platform}"):
        threads.pin()
