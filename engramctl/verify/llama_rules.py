"""What llama.cpp's loaders of Engram tables demand: each rule says what does not hold, in their words; none raises.

The rules look at what the file's own keys say, as those loaders do, not at the released model's sizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from engramctl.verify.loader_facts import Broken, Facts, called
from formats.gguf_file import aligned
from formats.recognise import type_of

INT32_MAX = 2**31 - 1
ENGRAM = re.compile(r"(blk\.\d+\.)?engram[._]")  # names of an Engram's tensors, in whichever dialect
NO_ROW_GETTER = ("I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K")  # types that GGML_OP_GET_ROWS has no case for


def contiguous(facts: Facts) -> Iterator[Broken]:
    """gguf.cpp takes each offset to be the aligned end of the tensor before, in the order of the header."""
    for header in facts.header.shards or (facts.header,):
        expected = 0
        for tensor in header.tensors:
            if tensor.offset != expected:
                yield called(tensor), f"offset {expected}, the aligned end of the one before", f"{tensor.offset}"
            expected = aligned(tensor.offset + (tensor.size or 0), header.alignment)


def has_keys(facts: Facts) -> Iterator[Broken]:
    for key in facts.dialect.keys.values():
        if key.name not in facts.header.keys:
            yield f"key {key.name}", "a key of that name", f"key not found in model: {key.name}"


def layer_ids(facts: Facts) -> Iterator[Broken]:
    layers, blocks = facts.stored.constants.get("layers"), _number(facts, "block_count")
    name = facts.key("layers")
    if layers is not None and not layers:
        yield f"key {name}", "at least one layer", "engram layer count 0 is out of range"
    for layer in layers or ():
        if layer < 0 or (blocks is not None and layer >= blocks):
            yield f"key {name}", f"layers below {blocks}", f"engram layer {layer} is out of range"


def ascending(facts: Facts) -> Iterator[Broken]:
    layers = facts.stored.constants.get("layers", [])
    if any(after <= before for before, after in pairwise(layers)):
        yield f"key {facts.key('layers')}", "distinct and increasing layers", f"{layers[:8]}"


def dimensions(facts: Facts) -> Iterator[Broken]:
    for role, least in (("heads", 1), ("size", 2), ("width", 1)):
        found = facts.stored.constants.get(role)
        if found is not None and found[0] < least:
            yield f"key {facts.key(role)}", f"at least {least}", f"{found[0]}"
    width = facts.stored.constants.get("width", [32])[0]
    if "scales" in facts.dialect.tensors and width % 32:
        yield f"key {facts.key('width')}", "a multiple of 32", f"{width}"


def counts(facts: Facts) -> Iterator[Broken]:
    """The lengths that the file's own layers, n-gram size and heads give."""
    constants = facts.stored.constants
    layers = len(constants.get("layers", []))
    columns = (_role(facts, "size") - 1) * _role(facts, "heads")
    expected = {"multipliers": layers * _role(facts, "size"), "moduli": layers * columns, "offsets": layers * columns}
    expected["rows"] = layers
    for role, count in expected.items():
        if role in facts.dialect.keys and role in constants and len(constants[role]) != count:
            yield f"key {facts.key(role)}", f"{count} entries", f"{len(constants[role])}"


def nonzero(facts: Facts) -> Iterator[Broken]:
    for i, modulus in enumerate(facts.stored.constants.get("moduli", [])):
        if modulus <= 0:
            yield f"key {facts.key('moduli')}, entry {i}", "above 0: it divides in the hash", f"{modulus}"


def map_covers(facts: Facts) -> Iterator[Broken]:
    found, tokens = facts.stored.constants.get("token_map"), _vocabulary(facts)
    if found is not None and tokens is not None and len(found) < tokens:
        yield f"key {facts.key('token_map')}", f"at least {tokens} entries", f"{len(found)}, too few for the tokens"


def map_equals(facts: Facts) -> Iterator[Broken]:
    found, tokens = facts.stored.constants.get("token_map"), _vocabulary(facts)
    if found is not None and tokens is not None and len(found) != tokens:
        yield f"key {facts.key('token_map')}", f"{tokens} entries, the tokenizer's vocabulary", f"{len(found)}"


def map_entries(facts: Facts) -> Iterator[Broken]:
    constants = facts.stored.constants
    compressed, ids = constants.get("compressed", [0])[0], constants.get("token_map", [])
    if compressed < 1:
        yield f"key {facts.key('compressed')}", "at least 1", f"{compressed}"
    array = np.array(ids, np.int64)
    for token in np.flatnonzero((array < 0) | (array >= max(compressed, 1)))[:100].tolist():
        yield f"key {facts.key('token_map')}, token id {token}", f"an id below {compressed}", f"{ids[token]}"
    pad = constants.get("pad_token_id")
    if pad is not None and not 0 <= pad[0] < len(ids):
        yield f"key {facts.key('pad_token_id')}", f"a raw token id below {len(ids)}", f"{pad[0]}"


def buckets_fit(facts: Facts) -> Iterator[Broken]:
    """The last bucket has to end inside the table; more rows are tolerated."""
    moduli, offsets = (facts.stored.constants.get(role, []) for role in ("moduli", "offsets"))
    columns = (_role(facts, "size") - 1) * _role(facts, "heads")
    for number, layer in enumerate(facts.stored.constants.get("layers", [])[:256]):
        tensor = facts.tensor("table", layer)
        some = slice(number * columns, (number + 1) * columns)
        most = max((m + o for m, o in zip(moduli[some], offsets[some], strict=False)), default=0)
        if tensor is not None and len(tensor.shape) > 1 and most > tensor.shape[1]:
            found = f"{tensor.shape[1]} rows, too few for the engram buckets ({most})"
            yield called(tensor), f"at least {most} rows", found


def buckets_cover(facts: Facts) -> Iterator[Broken]:
    """Buckets one after the other from row 0 on, to the layer's last row."""
    constants = facts.stored.constants
    moduli, offsets, rows = (constants.get(role, []) for role in ("moduli", "offsets", "rows"))
    columns = (_role(facts, "size") - 1) * _role(facts, "heads")
    for number, count in enumerate(rows):
        if not 0 < count <= INT32_MAX:
            yield f"key {facts.key('rows')}, entry {number}", f"1 to {INT32_MAX} rows", f"{count}"
        at = 0
        some = range(number * columns, min((number + 1) * columns, len(moduli), len(offsets)))
        for i in some:
            if offsets[i] != at:
                yield f"key {facts.key('offsets')}, entry {i}", f"{at}, where the bucket before ends", f"{offsets[i]}"
                break
            at += moduli[i]
        else:
            if len(some) == columns and at != count:
                found = f"{at}: buckets do not cover the embedding table"
                yield f"key {facts.key('moduli')}, entries from {number * columns} on", f"a sum of {count}", found


def table_shapes(facts: Facts) -> Iterator[Broken]:
    """Shapes of tables by the file's own keys; the type is not looked at."""
    constants = facts.stored.constants
    for number, layer in enumerate(constants.get("layers", [])[:256]):
        rows = constants["rows"][number] if number < len(constants.get("rows", [])) else None
        for role, first in (("table", _role(facts, "width")), ("scales", _role(facts, "width") // 32)):
            if role not in facts.dialect.tensors:
                continue
            tensor = facts.tensor(role, layer)
            if tensor is None:
                yield f"layer {layer}", f"a tensor {facts.name(role, layer)}", f"{facts.name(role, layer)} is missing"
            elif len(tensor.shape) != 2 or tensor.shape[0] != first or rows not in (None, tensor.shape[1]):
                wanted = f"[{first}, {'rows' if rows is None else rows}]"
                yield called(tensor), wanted, f"{list(tensor.shape)}"


def types_kept(facts: Facts) -> Iterator[Broken]:
    for layer in facts.stored.constants.get("layers", [])[:256]:
        for role in ("table", "scales"):
            tensor = facts.tensor(role, layer)
            if tensor is not None and type_of(tensor) != "I8":
                yield called(tensor), "I8: Engram tables must retain FP8 bytes", type_of(tensor)


def row_getter(facts: Facts) -> Iterator[Broken]:
    """The loader looks at shapes alone; such a file loads and aborts at the first lookup."""
    for layer in facts.stored.constants.get("layers", [])[:256]:
        tensor = facts.tensor("table", layer)
        if tensor is not None and type_of(tensor) in NO_ROW_GETTER:
            yield called(tensor), "a type that GET_ROWS has a case for", f"{type_of(tensor)}: it would abort"


def weights(facts: Facts) -> Iterator[Broken]:
    """Gate weights [hidden, streams], a projection [columns * width, (streams + 1) * hidden]."""
    inputs = (_role(facts, "size") - 1) * _role(facts, "heads") * _role(facts, "width")
    for layer in facts.stored.constants.get("layers", [])[:256]:
        gate = facts.tensor("q_weight", layer)
        hidden, streams = gate.shape if gate is not None and len(gate.shape) == 2 else (0, 0)
        expected = {"q_weight": (hidden, streams), "k_weight": (hidden, streams)}
        expected["projection"] = (inputs, hidden * (streams + 1))
        for role, shape in expected.items():
            tensor = facts.tensor(role, layer)
            if tensor is None:
                yield f"layer {layer}", f"a tensor {facts.name(role, layer)}", "none"
            elif hidden and tensor.shape != shape:
                yield called(tensor), f"{list(shape)}", f"{list(tensor.shape)}"


def left_over(facts: Facts) -> Iterator[Broken]:
    """The loader counts: a tensor that it has no use for is one too many."""
    layers = facts.stored.constants.get("layers", [])[:256]
    wanted = {facts.name(role, layer) for layer in layers for role in facts.dialect.tensors}
    for tensor in facts.header.tensors if layers else ():
        if ENGRAM.match(tensor.name) and tensor.name not in wanted:
            yield called(tensor), "no Engram tensor that is not asked for", "one more: wrong number of tensors"


def _role(facts: Facts, role: str) -> int:
    return int(facts.stored.constants.get(role, [getattr(facts.sizes, role)])[0])


def _number(facts: Facts, name: str) -> int | None:
    value = facts.header.keys.get(f"{facts.dialect.architecture}.{name}")
    return value.value if value is not None and type(value.value) is int else None


def _vocabulary(facts: Facts) -> int | None:
    """The tokenizer's ids, where the file says how many there are."""
    tokens = facts.header.keys.get("tokenizer.ggml.tokens")
    if tokens is not None and isinstance(tokens.value, list):
        return len(tokens.value)
    embedding = next((t for t in facts.header.tensors if t.name == "token_embd.weight" and len(t.shape) == 2), None)
    return embedding.shape[1] if embedding is not None else _number(facts, "vocab_size")
