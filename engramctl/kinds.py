"""What a file is, by its first bytes: so that a file of the wrong kind is called what it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from engramctl.errors import EngramctlError
from formats import npy
from formats.disk import ReadFile
from formats.gguf_write import MAGIC as GGUF_MAGIC
from formats.safetensors_raw import LENGTH_BYTES

HEAD = 1 << 16
GGUF = "a GGUF container"
UNFINISHED = "an unfinished output of repack"
JSON, ZIP, NPY = "a JSON file", "an npz or zip file", "an npy file"
TEXT, MAP, TOKENIZER, EMPTY = "a text file", "a token map", "a tokenizer", "an empty file"
SAFETENSORS = "a safetensors file"
CHECKPOINT = "a checkpoint folder or a safetensors file"
SOURCES = "a checkpoint folder, a safetensors file or a GGUF"
SIGNS = (
    (GGUF_MAGIC, GGUF),
    (npy.MAGIC, NPY),
    (b"PK\x03\x04", ZIP),
    (b"PK\x05\x06", ZIP),
    (b"engramctl partial ", UNFINISHED),
)


def name(path: Path) -> str | None:
    """What a file surely is; None for a folder, for nothing, and for what has no sign that is known here."""
    if not path.is_file():
        return None
    with ReadFile.open(path) as file:
        return of(file.read(0, min(file.size, HEAD), "data"), file.size)


def of(head: bytes, size: int) -> str | None:
    """The same of a file's beginning, of HEAD bytes or all of it."""
    if not head:
        return EMPTY
    for sign, kind in SIGNS:
        if head.startswith(sign):
            return kind
    if head[8:9] == b"{" and not head[:1].isspace() and head[:1] != b"{":
        return None  # a safetensors file, whole or broken
    if is_tokenizer(head):
        return TOKENIZER
    if head.lstrip()[:1] in (b"{", b"[") and _is_text(head):
        return JSON
    if _is_token_map(head, size):
        return MAP
    return TEXT if _is_text(head) else None


def safetensors(head: bytes, size: int) -> str | None:
    """The name of a file that begins as safetensors do: its header's length, which is inside of it, and the header."""
    length = int.from_bytes(head[:LENGTH_BYTES], "little")
    return SAFETENSORS if head[LENGTH_BYTES:][:1] == b"{" and length < size else None


def refuse_other(path: Path, expected: str, allowed: tuple[str, ...] = (), hint: str | None = None) -> None:
    """Refuse a file that is surely of another kind than what is expected, by its own kind's name; `hint` is the way on
    from a container where a checkpoint is expected."""
    kind = name(path)
    if kind is None and expected == GGUF and path.is_file():
        with ReadFile.open(path) as file:
            kind = safetensors(file.read(0, min(file.size, LENGTH_BYTES + 1), "data"), file.size)
    if kind is not None and kind not in allowed:
        on = _way_on(path) if kind == UNFINISHED else None
        if kind == GGUF and expected == CHECKPOINT:
            on = hint or f"unpack {path} -o DIR makes a checkpoint of it"
        raise EngramctlError(str(path), expected, kind, on)


def refuse_unknown(path: Path, expected: str) -> None:
    """As `refuse_other`, and so is a file that begins like nothing that is known here."""
    refuse_other(path, expected)
    if path.is_file():
        with ReadFile.open(path) as file:
            if file.size > LENGTH_BYTES and file.read(LENGTH_BYTES, 1, "data") != b"{":
                raise EngramctlError(str(path), expected, "data of no kind that is known here")


def _way_on(path: Path) -> str:
    from engramctl.workspace import way_on  # which knows of journals, and imports much

    return way_on(path)


def unfinished(path: Path) -> str | None:
    """What says that a repack has not finished this file; None where nothing does."""
    if path.name.endswith(".partial"):
        return "a .partial"
    journal = path.with_name(f"{path.name}.journal")
    if journal.exists():
        return f"{journal.name} beside it"
    return UNFINISHED if name(path) == UNFINISHED else None


def is_tokenizer(head: bytes) -> bool:
    """Does it begin as a tokenizer.json?"""
    some = head.lstrip()
    return some[:1] == b"{" and b'"token_map"' not in some and b'"added_tokens"' in some


def _is_text(head: bytes) -> bool:
    try:
        text = head[: len(head) - 3].decode("utf-8") if len(head) == HEAD else head.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return all(c.isprintable() or c in "\t\r\n" for c in text)


def _is_token_map(head: bytes, size: int) -> bool:
    """u32 or i64 entries that are numbered by first appearance, as compressed ids are."""
    if size < 64 or size % 4:
        return False
    for kind in ("<u4", "<u8"):
        ids = np.frombuffer(head, kind, min(len(head), 4096) // np.dtype(kind).itemsize).astype(np.float64)
        most = np.maximum.accumulate(ids)
        if ids[0] == 0 and most[-1] > 0 and bool((ids[1:] <= most[:-1] + 1).all()):
            return True
    return False
