"""What one would write with NumPy or torch: the same stages, eager and plain, compared with ours before any timing.

torch is used where it is installed; nothing here is installed by it or for it.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engramctl.hash_params import HashParams
from engramctl.source import Weights
from formats.floats import from_bf16
from formats.row264 import BLOCK, WIDTH, decode_bf16

Rows = Mapping[int, NDArray[np.uint8]]  # by layer: [rows, 264]


def torch() -> ModuleType | None:
    """The module, if there is one with 8-bit floats."""
    if importlib.util.find_spec("torch") is None:
        return None
    try:
        module = importlib.import_module("torch")
    except ImportError:
        return None
    return module if hasattr(module, "float8_e4m3fn") else None


def numpy_hash(ids: NDArray[np.int64], params: HashParams) -> NDArray[np.int64]:
    """[T] compressed ids -> [T, L, C]: one array operation a layer and order."""
    size, heads = params.size, params.heads
    padded = np.concatenate([np.full(size - 1, params.pad_id), ids]).astype(np.uint64)
    rows = np.empty((ids.size, len(params.layers), params.columns), np.int64)
    for layer in range(len(params.layers)):
        mixed = padded[size - 1 :] * params.multipliers[layer, 0]
        for back in range(1, size):
            mixed = mixed ^ (padded[size - 1 - back : padded.size - back] * params.multipliers[layer, back])
            some = slice((back - 1) * heads, back * heads)
            rows[:, layer, some] = mixed[:, None] % params.moduli[layer, some] + params.offsets[layer, some]
    return rows


def torch_hash(t: Any, params: HashParams) -> Callable[[Any], Any]:  # noqa: ANN401
    """The same in torch; every product is below 2**63, so int64 holds it."""
    size, heads = params.size, params.heads
    constants = [t.from_numpy(array.astype(np.int64)) for array in (params.multipliers, params.moduli, params.offsets)]

    def run(ids: Any) -> Any:  # noqa: ANN401
        padded = t.cat([t.full((size - 1,), params.pad_id), ids])
        made = []
        for multiplier, modulus, offset in zip(*constants, strict=True):
            mixed = padded[size - 1 :] * multiplier[0]
            for back in range(1, size):
                mixed = mixed ^ (padded[size - 1 - back : padded.numel() - back] * multiplier[back])
                some = slice((back - 1) * heads, back * heads)
                made.append(t.remainder(mixed[:, None], modulus[some]) + offset[some])
        return t.cat(made, 1).reshape(ids.numel(), len(params.layers), -1)

    return run


def torch_decode(t: Any, raw: Any) -> Any:  # noqa: ANN401
    """[n, ROW_BYTES] bytes -> [n, WIDTH] bfloat16."""
    codes = raw[:, :WIDTH].contiguous().view(t.float8_e4m3fn).to(t.bfloat16).reshape(len(raw), -1, BLOCK)
    scales = t.exp2(raw[:, WIDTH:].to(t.float32) - 127).to(t.bfloat16)
    return (codes * scales[:, :, None]).reshape(len(raw), WIDTH)


def numpy_gate(hidden: NDArray[Any], kv: NDArray[Any], weights: Weights, eps: float, clamp: float) -> NDArray[Any]:
    """F32 hidden [T, S, D] and kv [T, S + 1, D] -> new hidden, in the order that is written down first."""
    key, value = kv[:, :-1], kv[:, -1]
    w = from_bf16(weights.q_weight) * from_bf16(weights.k_weight)
    root = np.float32(hidden.shape[-1] ** -0.5)
    norm = [1 / np.sqrt((x * x).mean(-1) + np.float32(eps)) for x in (hidden, key)]
    dot = (hidden * w * key).sum(-1) * norm[0] * norm[1] * root
    g = np.copysign(np.sqrt(np.maximum(np.abs(dot), np.float32(clamp))), dot)
    return np.asarray(hidden + (1 / (1 + np.exp(-g)))[..., None] * value[:, None])


def torch_gate(t: Any, weights: Weights, eps: float, clamp: float) -> Callable[[Any, Any], Any]:  # noqa: ANN401
    """As the released code does it: bfloat16 in and out, float32 between."""
    q, k = (t.from_numpy(from_bf16(array)) for array in (weights.q_weight, weights.k_weight))

    def run(hidden: Any, kv: Any) -> Any:  # noqa: ANN401
        h, key, value = hidden.float(), kv[:, :-1].float(), kv[:, -1].float()
        a = h * t.rsqrt(h.square().mean(-1, keepdim=True) + eps) * q
        b = key * t.rsqrt(key.square().mean(-1, keepdim=True) + eps) * k
        dot = (a * b).sum(-1) * h.shape[-1] ** -0.5
        gate = t.sigmoid(dot.sign() * dot.abs().clamp_min(clamp).sqrt())
        return (h + gate[..., None] * value[:, None]).to(t.bfloat16)

    return run


def shared(t: Any, array: NDArray[np.uint8]) -> Any:  # noqa: ANN401
    """A tensor over memory that is only read; torch warns that it could be written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return t.from_numpy(array)


def as_torch(t: Any, bits: NDArray[np.uint16]) -> Any:  # noqa: ANN401
    """BF16 bits as a torch bfloat16 tensor of its own."""
    return t.from_numpy(np.array(bits).view(np.int16)).view(t.bfloat16)


def torch_pipeline(
    t: Any,  # noqa: ANN401
    tables: Rows,
    params: HashParams,
    weights: Mapping[int, Weights],
    eps: float,
    clamp: float,
) -> Callable[[Any, Any], list[Any]]:
    """Compressed ids and bfloat16 hidden states -> new hidden states of each of the tables' layers, eager."""
    hashed = torch_hash(t, params)
    layers = {
        params.layers.index(layer): (
            shared(t, table),
            as_torch(t, weights[layer].projection.bits()),
            torch_gate(t, weights[layer], eps, clamp),
        )
        for layer, table in tables.items()
    }

    def run(ids: Any, hidden: Any) -> list[Any]:  # noqa: ANN401
        wanted, made = hashed(ids), []
        for number, (rows, weight, gated) in layers.items():
            values = torch_decode(t, rows.index_select(0, wanted[:, number].reshape(-1))).reshape(ids.numel(), -1)
            kv = t.nn.functional.linear(values, weight).reshape(ids.numel(), -1, hidden.shape[-1])
            made.append(gated(hidden, kv))
        return made

    return run


def numpy_pipeline(
    tables: Rows, params: HashParams, weights: Mapping[int, Weights], eps: float, clamp: float
) -> Callable[[NDArray[np.int64], NDArray[np.float32]], list[NDArray[Any]]]:
    """The same in float32, with weights that were widened once."""
    wide = {layer: from_bf16(weights[layer].projection.bits()).T for layer in tables}

    def run(ids: NDArray[np.int64], hidden: NDArray[np.float32]) -> list[NDArray[Any]]:
        wanted, made = numpy_hash(ids, params), []
        for layer, table in tables.items():
            rows = table[wanted[:, params.layers.index(layer)].reshape(-1)]
            values = from_bf16(decode_bf16(rows)).reshape(ids.size, -1)
            kv = (values @ wide[layer]).reshape(ids.size, -1, hidden.shape[-1])
            made.append(numpy_gate(hidden, kv, weights[layer], eps, clamp))
        return made

    return run
