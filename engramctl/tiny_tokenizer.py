"""A tokenizer.json of 384 ids that meets every case of the token map, and whose map moves the pad.

In the release raw pad 2 maps to compressed 2, which hides a loader that uses the raw id. Here ids 0 and 1 share a
class,
so pad 2 becomes 1.
"""

from __future__ import annotations

import json

PAD = 2
COUNT = 384  # byte-level pieces, words, added tokens
COMPRESSED = 310  # classes of the map; a test builds it with the library and counts
SPECIAL = {0: "<|Begin|>", 1: "<|begin|>", 2: "<|pad|>", 3: "<|end|>"}
WORDS = (
    "the The THE and And of Of to To in In is Is it It was Was for For on On are Are as As with With his His they They "
    "at At be Be this This have Have from From or Or one One had Had by By word Word but But not Not what What all All "
    "were Were we We when When your Your can Can said Said"
)
SPACED = (
    "\u0120",
    "\u0120\u0120",
    "\u0120\u0120\u0120",
    "\u010a",
    "\u010a\u010a",
    "\u0109",
    "\u0120the",
    "\u0120The",
    "\u0120and",
)
ACCENTED = [
    "\u00c3\u00a9",
    "\u00c3\u012b",
    "\u00cc\u0123",
    "\u00cc\u0122",
    "\u00ef\u00bb\u00bf",
]  # e acute, E acute, two lone marks, a byte order mark


def byte_pieces() -> list[str]:
    """The 256 one-byte pieces of GPT-2's byte-level alphabet, in byte order: printable bytes stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def text() -> str:
    """The tokenizer.json."""
    taken = set(byte_pieces())
    pieces = list(byte_pieces())
    for piece in [*SPACED, *ACCENTED, *WORDS.split()]:
        if piece not in taken:
            taken.add(piece)
            pieces.append(piece)
    numbers = iter(range(1000))
    while len(SPECIAL) + len(pieces) < COUNT:
        pieces.append(f"w{next(numbers)}")
    vocabulary = {content: token_id for token_id, content in SPECIAL.items()}
    vocabulary |= {piece: len(SPECIAL) + i for i, piece in enumerate(pieces[: COUNT - len(SPECIAL)])}
    added = [_added(token_id, content) for token_id, content in SPECIAL.items()]
    return json.dumps(_document(vocabulary, added), ensure_ascii=False, indent=1) + "\n"


def _added(token_id: int, content: str) -> dict[str, object]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token_id, "content": content, **flags}


def _document(vocabulary: dict[str, int], added: list[dict[str, object]]) -> dict[str, object]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model: dict[str, object] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
    }
    model |= {"fuse_unk": False, "byte_fallback": False, "ignore_merges": True, "vocab": vocabulary, "merges": []}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": model,
    }
