"""Token ids, masks and histories, from options, files and standard input, checked for form here and for meaning
later."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engramctl import rowsets
from engramctl.cli.options import STDIN, IdsFormat
from engramctl.errors import EngramctlError
from formats import npy
from formats.disk import ReadFile
from formats.errors import FormatError

MOST_BYTES = 4 << 30  # of token ids: larger inputs are refused unread
MOST_ROW_BYTES = rowsets.MOST_ROWS * 40  # of row numbers: each a range of twice 18 digits, with what stands between
MOST_DEVICE_BYTES = 1 << 24  # of a terminal, or of a device that never ends
GAP = re.compile(r"(?:^|,)\s*,")  # an entry that is not there; a comma after the last is nobody's loss
INT64_MAX = 2**63 - 1
BYTE_OFFSET = 4  # of a byte among the token ids of a byte model (facebook/blt bytelatent/tokenizers/constants.py)


@dataclass(frozen=True)
class Sequence:
    """One sequence as asked for: [T] token ids, [T] mask or None, compressed ids before it."""

    ids: NDArray[np.int64]
    mask: NDArray[np.bool_] | None
    history: tuple[int, ...]
    tokenizer: tuple[str, int] | None = None  # of a text: which, and how many ids it gives

    def fits(self, count: int) -> Sequence:
        """Itself, if the ids are for a token map of `count` entries as far as can be seen; else `EngramctlError`."""
        if self.tokenizer is not None and self.tokenizer[1] != count:
            name, ids = self.tokenizer
            hint = "give --tokenizer FILE, or the --params or --token-map that belong to it"
            raise EngramctlError(name, f"a tokenizer of {count} ids, as many as the token map's", f"{ids}", hint)
        return self


def read_sequence(
    ids: str | None,
    ids_file: Path | None,
    text: str | None,
    mask: str | None,
    mask_file: Path | None,
    history: str | None,
    ids_format: IdsFormat = IdsFormat.auto,
    tokenizer: Path | None = None,
    checkpoint: Path | None = None,
    id_space: str = "map",
) -> Sequence:
    """The sequence that the options describe; none, several, or a bad one raises `EngramctlError`."""
    given = [name for name, value in (("--ids", ids), ("--ids-file", ids_file), ("--text", text)) if value is not None]
    if len(given) != 1:
        hint = None if given else "--ids 5,6,7, or --ids-file - for standard input"
        raise EngramctlError(
            "token ids", "exactly one of --ids, --ids-file, --text", " and ".join(given) or "none", hint
        )
    made_by = None
    if ids is not None:
        tokens = integers(ids, "--ids")
    elif ids_file is not None:
        tokens = read_ids(ids_file, ids_format)
    elif id_space == "byte":
        tokens = np.frombuffer((text or "").encode("utf-8", "surrogateescape"), np.uint8).astype(np.int64) + BYTE_OFFSET
    else:
        from engramctl import vocabulary

        path = vocabulary.find_tokenizer(tokenizer, checkpoint, id_space == "map")
        loaded = vocabulary.load_tokenizer(path)
        made_by = str(path), loaded.get_vocab_size(with_added_tokens=True)
        tokens = vocabulary.encode(loaded, text or "")
        if not tokens.size:
            raise EngramctlError("--text", "text that gives token ids", "none")
    return Sequence(tokens, read_mask(mask, mask_file, tokens.size), read_history(history), made_by)


def id_space(source: Path, profile: str | None) -> str:
    """What the token ids of a source are: it decides how a text becomes ids."""
    from engramctl.checkpoint import profile_of

    return profile_of(source, profile).rule.id_space


def read_ids(path: Path, form: IdsFormat = IdsFormat.auto) -> NDArray[np.int64]:
    """[T] token ids of a file or standard input."""
    data, name = read_bytes(path), label(path)
    if form is IdsFormat.auto:
        form = (
            IdsFormat.jsonl
            if path.suffix == ".jsonl"
            else IdsFormat.npy
            if data.startswith(npy.MAGIC)
            else IdsFormat.text
        )
    if form is IdsFormat.npy:
        array = npy.read(data, name)
        if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
            raise FormatError(name, None, "one row of integers", f"{array.dtype} {list(array.shape)}")
        if array.size and int(array.max()) > INT64_MAX:
            raise FormatError(name, None, "token ids below 2**63", f"{array.max()}")
        ids = array.astype(np.int64)
    elif form is IdsFormat.u32:
        if len(data) % 4:
            raise FormatError(name, None, "whole 4-byte token ids", f"{len(data)} bytes")
        ids = np.frombuffer(data, "<u4").astype(np.int64)
    elif form is IdsFormat.jsonl:
        ids = _jsonl(data, name)
    else:
        if b"\0" in data or not _is_utf8(data):
            hint = "--ids-format u32 reads raw little-endian ids"
            raise EngramctlError(name, "token ids as text, .npy or .jsonl", "binary data", hint)
        ids = integers(_utf8(data, name), name)
    if not ids.size:
        raise FormatError(name, None, "token ids", "an empty input")
    return ids


def read_mask(mask: str | None, mask_file: Path | None, count: int) -> NDArray[np.bool_] | None:
    """[T] True for text, False for dead; None where no mask was given."""
    if mask is None and mask_file is None:
        return None
    if mask is not None and mask_file is not None:
        raise EngramctlError("mask", "one of --mask and --mask-file", "both")
    name = "--mask" if mask_file is None else label(mask_file)
    values = integers(mask, name) if mask is not None else _mask_file(mask_file or STDIN)
    if values.size != count:
        raise EngramctlError(name, f"{count} entries, one per token id", f"{values.size}")
    odd = np.flatnonzero((values != 0) & (values != 1))
    if odd.size:
        raise EngramctlError(name, "1 for text or 0 for dead", f"{values[odd[0]]} at position {odd[0]}")
    return values.astype(np.bool_)


def _mask_file(path: Path) -> NDArray[np.int64]:
    data, name = read_bytes(path), label(path)
    if not data.startswith(npy.MAGIC):
        return integers(_utf8(data, name), name)
    array = npy.read(data, name)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.dtype == np.bool_):
        raise FormatError(name, None, "one row of 0 and 1", f"{array.dtype} {list(array.shape)}")
    return array.astype(np.int64)


def read_history(history: str | None) -> tuple[int, ...]:
    return () if history is None or not history.strip() else tuple(integers(history, "--history").tolist())


def integers(text: str, where: str) -> NDArray[np.int64]:
    """Whitespace- or comma-separated integers, in brackets or not; else `EngramctlError` with the position."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):  # as JSON and Python print a list
        text = text[1:-1]
    if (gap := GAP.search(text)) is not None:
        position = len(text[: gap.start()].replace(",", " ").split())
        raise EngramctlError(where, "integers", f"nothing between commas at position {position}")
    words = text.replace(",", " ").split()
    if not words:
        raise EngramctlError(where, "integers", "an empty input")
    for position, word in enumerate(words):
        digits = word[1:] if word[0] == "-" else word
        if not (digits.isascii() and digits.isdigit()):
            raise EngramctlError(where, "integers", f"{word[:40]!r} at position {position}")
        if len(digits) > 18 and (len(digits) > 40 or int(digits) > INT64_MAX):
            raise EngramctlError(where, "integers below 2**63", f"{word[:40]} at position {position}")
    return np.array([int(word) for word in words], np.int64)


def _jsonl(data: bytes, name: str) -> NDArray[np.int64]:
    """One integer or array of integers a line, all one sequence."""
    ids: list[int] = []
    for number, line in enumerate(_utf8(data, name).splitlines(), 1):
        if not line.strip():
            continue
        try:
            parsed = json.loads(line)
        except (ValueError, RecursionError):
            raise FormatError(name, f"line {number}", "an integer or an array of integers", f"{line[:40]!r}") from None
        items = parsed if isinstance(parsed, list) else [parsed]
        bad = [item for item in items if type(item) is not int or not -(2**63) <= item <= INT64_MAX]
        if bad:
            raise FormatError(name, f"line {number}", "integers below 2**63", f"{bad[0]!r:.40}")
        ids.extend(items)
    return np.array(ids, np.int64)


def _utf8(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(name, error.start, "text", f"byte {data[error.start]:#04x}") from None


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """A whole file, or standard input for `-`; a folder, a missing file or more than `most` raises `FormatError`."""
    if path == STDIN:
        data = sys.stdin.buffer.read(most + 1)
        if not data:
            raise FormatError(label(path), None, "data", "an empty input")
        if len(data) > most:
            raise FormatError(label(path), None, f"at most {most} bytes", "more")
        return data
    if path.is_char_device():
        most = min(most, MOST_DEVICE_BYTES)
    if path.is_fifo() or path.is_char_device():  # a shell's <(...), or /dev/stdin
        with path.open("rb") as pipe:
            data = pipe.read(most + 1)
        if len(data) > most:
            raise FormatError(path, None, f"at most {most} bytes", "more")
        return data
    with ReadFile.open(path) as file:
        if file.size > most:
            raise FormatError(path, None, f"at most {most} bytes", f"{file.size}")
        return file.read(0, file.size, "data")


def label(path: Path) -> str:
    return "standard input" if path == STDIN else str(path)


def text_of(path: Path) -> str:
    """A whole text file or standard input."""
    return _utf8(read_bytes(path), label(path))


def read_rows(rows: str | None, rows_file: Path | None, count: int) -> NDArray[np.int64]:
    """Row numbers of a table of `count` rows, in the order given, from `--rows 0,5,100:200` or `--rows-file`.

    An npy may have any shape, as [T, C] of `run --stop-at rows`: token by token, column by column.
    """
    if (rows is None) == (rows_file is None):
        raise EngramctlError("row numbers", "one of --rows and --rows-file", "none" if rows is None else "both")
    if rows is not None:
        return rowsets.expand(rowsets.parse(rows, "--rows"), "--rows", count)
    path = rows_file or STDIN
    data, name = read_bytes(path, MOST_ROW_BYTES), label(path)
    if not data.startswith(npy.MAGIC):
        listed = ",".join(_utf8(data, name).replace(",", " ").split())
        return rowsets.expand(rowsets.parse(listed, name), name, count)
    array = npy.read(data, name)
    if not array.ndim or not np.issubdtype(array.dtype, np.integer):
        raise FormatError(name, None, "an array of integers", f"{array.dtype} {list(array.shape)}")
    if not array.size:
        raise FormatError(name, None, "row numbers", "an empty input")
    if array.size > rowsets.MOST_ROWS:
        raise EngramctlError(name, f"at most {rowsets.MOST_ROWS} rows", f"{array.size}")
    if int(array.max()) > INT64_MAX:
        raise FormatError(name, None, "row numbers below 2**63", f"{array.max()}")
    return array.astype(np.int64).reshape(-1)
