"""A GGUF's header read forward: never a byte past the file's end or the limit, nothing allocated before it is there."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.disk import ReadFile
from formats.errors import FormatError, before_end, shown
from formats.gguf_values import COUNT_BYTES, DTYPES, TYPE_BYTES, ValueType

HEADER_LIMIT = 1 << 26  # a real header with a tokenizer of 256 Ki tokens takes a quarter of it
COUNT_LIMIT = 1 << 18  # keys, tensors: an entry of a few bytes becomes objects of hundreds
NAME_LIMIT = 65_535  # bytes of a key or a tensor's name
WINDOW = 1 << 20  # bytes read at a time


class Scan:
    """A window of the file and a place in it."""

    def __init__(self, file: ReadFile, any_text: bool = False) -> None:
        """`any_text` notes values that are not UTF-8 in `text_errors`, and reads their odd bytes as \\xNN."""
        self.text_errors: dict[str, tuple[str, str]] = {}  # (expected, found), by what it is in
        self._any_text = any_text
        self.path, self._file = file.path, file
        self._end = min(file.size, HEADER_LIMIT)
        self._window, self._base, self._at = b"", 0, 0  # the window starts at _base; the next byte is _window[_at]

    @property
    def position(self) -> int:
        return self._base + self._at

    def _need(self, count: int, what: str) -> None:
        """Make the next `count` bytes lie in the window."""
        if self._at + count <= len(self._window):
            return
        left = self._end - self.position
        if count > left:
            if self._end < self._file.size:
                raise FormatError(
                    self.path, self.position, f"a header of at most {HEADER_LIMIT} bytes", f"more, in {what}"
                )
            raise FormatError(self.path, self.position, f"{count} bytes of {what}", before_end(left, self._end))
        self._base, self._at = self.position, 0
        self._window = self._file.read(self._base, min(max(count, WINDOW), left), what)

    def take(self, count: int, what: str) -> bytes:
        self._need(count, what)
        start, self._at = self._at, self._at + count
        return self._window[start : self._at]

    def word(self, what: str) -> int:
        return int.from_bytes(self.take(TYPE_BYTES, what), "little")

    def long(self, what: str) -> int:
        return int.from_bytes(self.take(COUNT_BYTES, what), "little")

    def count(self, what: str, least: int, limit: int = HEADER_LIMIT) -> int:
        """A count of things that take at least `least` bytes each: more than could follow is refused here."""
        at = self.position
        count = self.long(f"the count of {what}")
        most = min(limit, (self._end - self.position) // least)
        if count > most:
            bound = f"at most {most} {what}"
            ends = most < limit and self._end == self._file.size
            raise FormatError(self.path, at, before_end(bound, self._end) if ends else bound, f"{count}")
        return count

    def value_type(self, key: str) -> ValueType:
        at = self.position
        number = self.word(f"the type of {shown(key)}")
        try:
            return ValueType(number)
        except ValueError:
            raise FormatError(
                self.path, at, f"a value type 0..{max(ValueType)} for {shown(key)}", f"{number}"
            ) from None

    def numbers(self, kind: ValueType, count: int, key: str) -> NDArray[Any]:
        at = self.position
        raw = self.take(count * DTYPES[kind].itemsize, shown(key))
        if kind == ValueType.BOOL and raw.strip(b"\x00\x01"):
            bad = next(i for i, byte in enumerate(raw) if byte > 1)
            raise FormatError(self.path, at + bad, f"0 or 1 for a bool of {shown(key)}", f"{raw[bad]}")
        return np.frombuffer(raw, DTYPES[kind])

    def name(self, what: str) -> str:
        at = self.position
        length = self.long(f"the length of {what}")
        if length > NAME_LIMIT:
            raise FormatError(self.path, at, f"{what} of at most {NAME_LIMIT} bytes", f"{length}")
        return self._decode(self.take(length, what), what)

    def text(self, what: str) -> str:
        raw = self.take(self.long(f"the length of {what}"), what)
        try:
            return self._decode(raw, what)
        except FormatError as error:
            if not self._any_text:
                raise
            self.text_errors.setdefault(what, ("UTF-8", f"{error.found} at byte {error.at}"))
            return raw.decode(errors="backslashreplace")

    def texts(self, count: int, what: str) -> list[str]:
        """`count` strings; those that lie whole in the window are taken without a call each."""
        made: list[str] = []
        length_at = struct.Struct("<Q").unpack_from
        while len(made) < count:
            window, at = self._window, self._at
            try:
                while len(made) < count:
                    start = at + COUNT_BYTES
                    stop = start + length_at(window, at)[0]
                    if stop > len(window):
                        break
                    made.append(window[start:stop].decode())
                    at = stop
            except (struct.error, UnicodeDecodeError):
                pass  # the slow way below reads on, or says where
            self._at = at
            if len(made) < count:
                made.append(self.text(what))
        return made

    def _decode(self, raw: bytes, what: str) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            at = self.position - len(raw) + error.start
            raise FormatError(self.path, at, f"UTF-8 in {what}", f"byte {raw[error.start]:#04x}") from None
