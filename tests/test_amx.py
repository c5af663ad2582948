"""AMX on a machine without it: what it would execute, carried out, and that nobody meets it before it gave the right
bits."""

# ruff: noqa: ANN401 - llvmlite and Numba have no types
from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from cli_helpers import ROOT
from llvmlite import binding, ir

from engramctl import fast, reference
from engramctl.errors import EngramctlError
from engramctl.fast import amx, cache, cpu, tiles
from engramctl.fast.weights import range_of
from formats.floats import from_bf16

HERE = cpu.features()


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    amx.trusted.cache_clear()
    yield
    amx.trusted.cache_clear()


def assembly(emit: Any, arguments: int) -> str:
    """A function of byte pointers, for a processor with tiles; it is only looked at."""
    module, pointer = ir.Module(), ir.IntType(8).as_pointer()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer] * arguments), "f")
    builder = ir.IRBuilder(function.append_basic_block())
    emit(builder, *function.args)
    builder.ret_void()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    target = binding.Target.from_triple("x86_64-unknown-linux-gnu")
    machine = target.create_target_machine("sapphirerapids", "+amx-tile,+amx-bf16", opt=3)
    return str(machine.emit_assembly(binding.parse_assembly(str(module))))


def test_the_hardware_form_is_tile_instructions_and_all_eight_tiles() -> None:
    def emit(builder: Any, config: Any, a: Any, w: Any, c: Any) -> None:
        machine = tiles.Hardware(builder)
        machine.configure(config)
        tiles.emit_blocks(builder, machine, a, ir.IntType(64)(4096), w, c, ir.IntType(64)(7), 2)
        machine.release()

    text = assembly(emit, 4)
    lines = [line.split() for line in text.splitlines() if line.strip()]
    names = ("ldtilecfg", "tileloadd", "tdpbf16ps", "tilestored", "tilerelease")
    count = {name: sum(words[0] == name for words in lines) for name in names}
    assert count == {"ldtilecfg": 1, "tileloadd": 8, "tdpbf16ps": 4, "tilestored": 4, "tilerelease": 1}
    dots = [re.findall(r"%tmm([0-9])", " ".join(words)) for words in lines if words[0] == "tdpbf16ps"]
    assert dots == [["6", "4", "0"], ["7", "4", "1"], ["6", "5", "2"], ["7", "5", "3"]]  # AT&T: weights, inputs, sums


def test_written_out_tiles_flush_what_is_subnormal_and_sum_even_and_odd_inputs_apart() -> None:
    """Against the definition of TDPBF16PS, step by step in NumPy; float64 holds these fused products and sums."""
    random = np.random.default_rng(5)
    exponents = random.integers(60, 68, (2, 16, 32))  # products around the least normal number
    a, w = (exponents << 7 | random.integers(0, 128, (2, 16, 32))).astype(np.uint16)
    w[random.integers(0, 4, w.shape) == 0] = 0x0011  # subnormal
    x, y = from_bf16(a), from_bf16(w.reshape(16, 16, 2))

    def flush(values: np.ndarray) -> np.ndarray:
        values = values.astype(np.float32)
        return np.where(np.abs(values) < np.float32(2.0**-126), np.float32(0), values)

    def defined(flush: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        sums = []
        for parity in range(2):
            total = np.zeros((16, 16), np.float32)
            for k in range(16):
                product = flush(x[:, 2 * k + parity]).astype(np.float64)[:, None] * flush(y[k, :, parity])
                total = flush(total + product)
            sums.append(total)
        return flush(sums[0] + sums[1])

    want = defined(flush)
    config, totals = np.zeros(64, np.uint8), np.zeros(512, np.float32)
    config[0], config[16:32:2], config[48:56] = 1, 64, 16
    weights = np.concatenate([w.reshape(-1), np.zeros(512, np.uint16)]).view(np.uint8)
    _dot(a.reshape(-1).view(np.uint8), weights, config, totals, np.empty(tiles.STATE_BYTES, np.uint8))
    np.testing.assert_array_equal(totals[:256].reshape(16, 16).view(np.uint32), want.view(np.uint32))
    assert (want != defined(lambda values: values.astype(np.float32))).any()  # it matters here


@numba.njit
def _dot(a: Any, w: Any, config: Any, totals: Any, state: Any) -> None:
    """One block of one tile of tokens, on written-out tiles."""
    tiles.configure(config, state, False)
    tiles.tile_blocks(a, 0, 1024, 1, w, 0, w, 0, totals, 0, 1, state, 1, False)


def test_the_answer_that_is_expected_is_the_references() -> None:
    digest, weights = hashlib.sha256(), {}
    for values, weight in amx.question():
        bits = weights.setdefault(weight.scales is None, weight.bits())
        assert amx.exact(range_of(values), fast.hold(weight, "portable").range)
        digest.update(reference.project(values, bits).tobytes())
    assert digest.hexdigest() == amx.ANSWER


@pytest.mark.skipif("amx" in cpu.paths(), reason="it can run here")
def test_amx_is_refused_where_it_cannot_run() -> None:
    with pytest.raises(EngramctlError, match=r"^--kernel: expected one of auto, .* on this machine, found amx$"):
        fast.hold(np.zeros((1, 1), np.uint16), "amx")


@pytest.fixture
def with_tiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine that says it has tiles, and a kernel cache of its own."""
    monkeypatch.setattr(amx, "permitted", lambda: True)
    monkeypatch.setattr(cache, "FOLDER", tmp_path)
    monkeypatch.setattr(cpu, "features", lambda: cpu.NEEDS["amx"])
    return tmp_path


@pytest.mark.parametrize("code", ["import os; os.abort()", "print('another digest')", "import time; time.sleep(60)"])
def test_tiles_that_crash_or_give_other_bits_are_not_used(
    code: str, monkeypatch: pytest.MonkeyPatch, with_tiles: Path
) -> None:
    run = amx.subprocess.run
    monkeypatch.setattr(amx.subprocess, "run", lambda words, **how: run([*words[:2], code], **how))
    monkeypatch.setattr(amx, "LONGEST", 2)
    assert cpu.choose("auto") == "avx512"
    assert (with_tiles / "amx").read_text() == "different"
    monkeypatch.setattr(amx, "_asked", lambda: True)
    amx.trusted.cache_clear()
    assert not cpu.can("amx")  # the answer was kept


def test_tiles_that_give_the_defined_bits_are_used_and_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, with_tiles: Path
) -> None:
    """The child is the real one, but for the path that it takes."""
    run, asked = amx.subprocess.run, []

    def child(words: list[str], **how: Any) -> Any:
        asked.append(words)
        return run([*words[:2], "from engramctl.fast import amx; print(amx.answer('tiles'))"], **how)

    monkeypatch.setattr(amx.subprocess, "run", child)
    assert cpu.choose("auto") == "amx"
    amx.trusted.cache_clear()
    assert cpu.choose("amx") == "amx"
    assert len(asked) == 1
    assert (with_tiles / "amx").read_text() == "equal"


def test_operands_that_tiles_are_not_for_take_another_path_and_ask_nobody(
    monkeypatch: pytest.MonkeyPatch, with_tiles: Path
) -> None:
    """Whoever answers the question may meet them: had it to ask the question again, there would be no end."""
    monkeypatch.setattr(cpu, "features", lambda: HERE | {"amx-tile", "amx-bf16"})
    monkeypatch.setattr(amx, "_asked", lambda: pytest.fail("asked"))
    values, weight = np.full((1, 40), 1, np.uint16), np.full((3, 40), 0x3F80, np.uint16)
    held = replace(fast.hold(weight, "portable"), path="amx")
    assert not amx.exact(range_of(values), held.range)
    assert fast.project(values, held).tolist() == reference.project(values, weight).tolist()


# A process whose illegal tile instructions are carried out; on a processor with AMX none is illegal, and it does them.
EMULATED = """
import ctypes, functools, os, sys
emulator = ctypes.CDLL(sys.argv[1])
emulator.install()
from llvmlite import binding
there = {**binding.get_host_cpu_features(), "amx-tile": True, "amx-bf16": True}
os.environ["NUMBA_CPU_NAME"] = binding.get_host_cpu_name()
os.environ["NUMBA_CPU_FEATURES"] = ",".join("-+"[has] + name for name, has in there.items())
binding.get_host_cpu_features = lambda: there
from engramctl.fast import amx
native = amx.permitted()
amx.permitted = lambda: True
amx.trusted = functools.cache(lambda: amx.answer("amx") == amx.ANSWER)
import pytest
code = pytest.main(["-n0", "-p", "no:faulthandler", "-p", "no:cacheprovider", "-k", "[amx]", "tests/test_pairs.py"])
print(int(code), native, emulator.carried_out())
"""


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or not cpu.NEEDS["avx512"] <= cpu.features(),
    reason="AMX's machine code needs Linux on x86-64 with AVX-512",
)
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler, which the emulator of AMX needs")
def test_the_machine_code_for_amx_gives_the_references_bits(tmp_path: Path) -> None:
    """All that test_pairs.py asks of a path, of the code that a processor with AMX would run."""
    library = tmp_path / "emulator.so"
    flags = ("-O2", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-shared", "-fPIC")
    subprocess.run(["cc", *flags, "-o", library, ROOT / "tests" / "amx_emulator.c", "-lm"], check=True, timeout=60)
    done = subprocess.run(
        [sys.executable, "-c", EMULATED, library], cwd=ROOT, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "4 passed" in done.stdout, done.stdout
    code, native, count = done.stdout.split()[-3:]
    assert code == "0"
    assert native == "True" or int(count) > 50_000  # the question alone is 34,524
