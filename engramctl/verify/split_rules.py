"""What llama.cpp's loader demands of a split GGUF, in its words: what does not hold. None raises."""

from __future__ import annotations

from collections.abc import Iterator

from engramctl.verify.loader_facts import Broken, Facts
from formats import gguf_split
from formats.recognise import describe

COUNT, NUMBER, TENSORS = "split.count", "split.no", "split.tensors.count"


def one_file(facts: Facts) -> Iterator[Broken]:
    """ds4 maps the file that it is given and looks for no other."""
    number, count = gguf_split.position(facts.header)
    if count > 1:
        yield f"key {COUNT}", "a model in one file", f"shard {number + 1} of {count}"


def shards(facts: Facts) -> Iterator[Broken]:
    """Every file is there, under its name, with its number; together they have the tensors that the first one says."""
    header = facts.header
    number, count = gguf_split.position(header)
    if count < 2:
        return
    for name, kind in ((COUNT, "u16"), (NUMBER, "u16"), (TENSORS, "i32")):
        value = header.keys.get(name)
        if value is None or describe(value) != kind:
            yield f"key {name}", f"a key of type {kind}", "no such key" if value is None else describe(value)
    if number:
        first = f"{gguf_split.first_of(header)}: model must be loaded with the first split"
        yield f"key {NUMBER}", first, f"illegal split file idx: {number}"
    if not any(gguf_split.places(header.path, count)):
        ending = f"-{number + 1:05d}-of-{count:05d}.gguf"
        yield header.path.name, f"a name that ends in {ending}", "invalid split file name"
    yield from header.split_errors
    stated = header.keys.get(TENSORS)
    there = len(header.tensors)
    if not header.split_errors and stated is not None and stated.value != there:
        yield f"key {TENSORS}", f"{there} tensors, as there are", f"corrupted model: {stated.value} tensors expected"
