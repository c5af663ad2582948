"""Hidden states [T, S, D] in files: npy or safetensors, float32 or BF16 bits. What is read so is written so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl import array_files
from engramctl.arrays import Form
from engramctl.errors import EngramctlError
from formats import safetensors_raw
from formats.errors import FormatError
from formats.floats import bf16_finite, exact_in_bf16, from_bf16, to_bf16

TENSOR = "hidden"
DTYPES = ("uint16", "float32")  # BF16 bits, or values that BF16 holds


@dataclass(frozen=True)
class Hidden:
    """Hidden states as BF16 bits, and how they were written."""

    bits: NDArray[np.uint16]  # [T, S, D]
    form: Form
    kind: str  # the dtype in that form's words: uint16, float32; BF16, U16, F32


def read_hidden(path: Path, shape: tuple[int | None, int, int], round_hidden: bool = False) -> Hidden:
    """Hidden states of that shape (None: any number of tokens); a wrong shape, dtype or number raises an error."""
    found = array_files.read(path)
    if found.form == "npz":
        raise FormatError(found.where, None, "hidden states as npy or safetensors", "npz")
    array = found.arrays[""] if found.form == "npy" else found.named(TENSOR)
    bits = as_bf16(array.load(DTYPES, shape), found.where, TENSOR, round_hidden)
    return Hidden(bits, found.form, array.kind)


def write_hidden(states: Hidden, bits: NDArray[np.uint16]) -> Iterator[bytes]:
    """BF16 bits [T, S, D] -> a file in the form of `states`, in pieces."""
    array = from_bf16(bits).astype("<f4") if states.kind in ("float32", "F32") else bits.astype("<u2")
    if states.form == "npy":
        yield from array_files.npy_chunks(array)
        return
    header, _ = safetensors_raw.header([(TENSOR, states.kind, bits.shape)])
    yield header
    yield from array_files.pieces(array)


def as_bf16(array: NDArray[Any], where: str, name: str, rounded: bool = False) -> NDArray[np.uint16]:
    """BF16 bits of uint16 or float32 values, all finite; float32 that BF16 does not hold only if `rounded`."""
    if array.dtype == np.uint16:
        bits: NDArray[np.uint16] = np.ascontiguousarray(array)
    else:
        values = finite(array, where, name)
        inexact = 0 if rounded else int(values.size - np.count_nonzero(exact_in_bf16(values)))
        if inexact:
            found = f"{inexact} of {values.size} that it does not"
            hint = "give --round-hidden to round them" if name == TENSOR else None
            raise EngramctlError(f"{where} at {name}", "values that BF16 holds exactly", found, hint)
        bits = to_bf16(values)
    _expect_finite(bf16_finite(bits), where, name)
    return bits


def finite(array: NDArray[Any], where: str, name: str) -> NDArray[np.float32]:
    """F32 values, none of them an infinity or a NaN."""
    values = np.ascontiguousarray(array, np.float32)
    _expect_finite(np.isfinite(values), where, name)
    return values


def _expect_finite(good: NDArray[np.bool_], where: str, name: str) -> None:
    if not good.all():
        count, first = good.size - np.count_nonzero(good), np.argwhere(~good)[0].tolist()
        raise FormatError(where, f"{name} {first}", "finite values", f"{count} that are infinite or NaN")
