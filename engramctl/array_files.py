"""Files of arrays that an engine dumped: npy, npz and safetensors, from a file or standard input.

Headers first: what they announce is compared with the bytes that are there before any memory is asked for. Pickles are
refused; BF16 is its bits in uint16, whatever wrote them (ml_dtypes' npy says V2).
"""

from __future__ import annotations

import errno
import math
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl.arrays import Array, Data, Dump, open_data, sizes
from formats import npy, safetensors_raw
from formats.errors import FormatError, shown

MOST_MEMBERS = 1000  # of an npz
NPY_MAGIC, ZIP_MAGICS = npy.MAGIC, (b"PK\x03\x04", b"PK\x05\x06")
NPY_HEADER = 1 << 16  # a longer npy header is no array's
PIECE = 1 << 24
SAFETENSORS = {
    "BF16": "<u2",
    "BOOL": "?",
    **{f"F{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
    **{f"U{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"I{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
}


def read(path: Path) -> Dump:
    """The arrays of a file or of standard input; a file of another kind raises `FormatError`."""
    data = open_data(path)
    found = read_arrays(data)
    if found is None:
        raise FormatError(data.where, None, "an npy, npz or safetensors file", "none of them")
    return found


def read_arrays(data: Data) -> Dump | None:
    """The arrays of an npy, npz or safetensors file; None where the bytes begin as none of them."""
    head = data.head(NPY_HEADER)
    if head.startswith(NPY_MAGIC):
        return Dump(data.where, "npy", {"": _npy(data, head)})
    if head.startswith(ZIP_MAGICS):
        return Dump(data.where, "npz", _npz(data))
    if head[8:9] == b"{" and (data.path.suffix == ".safetensors" or int.from_bytes(head[:8], "little") < data.size):
        return Dump(data.where, "safetensors", _safetensors(data))
    return None


def npy_header(head: bytes, where: str, at: str | None = None) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """Dtype, shape, column order and length of an npy header; BF16's V2 becomes uint16."""
    dtype, shape, by_column, start = npy.header(head, where, at, npy.NUMBERS + "V")
    if dtype.kind == "V" and dtype != np.dtype("V2"):
        raise FormatError(where, at, "an array of numbers", f"{dtype}"[:80])
    return np.dtype("<u2") if dtype.kind == "V" else dtype, shape, by_column, start


def _shaped(raw: NDArray[np.uint8], dtype: np.dtype[Any], shape: tuple[int, ...], by_column: bool) -> NDArray[Any]:
    array = raw.view(dtype)
    return array.reshape(shape[::-1]).T if by_column else array.reshape(shape)


def _npy(data: Data, head: bytes) -> Array:
    dtype, shape, by_column, start = npy_header(head, data.where)
    count = math.prod(shape) * dtype.itemsize
    if start + count != data.size:
        raise FormatError(data.where, start, f"{count} bytes for {dtype} {sizes(shape)}", f"{data.size - start}")
    return Array(
        data.where,
        "",
        dtype.name,
        dtype,
        shape,
        lambda: _shaped(data.read(start, count, "array"), dtype, shape, by_column),
    )


def _npz(data: Data) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    with _zip_errors(data.where), data.stream() as stream, zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        if len(members) > MOST_MEMBERS:
            raise FormatError(data.where, None, f"at most {MOST_MEMBERS} arrays", f"{len(members)}")
        for member in members:
            name = member.filename.removesuffix(".npy")
            at = f"array {shown(name)}"
            if name in arrays:
                raise FormatError(data.where, at, "each name once", "it again")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise FormatError(data.where, at, "a stored or deflated member", f"compression {member.compress_type}")
            with archive.open(member) as file:
                dtype, shape, by_column, start = npy_header(file.read(NPY_HEADER), data.where, at)
            count = math.prod(shape) * dtype.itemsize
            if start + count != member.file_size:
                raise FormatError(
                    data.where, at, f"{count} bytes for {dtype} {sizes(shape)}", f"{member.file_size - start}"
                )
            reader = _Member(data, member.filename, start, count, dtype, shape, by_column)
            arrays[name] = Array(data.where, name, dtype.name, dtype, shape, reader)
    return arrays


@dataclass(frozen=True)
class _Member:
    """An npz member's array, unpacked when it is called; never more bytes than its header has announced."""

    data: Data
    name: str
    start: int
    count: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    by_column: bool

    def __call__(self) -> NDArray[Any]:
        with _zip_errors(self.data.where), self.data.stream() as stream, zipfile.ZipFile(stream) as archive:
            raw, done = np.empty(self.count, np.uint8), 0
            with archive.open(self.name) as file:
                file.read(self.start)
                while piece := file.read(PIECE):
                    raw[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
                    done += len(piece)
            if done != self.count:
                raise FormatError(self.data.where, f"array {shown(self.name)}", f"{self.count} bytes", f"{done}")
        return _shaped(raw, self.dtype, self.shape, self.by_column)


class _zip_errors:  # noqa: N801 - used as a statement
    """Whatever a broken archive makes the library raise becomes one `FormatError`."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        broken = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, LookupError, RuntimeError, ValueError)
        if isinstance(error, broken) or (isinstance(error, OSError) and error.errno == errno.EINVAL):  # a place below 0
            raise FormatError(
                self.where, None, "a readable npz", (str(error).splitlines() or ["none"])[0][:120]
            ) from None


def _safetensors(data: Data) -> dict[str, Array]:
    return {name: _tensor_array(data, tensor) for name, tensor in _shard(data).items()}


def _shard(data: Data) -> dict[str, safetensors_raw.Tensor]:
    if data.held is None:
        return safetensors_raw.read_shard(data.path)
    with tempfile.TemporaryDirectory() as folder:  # the header's bytes in a sparse file of the stream's length
        copy = Path(folder) / "dump.safetensors"
        length = min(8 + int.from_bytes(data.head(8), "little"), data.size)
        with copy.open("wb") as file:
            file.write(data.held[:length])
            file.truncate(data.size)
        try:
            return safetensors_raw.read_shard(copy)
        except FormatError as error:
            raise FormatError(data.where, error.at, error.expected, error.found) from None


def _tensor_array(data: Data, tensor: safetensors_raw.Tensor) -> Array:
    known = SAFETENSORS.get(tensor.dtype)
    dtype = None if known is None else np.dtype(known)

    def read() -> NDArray[Any]:
        assert dtype is not None
        return _shaped(data.read(tensor.start, tensor.end - tensor.start, tensor.name), dtype, tensor.shape, False)

    return Array(data.where, tensor.name, tensor.dtype, dtype, tensor.shape, read)


def npy_chunks(array: NDArray[Any]) -> Iterator[bytes]:
    """An npy file's bytes: header, then the array in pieces."""
    yield npy.encode_header(array.shape, array.dtype)
    yield from pieces(array)


def pieces(array: NDArray[Any]) -> Iterator[bytes]:
    flat = np.ascontiguousarray(array).reshape(-1)
    for start in range(0, flat.size, PIECE):
        yield flat[start : start + PIECE].tobytes()
