"""repack, for Qwen3.8's table: a checkpoint into a GGUF of either dialect, and such a GGUF back into a checkpoint.

The plan is made before a byte is written (`writing.py`). Rows that lie in holes of the source stay holes. A BF16 table
is copied; from E4M3 a row becomes the BF16 numbers that the model looks up, and the table's scale is kept beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError
from engramctl.siblings.opened import Opened
from engramctl.siblings.table import PlainTable
from engramctl.siblings.tensors import SCALED
from formats import gguf_file as gguf
from formats import row_plain
from formats.floats import exact_in_bf16, exact_in_f16
from formats.ple_gguf import DIALECTS, SCALE, PleDialect
from formats.row_plain import PlainRows

TYPE_IDS = {known.name: number for number, known in gguf.GGML_TYPES.items()}
DEFAULT_WEIGHT = "BF16"


@dataclass(frozen=True)
class Target:
    """One tensor of the output."""

    role: str
    name: str
    type: str
    shape: tuple[int, ...]  # ne order
    start: int = 0
    size: int = 0


@dataclass(frozen=True)
class Plan:
    """Everything about the output but the tensors' bytes."""

    source: Opened
    dialect: PleDialect
    layout: gguf.Layout
    targets: tuple[Target, ...]
    row_type: str

    @property
    def rows(self) -> PlainRows:
        """The layout of the output's rows."""
        return PlainRows(self.row_type, self.source.sizes.width)

    @property
    def table(self) -> PlainTable:
        """The source's."""
        return self.source.table(self.source.sizes.layers[0])

    @property
    def data_bytes(self) -> int:
        """To be written: holes left out."""
        others = sum(target.size for target in self.targets if target.role != "table")
        rows = sum(last - first for first, last in self.table.data_ranges())
        return len(self.layout.header) + others + rows * self.rows.row_bytes


def dialect_named(name: str | None) -> PleDialect:
    """The dialect asked for; an unknown one is refused with those there are."""
    for dialect in DIALECTS:
        if name in (None, dialect.name):
            return dialect
    known = " or ".join(dialect.name for dialect in DIALECTS)
    raise EngramctlError("--dialect", f"{known} for Qwen3.8's table", f"{name}")


def require_ple(source: Opened) -> None:
    """Refuse, by name, the models that no container is known for."""
    if source.profile.storage.layout != "shards":
        found = f"profile {source.profile.name}, for which no container is defined here"
        raise EngramctlError("repack", "deepseek-v4.1-flash or qwen3.8-flash-next", found)
    if len(source.sizes.layers) != 1:
        raise EngramctlError(str(source.path), "one layer, which is all that these dialects hold", "several")


def plan(source: Opened, dialect: PleDialect, row_type: str | None, weight_type: str | None) -> Plan:
    """Keys, tensors and places of the output."""
    require_ple(source)
    kind, sizes, layer = row_type or dialect.row_types[0], source.sizes, source.sizes.layers[0]
    if kind not in dialect.row_types:
        raise EngramctlError("--row-type", f"{' or '.join(dialect.row_types)} in dialect {dialect.name}".lower(), kind)
    if kind == "Q8_0" and sizes.width % 32:
        raise EngramctlError("--row-type", "rows of a multiple of 32 numbers", f"{sizes.width}")
    weights = weight_type or DEFAULT_WEIGHT
    S, D, K = sizes.streams, sizes.hidden, sizes.inputs
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "conv": ("F32", (source.profile.module.kernel, S * D)),
        "key": (weights, (K, S * D)),
        "value": (weights, (K, D)),
        **dict.fromkeys(("norm_conv", "norm_key", "norm_query"), ("F32", (S * D,))),
        "table": (kind, (sizes.width, sizes.rows[0])),
    }
    targets = [
        Target(role, dialect.tensors[role].format(layer=layer), name, shape)
        for role, (name, shape) in shapes.items()
        if role in dialect.tensors
    ]
    sizes_of = [gguf.tensor_bytes(TYPE_IDS[t.type], t.shape) or 0 for t in targets]
    entries = [(t.name, TYPE_IDS[t.type], t.shape, size) for t, size in zip(targets, sizes_of, strict=True)]
    layout = gguf.encode_header(_keys(source, dialect), entries, dialect.alignment)
    placed = tuple(
        Target(t.role, t.name, t.type, t.shape, layout.starts[t.name], size)
        for t, size in zip(targets, sizes_of, strict=True)
    )
    return Plan(source, dialect, layout, placed, kind)


def _keys(source: Opened, dialect: PleDialect) -> list[tuple[str, gguf.Value]]:
    params, sizes = source.params(), source.sizes
    used = params.used(sizes.layers[0])
    values: dict[str, Any] = {
        "layers": list(sizes.layers), "size": sizes.size, "heads": sizes.heads, "kernel": source.profile.module.kernel,
        "eos_token_id": sizes.eos_token_id, "image_token_id": sizes.image_token_id, "width": sizes.width,
        "vocabulary": sizes.vocabulary, "hidden": sizes.hidden, "streams": sizes.streams, "eps": sizes.eps,
        "multipliers": params.multipliers[0], "offsets": params.offsets[0], "moduli": params.moduli[0],
        "total_rows": used, "table_rows": sizes.rows[0],
    }  # fmt: skip
    make: dict[str, Callable[[Any], gguf.Value]] = {
        "u32": gguf.u32, "u64": gguf.u64, "f32": gguf.f32, "u64[]": gguf.u64s, "i32[]": gguf.i32s,
    }  # fmt: skip
    keys = [("general.architecture", gguf.string(dialect.architecture))]
    keys.append(("general.name", gguf.string(f"{source.profile.title} table")))
    for role, key in dialect.keys.items():
        if values[role] is not None:
            keys.append((key.name, make[key.type](values[role])))
    table = source.table(sizes.layers[0]).layout
    if table.dtype == SCALED:
        keys.append((SCALE.name, make[SCALE.type](float(table.scale))))
    return keys


def weight_bytes(made: Plan, target: Target) -> bytes:
    """All bytes of a tensor of the output that is no table."""
    values = weight(made.source, made.source.sizes.layers[0], target.role)
    if target.type in ("BF16", "F16"):
        exact = (exact_in_bf16 if target.type == "BF16" else exact_in_f16)(values)
        if not exact.all():
            found = f"{int(np.count_nonzero(~exact))} of {values.size} that it does not"
            raise EngramctlError(f"--kv-type {target.type.lower()}", f"values that {target.type} holds exactly", found)
    return row_plain.encode(values.reshape(1, -1), target.type).tobytes()


def weight(source: Opened, layer: int, role: str) -> NDArray[np.float32]:
    """A weight's values, flat; a norm's with the 1 that its model adds in F32."""
    values = source.floats(role, layer)[0].reshape(-1)
    return values + np.float32(1) if role.startswith("norm") and source.profile.module.norm == "one_plus" else values


def converted(table: PlainTable, numbers: NDArray[np.int64], dtype: str) -> NDArray[np.uint8]:
    """Rows in another type: from what the model looks up, exactly or (F16, Q8_0) rounded as that type's rule has it."""
    raw = table.read_valid(numbers)
    if table.layout.dtype == dtype:
        return raw
    if dtype == "BF16" and table.is_bf16:
        return np.ascontiguousarray(table.decode_bf16(raw).astype("<u2")).view(np.uint8)
    values = table.decode(raw)
    if dtype == "BF16" and not exact_in_bf16(values).all():
        found = f"{table.layout.dtype} rows that it does not"
        raise EngramctlError("--row-type bf16", "values that BF16 holds exactly", found)
    return row_plain.encode(values, dtype)


def describe(made: Plan) -> dict[str, Any]:
    """The plan in numbers, for `--dry-run` and `--json`."""
    tensors = [
        {"name": t.name, "type": t.type, "shape": list(t.shape), "start": t.start, "bytes": t.size}
        for t in made.targets
    ]
    return {
        "dialect": made.dialect.name,
        "layers": list(made.source.sizes.layers),
        "token_map": made.source.token_map().origin,
        "file_bytes": made.layout.file_size,
        "data_bytes": made.data_bytes,
        "tensors": tensors,
    }
