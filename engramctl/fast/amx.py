"""The projection on the processor's tiles, and whether to trust them.

`path` "amx" is the processor's tiles, "tiles" the same kernel on tiles that are written out, which any processor runs.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numba import types
from numpy.typing import NDArray

from engramctl.fast import cache
from engramctl.fast.bits import narrow
from engramctl.fast.cache import Kernel, helper, in_parts, named_kernel, reads, writes
from engramctl.fast.tiles import (
    COLUMNS,
    CONFIG_BYTES,
    LINE,
    ROWS,
    STATE_BYTES,
    TILE_BYTES,
    TILES,
    configure,
    e4m3_to_bf16,
    release,
    tile_blocks,
)
from engramctl.fast.vectors import TILE
from engramctl.fast.weights import Packed, Range, hold
from engramctl.projection import Projection, held
from formats.floats import E4M3_NAN
from formats.row264 import BLOCK

CHUNK = 8  # blocks of inputs whose weights are made BF16 together: 16 KiB, which stay in the first cache
BLOCK_BYTES = BLOCK * BLOCK * 2
PATHS = ("amx", "tiles")
ARCH_PRCTL, ASK, TILE_DATA = 158, 0x1023, 18  # Linux: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
ANSWER = "1d9d1f29145239fd92b8cfc0969433fdd377fe1ba3692f769fff4999a6dbf7b2"  # by the reference, to the question
LONGEST = 120  # seconds for the question in another process
ANSWERING = """
import sys
from engramctl.fast import amx
amx.trusted = bool  # this process is not to ask another one
amx.permitted() or sys.exit(1)
print(amx.answer('amx'))
"""


def exact(e: Range, w: Range) -> bool:
    """Do tiles give the defined bits? They flush subnormals, and fuse."""
    low = e.low + w.low
    return min(e.low, w.low, low) >= -126 and e.high + w.high + 5 < 128


def project(values: NDArray[np.uint16], packed: Packed, kv: NDArray[np.uint16], together: int, least: int) -> None:
    """values [T, K], T at least 1, to kv [T, N]; operands must be `exact`."""
    (T, K), blocks = values.shape, packed.factors.shape[1]
    tokens = T if T < TILE else -(-T // TILE) * TILE
    inputs = np.zeros((tokens, blocks * BLOCK), np.uint16)
    inputs[:T, :K] = values
    inputs = np.ascontiguousarray(inputs.reshape(tokens, blocks, BLOCK).transpose(1, 0, 2)).view(np.uint8)
    config = np.zeros(CONFIG_BYTES, np.uint8)
    config[0] = 1  # the palette
    config[COLUMNS : COLUMNS + 2 * TILES : 2] = LINE
    config[ROWS : ROWS + TILES] = min(tokens, TILE)
    config[ROWS + 6 : ROWS + TILES] = TILE  # of weights
    groups = -(-packed.factors.shape[0] // together)
    arguments = inputs.reshape(blocks, -1), packed.data, np.int64(packed.e4m3), packed.factors, config, kv
    in_parts(_kernels[packed.path], groups, least, np.int64(together), *arguments)


def _kernel(name: str, hardware: bool) -> Kernel:
    def run(
        first: int, last: int, together: int, inputs: NDArray[np.uint8], data: NDArray[np.uint8], e4m3: int,
        factors: NDArray[np.float32], config: NDArray[np.uint8], kv: NDArray[np.uint16],
    ) -> None:  # fmt: skip
        (bands, blocks), T = factors.shape, len(kv)
        tiles, step = -(-T // TILE), inputs.shape[1]
        state = np.empty(STATE_BYTES, np.uint8)
        wide = np.empty(CHUNK * BLOCK_BYTES + LINE, np.uint8)
        totals = np.empty(together * tiles * TILE * BLOCK + LINE // 4, np.float32)
        w, total = -wide.ctypes.data % LINE, -(totals.ctypes.data // 4) % (LINE // 4)
        flat, scales = inputs.reshape(-1), factors.reshape(-1)
        configure(config, state, hardware)
        for group in range(first, last):
            low, high = group * together, min(bands, (group + 1) * together)
            totals[:] = 0
            for start in range(0, blocks, CHUNK):
                count = min(CHUNK, blocks - start)
                for band in range(low, high):
                    block = band * blocks + start
                    if e4m3:
                        for i in range(block, block + count):
                            e4m3_to_bf16(data, i * BLOCK * BLOCK, scales[i], wide, w + (i - block) * BLOCK_BYTES)
                    here = block * BLOCK_BYTES
                    for tile in range(0, tiles, 2):
                        e, to = start * step + tile * TILE_BYTES, total + ((band - low) * tiles + tile) * TILE * BLOCK
                        if tile + 1 < tiles:
                            tile_blocks(flat, e, step, e4m3, wide, w, data, here, totals, to, count, state, 2, hardware)
                        else:
                            tile_blocks(flat, e, step, e4m3, wide, w, data, here, totals, to, count, state, 1, hardware)
            for band in range(low, high):
                _narrow(band, totals, total + (band - low) * tiles * TILE * BLOCK, kv)
        release(state, hardware)

    return named_kernel(
        name, run, types.int64, reads(types.uint8, 2), reads(types.uint8, 1), types.int64, reads(types.float32, 2),
        reads(types.uint8, 1), writes(types.uint16, 2),
    )  # fmt: skip


@helper
def _narrow(band: int, totals: NDArray[np.float32], at: int, kv: NDArray[np.uint16]) -> None:
    """A band's totals [tile of tokens][tile of outputs][token][output] to BF16."""
    T, N = kv.shape
    for t in range(T):
        for n in range(min(BLOCK, N - band * BLOCK)):
            place = ((t // TILE * (BLOCK // TILE) + n // TILE) * TILE + t % TILE) * TILE + n % TILE
            kv[t, band * BLOCK + n] = narrow(totals[at + place])


_kernels = {path: _kernel(f"_{path}", hardware=path == "amx") for path in PATHS}


def permitted() -> bool:
    """Ask the system for the tiles' registers, which every process has to do once."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return bool(ctypes.CDLL(None, use_errno=True).syscall(ARCH_PRCTL, ASK, TILE_DATA) == 0)


def question() -> Iterator[tuple[NDArray[np.uint16], Projection]]:
    """Inputs and weights: both kinds of weights, one token and several, sizes that are no multiples of anything."""
    N, K = 333, 1000
    codes = _drawn(N * K).astype(np.uint8).reshape(N, K)
    codes[codes & E4M3_NAN == E4M3_NAN] = 0
    stored = Projection((N, K), lambda first, last: codes[first:last], np.full((11, 32), 119, np.uint8))
    for weight in (stored, held(stored.bits())):
        for T in (1, 15, 40, 65):
            yield (_drawn(T * K) & np.uint64(0x83FF) | np.uint64(0x3C00)).astype(np.uint16).reshape(T, K), weight


def _drawn(count: int) -> NDArray[np.uint64]:
    """16 bits each, the same on every machine."""
    return np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(48)


def answer(path: str) -> str:
    """The digest of the question's projections."""
    from engramctl.fast.project import project as by

    digest = hashlib.sha256()
    for values, weight in question():
        digest.update(by(values, replace(hold(weight, "portable"), path=path)).tobytes())
    return digest.hexdigest()


@functools.cache
def trusted() -> bool:
    """Did another process, on this machine, with this code, get the defined bits from the tiles?

    Asked once and kept beside the kernels; whatever goes wrong there, even the process's end, is a no.
    """
    kept = None if cache.FOLDER is None else cache.FOLDER / "amx"
    try:
        if kept is not None and kept.exists():
            return kept.read_text() == "equal"
    except OSError:
        kept = None
    equal = _asked()
    if kept is not None:
        partial = kept.with_name(f"amx.{os.getpid()}")
        try:
            partial.write_text("equal" if equal else "different")
            partial.replace(kept)
        except OSError:
            return equal
    return equal


def _asked() -> bool:
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    try:
        command = [sys.executable, "-c", ANSWERING]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0 and done.stdout.strip() == ANSWER
