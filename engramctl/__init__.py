"""engramctl: which row of a hashed n-gram memory is it, and what does it do?

The public names below are all there is to rely on; each is loaded when it is first used.

    profiles     what is published about each model: profiles.load(name), profiles.names()
    HashParams   constants between a token id and a row number; hash_params.published(profile) makes the release's
    History      one sequence's past: append, mask, snapshot, restore, fork, rollback, reset
    hash_rows    [T] token ids -> [T, layers, columns] rows, by the reference
    open_source  a checkpoint or container, opened and checked
    Table        rows by number: open_source(path).table(layer).read(rows), or Table.open(path, layer, io="mmap")
    Pipeline     layers ready to serve: prepare(tokens) hashes, reads and projects ahead of gate(layer, hidden)
    run          rows, values, keys and value, gates or the new hidden state of one layer
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engramctl import profiles
    from engramctl.errors import EngramctlError, Finding
    from engramctl.hash_params import HashParams, published
    from engramctl.history import History
    from engramctl.pipeline import Pipeline, run
    from engramctl.reference import hash_rows
    from engramctl.source import open_source
    from engramctl.table import Table

__version__ = "0.1.0"

_HOMES = {
    "EngramctlError": "errors",
    "Finding": "errors",
    "HashParams": "hash_params",
    "Pipeline": "pipeline",
    "History": "history",
    "Table": "table",
    "hash_rows": "reference",
    "open_source": "source",
    "profiles": "",
    "published": "hash_params",
    "run": "pipeline",
}

__all__ = [
    "EngramctlError",
    "Finding",
    "HashParams",
    "History",
    "Pipeline",
    "Table",
    "__version__",
    "hash_rows",
    "open_source",
    "profiles",
    "published",
    "run",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:  # noqa: ANN401  (whatever the name stands for)
    if name not in _HOMES:
        raise AttributeError(f"module 'engramctl' has no attribute {name!r}")
    from importlib import import_module

    if not _HOMES[name]:
        return import_module(f"engramctl.{name}")
    return getattr(import_module(f"engramctl.{_HOMES[name]}"), name)
