"""row264.pack_valid in Numba: a row is checked while it is moved, 8 bytes at a time.

Adding 1 to a code's low 7 bits carries into its top bit only for a NaN; so does adding a little to a scale's, from the
scale byte on under which some number has no value. What looks suspicious is asked for again, by the one rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from engramctl.fast.cache import kernel, reads, writes
from formats import row264
from formats.row264 import ROW_BYTES, SCALES, SURE_BELOW, WIDTH, Invalid

WORD = 8  # bytes moved at a time
CODE_WORDS, ROW_WORDS = WIDTH // WORD, ROW_BYTES // WORD
LINE = 64  # bytes that the memory hands over at a time
AHEAD = np.uint64(16 * WIDTH)  # asked for before they are needed
LOW = np.uint64(0x7F7F7F7F7F7F7F7F)
TOP = np.uint64(0x8080808080808080)
ONE = np.uint64(0x0101010101010101)
TO_RISKY = np.uint64(0x100 - SURE_BELOW) * ONE


def pack_valid(codes: NDArray[np.uint8], scales: NDArray[np.uint8], out: NDArray[np.uint8]) -> Invalid | None:
    """As `row264.pack_valid`: [n, WIDTH] and [n, SCALES] -> [n, ROW_BYTES]."""
    if not all(array.flags.c_contiguous and array.ctypes.data % WORD == 0 for array in (codes, scales, out)):
        return row264.pack_valid(codes, scales, out)
    suspicious = np.zeros(1, np.uint64)
    _pack(
        0,
        len(codes),
        codes.view(np.uint64),
        scales.view(np.uint64).reshape(-1),
        out.view(np.uint64),
        suspicious,
    )
    return row264.first_invalid(codes, scales) if suspicious[0] else None


@intrinsic
def _prefetch(context: Any, address: Any) -> tuple[Any, Callable[..., Any]]:  # noqa: ANN401
    """A hint to the memory; of no effect on what is computed, also past the end of an array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        read, near, data = (ir.Constant(number, value) for value in (0, 3, 1))
        builder.call(function, [builder.inttoptr(arguments[0], pointer), read, near, data])
        return context.get_dummy_value()

    return types.void(address), generate


@kernel(reads(types.uint64, 2), reads(types.uint64, 1), writes(types.uint64, 2), writes(types.uint64, 1))
def _pack(
    first: int,
    last: int,
    codes: NDArray[np.uint64],
    scales: NDArray[np.uint64],
    out: NDArray[np.uint64],
    suspicious: NDArray[np.uint64],
) -> None:
    seen, risky = np.uint64(0), np.uint64(0)
    start = np.uint64(codes.ctypes.data) + AHEAD
    for row in range(first, last):
        here = start + np.uint64(row) * np.uint64(WIDTH)
        for line in range(WIDTH // LINE):
            _prefetch(here + np.uint64(line * LINE))  # type: ignore[call-arg]
        for word in range(CODE_WORDS):
            eight = codes[row, word]
            out[row, word] = eight
            seen |= (eight & LOW) + ONE
        under = scales[row]
        out[row, CODE_WORDS] = under
        risky |= ((under & LOW) + TO_RISKY) & under
    suspicious[0] = (seen | risky) & TOP


def ready() -> None:
    """Compile, or read from the cache, before the clock runs."""
    _pack.ready()


assert SCALES == WORD
assert ROW_WORDS == CODE_WORDS + 1
