"""params.json and params.npz: the release through both, and files that are neither or contradict themselves."""

from __future__ import annotations

import io
import json
import random
import warnings
import zipfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_helpers import Cli
from hashing import constants as any_constants
from hypothesis import given, settings
from published import fixture, release, shipped_map

from engramctl import constants, params_file
from engramctl.errors import EngramctlError
from engramctl.hash_params import HashParams
from formats.errors import FormatError

PUBLISHED = fixture("constants")


def as_json(params: HashParams, **changes: Any) -> bytes:  # noqa: ANN401 - whatever JSON holds
    return json.dumps(params_file.to_dict(params) | changes).encode()


def equal(one: HashParams, other: HashParams) -> bool:
    return all(np.array_equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(HashParams))


def through(data: bytes, params: HashParams) -> HashParams:
    return params_file.with_map(params_file.read(data, "x"), params.token_map, "x")


def test_the_release_is_written_as_published() -> None:
    written = params_file.to_dict(release())
    names = {
        "layers": "layer_ids",
        "rows": "rows",
        "size": "max_ngram",
        "heads": "n_heads",
        "pad_id": "pad_compressed_id",
    }
    names |= {"vocabulary": "tokenizer_entries", "compressed": "compressed_vocab_size"}
    names |= {"multipliers": "multipliers", "moduli": "primes", "offsets": "offsets"}
    assert {name: written[name] for name in names} == {name: PUBLISHED[key] for name, key in names.items()}
    assert written["token_map_sha256"] == fixture("token_map")["sha256_u32le"]
    assert json.loads(json.dumps(written)) == written


@settings(deadline=None, max_examples=60)
@given(any_constants())
def test_any_constants_go_through_json_and_npz(params: HashParams) -> None:
    assert equal(through(as_json(params), params), params)
    assert equal(through(params_file.to_npz(params), params), params)


def test_the_release_goes_through_both_with_its_map() -> None:
    assert equal(through(as_json(release()), release()), release())
    found = params_file.read(params_file.to_npz(release()), "x")
    np.testing.assert_array_equal(found["token_map"], shipped_map())
    assert equal(params_file.with_map(found, found["token_map"], "x"), release())


def test_numpy_reads_the_npz_and_equal_constants_give_equal_bytes() -> None:
    data = params_file.to_npz(release())
    assert data == params_file.to_npz(release())
    with np.load(io.BytesIO(data), allow_pickle=False) as loaded:
        assert loaded["moduli"].tolist() == PUBLISHED["primes"]
        assert str(loaded["token_map_sha256"]) == fixture("token_map")["sha256_u32le"]
        assert loaded["moduli"].dtype == loaded["multipliers"].dtype == loaded["offsets"].dtype == np.uint64
        assert loaded["token_map"].dtype == np.uint32


def test_an_npz_that_numpy_wrote_is_read(tmp_path: Path) -> None:
    arrays = {name: np.asarray(value) for name, value in params_file.to_dict(release()).items()}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "p.npz", **arrays)
        assert equal(through((tmp_path / "p.npz").read_bytes(), release()), release())


def test_a_file_without_the_maps_digest_takes_any_map_of_its_size() -> None:
    written = params_file.to_dict(release())
    del written["token_map_sha256"]
    other = shipped_map().copy()
    other[7] = 8
    found = params_file.read(json.dumps(written).encode(), "x")
    assert params_file.with_map(found, other, "x").token_map[7] == 8


def test_another_map_than_the_one_they_were_made_with_is_refused() -> None:
    found, other = params_file.read(as_json(release()), "x"), shipped_map().copy()
    other[7] = 8
    with pytest.raises(
        EngramctlError, match=r"^x: expected the token map with SHA-256 c60a86322ec1.*, found "
    ) as caught:
        params_file.with_map(found, other, "x")
    assert caught.value.hint == params_file.MAP_HINT
    with pytest.raises(EngramctlError, match=r"^x: expected a token map of 129280 ids, found 5"):
        params_file.with_map(found, other[:5], "x")


def test_constants_that_cannot_be_hashed_with_are_refused_by_the_files_name() -> None:
    found = params_file.read(as_json(release(), pad_id=99_092), "x")
    with pytest.raises(EngramctlError, match=r"^x: expected a pad id below the 99092 compressed ids, found 99092"):
        params_file.with_map(found, shipped_map(), "x")


def test_constants_are_read_from_a_params_file_and_the_profile(tmp_path: Path) -> None:
    for name, data in (("p.json", as_json(release())), ("p.npz", params_file.to_npz(release()))):
        (tmp_path / name).write_bytes(data)
        found = constants.read(tmp_path / name)
        assert equal(found.params, release())
        assert (found.origin, found.whole) == (str(tmp_path / name), None)
    assert equal(constants.read(None).params, release())
    (tmp_path / "map").write_bytes(shipped_map()[:9].astype("<u4").tobytes())
    with pytest.raises((EngramctlError, FormatError), match="129280 token map entries as the config says, found 9 in"):
        constants.read(None, None, tmp_path / "map")
    with pytest.raises(EngramctlError, match="expected a token map of 129280 ids, found 9"):
        constants.read(tmp_path / "p.json", None, tmp_path / "map")


# What is no params file.

REQUIRED = ("layers", "rows", "heads", "vocabulary", "compressed", "pad_id", "multipliers", "moduli", "offsets")


@pytest.mark.parametrize("name", REQUIRED)
def test_a_constant_that_is_absent_is_refused_by_its_name(name: str) -> None:
    written = params_file.to_dict(release())
    del written[name]
    with pytest.raises(FormatError, match=f"^x at {name}: expected a constant, found no such name$"):
        params_file.read(json.dumps(written).encode(), "x")


ODD = [
    None,
    "5",
    2.5,
    True,
    -1,
    2**64,
    10**400,
    [],
    [[]],
    [[], []],
    {},
    [[[1]]],
    [True, 14],
    [1, "14"],
    [1, 2.0],
    [-1, 1],
]
ODD += [[[1, 2], [3]], [[1, 2], 3], [[1, True]], [[1.5]], [[None]], [[2**64]], [[1], [-1]], [None], ["a" * 1000]]


@pytest.mark.parametrize("name", REQUIRED)
@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_a_constant_that_is_odd_is_refused_by_its_name(name: str, value: object) -> None:
    with pytest.raises(FormatError, match=rf"^x at ({name}|byte 0): expected .*, found ") as caught:
        params_file.read(as_json(release(), **{name: value}), "x")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("name", REQUIRED)
@pytest.mark.parametrize(
    "value",
    [
        *(np.array(value) for value in (1.5, True, [[1.0]], -1, [-1], [[-1]], "5")),
        *(np.empty(0, np.int64), np.empty((2, 0), np.int64), np.array([1, 2], "m8[s]"), np.zeros((1, 1, 1), int)),
    ],
    ids=range(11),
)
def test_an_array_that_is_odd_is_refused_by_its_name(name: str, value: np.ndarray) -> None:
    with pytest.raises(FormatError, match=f'^x at (array )?"?{name}"?: expected '):
        params_file.read(npz(params_file.to_dict(release()) | {name: value}), "x")


def npz(entries: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **{name: np.asarray(value) for name, value in entries.items()})
    return file.getvalue()


@pytest.mark.parametrize("value", [5, "", "abc", "C6" * 32, "c6" * 33, ["c6" * 32], {}, True, "c6" * 10_000_00])
def test_a_digest_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(
        FormatError, match=r"^x at token_map_sha256: expected 64 lower-case hex digits, found "
    ) as caught:
        params_file.read(as_json(release(), token_map_sha256=value), "x")
    assert len(str(caught.value)) < 200


def test_a_map_inside_whose_entries_do_not_fit_is_refused_not_cut() -> None:
    entries = params_file.to_dict(release())
    for ids in ([0, 2**32], [0, 2**32 + 5, 1]):
        with pytest.raises(
            FormatError, match=r"^x at token_map: expected compressed ids below 4294967296, found 42949"
        ):
            params_file.read(npz(entries | {"token_map": ids}), "x")
        with pytest.raises(FormatError, match=r"^x at token_map: "):
            params_file.read(as_json(release(), token_map=ids), "x")


def member(name: str, data: bytes, how: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", how) as archive:
        archive.writestr(name, data)
    return file.getvalue()


def twice() -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(file, "w") as archive:
        archive.writestr("rows.npy", npy(np.array([1])))
        archive.writestr("rows.npy", npy(np.array([1])))
    return file.getvalue()


def npy(array: np.ndarray, **options: bool) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


NPY_HEADER = b"{'descr': '<u8', 'fortran_order': False, 'shape': (1000000000000,), }\n"
LYING = b"\x93NUMPY\x01\x00" + len(NPY_HEADER).to_bytes(2, "little") + NPY_HEADER
HOSTILE: list[tuple[bytes, str]] = [
    (b"", "params as a JSON object or npz, found neither"),
    (b"\n", "params as a JSON object or npz, found neither"),
    (b"[]", "params as a JSON object or npz, found neither"),
    (b"null", "params as a JSON object or npz, found neither"),
    (b"\x93NUMPY", "params as a JSON object or npz, found neither"),
    (b"{", "at byte 1: expected JSON"),
    (b"{}", "x: expected params: layers, rows, .* found none of these names"),
    (b'{"layers": [1], "layers": [2]}', '"layers" twice'),
    (b'{"layers": [NaN]}', "expected JSON, found NaN"),
    (b'{"layers": [1' + b"0" * 5000 + b"]}", "integers of at most 64 bits"),
    (b'{"layers":' * 100_000, "JSON nested a few levels deep"),
    (b'{"layers": ' + b"[" * 400 + b"]" * 400 + b"}", "x at layers: expected a list of non-negative integers"),
    (b'{"layers": "\xff"}', "UTF-8"),
    (b" " * (params_file.MOST_BYTES + 1), "at most 16777216 bytes, found more"),
    (b"PK", "a readable npz"),
    (b"PK\x03\x04" + b"\0" * 100, "a readable npz"),
    (b"PK\x05\x06" + b"\0" * 18, "x: expected params: layers, rows, .* found none of these names"),
    (member("layers.npy", b"no array"), 'x at array "layers": expected an npy header'),
    (member("layers.npy", LYING), 'x at array "layers": expected 8000000000000 bytes'),
    (member("layers.npy", npy(np.array([{}], object), allow_pickle=True)), "found pickled objects"),
    (member("layers.npy", npy(np.zeros(1, "V3"))), "an array of numbers"),
    (member("layers.npy", npy(np.array([1])), zipfile.ZIP_BZIP2), "each once, stored or deflated"),
    (member("layers.npy", npy(np.array([1])), zipfile.ZIP_LZMA), "each once, stored or deflated"),
    (member("layers.npy", b"\0" * (65 << 20), zipfile.ZIP_DEFLATED), "up to 100 arrays of 67108864 bytes, found more"),
    (member("\n../../x.npy", npy(np.array([1.5]))), "x: expected params: layers, rows, .* found none of these names"),
]


@pytest.mark.parametrize(("data", "message"), HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_params_file_is_refused_in_one_line(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        params_file.read(data, "x")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


def test_an_array_that_is_there_twice_is_refused() -> None:
    with pytest.raises(FormatError, match='x at array "rows": expected each once'):
        params_file.read(twice(), "x")


def small() -> HashParams:
    moduli = np.array([[3, 5]], np.uint64)
    return HashParams(
        (1,), (8,), 1, 4, 1, np.array([0, 1, 1, 2, 3], np.uint32), np.array([[3, 5, 7]], np.uint64), moduli,
        np.array([[0, 3]], np.uint64),
    ).check()  # fmt: skip


def clean(data: bytes) -> bool:
    """Constants, or one clean error."""
    try:
        through(data, small())
    except (FormatError, EngramctlError) as error:
        text = str(error)
        if "\n" in text or len(text) > 400 or not text.startswith("x"):
            raise
        return False
    return True


@pytest.mark.parametrize("data", [as_json(small()), params_file.to_npz(small())], ids=["json", "npz"])
def test_a_file_cut_at_any_length_is_refused(data: bytes) -> None:
    assert clean(data)
    assert not any(clean(data[:length]) for length in range(len(data)))


@pytest.mark.parametrize("data", [as_json(small()), params_file.to_npz(small())], ids=["json", "npz"])
def test_a_file_with_one_bit_of_any_byte_changed_is_constants_or_one_clean_error(data: bytes) -> None:
    drawn = random.Random(20260910)
    for at in range(len(data)):
        value = data[at] ^ 1 << drawn.randrange(8)
        clean(data[:at] + bytes([value]) + data[at + 1 :])


@pytest.mark.parametrize(("content", "found"), [
    (b"\x93NUMPY\x01\x00", "an npy file"), (b"just words\n", "a text file"),
    (np.arange(64, dtype="<u4").tobytes(), "a token map"), (b'{"added_tokens": []}', "a tokenizer"),
])  # fmt: skip
def test_a_file_of_another_kind_is_called_what_it_is(cli: Cli, tmp_path: Path, content: bytes, found: str) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    assert cli.refused(tmp_path, "hash", "--ids", "5", "--params", path).found == found
    assert cli.refused(tmp_path, "check", "params", path).found == found
