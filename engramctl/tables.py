"""The tables of whatever holds rows: a checkpoint, a container, a file of rows. Constants do not count here."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from engramctl import sidecars
from engramctl.errors import EngramctlError
from engramctl.hash_params import HashParams
from engramctl.source import is_container, open_source
from engramctl.table import Part, Table
from formats import recognise
from formats.closing import Closing
from formats.dialect import Dialect
from formats.disk import ReadFile
from formats.errors import FormatError
from formats.gguf_file import GgufHeader, TensorInfo
from formats.gguf_split import read_model
from formats.row_layouts import RowLayout

SCALES = 8  # bytes of a row's scales, in a tensor of their own


class Files(Closing):
    """The files of a GGUF, each opened when it is first read."""

    def __init__(self, header: GgufHeader) -> None:
        self.header = header
        self._opened: dict[Path, ReadFile] = {}

    def of(self, tensor: TensorInfo) -> ReadFile:
        path = self.header.home(tensor).path
        if path not in self._opened:
            self._opened[path] = ReadFile.open(path)
        return self._opened[path]

    def close(self) -> None:
        for file in self._opened.values():
            file.close()
        self._opened.clear()


@dataclass
class Tables:
    """Opened tables by layer."""

    path: Path
    dialect: str
    tables: Mapping[int, Table]
    _stack: ExitStack = field(default_factory=ExitStack)

    def the_layer(self, layer: int | None) -> int:
        """The layer asked for, or the only one; otherwise `EngramctlError` with those there are."""
        if layer is None and len(self.tables) == 1:
            return next(iter(self.tables))
        if layer is None or layer not in self.tables:
            there = f"one of {', '.join(map(str, self.tables))}"
            raise EngramctlError("--layer", there, "none" if layer is None else f"{layer}")
        return layer

    def table(self, layer: int) -> Table:
        return self.tables[layer]

    def params(self) -> HashParams:
        """The constants beside the tables, for what needs to know where a column begins."""
        with open_source(self.path) as source:
            return source.params()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()


def open_tables(path: Path, profile: str | None = None) -> Tables:
    """Every table at `path`; none, or one that cannot be read, raises `FormatError`."""
    stack = ExitStack()
    try:
        if path.suffix == ".safetensors":
            return _of_checkpoint(path, profile, stack)
        if path.is_file() and is_container(path):
            header = read_model(path)
            recognise.refuse_underway(header)
            dialect, tables = of_header(stack.enter_context(Files(header)))
            return Tables(path, dialect.name, tables, stack)
        found = sidecars.opened(stack, path)
        return _of_checkpoint(path, profile, stack) if found is None else Tables(path, found[0].name, found[1], stack)
    except BaseException:
        stack.close()
        raise


def _of_checkpoint(path: Path, profile: str | None, stack: ExitStack) -> Tables:
    source = stack.enter_context(open_source(path, profile))
    return Tables(path, source.dialect, {layer: source.table(layer) for layer in source.sizes.layers}, stack)


def of_header(files: Files) -> tuple[Dialect, dict[int, Table]]:
    """The nearest dialect and every table of a GGUF; one without tables raises `FormatError`."""
    header = files.header
    seen = recognise.recognise(header)
    dialect = seen.best
    if dialect is None:
        where = "; ".join(seen.notes)
        raise FormatError(header.path, None, "an Engram's tables", where or f"none among {len(header.tensors)} tensors")
    layers = recognise.table_layers(header, dialect)
    if not layers:
        found = "none: they are in other files" if recognise.elsewhere(header, dialect) else "none"
        name = dialect.tensors.get("table", "table").format(layer="N")
        raise FormatError(header.path, None, f"a tensor {name}", "; ".join((found, *seen.notes)))
    return dialect, {layer: of_layer(files, dialect, layer) for layer in layers}


def of_layer(files: Files, dialect: Dialect, layer: int) -> Table:
    """One table of a GGUF, checked as far as reading its rows needs it."""
    header = files.header
    tensor = header.tensor(dialect.tensors["table"].format(layer=layer))
    if len(tensor.shape) != 2 or tensor.shape[0] != dialect.row or recognise.type_of(tensor) not in _types(dialect):
        raise FormatError(header.path, f"tensor {tensor.name}", _wanted(dialect), _shown(tensor))
    if dialect.layout == "split264":
        scales = header.tensor(dialect.tensors["scales"].format(layer=layer))
        if recognise.type_of(scales) != "I8" or scales.shape != (SCALES, tensor.shape[1]):
            wanted = f"I8 [{SCALES}, {tensor.shape[1]}]"
            raise FormatError(header.path, f"tensor {scales.name}", wanted, _shown(scales))
        parts = (Part(files.of(tensor), tensor.start, dialect.row), Part(files.of(scales), scales.start, SCALES))
        return Table(layer, tensor.shape[1], parts, layout=_layout(header, dialect, tensor))
    layout = _layout(header, dialect, tensor)
    return Table(layer, tensor.shape[1], (Part(files.of(tensor), tensor.start, layout.stored),), layout=layout)


def _layout(header: GgufHeader, dialect: Dialect, tensor: TensorInfo) -> RowLayout:
    layout = recognise.layout_of(header, dialect, tensor)
    if layout is None:
        raise FormatError(header.path, f"tensor {tensor.name}", "rows of a type that is decoded here", _shown(tensor))
    return layout


def _types(dialect: Dialect) -> tuple[str, ...]:
    return dialect.types.get("table", ())


def _wanted(dialect: Dialect) -> str:
    types = _types(dialect)
    return f"{' or '.join(types[:3])}{' or another quantised type' if len(types) > 3 else ''} [{dialect.row}, rows]"


def _shown(tensor: TensorInfo) -> str:
    return f"{recognise.type_of(tensor)} {list(tensor.shape)}"
