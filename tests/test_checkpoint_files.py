"""Folders of shards: only what is wanted is opened, and what does not fit is refused or listed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from formats.errors import FormatError
from formats.safetensors_raw import header, read_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Two shards and their index; the second shard of a third name is not there."""
    for number, names in enumerate((["a", "b"], ["c"])):
        raw, spans = header([(name, "U8", (3,)) for name in names])
        (tmp_path / f"s{number}.safetensors").write_bytes(raw + bytes(3 * len(spans)))
    write_index(tmp_path, {"a": "s0.safetensors", "b": "s0.safetensors", "c": "s1.safetensors", "d": "s2.safetensors"})
    (tmp_path / "config.json").write_text('{"é": 1}\n')
    return tmp_path


def write_index(folder: Path, weight_map: object) -> None:
    text = json.dumps({"metadata": {"total_size": 1.5e9}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text)


def test_only_shards_with_a_wanted_tensor_are_opened(checkpoint: Path) -> None:
    (checkpoint / "s0.safetensors").write_bytes(b"not looked at")
    found = read_checkpoint(checkpoint, lambda name: name == "c")
    assert (found.path, found.config_text) == (checkpoint, '{"é": 1}\n')
    assert found.shards == (checkpoint / "s1.safetensors",)
    assert {name: tensor.path.name for name, tensor in found.tensors.items()} == {"c": "s1.safetensors"}
    assert found.missing == {"d": "s2.safetensors"}
    assert found.problems == ()


def test_a_wanted_tensor_of_an_absent_shard_is_refused_by_name(checkpoint: Path) -> None:
    with pytest.raises(FormatError) as refused:
        read_checkpoint(checkpoint, lambda name: True)
    place = checkpoint / "s2.safetensors"
    assert str(refused.value) == f'{place}: expected the shard that holds "d", found nothing there'


def test_a_lenient_reading_lists_what_a_strict_one_refuses(checkpoint: Path) -> None:
    write_index(
        checkpoint, {"a": "s0.safetensors", "x": "s0.safetensors", "c": "s1.safetensors", "d": "s2.safetensors"}
    )
    raw = (checkpoint / "s1.safetensors").read_bytes()
    (checkpoint / "s1.safetensors").write_bytes(raw[:-1])
    found = read_checkpoint(checkpoint, lambda name: True, strict=False)
    assert set(found.tensors) == {"a", "c"}
    assert found.missing == {"d": "s2.safetensors"}
    assert found.problems == (
        (f'{checkpoint / "s0.safetensors"} at tensor "x"', "a tensor that the index promises", "none"),
        (
            f'{checkpoint / "s1.safetensors"} at tensor "c"',
            f"its bytes before the file's end at {len(raw) - 1}",
            f"up to {len(raw)}",
        ),
    )
    for wanted, expected in (("x", "a tensor that the index promises"), ("c", "its bytes before the file's end")):
        with pytest.raises(FormatError, match=expected):
            read_checkpoint(checkpoint, lambda name, wanted=wanted: name == wanted)


def test_without_an_index_every_shard_is_opened(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors.index.json").unlink()
    (checkpoint / "._s0.safetensors").write_bytes(b"what macOS leaves on other disks")
    found = read_checkpoint(checkpoint, lambda name: name != "b")
    assert [shard.name for shard in found.shards] == ["s0.safetensors", "s1.safetensors"]
    assert set(found.tensors) == {"a", "c"}


def test_without_an_index_no_tensor_is_in_two_shards(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors.index.json").unlink()
    (checkpoint / "s2.safetensors").write_bytes((checkpoint / "s1.safetensors").read_bytes())
    with pytest.raises(FormatError, match=r's2.safetensors at tensor "c": expected it in "s1.safetensors" alone'):
        read_checkpoint(checkpoint, lambda name: True)
    assert len(read_checkpoint(checkpoint, lambda name: True, strict=False).problems) == 1


def test_a_single_file_has_no_config(checkpoint: Path) -> None:
    found = read_checkpoint(checkpoint / "s0.safetensors", lambda name: True)
    assert (found.config_text, found.shards, set(found.tensors)) == (None, (checkpoint / "s0.safetensors",), {"a", "b"})


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"expected model.safetensors.index.json or \*.safetensors, found neither"):
        read_checkpoint(tmp_path, lambda name: True)
    with pytest.raises(FormatError, match="expected a checkpoint folder or a safetensors file, found nothing there"):
        read_checkpoint(tmp_path / "none", lambda name: True)
    (tmp_path / "x.safetensors").mkdir()
    with pytest.raises(FormatError, match=r"x.safetensors: expected a file, found a folder"):
        read_checkpoint(tmp_path, lambda name: True)


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../s0.safetensors",
        "sub/s0.safetensors",
        "..",
        ".",
        "",
        "c:\\x",
        "a\0b",
        "a\nb",
        "\ud800",
        "x" * 256,
        3,
        None,
        ["s0.safetensors"],
    ],
)
def test_a_shard_that_is_no_plain_name_beside_the_index_is_refused(checkpoint: Path, name: object) -> None:
    write_index(checkpoint, {"t": name})
    with pytest.raises(FormatError) as refused:
        read_checkpoint(checkpoint, lambda name: False)
    assert refused.value.where == f'{checkpoint / "model.safetensors.index.json"} at weight_map "t"'


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a":"x","a":"y"}}', "[" * 99_999]
)
def test_an_index_without_a_weight_map_is_refused(checkpoint: Path, text: str) -> None:
    (checkpoint / "model.safetensors.index.json").write_text(text)
    with pytest.raises(FormatError, match=r"model.safetensors.index.json at .*: expected .*, found "):
        read_checkpoint(checkpoint, lambda name: True)


def test_an_index_or_a_config_beyond_its_limit_is_not_read(checkpoint: Path) -> None:
    with open(checkpoint / "config.json", "r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError, match=r"config.json: expected at most 16777216 bytes, found 1099511627776"):
        read_checkpoint(checkpoint, lambda name: True)
    (checkpoint / "config.json").write_bytes(b"{\xff}")
    with pytest.raises(FormatError, match=r"config.json at byte 1: expected UTF-8, found byte 0xff"):
        read_checkpoint(checkpoint, lambda name: True)
    (checkpoint / "config.json").unlink()
    with open(checkpoint / "model.safetensors.index.json", "r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError, match=r"expected an index of at most 100000000 bytes, found 1099511627776"):
        read_checkpoint(checkpoint, lambda name: True)
