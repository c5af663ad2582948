"""GGUF headers: what we write the gguf library opens, what it writes we read, and numbers keep their types."""

from __future__ import annotations

import math
from pathlib import Path

import gguf
import numpy as np
import pytest
import specs
from hypothesis import given, settings
from hypothesis import strategies as st

from formats import gguf_file, gguf_scan
from formats.errors import FormatError
from formats.gguf_file import (
    DTYPES,
    GGML_TYPES,
    ValueType,
    array,
    boolean,
    encode_header,
    f32,
    f32s,
    i32,
    i32s,
    read_header,
    scalar,
    string,
    strings,
    u32,
    u32s,
    u64,
)

NUMBERS = sorted(DTYPES)


def write(path: Path, keys: list, tensors: list, alignment: int = 32) -> gguf_file.Layout:
    """A whole file whose tensor bytes count up."""
    layout = encode_header(keys, tensors, alignment)
    data = bytearray(layout.header + bytes(layout.file_size - len(layout.header)))
    for name, _, _, size in tensors:
        start = layout.starts[name]
        data[start : start + size] = painted(size)
    path.write_bytes(data)
    return layout


def painted(size: int) -> bytes:
    return bytes(i % 251 for i in range(size))


# the spec


def test_the_specs_numbers_are_the_modules() -> None:
    limits = {row[0]: specs.number(row[1]) for row in specs.table("gguf_file.md", "limit")}
    assert limits == {
        "header, bytes": gguf_scan.HEADER_LIMIT,
        "keys, and tensors": gguf_scan.COUNT_LIMIT,
        "name, bytes": gguf_scan.NAME_LIMIT,
        "elements and bytes of a tensor, offset": gguf_file.ELEMENT_LIMIT,
        "default alignment": gguf_file.DEFAULT_ALIGNMENT,
    }
    for name, number, size in specs.table("gguf_file.md", "value type"):
        kind = ValueType(int(number))
        assert kind.name == name
        assert kind not in DTYPES or DTYPES[kind].itemsize == int(size)
    for name, number, block, size in specs.table("gguf_file.md", "tensor type"):
        assert GGML_TYPES[int(number)] == (name, int(block), int(size))
    magic, version, *_ = specs.table("gguf_file.md", "field")
    assert (magic[2], version[2][0]) == ("`GGUF`", str(gguf_file.VERSION))
    assert f"up to {gguf_file.MAX_DIMENSIONS}" in specs.table("gguf_file.md", "field")[5][2]


def test_the_specs_example_is_what_is_written_and_what_is_read(tmp_path: Path) -> None:
    raw = specs.example("gguf_file.md")
    layout = encode_header([("a", u32(7))], [("t", 24, (2,), 2)])
    assert layout.header == raw
    assert (len(raw), layout.starts, layout.file_size) == (96, {"t": 96}, 128)
    (tmp_path / "x").write_bytes(raw + bytes(32))
    header = read_header(tmp_path / "x")
    assert (header.keys, header.header_end, header.data_start) == ({"a": u32(7)}, 74, 96)
    assert header.tensors == (gguf_file.TensorInfo("t", 24, (2,), 0, 96, 2),)


def test_types_are_those_of_the_gguf_library() -> None:
    assert {kind.name: int(kind) for kind in ValueType} == {kind.name: int(kind) for kind in gguf.GGUFValueType}
    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert {number: GGML_TYPES.get(number) for number in theirs} == theirs
    assert set(GGML_TYPES) - set(theirs) <= {40, 41}  # younger than the oldest library that is allowed
    assert gguf.GGUF_DEFAULT_ALIGNMENT == gguf_file.DEFAULT_ALIGNMENT


# the library as the second opinion

KEYS = [
    ("general.architecture", string("deepseek41")),
    ("x.u8", scalar(ValueType.UINT8, 255)),
    ("x.i8", scalar(ValueType.INT8, -128)),
    ("x.u16", scalar(ValueType.UINT16, 65_535)),
    ("x.i16", scalar(ValueType.INT16, -32_768)),
    ("x.u32", u32(2**32 - 1)),
    ("x.i32", i32(-(2**31))),
    ("x.f32", f32(0.1)),
    ("x.yes", boolean(True)),
    ("x.no", boolean(False)),
    ("x.text", string("naïve \U0001f40b\n")),
    ("x.empty", string("")),
    ("x.u64", u64(2**64 - 1)),
    ("x.i64", scalar(ValueType.INT64, -(2**63))),
    ("x.f64", scalar(ValueType.FLOAT64, 0.1)),
    ("x.texts", strings(["", "a", "\u0120the"])),
    *((f"x.{kind.name}s", array(kind, np.arange(7).astype(DTYPES[kind]))) for kind in NUMBERS),
]
TENSORS = [("f", 0, (5,), 20), ("h", 1, (3, 2), 12), ("q", 8, (64, 3), 204), ("t", 24, (264, 7), 1848)]


@pytest.mark.parametrize("alignment", [32, 4096, 16384])
def test_the_library_opens_what_we_write_and_agrees(tmp_path: Path, alignment: int) -> None:
    layout = write(tmp_path / "x.gguf", KEYS, TENSORS, alignment)
    theirs = gguf.GGUFReader(tmp_path / "x.gguf")
    assert theirs.alignment == alignment
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    fields.pop("general.alignment", None)
    assert list(fields) == [name for name, _ in KEYS]
    for name, value in KEYS:
        field = fields[name]
        types = [value.type] if value.item is None else [value.type, value.item]
        assert [int(kind) for kind in field.types] == types
        found = field.contents()
        if isinstance(value.value, np.ndarray):
            assert np.array_equal(found, value.value)
        else:
            assert found == value.value
    assert [tensor.name for tensor in theirs.tensors] == [name for name, *_ in TENSORS]
    for tensor, (name, kind, shape, size) in zip(theirs.tensors, TENSORS, strict=True):
        assert (int(tensor.tensor_type), tuple(tensor.shape), int(tensor.n_bytes)) == (kind, shape, size)
        assert int(tensor.data_offset) == layout.starts[name]
        assert tensor.data.tobytes() == painted(size)


@pytest.mark.parametrize("alignment", [32, 4096, 16384])
def test_what_we_write_we_read(tmp_path: Path, alignment: int) -> None:
    layout = write(tmp_path / "x.gguf", KEYS, TENSORS, alignment)
    header = read_header(tmp_path / "x.gguf")
    keys = dict(header.keys)
    assert (keys.pop("general.alignment", u32(32)), list(keys.items())) == (u32(alignment), KEYS)
    assert (header.version, header.alignment, header.file_size) == (3, alignment, layout.file_size)
    assert (header.data_start, header.path) == (len(layout.header), tmp_path / "x.gguf")
    assert [(t.name, t.type, t.shape, t.size) for t in header.tensors] == TENSORS
    assert {t.name: t.start for t in header.tensors} == layout.starts
    assert header.tensor("q") == header.tensors[2]
    with pytest.raises(FormatError, match='expected a tensor "none", found none among 4'):
        header.tensor("none")


def test_we_read_what_the_library_writes(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "deepseek41")
    writer.add_custom_alignment(64)
    writer.add_uint32("a", 7)
    writer.add_float32("b", 0.1)
    writer.add_bool("c", True)
    writer.add_string("d", "text")
    writer.add_array("e", [1, -2, 3])
    writer.add_array("f", ["x", "", "\u00e9"])
    writer.add_array("g", [True, False])
    writer.add_array("h", [0.5, 1.5])
    writer.add_int16("i", -5)
    writer.add_uint64("j", 2**63)
    arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "t": np.arange(528, dtype=np.int8).reshape(2, 264)}
    for name, values in arrays.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_header(tmp_path / "x.gguf")
    assert header.keys == {
        "general.architecture": string("deepseek41"),
        "general.alignment": u32(64),
        "a": u32(7),
        "b": f32(0.1),
        "c": boolean(True),
        "d": string("text"),
        "e": i32s([1, -2, 3]),
        "f": strings(["x", "", "\u00e9"]),
        "g": array(ValueType.BOOL, [True, False]),
        "h": f32s([0.5, 1.5]),
        "i": scalar(ValueType.INT16, -5),
        "j": u64(2**63),
    }
    raw = (tmp_path / "x.gguf").read_bytes()
    assert [tensor.name for tensor in header.tensors] == list(arrays)
    for tensor in header.tensors:
        assert tensor.size is not None
        assert tensor.shape == arrays[tensor.name].shape[::-1]
        assert raw[tensor.start : tensor.start + tensor.size] == arrays[tensor.name].tobytes()


# properties


def numbers(kind: ValueType) -> st.SearchStrategy:
    dtype = DTYPES[kind]
    if dtype.kind == "f":
        return st.floats(width=dtype.itemsize * 8, allow_nan=False)
    if dtype.kind == "b":
        return st.booleans()
    limits = np.iinfo(dtype)
    return st.integers(int(limits.min), int(limits.max))


TEXT = st.text(max_size=10)
VALUES = st.one_of(
    TEXT.map(string),
    st.lists(TEXT, max_size=5).map(strings),
    st.sampled_from(NUMBERS).flatmap(lambda kind: numbers(kind).map(lambda value: scalar(kind, value))),
    st.sampled_from(NUMBERS).flatmap(
        lambda kind: st.lists(numbers(kind), max_size=9).map(lambda values: array(kind, values))
    ),
)
SHAPES = st.sampled_from(sorted(GGML_TYPES)).flatmap(
    lambda kind: st.tuples(
        st.just(kind),
        st.integers(0, 3).map(lambda blocks: blocks * GGML_TYPES[kind].block),
        st.lists(st.integers(0, 3), max_size=3),
    ).map(lambda made: (made[0], (made[1], *made[2])))
)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(TEXT.filter(lambda name: name != "general.alignment"), VALUES, max_size=6),
    st.dictionaries(TEXT, SHAPES, max_size=5),
    st.integers(0, 14),
    st.sampled_from([1, 7, 40, 1 << 20]),
)
def test_every_header_comes_back_through_any_window(
    tmp_path_factory: pytest.TempPathFactory, keys: dict, shapes: dict, power: int, window: int
) -> None:
    tensors = []
    for name, (kind, shape) in shapes.items():
        rows = math.prod(shape[1:])
        tensors.append((name, kind, shape, shape[0] // GGML_TYPES[kind].block * GGML_TYPES[kind].size * rows))
    path = tmp_path_factory.mktemp("gguf") / "x.gguf"
    layout = write(path, list(keys.items()), tensors, 1 << power)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf_scan, "WINDOW", window)
        header = read_header(path)
    assert {name: value for name, value in header.keys.items() if name != "general.alignment"} == keys
    assert [(t.name, t.type, t.shape, t.size) for t in header.tensors] == tensors
    assert {t.name: t.start for t in header.tensors} == layout.starts
    ends = [t.start + t.size for t in header.tensors]
    for start, end in zip([t.start for t in header.tensors], [header.header_end, *ends], strict=False):
        assert start % header.alignment == 0
        assert 0 <= start - end < header.alignment
    assert layout.file_size % header.alignment == 0
    assert path.stat().st_size == layout.file_size


def test_a_real_size_token_map_and_vocabulary_come_in_few_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = [f"token {i}" for i in range(129_280)]
    token_map = np.arange(129_280) % 99_092
    write(tmp_path / "x.gguf", [("tokens", strings(tokens)), ("map", u32s(token_map))], [])
    reads = []
    read = gguf_file.ReadFile.read
    monkeypatch.setattr(gguf_file.ReadFile, "read", lambda *at: reads.append(at) or read(*at))
    header = read_header(tmp_path / "x.gguf")
    assert header.keys["tokens"].value == tokens
    assert header.keys["map"].value.dtype == np.uint32
    assert np.array_equal(header.keys["map"].value, token_map)
    assert len(reads) <= 5


def test_version_2_is_read_alike(tmp_path: Path) -> None:
    layout = encode_header(KEYS, TENSORS)
    raw = layout.header + bytes(layout.file_size - len(layout.header))
    (tmp_path / "2").write_bytes(raw[:4] + b"\2\0\0\0" + raw[8:])
    (tmp_path / "3").write_bytes(raw)
    two, three = read_header(tmp_path / "2"), read_header(tmp_path / "3")
    assert (two.version, three.version) == (2, 3)
    assert (two.keys, two.tensors) == (three.keys, three.tensors)
