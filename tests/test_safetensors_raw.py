"""Shards: what we write the library opens, and what it writes we read."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import specs
from hypothesis import given, settings
from hypothesis import strategies as st

from formats import safetensors_raw, strict_json
from formats.safetensors_raw import DTYPE_BITS, header, read_shard

# the spec


def test_the_specs_numbers_are_the_modules() -> None:
    bits = {name: int(row[1]) for row in specs.table("safetensors_raw.md", "dtype") for name in row[0].split(", ")}
    assert bits == DTYPE_BITS
    limits = {row[0]: specs.number(row[1]) for row in specs.table("safetensors_raw.md", "limit")}
    assert limits == {
        "header and index, bytes": safetensors_raw.HEADER_LIMIT,
        "config.json, bytes": safetensors_raw.CONFIG_LIMIT,
        "shape extents, offsets, sizes": safetensors_raw.WORD_LIMIT,
        "digits of an integer": strict_json.LONGEST_INTEGER,
    }
    length, text, data = specs.table("safetensors_raw.md", "field")
    assert (length[1], length[2], text[1], data[1]) == ("0", str(safetensors_raw.LENGTH_BYTES), length[2], "8 + N")


def test_the_specs_example_is_what_is_written_and_what_the_library_opens(tmp_path: Path) -> None:
    raw = specs.example("safetensors_raw.md")
    made, spans = header([("t", "U8", (2,))])
    assert made + b"\x01\x02" == raw
    assert spans == {"t": (64, 66)}
    assert safetensors.deserialize(raw) == [("t", {"shape": [2], "dtype": "U8", "data": bytearray(b"\x01\x02")})]
    (tmp_path / "x").write_bytes(raw)
    (tensor,) = read_shard(tmp_path / "x").values()
    assert (tensor.name, tensor.dtype, tensor.shape, tensor.start, tensor.end) == ("t", "U8", (2,), 64, 66)
    assert tensor.path == tmp_path / "x"


# the library as the second opinion


@pytest.mark.parametrize("dtype", DTYPE_BITS)
def test_the_library_knows_every_dtype_and_its_size(tmp_path: Path, dtype: str) -> None:
    size = 8 * 3 * DTYPE_BITS[dtype] // 8
    raw, spans = header([("a", dtype, (8, 3))])
    data = bytes(i % 251 for i in range(size))
    ((name, found),) = safetensors.deserialize(raw + data)
    assert (name, found["dtype"], found["shape"], bytes(found["data"])) == ("a", dtype, [8, 3], data)
    assert spans["a"] == (len(raw), len(raw) + size)
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(raw + data + b"\0")


TENSORS = st.lists(
    st.tuples(
        st.text(max_size=12).filter(lambda name: name != "__metadata__"),
        st.sampled_from(sorted(DTYPE_BITS)),
        st.lists(st.integers(0, 4), max_size=3).map(lambda shape: (*shape, 8)),
    ),
    max_size=5,
    unique_by=lambda tensor: tensor[0],
)


@settings(max_examples=150, deadline=None)
@given(TENSORS, st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2))
def test_whatever_we_write_the_library_and_we_read_alike(
    tmp_path_factory: pytest.TempPathFactory, tensors: list, metadata: dict[str, str] | None
) -> None:
    sizes = {name: math.prod(shape) * DTYPE_BITS[dtype] // 8 for name, dtype, shape in tensors}
    raw, spans = header(tensors, metadata)
    data = np.random.default_rng(len(raw)).bytes(sum(sizes.values()))
    assert len(raw) % 8 == 0
    path = tmp_path_factory.mktemp("shard") / "x.safetensors"
    path.write_bytes(raw + data)
    theirs = dict(safetensors.deserialize(raw + data))
    with safetensors.safe_open(path, "numpy") as opened:
        assert (opened.metadata() or {}) == (metadata or {})
    ours = read_shard(path)
    whole = raw + data
    assert set(theirs) == set(ours) == set(spans) == set(sizes)
    for name, dtype, shape in tensors:
        mine = ours[name]
        assert (mine.start, mine.end) == spans[name]
        assert mine.end - mine.start == sizes[name]
        assert (mine.dtype, mine.shape) == (theirs[name]["dtype"], tuple(theirs[name]["shape"])) == (dtype, shape)
        assert whole[mine.start : mine.end] == theirs[name]["data"]


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=8).filter(lambda name: name != "__metadata__"),
        st.tuples(
            st.sampled_from(["u1", "i1", "?", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8"]),
            st.lists(st.integers(0, 3), max_size=3),
        ),
        max_size=5,
    )
)
def test_whatever_the_library_writes_we_read(tmp_path_factory: pytest.TempPathFactory, given_: dict) -> None:
    arrays = {name: np.arange(math.prod(shape)).astype(dtype).reshape(shape) for name, (dtype, shape) in given_.items()}
    path = tmp_path_factory.mktemp("shard") / "x.safetensors"
    safetensors.numpy.save_file(arrays, path, {"format": "np"})
    raw = path.read_bytes()
    found = read_shard(path)
    assert set(found) == set(arrays)
    for name, tensor in found.items():
        assert tensor.shape == arrays[name].shape
        assert raw[tensor.start : tensor.end] == arrays[name].tobytes()
