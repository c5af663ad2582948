"""Mistakes of the gate: its norms, its square root, its clamp, its mask."""

from __future__ import annotations

from dataclasses import replace

from engramctl.mistakes.gateplan import GatePlan
from engramctl.mistakes.record import MODEL, Mistake

NUMERICAL_RECIPES_EPS = 1e-6  # what norms elsewhere use
TOO_MUCH = "The memory's share in the residual stream is wrong in every token."

MISTAKES: tuple[Mistake[GatePlan], ...] = (
    Mistake(
        "eps-1e-6",
        "gate",
        "The norms add 1e-6 to the mean squares instead of 1e-20.",
        "Gates of small streams or keys (about 1e-4) go to 0.5; ordinary ones agree.",
        "Quiet streams get half of the memory whatever it says.",
        "eps is the config's rms_norm_eps, 1e-20; the 1e-6 in the code is the clamp's.",
        MODEL + ": eps is rms_norm_eps",
        lambda plan: replace(plan, eps=NUMERICAL_RECIPES_EPS),
    ),
    Mistake(
        "joint-rms",
        "gate",
        "Mean squares are taken over all streams together.",
        "Gates differ where streams are of different size.",
        TOO_MUCH,
        "One mean square per token and stream, over the hidden width.",
        MODEL + ": the mean is over the last dimension",
        lambda plan: replace(plan, joint=True),
    ),
    Mistake(
        "norms-dropped",
        "gate",
        "Stream and key are not divided by their root mean squares.",
        "Gates grow with the stream's size, up to 1.",
        TOO_MUCH,
        "Multiply the dot product by both reciprocal root mean squares.",
        MODEL + ": both are normalised",
        lambda plan: replace(plan, norm=False),
    ),
    Mistake(
        "norm-weights-dropped",
        "gate",
        "The norms' weights q and k are left out.",
        "Gates differ wherever a weight is not 1.",
        TOO_MUCH,
        "Multiply each element by q * k.",
        MODEL + ": weight = q * k in F32",
        lambda plan: replace(plan, weights="none"),
    ),
    Mistake(
        "norm-weights-folded-in-bf16",
        "gate",
        "The product q * k is rounded to BF16.",
        "Gates are off by a few thousandths.",
        "A small error in every gate.",
        "Fold in F32, where the product is exact.",
        MODEL + ": weight = q * k in F32",
        lambda plan: replace(plan, weights="folded in bf16"),
    ),
    Mistake(
        "no-square-root",
        "gate",
        "The signed square root is left out.",
        "Gates of small dot products are too near to 0.5.",
        TOO_MUCH,
        "g = copysign(sqrt(max(|dot|, 1e-6)), dot).",
        MODEL + ": signed square root",
        lambda plan: replace(plan, root=False),
    ),
    Mistake(
        "no-clamp",
        "gate",
        "The clamp of |dot| to 1e-6 is left out.",
        "Gates of tiny dot products are 0.5 instead of 0.50025 or 0.49975.",
        "Hardly any; training had the clamp.",
        "g = copysign(sqrt(max(|dot|, 1e-6)), dot).",
        MODEL + ": clamp_min(1e-6)",
        lambda plan: replace(plan, clamp=0.0),
    ),
    Mistake(
        "clamp-after-root",
        "gate",
        "The clamp bounds the root instead of the dot product.",
        "Gates of tiny dot products are 0.5000003 instead of 0.50025.",
        "Hardly any; training had the clamp before the root.",
        "Clamp |dot| first, then take the root.",
        MODEL + ": clamp_min(1e-6).sqrt()",
        lambda plan: replace(plan, clamp_after=True),
    ),
    Mistake(
        "no-width-scale",
        "gate",
        "The dot product is not divided by the square root of the hidden width.",
        "Gates are far too near to 0 or 1.",
        TOO_MUCH,
        "Multiply by hidden ** -0.5.",
        MODEL + ": the product is scaled by dim ** -0.5",
        lambda plan: replace(plan, width=False),
    ),
    Mistake(
        "sign-for-copysign",
        "gate",
        "The root is multiplied by sign(dot), which is 0 for 0.",
        "Gates of a dot product of exactly 0 are 0.5 instead of 0.50025.",
        "Hardly any.",
        "copysign: 0 counts as positive.",
        "deepseek-ai/Engram engram_demo_v1.py",
        lambda plan: replace(plan, sign="sign"),
    ),
    Mistake(
        "masked-rows-gated",
        "gate",
        "Dead positions are gated like text.",
        "Dead positions' gates are not 0 and their streams change.",
        "Image positions get the filler's memory.",
        "A dead position keeps its hidden state.",
        MODEL + ": the gate is multiplied by the mask",
        lambda plan: replace(plan, masked=False),
    ),
    Mistake(
        "split-value-first",
        "gate",
        "The projection's outputs were split as the value and then the keys: each key is the next stream's.",
        "Every gate differs, and the added vector is the first stream's key.",
        TOO_MUCH,
        "The first streams * hidden outputs are the keys, stream by stream; the last `hidden` are the value.",
        MODEL + ": keys first, then the shared value",
        lambda plan: replace(plan, value_as_key=True),
    ),
)
