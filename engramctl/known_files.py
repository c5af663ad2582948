"""Files that this tool writes, and that lie in a checkpoint: by how they begin, what each is, and what takes it."""

from __future__ import annotations

from pathlib import Path

from engramctl import kinds
from engramctl.errors import EngramctlError
from formats.disk import ReadFile

SHOWN = "a checkpoint folder, a safetensors file, a GGUF, a token map or a file of rows"
MAPS = "a token map, a tokenizer.json, a container or a checkpoint"
DUMPS = "check hash, check values, check kv and check gate compare such dumps"
# What stands in a JSON file, or in an npz as its members' names -> what the file is, and what takes it.
SIGNS = {
    kinds.JSON: (
        (
            b'"engramctl/params/1"',
            "hash constants of params",
            "check params {0} compares them, hash --params {0} uses them",
        ),
        (
            b'"engramctl/probe-hash-file/1"',
            "a probe for hashes",
            "check hash DUMP --probe {0} judges what an engine made of it",
        ),
        (b'"schema": "engramctl/', "a report of --json", None),
        (b'"weight_map"', "the index of a checkpoint", "give the folder it is in"),
        (b'"multipliers"', "hash constants", "check params {0} compares them, hash --params {0} uses them"),
        (b'{"position"', "rows of hash in jsonl", "check hash {0} compares them"),
        (b'"model_type"', "a model's config", "give the folder it is in"),
    ),
    kinds.ZIP: (
        (b"multipliers.npy", "hash constants in npz", "check params {0} compares them, hash --params {0} uses them"),
        (b"hidden.npy", "hidden states in npz, for the gate", "check gate {0} compares an engine's gates of them"),
    ),
}
TAKEN = {
    kinds.TOKENIZER: "map {0} -o FILE makes its token map",
    kinds.NPY: DUMPS,
    kinds.ZIP: DUMPS,
}
# Kinds of which some files are token maps, or have one.
OF_MAPS = (None, kinds.MAP, kinds.TOKENIZER, kinds.NPY, kinds.EMPTY)


def describe(head: bytes, size: int, where: str) -> tuple[str | None, str | None]:
    """What a file of that beginning surely is (None: nothing known), and which command takes it."""
    kind, where = kinds.of(head, size), "-" if where == "standard input" else where
    for sign, what, taken in SIGNS.get(kind or "", ()):
        if sign in head:
            return what, None if taken is None else taken.format(where)
    hint = TAKEN.get(kind or "")
    return kind or kinds.safetensors(head, size), None if hint is None else hint.format(where)


def refuse(path: Path) -> None:
    """Refuse a file that `show` has nothing more to say about, by its own kind's name."""
    if path.is_file():
        with ReadFile.open(path) as file:
            kind, hint = describe(file.read(0, min(file.size, kinds.HEAD), "data"), file.size, str(path))
        if kind not in (None, kinds.SAFETENSORS):
            raise EngramctlError(str(path), SHOWN, str(kind), hint)
    kinds.refuse_unknown(path, SHOWN)


def refuse_no_map(data: bytes, where: str) -> None:
    """Refuse the bytes of a file that is surely neither a token map nor a tokenizer, by its own kind's name."""
    kind, hint = describe(data[: kinds.HEAD], len(data), where)
    if kind == kinds.JSON and (data.lstrip()[:1] == b"[" or b'"model"' in data):
        return  # a list of ids, or a tokenizer whose vocabulary comes first
    if kind not in OF_MAPS and b'"token_map"' not in data:
        raise EngramctlError(where, MAPS, str(kind), hint)
