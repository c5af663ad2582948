"""Mistakes of the projection: its scale blocks, its orientation, and the order of what comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from engramctl.mistakes.projectplan import ProjectPlan
from engramctl.mistakes.record import MODEL, Mistake

NOISE = "Keys and value are noise: gates and memory both."


def scaled(vary: Callable[[ProjectPlan], ProjectPlan]) -> Callable[[ProjectPlan], ProjectPlan | None]:
    """A variation of the scales, which not every source has."""
    return lambda plan: vary(plan) if plan.quantised else None


MISTAKES: tuple[Mistake[ProjectPlan], ...] = (
    Mistake(
        "projection-128-blocks",
        "project",
        "Scales are taken per 128 x 128 block, as in DeepSeek V3, instead of per 32 x 32.",
        "Most weights get a neighbour's scale: outputs are off by small powers of two, mixed.",
        NOISE,
        "The scale of weight [n, k] is scale[n // 32, k // 32].",
        MODEL + ": the Engram's projection has 32 x 32 blocks",
        scaled(lambda plan: replace(plan, block=128)),
    ),
    Mistake(
        "projection-scale-as-number",
        "project",
        "The weight's scale byte is used as a number instead of an exponent.",
        "Outputs are tens of thousands of times too large.",
        NOISE,
        "The scale is 2**(byte - 127).",
        "ROCm/ATOM#2185",
        scaled(lambda plan: replace(plan, scale="number")),
    ),
    Mistake(
        "projection-scale-dropped",
        "project",
        "The weight's scales are not applied.",
        "Outputs are thousands of times too large.",
        NOISE,
        "Read the tensor named `.scale` and apply it per 32 x 32 block.",
        "vllm-project/vllm#57071 (scales that are never routed)",
        scaled(lambda plan: replace(plan, scale="nothing")),
    ),
    Mistake(
        "projection-scale-transposed",
        "project",
        "The scales are read as [inputs / 32, outputs / 32].",
        "Outputs are off by small powers of two, mixed.",
        NOISE,
        "The scales' shape is [outputs / 32, inputs / 32].",
        MODEL + ": scale has the weight's shape over 32",
        scaled(lambda plan: replace(plan, scale_transposed=True)),
    ),
    Mistake(
        "projection-transposed",
        "project",
        "The weight's bytes are read as [inputs, outputs].",
        "Every output differs.",
        NOISE,
        "The weight's shape is [outputs, inputs], row by row.",
        MODEL + ": a Linear's weight is [outputs, inputs]",
        lambda plan: replace(plan, transposed=True),
    ),
    Mistake(
        "value-first",
        "project",
        "The outputs are stored with the value first and then the keys.",
        "The right numbers in other places: where the first key is expected stands the value.",
        "The gate compares the stream with the wrong vectors and adds a key.",
        "The first streams * hidden outputs are the keys, stream by stream; the last `hidden` are the value.",
        MODEL + ": keys first, then the shared value",
        lambda plan: replace(plan, order="value first"),
    ),
    Mistake(
        "keys-one-on",
        "project",
        "The outputs are split as the value and then the keys, though the keys come first.",
        "The right numbers in other places: each key is the next stream's, the value is the first stream's key.",
        "The gate compares the stream with the wrong vectors and adds a key.",
        "The first streams * hidden outputs are the keys, stream by stream; the last `hidden` are the value.",
        MODEL + ": keys first, then the shared value",
        lambda plan: replace(plan, order="one on"),
    ),
    Mistake(
        "outputs-interleaved",
        "project",
        "The outputs are taken element by element, all streams' keys and the value side by side.",
        "The right numbers in other places.",
        "The gate compares the stream with mixed vectors.",
        "The first streams * hidden outputs are the keys, stream by stream; the last `hidden` are the value.",
        MODEL + ": keys first, then the shared value",
        lambda plan: replace(plan, order="interleaved"),
    ),
)
