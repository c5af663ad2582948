"""ShortConv and the modules around it against float64 written out number by number, and torch where it is installed."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engramctl import profiles
from engramctl.hash_params import published
from engramctl.short_conv import empty_state, short_conv
from engramctl.siblings import checkpoint, run, synth
from engramctl.source import open_source
from formats.floats import from_bf16

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
T, S, D, KERNEL, DILATION, EPS = 23, 4, 6, 4, 3, 1e-5


def operands(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.normal(size=(T, S, D)), random.normal(1, 0.1, (S, D)), random.normal(size=(S, D, KERNEL))


def by_hand(values: np.ndarray, norm: np.ndarray, weight: np.ndarray, dilation: int, eps: float) -> np.ndarray:
    """One Python number at a time."""
    count, streams, width = values.shape
    normed, out = np.zeros(values.shape), np.zeros(values.shape)
    for t in range(count):
        for s in range(streams):
            square = sum(float(x) ** 2 for x in values[t, s]) / width
            for d in range(width):
                normed[t, s, d] = float(values[t, s, d]) / math.sqrt(square + eps) * float(norm[s, d])
    for t in range(count):
        for s in range(streams):
            for d in range(width):
                total = 0.0
                for k in range(weight.shape[2]):
                    at = t - (weight.shape[2] - 1 - k) * dilation
                    if at >= 0:
                        total += float(weight[s, d, k]) * normed[at, s, d]
                out[t, s, d] = total / (1 + math.exp(-total))
    return out


def test_it_is_the_formula() -> None:
    values, norm, weight = operands()
    out, state = short_conv(values, norm, weight, DILATION, EPS)
    np.testing.assert_allclose(out, by_hand(values, norm, weight, DILATION, EPS), rtol=1e-12, atol=1e-14)
    assert state.shape == ((KERNEL - 1) * DILATION, S, D) == (9, S, D)


@pytest.mark.parametrize("step", [1, 2, 5, 9, 10])
def test_chunks_with_state_are_the_whole(step: int) -> None:
    values, norm, weight = operands(1)
    whole, end = short_conv(values, norm, weight, DILATION, EPS)
    state, parts = empty_state(norm, KERNEL, DILATION), []
    for at in range(0, T, step):
        part, state = short_conv(values[at : at + step], norm, weight, DILATION, EPS, state)
        parts.append(part)
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-13)
    np.testing.assert_allclose(state, end, rtol=1e-13)


def test_a_position_reaches_nine_positions_on_and_no_further() -> None:
    values, norm, weight = operands(2)
    other = values.copy()
    other[5] += 1
    differs = (short_conv(values, norm, weight, 3, EPS)[0] != short_conv(other, norm, weight, 3, EPS)[0]).any(
        axis=(1, 2)
    )
    assert np.flatnonzero(differs).tolist() == [5, 8, 11, 14]


def test_a_masked_position_counts_as_zeros() -> None:
    values, norm, weight = operands(3)
    mask = np.ones(T, np.bool_)
    mask[[4, 7]] = False
    zeroed = values.copy()
    zeroed[~mask] = 0
    got = short_conv(values, norm, weight, DILATION, EPS, None, mask)[0]
    np.testing.assert_allclose(got, short_conv(zeroed, norm, weight, DILATION, EPS)[0], rtol=1e-13)


@needs_torch
def test_it_is_torchs_convolution() -> None:
    import torch

    values, norm, weight = operands(4)
    with torch.no_grad():
        conv = torch.nn.Conv1d(S * D, S * D, KERNEL, groups=S * D, dilation=DILATION, padding=9, bias=False)
        conv = conv.double()
        conv.weight.copy_(torch.from_numpy(weight.reshape(S * D, 1, KERNEL)))
        parts = []
        for s in range(S):
            layer = torch.nn.RMSNorm(D, eps=EPS).double()
            layer.weight.copy_(torch.from_numpy(norm[s]))
            parts.append(layer(torch.from_numpy(values[:, s])))
        row = torch.cat(parts, dim=-1).T[None]
        want = torch.nn.functional.silu(conv(row)[..., :T])[0].T.reshape(T, S, D).numpy()
    np.testing.assert_allclose(short_conv(values, norm, weight, DILATION, EPS)[0], want, rtol=1e-10, atol=1e-12)


# The whole module, from a checkpoint's bytes.

NAMES = ("engram-demo", "qwen3.8-flash-next", "qwen3.8-flash-next:fp8", "engram-peft")
IDS = np.array([5, 3, 6, 9, 10, 11, 3, 3, 12, 13, 14, 15, 16, 17, 18])  # EOS of the tiny vocabulary among them


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("siblings")
    for name in (*NAMES, "longcat-2.0", "blt"):
        synth.make(folder / name, profiles.load(name), 7, real_tokens=False, full_size=False)
    return {path.name: path for path in folder.iterdir()}


def hidden(streams: int, width: int) -> np.ndarray:
    return np.random.default_rng(8).normal(size=(len(IDS), streams, width)).astype(np.float32)


def tensors(folder: Path) -> dict[str, np.ndarray]:
    """Every tensor as float64 by the safetensors library's bytes; E4M3 through ml_dtypes."""
    import ml_dtypes
    from safetensors import deserialize

    dtypes: dict[str, Any] = {"F32": "<f4", "BF16": "<u2", "I64": "<i8", "F8_E4M3": ml_dtypes.float8_e4m3fn}
    found = {}
    for path in folder.glob("*.safetensors"):
        for name, entry in deserialize(path.read_bytes()):
            array = np.frombuffer(bytes(entry["data"]), dtypes[entry["dtype"]]).reshape(entry["shape"])
            array = from_bf16(array) if entry["dtype"] == "BF16" else array
            found[name] = array.astype(np.int64 if entry["dtype"] == "I64" else np.float64)
    return found


def rounded_once(got: np.ndarray, want: np.ndarray) -> None:
    """F32's nearest to `want`: half a step of F32 away at most, 2**-24 of it, or 2**-150 below the normal numbers.

    Both sides are float64 sums of at most 2560 parts, each within 2560 * 2**-53 < 2**-41 of its parts' sizes: 2**-39 of
    the result, where no more than three quarters of them cancel.
    """
    assert got.dtype == np.float32
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=2.0**-24 + 2.0**-39, atol=2.0**-150)


def expected(name: str, folder: Path, rows: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gates and new hidden states by the model's published names, a stream and a token at a time."""
    found, plain = tensors(folder), name.partition(":")[0]
    if plain == "qwen3.8-flash-next":
        p = "model.language_model.layers.1.ple."
        shards = [found[f"{p}ple_embedding.ngram_embedding.shard_{i}.weight"] for i in range(12)]
        table = np.concatenate(shards)
        if name.endswith("fp8"):
            scaled = (table * found[f"{p}ple_embedding.ngram_embedding.weight_scale"]).astype(np.float32)
            bits = scaled.view(np.uint32)
            table = from_bf16(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)).astype(np.float64)
        streams, eps, conv_eps = 4, 1e-6, 1e-6
        keys = np.split(found[f"{p}key_proj.weight"], streams)
        biases, value, value_bias = [0.0] * streams, found[f"{p}value_proj.weight"], 0.0
        norms = [np.split(1 + found[f"{p}norm_{what}.weight"], streams) for what in ("key", "query", "conv")]
        conv = found[f"{p}conv1d.weight"]
    else:
        demo = plain == "engram-demo"
        p = "layers.1.engram." if demo else "1."
        table = found[f"{p}multi_head_embedding.embedding.weight"]
        streams, eps, conv_eps = 4, 2.0**-23, 1e-5
        names = ("key_projs", "value_proj", "norm1", "norm2") if demo else (
            "gating.w_k", "gating.w_v", "gating.norm_k", "gating.norm_h",
        )  # fmt: skip
        keys = [found[f"{p}{names[0]}.{s}.weight"] for s in range(streams)]
        biases = [found[f"{p}{names[0]}.{s}.bias"] if demo else 0.0 for s in range(streams)]
        value = found[f"{p}{names[1]}.weight"]
        value_bias = found[f"{p}{names[1]}.bias"] if demo else 0.0
        norms = [
            [found[f"{p}{what}.{s}.weight"] for s in range(streams)]
            for what in (names[2], names[3], "short_conv.norms")
        ]
        conv = found[f"{p}short_conv.conv.weight"]
    width = h.shape[2]
    gates, gated = np.zeros(h.shape[:2]), np.zeros(h.shape)
    for t in range(len(h)):
        e = np.concatenate([table[row] for row in rows[t]])
        v = value @ e + value_bias
        for s in range(streams):
            key, query = keys[s] @ e + biases[s], h[t, s].astype(np.float64)
            key = key / math.sqrt(np.mean(key**2) + eps) * norms[0][s]
            query = query / math.sqrt(np.mean(query**2) + eps) * norms[1][s]
            u = float(np.dot(key, query)) / math.sqrt(width)
            sign = 0 if u == 0 else math.copysign(1, u)
            gates[t, s] = 1 / (1 + math.exp(-sign * math.sqrt(max(abs(u), 1e-6))))
            gated[t, s] = gates[t, s] * v
    added = by_hand(gated, np.stack(norms[2]), conv.reshape(streams, width, -1), 3, conv_eps)
    return gates, h + gated + added


@pytest.mark.parametrize("name", NAMES)
def test_the_whole_module_is_float64s(made: dict[str, Path], name: str) -> None:
    with open_source(made[name]) as source:
        assert isinstance(source, checkpoint.SiblingCheckpoint)
        h = hidden(source.sizes.streams, source.sizes.hidden)
        rows = run.run(source, 1, IDS, stop_at="rows")
        gates, out = (run.run(source, 1, IDS, h, stop_at=stage) for stage in ("gate", "out"))
    want_gates, want = expected(name, made[name], rows, h)
    rounded_once(gates, want_gates)
    rounded_once(out, want)
    assert out.dtype == gates.dtype == np.float32


@pytest.mark.parametrize("name", NAMES)
def test_chunks_do_not_show(made: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The convolution's state goes from chunk to chunk, over every EOS."""
    with open_source(made[name]) as source:
        assert isinstance(source, checkpoint.SiblingCheckpoint)
        h = hidden(source.sizes.streams, source.sizes.hidden)
        whole = run.run(source, 1, IDS, h)
        monkeypatch.setattr(run, "CHUNK_TOKENS", 4)
        np.testing.assert_array_max_ulp(run.run(source, 1, IDS, h), whole)  # one of float64's sums may fall otherwise


def test_longcat_is_the_mean_of_word_and_columns(made: dict[str, Path]) -> None:
    with open_source(made["longcat-2.0"]) as source:
        assert isinstance(source, checkpoint.SiblingCheckpoint)
        rows, offsets = run.run(source, -1, IDS, stop_at="rows"), source.params().offsets[0].astype(np.int64)
        h = hidden(1, source.sizes.hidden)
        out = run.run(source, -1, IDS, h)
    found, columns = tensors(made["longcat-2.0"]), len(offsets)
    for t in range(len(IDS)):
        total = h[t, 0].astype(np.float64)
        for c in range(columns):
            local = rows[t, c] - offsets[c]
            total = total + found[f"model.oe_embed_proj{c}.weight"] @ found[f"model.oe_embed_tokens{c}.weight"][local]
        rounded_once(out[t, 0], total / (1 + columns))


def test_byte_groups_are_summed_onto_the_byte(made: dict[str, Path]) -> None:
    with open_source(made["blt"]) as source:
        assert isinstance(source, checkpoint.SiblingCheckpoint)
        rows, h = run.run(source, -1, IDS, stop_at="rows"), hidden(1, source.sizes.hidden)
        out = run.run(source, -1, IDS, h)
    table = tensors(made["blt"])["model.encoder_hash_tok_embedding.weight"]
    for t in range(len(IDS)):
        rounded_once(out[t, 0], h[t, 0] + table[rows[t]].sum(axis=0))


def test_a_dot_product_of_zero_opens_the_gate_by_exactly_a_half(made: dict[str, Path]) -> None:
    """`sign` gives 0 there; V4.1's `copysign` does not."""
    with open_source(made["engram-demo"]) as source:
        assert isinstance(source, checkpoint.SiblingCheckpoint)
        h = np.zeros((len(IDS), source.sizes.streams, source.sizes.hidden), np.float32)
        assert (run.run(source, 1, IDS, h, stop_at="gate") == 0.5).all()


def test_padding_adds_nothing_of_its_own_to_ples_streams(made: dict[str, Path]) -> None:
    with open_source(made["qwen3.8-flash-next"]) as source:
        assert isinstance(source, checkpoint.SiblingCheckpoint)
        h, mask = hidden(source.sizes.streams, source.sizes.hidden), np.ones(len(IDS), np.bool_)
        mask[:3] = False
        gates, out = (run.run(source, 1, IDS, h, mask, stop_at=stage) for stage in ("gate", "out"))
    assert not gates[:3].any()
    np.testing.assert_array_equal(out[:3], h[:3])
    assert published(profiles.load("qwen3.8-flash-next")).eos == 248044


@needs_torch
def test_the_demos_whole_module_is_torchs(made: dict[str, Path]) -> None:
    """torch.nn's own Linear, RMSNorm and Conv1d in float64, put together as the demo puts them."""
    import torch
    from torch import nn

    found, p = {name: torch.from_numpy(a) for name, a in tensors(made["engram-demo"]).items()}, "layers.1.engram."
    with open_source(made["engram-demo"]) as source:
        assert isinstance(source, checkpoint.SiblingCheckpoint)
        h = hidden(source.sizes.streams, source.sizes.hidden)
        rows, out = run.run(source, 1, IDS, stop_at="rows"), run.run(source, 1, IDS, h)

    def loaded(layer: nn.Module, name: str) -> nn.Module:
        state = {key: found[f"{p}{name}.{key}"] for key in layer.state_dict()}
        layer.double().load_state_dict(state)
        return layer

    count, streams, width = h.shape
    with torch.no_grad():
        e = found[f"{p}multi_head_embedding.embedding.weight"][torch.from_numpy(rows)].flatten(1)
        x, gated = torch.from_numpy(h).double(), []
        value = loaded(nn.Linear(e.shape[1], width), "value_proj")(e)
        for s in range(streams):
            key = loaded(nn.RMSNorm(width), f"norm1.{s}").to(torch.float64)
            key.eps = query_eps = torch.finfo(torch.float32).eps  # the demo runs in float32
            query = loaded(nn.RMSNorm(width, query_eps), f"norm2.{s}")
            u = (key(loaded(nn.Linear(e.shape[1], width), f"key_projs.{s}")(e)) * query(x[:, s])).sum(-1)
            u = u / math.sqrt(width)
            gated.append((u.abs().clamp_min(1e-6).sqrt() * u.sign()).sigmoid()[:, None] * value)
        normed = [loaded(nn.RMSNorm(width, 1e-5), f"short_conv.norms.{s}")(gated[s]) for s in range(streams)]
        channels = streams * width
        conv = nn.Conv1d(channels, channels, 4, groups=channels, dilation=3, padding=9, bias=False)
        added = nn.functional.silu(loaded(conv, "short_conv.conv")(torch.cat(normed, -1).T[None])[0, :, :count]).T
        want = x + torch.stack(gated, 1) + added.reshape(count, streams, width)
    rounded_once(out, want.numpy())
