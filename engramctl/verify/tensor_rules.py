"""Rules about where tensors lie and what they are: each says what does not hold, and never raises."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from engramctl import tables as opened
from engramctl.verify.loader_facts import Broken, Facts, called
from engramctl.verify.sides import FLOATS
from formats import recognise
from formats.errors import FormatError, shown
from formats.gguf_file import TensorInfo, aligned
from formats.recognise import table_layers
from formats.recognise import type_of as kind_of

U32_MAX = 2**32 - 1


def spans(facts: Facts) -> Iterator[Broken]:
    named = facts.header.named
    for name, expected, found in facts.header.span_errors():
        where = called(named[name]) if name in named else f"tensor {shown(name)}"  # a shard's own
        yield where, expected, found


def known_types(facts: Facts) -> Iterator[Broken]:
    for tensor in facts.header.tensors:
        if tensor.size is None:
            yield called(tensor), "a known ggml type", f"type {tensor.type}"


def file_end(facts: Facts) -> Iterator[Broken]:
    """ds4's converter pads the last table; its loader asks no more than that the rows are there."""
    header = facts.header
    if any(tensor.size is None for tensor in header.tensors):
        return
    end = max((tensor.start + (tensor.size or 0) for tensor in header.tensors), default=header.header_end)
    if header.file_size > aligned(end, header.alignment):
        yield "end of file", f"{aligned(end, header.alignment)} bytes", f"{header.file_size}"


def tables(facts: Facts) -> Iterator[Broken]:
    there = table_layers(facts.header, facts.dialect)
    for layer in facts.sizes.layers:
        tensor = facts.tensor("table", layer)
        if tensor is None:
            yield f"layer {layer}", f"a tensor {facts.name('table', layer)}", "none"
        else:
            yield from table_shape(facts, tensor)
    for layer in there:
        if layer not in facts.sizes.layers:
            name = facts.name("table", layer)
            yield f"tensor {name}", f"tables of layers {list(facts.sizes.layers)} alone", "one of another layer"


def table_shape(facts: Facts, tensor: TensorInfo) -> Iterator[Broken]:
    kind, width = kind_of(tensor), facts.dialect.row
    if kind != "I8" or len(tensor.shape) != 2 or tensor.shape[0] != width or not 1 <= tensor.shape[1] <= U32_MAX:
        yield called(tensor), f"I8 [{width}, 1 to {U32_MAX}]", f"{kind} {list(tensor.shape)}"


def table_rows(facts: Facts) -> Iterator[Broken]:
    for layer, rows in zip(facts.sizes.layers, facts.sizes.rows, strict=True):
        tensor = facts.tensor("table", layer)
        if tensor is not None and len(tensor.shape) == 2 and tensor.shape[1] != rows:
            yield called(tensor), f"{rows} rows", f"{tensor.shape[1]}"


def page(facts: Facts) -> Iterator[Broken]:
    tensor = facts.tensor("table", facts.sizes.layers[0])
    if tensor is not None and tensor.start % facts.dialect.alignment:
        yield called(tensor), f"an offset that {facts.dialect.alignment} divides", f"{tensor.start}"


def tail(facts: Facts) -> Iterator[Broken]:
    """Everything else ends before the first table, and the tables follow one another."""
    tables = [tensor for layer in facts.sizes.layers if (tensor := facts.tensor("table", layer)) is not None]
    if not tables:
        return
    names, first = {tensor.name for tensor in tables}, tables[0]
    for tensor in facts.header.tensors:
        end = tensor.start + (tensor.size or 0)
        if tensor.name not in names and end > first.start:
            yield called(tensor), f"its end at or before {first.name} at {first.start}", f"{end}"
    for before, after in pairwise(tables):
        end = before.start + (before.size or 0)
        if after.start < end:
            yield called(after), f"its start at or after {end}, the end of {before.name}", f"{after.start}"


def weights(facts: Facts) -> Iterator[Broken]:
    sizes = facts.sizes
    gate = (sizes.hidden, sizes.streams)
    shapes = {"q_weight": ("F32", gate), "k_weight": ("F32", gate), "projection": (None, (sizes.inputs, sizes.outputs))}
    for layer in sizes.layers:
        for role, (kind, shape) in shapes.items():
            tensor, name = facts.tensor(role, layer), facts.name(role, layer)
            wanted = f"{kind or ' or '.join(FLOATS)} {list(shape)}"
            if tensor is None:
                yield f"layer {layer}", f"a tensor {name}", "none"
            elif tensor.shape != shape or kind_of(tensor) not in ((kind,) if kind else FLOATS):
                yield f"tensor {name}", wanted, f"{kind_of(tensor)} {list(tensor.shape)}"


def readable(facts: Facts) -> dict[int, TensorInfo]:
    """The tables that can be read as such: right type, right row, inside the file."""
    there = {layer: tensor for layer in facts.sizes.layers if (tensor := facts.tensor("table", layer)) is not None}
    inside = {
        layer: tensor
        for layer, tensor in there.items()
        if tensor.start + (tensor.size or 0) <= facts.header.home(tensor).file_size
    }
    return {layer: tensor for layer, tensor in inside.items() if not list(table_shape(facts, tensor))}


def layout(facts: Facts) -> Iterator[Broken]:
    """264 bytes a row may be 256 codes and 8 scales, or 8 blocks of a scale and 32 codes: the rows say which."""
    for layer, tensor in readable(facts).items():
        known = recognise.layout_of(facts.header, facts.dialect, tensor)
        if known is not None and known.name == "block264":
            found = "8 blocks of a scale and its 32 codes"
            yield called(tensor), f"rows of 256 codes and then 8 scales in layer {layer}", found


def readable_rows(facts: Facts) -> Iterator[Broken]:
    """ds4 refuses a row when it looks it up; the telling rows are looked up here."""
    with opened.Files(facts.header) as files:
        for layer, tensor in readable(facts).items():
            rows = facts.telling(layer)
            try:
                table = opened.of_layer(files, facts.dialect, layer)
            except FormatError as error:
                yield called(tensor), error.expected, error.found
                continue
            raw = table.read(rows)
            for i in range(len(rows)):
                try:
                    table.check(rows[i : i + 1], raw[i : i + 1])
                except FormatError as error:
                    yield f"{error.at}", error.expected, error.found
