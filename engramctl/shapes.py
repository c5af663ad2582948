"""The shapes that a model's sizes demand of its checkpoint's tensors."""

from __future__ import annotations

from engramctl.profiles import Profile, Sizes
from formats import row264
from formats.errors import FormatError
from formats.safetensors_raw import Tensor

PROJECTION_BLOCK = 32  # rows and columns of the projection that share one scale


def of_role(role: str, sizes: Sizes, rows: int) -> tuple[int, ...]:
    """The shape of a layer's tensor by its role in the profile; `rows` is that layer's row count."""
    blocks = (-(-sizes.outputs // PROJECTION_BLOCK), -(-sizes.inputs // PROJECTION_BLOCK))
    return {
        "codes": (rows, sizes.width),
        "scales": (rows, sizes.width // row264.BLOCK),
        "projection": (sizes.outputs, sizes.inputs),
        "projection_scale": blocks,
        "q_weight": (sizes.streams, sizes.hidden),
        "k_weight": (sizes.streams, sizes.hidden),
    }[role]


def describe(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype} [{', '.join(map(str, shape))}]"


def check(tensor: Tensor, role: str, sizes: Sizes, layer: int, profile: Profile) -> Tensor:
    """The tensor, if dtype and shape are what its role demands; else `FormatError` with tensor, expected, found."""
    shape, dtype = of_role(role, sizes, sizes.rows[sizes.layers.index(layer)]), profile.tensors[role].dtype
    if (tensor.dtype, tensor.shape) != (dtype, shape):
        raise FormatError(tensor.path, tensor.name, describe(dtype, shape), describe(tensor.dtype, tensor.shape))
    return tensor
