"""The tensors that a sibling's checkpoint must hold: names from the profile, shapes from the sizes."""

from __future__ import annotations

from dataclasses import dataclass

from engramctl import derivation
from engramctl.errors import EngramctlError
from engramctl.profiles import Profile, Sizes
from formats.errors import FormatError
from formats.safetensors_raw import Tensor

Key = tuple[int, str, int]  # layer, role, number: of a shard, a column, a stream
Shape = tuple[int, ...]

FLOATS = ("F32", "F16", "BF16")
CONSTANTS = ("multipliers", "moduli", "offsets")
SCALED = "F8_E4M3"  # the dtype of a table that a scale belongs to


@dataclass(frozen=True)
class Wanted:
    """One tensor: its name, the dtype as published, others that are read too, and its shape."""

    name: str
    dtype: str
    also: tuple[str, ...]
    shape: Shape
    optional: bool = False


def wanted(profile: Profile, sizes: Sizes, layer: int) -> dict[Key, Wanted]:
    """Every tensor of a layer."""
    found: dict[Key, Wanted] = {}
    for role, entry in profile.tensors.items():
        for number, shape in enumerate(_shapes(profile, sizes, layer, role, "{i}" in entry.name)):
            also: tuple[str, ...] = () if role in CONSTANTS else FLOATS
            if role == "table" and "table_scale" in profile.tensors:
                also = ("BF16", SCALED)
            name = entry.of(layer, number)
            found[layer, role, number] = Wanted(name, entry.dtype, also, shape, role == "table_scale")
    return found


def _shapes(profile: Profile, sizes: Sizes, layer: int, role: str, numbered: bool) -> list[Shape]:
    """The shape of each tensor of a role."""
    S, D, K, columns = sizes.streams, sizes.hidden, sizes.inputs, sizes.columns
    if role == "table":
        return [(rows, sizes.width) for rows in pieces(profile, sizes, layer)]
    if role == "table_scale":
        return [()]
    if role in CONSTANTS:
        return [(sizes.size if role == "multipliers" else columns,)]
    if role == "projection":
        return [(D, sizes.width)] * columns
    if role in ("value", "value_bias"):
        return [(D, K) if role == "value" else (D,)]
    if role == "conv":
        return [(S * D, 1, profile.module.kernel)]
    each: Shape = (D, K) if role == "key" else (D,)
    return [each] * S if numbered else [(S * each[0], *each[1:])]


def module_roles(profile: Profile) -> set[str]:
    """The roles of tensors that belong to the module: neither rows nor constants."""
    return profile.tensors.keys() - {"table", "table_scale", *CONSTANTS}


def pieces(profile: Profile, sizes: Sizes, layer: int) -> list[int]:
    """Rows of each tensor of a layer's table."""
    number = sizes.layers.index(layer)
    rows, shards = sizes.rows[number], profile.storage.shards
    if profile.storage.layout == "columns":
        own = sizes == profile.sizes and profile.moduli.size
        moduli = profile.moduli if own else derivation.derive_moduli(profile, sizes)
        return [int(modulus) for modulus in moduli[number]]
    if profile.storage.layout == "shards":
        if rows % shards:
            raise EngramctlError("config", f"rows that {shards} shards share evenly", f"{rows}")
        return [rows // shards] * shards
    return [rows]


def check(tensor: Tensor, want: Wanted) -> Tensor:
    """The tensor, if dtype and shape are what is wanted; else `FormatError` with tensor, expected, found."""
    if tensor.dtype not in (want.dtype, *want.also) or tensor.shape != want.shape:
        expected, found = describe(want.dtype, want.shape), describe(tensor.dtype, tensor.shape)
        raise FormatError(tensor.path, tensor.name, expected, found)
    return tensor


def describe(dtype: str, shape: Shape) -> str:
    return f"{dtype} [{', '.join(map(str, shape))}]"
