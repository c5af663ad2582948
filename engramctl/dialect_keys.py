"""A model's constants as a dialect keeps them: values by role, and each with exactly the type that its key demands."""

from __future__ import annotations

from typing import Any

import numpy as np

from engramctl import config as configs
from engramctl.hash_params import HashParams
from engramctl.profiles import Sizes
from formats import gguf_file as gguf
from formats.dialect import Dialect, Key
from formats.errors import FormatError
from formats.gguf_file import Value, ValueType
from formats.recognise import describe

F32_LIMIT = 2.0**127
SCALARS = {
    "u8": ValueType.UINT8,
    "u32": ValueType.UINT32,
    "i32": ValueType.INT32,
    "u64": ValueType.UINT64,
    "i64": ValueType.INT64,
    "f32": ValueType.FLOAT32,
}


MADE = {  # the roles that `values` knows
    *("encoding", "storage", "present", "layers", "rows", "heads", "width", "size", "base", "compressed"),
    *("pad_id", "pad_token_id", "token_map", "moduli", "multipliers", "offsets"),
}


def values(dialect: Dialect, params: HashParams, sizes: Sizes) -> dict[str, Any]:
    """Every role of the dialect that the constants and the sizes say; others are the file's own affair."""
    known: dict[str, Any] = {
        "encoding": dialect.encoding,
        "storage": "embedded",
        "present": True,
        "layers": list(params.layers),
        "rows": list(params.rows),
        "heads": params.heads,
        "width": sizes.width,
        "size": params.size,
        "base": sizes.base,
        "compressed": params.compressed,
        "pad_id": params.pad_id,
        "pad_token_id": sizes.pad_token_id,
        "token_map": params.token_map,
        "moduli": params.moduli.reshape(-1),
        "multipliers": params.multipliers.reshape(-1),
        "offsets": params.offsets.reshape(-1),
    }
    assert known.keys() == MADE
    return {role: known[role] for role in dialect.keys if role in known}


def typed(key: Key, value: object, path: str) -> Value:
    """The value with exactly the key's type; one that does not fit raises `FormatError`."""
    kind, many = key.type.removesuffix("[]"), key.type.endswith("[]")
    try:
        if many and isinstance(value, np.ndarray):
            return gguf.array(SCALARS[kind], value)
        if many != isinstance(value, (list, tuple)):
            raise ValueError(key.type)
        if many:
            return gguf.array(SCALARS[kind], [int(_checked(kind, one)) for one in value])  # type: ignore[attr-defined]
        one = _checked(kind, value)
        if kind == "string":
            return gguf.string(one)
        return gguf.boolean(one) if kind == "bool" else gguf.scalar(SCALARS[kind], one)
    except ValueError:
        raise FormatError(path, f"key {key.name}", f"a value that fits {key.type}", f"{value!r:.40}") from None


def _checked(kind: str, value: Any) -> Any:  # noqa: ANN401 - whatever a config holds
    """Itself, if it is of that kind and does not merely become so; else `ValueError`."""
    if kind == "string":
        fits = isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)  # UTF-8 has no surrogates
    elif kind == "bool":
        fits = isinstance(value, bool)
    else:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        fits = fits and (abs(value) < F32_LIMIT if kind == "f32" else value == value // 1)
    if not fits:
        raise ValueError(kind)
    return value


def same(stored: Value, wanted: Value) -> bool:
    """Equal meaning, whatever the integers' width."""
    if isinstance(stored.value, np.ndarray) and isinstance(wanted.value, np.ndarray):
        alike = np.issubdtype(stored.value.dtype, np.integer) and stored.value.shape == wanted.value.shape
        return bool(alike) and stored.value.tolist() == wanted.value.tolist()
    return type(stored.value) is type(wanted.value) and bool(stored.value == wanted.value)


def add_config(
    made: dict[str, Value], dialect: Dialect, config_text: str | None, path: str, changes: list[dict[str, str]]
) -> None:
    """The config where there is none, and what its loader wants of the file's config as keys of their own."""
    if dialect.config not in made and config_text is not None:
        made[dialect.config] = gguf.string(config_text)
        changes.append({"what": dialect.config, "was": "missing", "now": "string"})
    held = made.get(dialect.config)
    if held is None or not isinstance(held.value, str):
        return
    try:
        wanted = hyperparameters(dialect, configs.parse(held.value, f"{path} at key {dialect.config}"), path)
    except FormatError:  # no config to take anything from: `check file` says so
        return
    for name, value in wanted:
        if name not in made:
            made[name] = value
            changes.append({"what": name, "was": "missing", "now": describe(value)})
        elif describe(made[name]) != describe(value) and same(made[name], value):
            changes.append({"what": name, "was": describe(made[name]), "now": describe(value)})
            made[name] = value


def hyperparameters(dialect: Dialect, config: dict[str, Any], path: str) -> list[tuple[str, Value]]:
    """Each published hyperparameter that the config has, under the dialect's prefix and with its type."""
    part = configs.text_part(config, path)
    keys = []
    for key in dialect.hyperparameters:
        names = key.name.removeprefix(f"{dialect.architecture}.").split(".")
        value: Any = part
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        if value is None:
            continue
        if names == ["compress_ratios"] and isinstance(value, list):
            value = value[: int(part.get("num_hidden_layers") or len(value))]  # the rest are the draft blocks'
        keys.append((key.name, typed(key, value, path)))
    return keys
