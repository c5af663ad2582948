"""tokenizer.json -> token map once more, by Python's own Unicode tables instead of the library's normalisers.

What `vocabulary` builds, and `map` and `repack` write, is held against this; they share the decoder and nothing else.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import numpy as np

from engramctl import vocabulary
from engramctl.source import FoundMap
from formats.errors import FormatError

MARKS = ("Mn", "Mc", "Me")  # what stripping accents removes
# Unicode's White_Space; Python's str.strip would take four control characters as well
SPACES = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
RUN = re.compile(r"[ \t\r\n]+")
CUT_CHARACTER = "\ufffd"


def derive(tokenizer: Path) -> FoundMap:
    """[V] compressed id of each token id, and how it was come by."""
    loaded = vocabulary.load_tokenizer(tokenizer)
    count = loaded.get_vocab_size(with_added_tokens=True)
    if not 1 <= count <= vocabulary.MOST_IDS:
        raise FormatError(tokenizer, None, f"1 to {vocabulary.MOST_IDS} token ids", f"{count}")
    with vocabulary.library(tokenizer, "a decoder that takes every id"):
        texts = loaded.decode_batch([[token] for token in range(count)], skip_special_tokens=False)
    numbers: dict[str, int] = {}
    ids = np.empty(count, np.uint32)
    for token, text in enumerate(texts):
        piece = loaded.id_to_token(token)
        if piece is None:
            raise FormatError(tokenizer, f"token id {token}", f"ids 0..{count - 1} without a gap", "no token")
        key = piece if CUT_CHARACTER in text else normalised(text)
        ids[token] = numbers.setdefault(key, len(numbers))
    return FoundMap(ids, f"{tokenizer} by Unicode {unicodedata.unidata_version}")


def normalised(text: str) -> str:
    """The text's key: without accents, case and runs of space; itself where that leaves nothing."""
    parts = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    plain = "".join(letter.lower() for letter in parts if unicodedata.category(letter) not in MARKS)
    single = RUN.sub(" ", plain)
    return single if single == " " else single.strip(SPACES) or text
