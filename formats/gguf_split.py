"""Split GGUFs: one model in several files, NAME-00001-of-00009.gguf and so on, read as if they were one.

Keys stand in the first file; each file has tensors of its own, at offsets of its own. What llama.cpp's loader demands
of them (ggml-org/llama.cpp src/llama-model-loader.cpp) is for `check file`; here what is there is put together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from os import PathLike
from pathlib import Path

from formats.errors import FormatError, shown
from formats.gguf_file import GgufHeader, TensorInfo, read_header

ENDING = re.compile(r"-(\d{5})-of-(\d{5})\.gguf")
MOST = 4096  # files of one model that are looked for
NAMED = 6


def read_model(path: str | PathLike[str], strict: bool = True, any_text: bool = False) -> GgufHeader:
    """A GGUF's header; of a split one with the keys of its first file and the tensors of all that are beside it.

    `strict` refuses the first span error, and a file of the model whose header does not parse.
    `any_text` is for showing alone: values that are not UTF-8 are in `text_errors`, their odd bytes as \\xNN.
    """
    own = read_header(path, strict, any_text)
    _, count = position(own)
    if count < 2:
        return own
    shards, errors = [own], []
    absent = []
    for place in places(own.path, count):
        if place == own.path:
            continue
        if not place.is_file():
            absent.append(place.name)
            continue
        try:
            shards.append(read_header(place, strict, any_text))
        except FormatError as error:
            if strict:
                raise
            errors.append((place.name, error.expected, error.found))
    if absent:
        more = f" and {len(absent) - NAMED} more" if len(absent) > NAMED else ""
        errors.append((", ".join(absent[:NAMED]) + more, f"files beside {own.path.name}", "none"))
    errors += filter(None, map(_misnamed, shards))
    shards.sort(key=lambda shard: position(shard)[0])
    keys = shards[0].keys if position(shards[0])[0] == 0 else own.keys
    tensors: dict[str, TensorInfo] = {}
    for shard in shards:
        for tensor in shard.tensors:
            if tensor.name in tensors:
                errors.append((f"tensor {shown(tensor.name)}", "each tensor once", f"again in {shard.path.name}"))
            else:
                tensors[tensor.name] = replace(tensor, shard=shard.path)
    odd = tuple(error for shard in shards for error in shard.text_errors)
    return replace(
        own,
        keys=keys,
        tensors=tuple(tensors.values()),
        shards=tuple(shards),
        text_errors=odd,
        split_errors=tuple(errors),
    )


def position(header: GgufHeader) -> tuple[int, int]:
    """Which of how many files this one is, from 0 on, as its own keys say; 0 of 1 where it is whole."""
    keys = header.alone.keys
    number, count = (keys[name].value if name in keys else None for name in ("split.no", "split.count"))
    if type(number) is not int or type(count) is not int or not 0 <= number < count:
        return 0, 1
    return number, count


def _misnamed(header: GgufHeader) -> tuple[str, str, str] | None:
    """What is wrong with a file whose number is not the one in its name."""
    named, (number, count) = ENDING.search(header.path.name), position(header)
    if count < 2 or named is None or int(named[1]) == number + 1:
        return None
    return f"{header.path.name} key split.no", f"{int(named[1]) - 1}, as in its name", f"{number}"


def places(path: Path, count: int) -> Iterator[Path]:
    """Where the files of a model are, by the name of one of them; none where that is not such a name."""
    found = ENDING.search(path.name)
    if found is None or found.end() != len(path.name) or int(found[2]) != count or count > MOST:
        return
    for number in range(count):
        yield path.with_name(f"{path.name[: found.start()]}-{number + 1:05d}-of-{count:05d}.gguf")


def beside(path: Path) -> list[Path]:
    """Where the files of a split model are by the name of one of them, that one included; a file alone is itself."""
    found = ENDING.search(path.name)
    return list(places(path, int(found[2]))) if found is not None else [path]


def first_of(header: GgufHeader) -> str:
    """The name that the first file has."""
    return next((place.name for place in places(header.path, position(header)[1])), "the first file")


def notes(header: GgufHeader) -> Iterator[str]:
    """What there is to say of a file that is one of several."""
    number, count = position(header)
    if count < 2:
        return
    yield f"shard {number + 1} of {count} of a split GGUF: keys stand in the first shard alone"
    if header.shards and not header.split_errors:
        yield f"all {count} shards are beside one another, and taken as one model"
    yield from (f"{where}: expected {expected}, found {found}" for where, expected, found in header.split_errors)
    if not any(True for _ in places(header.path, count)):
        yield f"its name does not end in -{number + 1:05d}-of-{count:05d}.gguf: the other shards cannot be found"
