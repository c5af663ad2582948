"""Mistakes of the hash itself: how products are mixed, how a mix becomes a row, and where the row is put."""

from __future__ import annotations

from dataclasses import replace

from engramctl.mistakes.hashing import HashPlan
from engramctl.mistakes.record import ENGRAM, Mistake
from engramctl.mistakes.token_map import raw

ALL_WRONG = "Nearly every row is of another n-gram: the memory is noise."
IN_RANGE = "The rows stay inside their columns."

MISTAKES: tuple[Mistake[HashPlan], ...] = (
    Mistake(
        "mix-32-bit",
        "hash",
        "Products or mixes are cut to 32 bits.",
        f"Nearly every row differs. {IN_RANGE}",
        ALL_WRONG,
        "Multiply, xor and take the remainder in uint64: products reach 63 bits.",
        "ggml-org/llama.cpp#28696 (multipliers as 32-bit integers)",
        lambda plan: replace(plan, bits=32),
    ),
    Mistake(
        "mix-32-bit-signed",
        "hash",
        "Mixes are cut to 32 bits and taken as signed; the remainder rounds toward zero, as in C.",
        "Half of the rows are negative before the offset, so they lie in the column before.",
        ALL_WRONG,
        "Multiply, xor and take the remainder in uint64.",
        "ggml-org/llama.cpp#28696 (multipliers as 32-bit integers)",
        lambda plan: replace(plan, bits=32, signed="toward zero"),
    ),
    Mistake(
        "signed-overflow",
        "hash",
        "Raw ids are hashed in int64: products pass 2**63, the mix turns negative, the remainder rounds toward zero.",
        "Rows of late token ids lie in the column before; the others are those of raw ids.",
        ALL_WRONG,
        "Apply the token map, after which no product passes 2**63; use uint64 in any case.",
        ENGRAM + ": multipliers are bounded for compressed ids",
        lambda plan: replace(raw(plan), signed="toward zero"),
    ),
    Mistake(
        "signed-overflow-floored",
        "hash",
        "Raw ids are hashed in int64: products pass 2**63, and the remainder of a negative mix is floored (torch).",
        f"Rows of late token ids are others than raw ids give in uint64. {IN_RANGE}",
        ALL_WRONG,
        "Apply the token map, after which no product passes 2**63; use uint64 in any case.",
        ENGRAM + ": multipliers are bounded for compressed ids",
        lambda plan: replace(raw(plan), signed="floor"),
    ),
    Mistake(
        "sum-for-xor",
        "hash",
        "The products of an n-gram are added instead of combined by xor.",
        f"Nearly every row differs. {IN_RANGE}",
        ALL_WRONG,
        "mix = id0 * m0 xor id1 * m1 xor ...",
        ENGRAM + ": mix ^= id * multiplier",
        lambda plan: replace(plan, add=True),
    ),
    Mistake(
        "oldest-token-first",
        "hash",
        "Multipliers are applied oldest token first within each n-gram.",
        f"Every row differs, but where an n-gram's tokens are all the same. {IN_RANGE}",
        ALL_WRONG,
        "multiplier[0] meets the current token, multiplier[1] the one before it.",
        "engram-peft 1.2.7 (PyPI): NgramHashMapping",
        lambda plan: replace(plan, newest_first=False),
    ),
    Mistake(
        "short-orders-misaligned",
        "hash",
        "N-grams shorter than the longest are cut from the start of the padded window, not from its end.",
        "The longest order agrees; shorter ones ignore the current token.",
        "Two thirds of the rows are those of the wrong words.",
        "Every n-gram ends at the current token.",
        "engram-peft 1.2.7 (PyPI): NgramHashMapping",
        lambda plan: replace(plan, aligned=False),
    ),
    Mistake(
        "columns-head-major",
        "hash",
        "Rows are given head by head, all orders of a head together.",
        "The right rows in other columns; the first and the last column agree.",
        "The projection gets its inputs in the wrong order: noise.",
        "column = (order - 2) * heads + head.",
        ENGRAM + ": orders are the outer loop",
        lambda plan: replace(plan, columns="head major"),
    ),
    Mistake(
        "orders-dealt-to-columns",
        "hash",
        "Column c hashes the n-gram of order 2 + c mod 3 instead of 2 + c / heads.",
        f"A third of the columns agrees. {IN_RANGE}",
        "Most rows are of another n-gram.",
        "The first `heads` columns are 2-grams, the next 3-grams, the last the longest.",
        ENGRAM + ": orders are the outer loop",
        lambda plan: replace(plan, columns="dealt"),
    ),
    Mistake(
        "layers-swapped",
        "hash",
        "A layer has the rows of the next one (the last those of the first).",
        "Layer 1 has layer 14's rows and the other way round.",
        "Each layer reads its table at the other's rows: noise.",
        "Check which constants and which table belong to which decoder layer.",
        ENGRAM + ": constants are per layer",
        lambda plan: replace(plan, layer_step=1 if len(plan.layers) > 1 else 0),
    ),
    Mistake(
        "offsets-missing",
        "hash",
        "The column's offset is not added: buckets where rows are wanted.",
        "Column 0 agrees; all others lie in the first sixteen million rows. Not wrong where the engine adds it later.",
        "All columns read the first column's part of the table.",
        "row = bucket + sum of the moduli of the columns before. A dump of buckets on purpose: --rows-are buckets.",
        ENGRAM + ": offsets are exclusive prefix sums",
        lambda plan: replace(plan, offset_times=0),
    ),
    Mistake(
        "offsets-doubled",
        "hash",
        "The column's offset is added twice.",
        "Column 0 agrees; from the middle of the columns on, rows lie beyond the table.",
        "Rows of other columns are read, or memory beyond the table.",
        "Add the offset once: either in the hash or in the look-up.",
        ENGRAM + ": offsets are exclusive prefix sums",
        lambda plan: replace(plan, offset_times=2),
    ),
)
