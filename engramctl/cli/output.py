"""Where results go: a file that appears whole, or standard output."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from engramctl import room
from engramctl.cli.options import STDIN
from engramctl.errors import EngramctlError
from formats import disk
from formats.npy import encode_header
from formats.os_errors import made_for

# Endings that say a form: those of this tool's files, and of others that lie beside them.
SAYING = (
    *(".c", ".csv", ".gguf", ".gz", ".h", ".i64", ".json", ".jsonl", ".npy", ".npz", ".pt", ".pth", ".py", ".rs"),
    *(".safetensors", ".sha256", ".toml", ".tsv", ".txt", ".u32", ".u64", ".yaml", ".yml", ".zip", ".zst"),
)

Form = TypeVar("Form", bound=StrEnum)


def emit(path: Path, chunks: Iterable[bytes], force: bool) -> None:
    """Chunks to a file, whole or not at all; to standard output for `-`; straight to a pipe or device, as /dev/null."""
    if _straight(path):
        with path.open("wb") as device:
            for chunk in chunks:
                device.write(chunk)
        return
    if path != STDIN:
        disk.write_whole(path, chunks, force)
        return
    for chunk in chunks:
        sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()


def form_of(to: Form | None, output: Path | None, endings: dict[str, Form], default: Form) -> Form:
    """The form that was asked for; else the one that the output's name ends in; else, if it says none, the default."""
    if to is not None or output is None:
        return to or default
    refuse_ending(output, endings, "--to says the form, whatever the name")
    return endings.get(output.suffix.lower(), default)


def refuse_ending(output: Path, written: Iterable[str], hint: str | None = None) -> None:
    """Refuse a name that says another form than those written here; one that says nothing is anybody's own."""
    ending = output.suffix.lower()
    if output != STDIN and ending in SAYING and ending not in written:
        raise EngramctlError(
            "--output", f"a name that ends in {', '.join(written)}, or in no known form", output.name, hint
        )


def refuse_source(output: Path | None, *sources: Path | None, profile: str | None = None) -> None:
    """Before the work: nothing is written over what it is made from, a profile of one's own included."""
    if output is not None and output != STDIN:
        every = [*sources, Path(profile) if profile and profile.endswith(".toml") else None]
        room.refuse_sources([output], [source for source in every if source is not None and source != STDIN])


def refuse_existing(path: Path, force: bool, binary: bool = False) -> None:
    """Before the work, what `emit` would refuse after it, and bytes that a terminal cannot show."""
    if path != STDIN and not _straight(path):
        disk.refuse_existing(path, force)
    elif binary and _terminal(path):
        raise EngramctlError("standard output", "a file or a pipe for binary data", "a terminal", "-o FILE writes it")


def _straight(path: Path) -> bool:
    """Is it written to as it is? A pipe and a device are never replaced."""
    return path != STDIN and (path.is_char_device() or path.is_fifo())


def _terminal(path: Path) -> bool:
    if path == STDIN:
        return sys.stdout is not None and sys.stdout.isatty()
    if not path.is_char_device():
        return False
    with path.open("wb", 0) as device:
        return device.isatty()


def npy(array: NDArray[Any]) -> Iterable[bytes]:
    """An npy file's bytes: header, then the array in pieces."""
    yield encode_header(array.shape, array.dtype)
    flat = np.ascontiguousarray(array).data.cast("B") if array.size else memoryview(b"")
    piece = 1 << 24
    for start in range(0, len(flat), piece):
        yield bytes(flat[start : start + piece])


def refuse_both(json_wanted: bool, output: Path | None) -> None:
    """Standard output holds data or a report, not both."""
    if json_wanted and output == STDIN:
        raise EngramctlError("--json", "an output file beside it", "-o -, which is standard output too")


@contextmanager
def kept(output: Path | None) -> Iterator[None]:
    """An interruption says what it leaves of an output, and how to go on."""
    if output is not None:
        room.require_name(output)
    partial = None if output is None else output.with_name(output.name + ".partial")
    with left_behind(partial, "is kept, and --resume goes on"), nullcontext() if output is None else made_for(output):
        yield


@contextmanager
def left_behind(path: Path | None, words: str) -> Iterator[None]:
    """An interruption says of a file that is there then: PATH and the words."""
    from engramctl.cli import edge

    try:
        yield
    except (KeyboardInterrupt, edge.Terminated) as stop:
        if path is not None and path.exists():
            stop.args = (f"{path} {words}",)
        raise
