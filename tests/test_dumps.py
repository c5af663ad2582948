"""Files of arrays as an enemy would write them; hidden states in and out in one form; row sets."""

from __future__ import annotations

import io
import json
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from engramctl import array_files, dumps, rowsets
from engramctl.array_files import read
from engramctl.arrays import Data
from engramctl.errors import EngramctlError
from formats.errors import FormatError

BF16 = ml_dtypes.bfloat16


def npy_bytes(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def header(shape: str, descr: str = "'<u2'", version: int = 1, size: int = 118) -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(size - 1) + "\n"
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode()


def put(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@contextmanager
def little_memory(most: int = 3 << 20) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


LIES = {
    "a shape larger than the file": header("(1000000, 1000000)"),
    "a shape smaller than the file": header("(1,)") + bytes(8),
    "a shape beyond 64 bits": header("(" + "9" * 30 + ",)"),
    "a negative shape": header("(-1, 3)") + bytes(6),
    "a shape of booleans": header("(True,)") + bytes(2),
    "a shape of nine": header("(1, 1, 1, 1, 1, 1, 1, 1, 1)") + bytes(2),
    "a shape that is no tuple": header("3") + bytes(6),
    "a header that is no dictionary": b"\x93NUMPY\x01\x00" + struct.pack("<H", 4) + b"[1]\n",
    "a header that is code": header("__import__('os').system('true')"),
    "a header cut short": header("(3,)")[:40],
    "deep nesting": b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 8999 + b"\n",
    "a very long header": b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31) + b" " * 100,
    "a version to come": header("(3,)", version=9) + bytes(6),
    "objects": header("(3,)", "'|O'") + bytes(24),
    "text": header("(3,)", "'<U2'") + bytes(24),
    "records": header("(3,)", "[('a', '<i4')]") + bytes(12),
    "a magic and nothing else": b"\x93NUMPY",
}


@pytest.mark.parametrize("lie", list(LIES))
def test_an_npy_that_lies_is_refused_before_memory_is_asked_for(tmp_path: Path, lie: str) -> None:
    path = put(tmp_path / "a.npy", LIES[lie])
    with little_memory(), pytest.raises(FormatError):
        read(path).only("x").load(("uint16",), (3,))


@pytest.mark.parametrize("lie", list(LIES))
def test_an_npz_with_such_a_member_is_refused_too(tmp_path: Path, lie: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", LIES[lie])
    with little_memory(), pytest.raises(FormatError):
        read(tmp_path / "a.npz").only("x").load(("uint16",), (3,))


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """256 megabytes of zeros in one: the shape is known first, and it is not the one that was asked for."""
    path, count = tmp_path / "a.npz", 1 << 27
    packed = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with packed as archive, archive.open("rows.npy", "w", force_zip64=True) as file:
        file.write(header(f"({count},)"))
        for _ in range(2 * count >> 24):
            file.write(bytes(1 << 24))
    assert path.stat().st_size < 2 << 20
    with little_memory():
        array = read(tmp_path / "a.npz").only("rows")
        assert array.shape == (count,)
        with pytest.raises(FormatError) as refused:
            array.load(("uint16",), (8, 2, 24))
        assert refused.value.expected == "[8, 2, 24] of uint16"


def edit_zip(tmp_path: Path, change: Callable[[bytearray], None]) -> Path:
    np.savez(tmp_path / "a.npz", x=np.arange(1000))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    change(data)
    return put(tmp_path / "a.npz", bytes(data))


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.__setitem__(600, data[600] ^ 1),  # the checksum does not fit
        lambda data: data.__delitem__(slice(len(data) - 10, None)),
        lambda data: data.__delitem__(slice(400, 500)),
        lambda data: data.__setitem__(
            slice(data.rindex(b"PK\x01\x02") + 10, data.rindex(b"PK\x01\x02") + 12), b"\x0c\x00"
        ),
        lambda data: data.__setitem__(data.rindex(b"PK\x01\x02") + 8, 1),  # encrypted
    ],
)
def test_a_damaged_archive_is_refused(tmp_path: Path, change: Callable[[bytearray], None]) -> None:
    path = edit_zip(tmp_path, change)
    with pytest.raises(FormatError):
        read(path).only("x").load(("int64",), (1000,))


def whole_files() -> dict[str, bytes]:
    packed, loose = io.BytesIO(), io.BytesIO()
    np.savez_compressed(packed, x=np.arange(40, dtype=np.int16))
    np.savez(loose, x=np.arange(40, dtype=np.int16))
    return {
        "npy": npy_bytes(np.arange(40, dtype=np.int16)),
        "npz": packed.getvalue(),
        "stored npz": loose.getvalue(),
        "safetensors": save({"x": np.arange(40, dtype=np.int16)}),
    }


@pytest.mark.parametrize("form", list(whole_files()))
def test_every_cut_and_flip_gives_an_array_or_a_refusal(form: str) -> None:
    data = whole_files()[form]
    cuts = [data[:length] for length in range(1, len(data))]
    flips = [
        data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
        for at in range(len(data))
        for bit in (range(8) if at < 160 or at > len(data) - 160 else (0, 7))
    ]
    refused = 0
    for wrong in cuts + flips:
        try:
            found = array_files.read_arrays(Data("a dump", len(wrong), Path("-"), wrong))
            if found is not None:
                found.only("x").load(("int16", "uint16", "int8", "uint8"), (40,), (80,), (None,))
        except FormatError as error:
            assert error.path == "a dump"  # noqa: PT017
            refused += 1
    assert refused > len(cuts) * 0.9


def test_a_name_twice_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", npy_bytes(np.zeros(1)))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("x.npy", npy_bytes(np.ones(1)))
    with pytest.raises(FormatError) as refused:
        read(tmp_path / "a.npz")
    assert (refused.value.expected, refused.value.found) == ("each name once", "it again")


def test_arrays_without_number_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for number in range(1001):
            archive.writestr(f"{number}.npy", npy_bytes(np.zeros(1)))
    with pytest.raises(FormatError) as refused:
        read(tmp_path / "a.npz")
    assert refused.value.expected == "at most 1000 arrays"


def test_a_safetensors_that_lies_is_refused(tmp_path: Path) -> None:
    data = save({"hidden": np.zeros((2, 4, 8), np.float32)})
    for wrong in (data[:-1], data + b"\0", data.replace(b'"shape":[2,4,8]', b'"shape":[9,4,8]')):
        with pytest.raises(FormatError):
            read(put(tmp_path / "h.safetensors", wrong))
    odd = save({"x": np.zeros(4, ml_dtypes.float8_e4m3fn).view(np.uint8)}).replace(b'"U8"', b'"F8_E4M3"')
    length = len(odd) - len(save({"x": np.zeros(4, np.uint8)}))
    raw = (int.from_bytes(odd[:8], "little") + length).to_bytes(8, "little") + odd[8:]
    with pytest.raises(FormatError) as refused:
        read(put(tmp_path / "h.safetensors", raw)).only("x").load(("uint8",), (4,))
    assert refused.value.found == "[4] of F8_E4M3"


def test_what_is_no_array_is_said_so(tmp_path: Path) -> None:
    for data, found in ((b"", "an empty input"), (b"hello there, engine", "none of them")):
        with pytest.raises(FormatError) as refused:
            read(put(tmp_path / "x", data))
        assert refused.value.found == found
    np.savez(tmp_path / "a.npz", a=np.zeros(1), b=np.zeros(1))
    with pytest.raises(FormatError) as refused:
        read(tmp_path / "a.npz").only("rows")
    assert refused.value.found == '2 arrays: "a", "b"'


@pytest.mark.parametrize("kind", [">u2", "<u2", ">f4", "V2"])
def test_byte_orders_and_bf16_of_ml_dtypes_are_read(tmp_path: Path, kind: str) -> None:
    numbers = np.arange(6).reshape(2, 3)
    array = numbers.astype(BF16) if kind == "V2" else numbers.astype(kind)
    np.save(tmp_path / "a.npy", array)
    loaded = read(tmp_path / "a.npy").only("").load(("uint16", "float32"), (2, 3))
    assert loaded.dtype.isnative
    expected = array.view(np.uint16) if kind == "V2" else numbers
    np.testing.assert_array_equal(loaded, expected)


HIDDEN = np.array([[[1.0, -2.5], [0.0, 3e38]], [[-0.0, 1e-40], [448.0, 2.0**-133]]])


def hidden_forms() -> dict[str, bytes]:
    bf16 = HIDDEN.astype(np.float32).astype(BF16)
    bf16[1, 0, 1] = 0
    exact = bf16.astype(np.float32)
    stored = save({"hidden": bf16.view(np.uint16)}).replace(b'"U16"', b'"BF16"')
    length = int.from_bytes(stored[:8], "little") + 1
    return {
        "u16.npy": npy_bytes(bf16.view(np.uint16)),
        "f32.npy": npy_bytes(exact),
        "f32.safetensors": save({"hidden": exact}),
        "u16.safetensors": save({"hidden": bf16.view(np.uint16)}),
        "bf16.safetensors": length.to_bytes(8, "little") + stored[8:],
    }


@pytest.mark.parametrize("name", list(hidden_forms()))
def test_hidden_states_are_written_as_they_were_read(tmp_path: Path, name: str) -> None:
    path = put(tmp_path / name, hidden_forms()[name])
    states = dumps.read_hidden(path, (2, 2, 2))
    back = put(tmp_path / f"back-{name}", b"".join(dumps.write_hidden(states, states.bits)))
    if name.endswith(".npy"):
        one, other = np.load(path), np.load(back)
        np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))
        assert one.dtype == other.dtype
    else:
        texts = [json.loads(p.read_bytes()[8 : 8 + int.from_bytes(p.read_bytes()[:8], "little")]) for p in (path, back)]
        assert texts[0] == texts[1]
        if name != "bf16.safetensors":
            np.testing.assert_array_equal(load(path.read_bytes())["hidden"], load(back.read_bytes())["hidden"])
        again = dumps.read_hidden(back, (2, 2, 2))
        np.testing.assert_array_equal(again.bits, states.bits)
        assert (again.form, again.kind) == (states.form, states.kind)


def test_inexact_hidden_states_are_counted_or_rounded(tmp_path: Path) -> None:
    np.save(tmp_path / "h.npy", np.array([[[1.0, 1.001, 1.002, 4.0]]], np.float32))
    with pytest.raises(EngramctlError) as refused:
        dumps.read_hidden(tmp_path / "h.npy", (1, 1, 4))
    assert (refused.value.found, refused.value.hint) == ("2 of 4 that it does not", "give --round-hidden to round them")
    rounded = dumps.read_hidden(tmp_path / "h.npy", (1, 1, 4), round_hidden=True).bits
    assert rounded.tolist() == [[[0x3F80, 0x3F80, 0x3F80, 0x4080]]]


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.zeros((1, 2, 4), np.uint16), "[1, 1, 4]"),
        (np.zeros((2, 1, 4), np.uint16), "[1, 1, 4]"),
        (np.zeros((1, 4), np.uint16), "[1, 1, 4]"),
        (np.zeros((1, 1, 4), np.float64), "[1, 1, 4] of float32 or uint16"),
        (np.zeros((1, 1, 4), np.float16), "[1, 1, 4] of float32 or uint16"),
        (np.full((1, 1, 4), np.nan, np.float32), "finite values"),
        (np.full((1, 1, 4), np.inf, np.float32), "finite values"),
        (np.full((1, 1, 4), 0x7FC0, np.uint16), "finite values"),
        (np.full((1, 1, 4), 3.4028235e38, np.float32), "finite values"),  # rounds beyond what BF16 holds
    ],
)
def test_hidden_states_that_do_not_fit_are_refused(tmp_path: Path, array: np.ndarray, expected: str) -> None:
    np.save(tmp_path / "h.npy", array)
    with pytest.raises(FormatError) as refused:
        dumps.read_hidden(tmp_path / "h.npy", (1, 1, 4), round_hidden=True)
    assert expected in refused.value.expected


def test_hidden_states_in_other_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "h.npz", hidden=np.zeros((1, 1, 4), np.uint16))
    with pytest.raises(FormatError) as refused:
        dumps.read_hidden(tmp_path / "h.npz", (1, 1, 4))
    assert refused.value.expected == "hidden states as npy or safetensors"
    put(tmp_path / "h.safetensors", save({"states": np.zeros((1, 1, 4), np.float32)}))
    with pytest.raises(FormatError) as refused:
        dumps.read_hidden(tmp_path / "h.safetensors", (1, 1, 4))
    assert refused.value.expected == "an array hidden"


def test_large_arrays_are_written_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_files, "PIECE", 7)
    array = np.arange(100, dtype=np.int64).reshape(20, 5)
    chunks = list(array_files.npy_chunks(array))
    assert len(chunks) == 1 + 15
    np.testing.assert_array_equal(np.load(io.BytesIO(b"".join(chunks))), array)


def test_row_sets_keep_order_and_duplicates() -> None:
    ranges = rowsets.parse("0,5, 100:103\n5", "--rows")
    assert ranges == [(0, 1), (5, 6), (100, 103), (5, 6)]
    assert rowsets.expand(ranges, "--rows").tolist() == [0, 5, 100, 101, 102, 5]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), max_size=9), st.integers(0, 60))
def test_joined_row_sets_are_the_same_rows_ascending(spans: list[tuple[int, int]], rows: int) -> None:
    ranges = [(first, first + length) for first, length in spans]
    made = rowsets.joined(ranges, rows)
    wanted = {row for first, last in ranges for row in range(first, min(last, rows))}
    assert [row for first, last in made for row in range(first, last)] == sorted(wanted)
    assert all(before[1] < after[0] for before, after in pairwise(made))


@pytest.mark.parametrize(
    "text", ["", ",", "1,,2", "a", "-1", "1:", ":1", "2:1", "3:3", "1.5", "1:2:3", "9" * 30, "\u0661"]
)
def test_other_row_sets_are_refused(text: str) -> None:
    with pytest.raises(EngramctlError):
        rowsets.parse(text, "--rows")


def test_row_sets_without_end_are_refused() -> None:
    with pytest.raises(EngramctlError, match="at most"):
        rowsets.expand(rowsets.parse("0:999999999999", "--rows"), "--rows")
