"""How a safetensors checkpoint keeps its Engram tables, as records: by the dtypes of what lies under one name.

Sources: deepseek-ai/DeepSeek-V4.1-Flash (hf); LibertAIDAI's NVFP4 repack, config `engram_dtype` "fp4" (nvfp4); MLX
affine repacks such as kiojuvr/ds41f-mlx (mlx); vllm-project/vllm-ascend (int8-g32).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from formats.safetensors_raw import Tensor


@dataclass(frozen=True)
class CheckpointForm:
    """Dtypes and row length of the codes, and the suffix and dtypes of what scales them."""

    name: str
    title: str
    codes: tuple[tuple[str, ...], int | None]  # dtypes, row length where it tells
    beside: Mapping[str, tuple[str, ...]]  # last part of a tensor's name -> its dtypes


AFFINE = ("BF16", "F16", "F32")
FORMS = (
    CheckpointForm(
        "hf", "as published: E4M3 codes, E8M0 scales", (("F8_E4M3", "U8"), 256), {"scale": ("F8_E8M0", "U8")}
    ),
    CheckpointForm("nvfp4", "FP4 pairs in bytes, E8M0 scales", (("U8",), 128), {"scale": ("F8_E8M0",)}),
    CheckpointForm("mlx", "affine codes packed into words", (("U32",), None), {"scales": AFFINE, "biases": AFFINE}),
    CheckpointForm("int8-g32", "INT8 groups of 32, F32 scales", (("I8",), 256), {"scale": ("F32",)}),
)
OTHER_NAMES = {  # (weight, scale): the same bytes under other names
    ("embed.weight", "embed.weight_scale"): "Quark's export",
    ("embed.weight", "embed.weight_scale_inv"): "mcore-bridge",
    ("embed_tokens.weight", "embed_tokens.weight_scale_inv"): "transformers and vLLM",
}


def recognise(tensors: Mapping[str, Tensor]) -> tuple[CheckpointForm | None, str | None]:
    """The form of the tables among these tensors, and whose names they have if not the published ones."""
    for name, tensor in tensors.items():
        stem, _, last = name.rpartition(".engram.")
        if not stem or last not in ("embed.weight", "embed_tokens.weight"):
            continue
        prefix = stem.rpartition("layers.")[0]
        whose = f"a checkpoint with a prefix, {prefix}" if prefix else None
        for (weight, scale), who in OTHER_NAMES.items():
            if last == weight and f"{stem}.engram.{scale}" in tensors:
                whose = who
        table = name.removesuffix("weight")
        for form in FORMS:
            dtypes, width = form.codes
            if tensor.dtype not in dtypes or (width is not None and tensor.shape[-1:] != (width,)):
                continue
            beside = {suffix: tensors.get(table + suffix) for suffix in form.beside}
            alike = all(t is not None and t.dtype in form.beside[suffix] for suffix, t in beside.items())
            if alike or (whose is not None and form.name == "hf"):
                return form, whose
    return None, None
