"""What must fit together within a profile: ids and vocabulary, constants and sizes, tensors and what they are for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from engramctl.errors import EngramctlError

# The tensors that each projection needs; `conv` is with a convolution, `bias` with one, `scale` with e4m3_scalar.
ROLES = {
    "fused": {"codes", "scales", "projection", "projection_scale", "q_weight", "k_weight"},
    "key_value": {"table", "key", "value", "norm_key", "norm_query"},
    "columns": {"table", "projection"},
    "none": {"table"},
}
CONV, BIAS, SCALE = {"norm_conv", "conv"}, {"key_bias", "value_bias"}, {"table_scale"}
CONSTANTS = {"multipliers", "moduli", "offsets"}  # that a checkpoint may store
# The sizes that each way of reading a config.json asks for, and those that it may.
PLAIN = "layers rows size heads width base vocabulary compressed pad_token_id hidden streams eps"
CONFIG_KEYS = {
    "plain": (PLAIN, "smallest eos_token_id image_token_id"),
    "ple": (
        "layers size heads inputs base vocabulary eos_token_id hidden streams eps shards kernel padding seed "
        "image_token_id",
        "",
    ),
    "longcat": ("size heads ratio vocabulary eos_token_id hidden", ""),
    "peft": ("layers orders heads inputs totals compressed pad_token_id hidden streams kernel dilation seed", ""),
    "blt": ("orders base functions", ""),
}
LAYOUTS = {"columns": "columns", "fused": "joined"}  # of projections that leave no choice
MOST_SHARDS, MOST_KERNEL = 4096, 64

Facts = dict[str, Any]


def check(facts: Facts, where: str) -> None:
    """Refuse what contradicts something else in the profile; each table alone has been checked."""

    def refuse(name: str, expected: str, found: object) -> NoReturn:
        raise EngramctlError(f"{where} at {name}", expected, "none" if found is None else f"{found!r:.60}")

    _ids(facts, refuse)
    _storage(facts, refuse)
    _constants(facts, refuse)
    _tensors(facts, refuse)
    _config_keys(facts, refuse)


Refuse = Callable[[str, str, object], NoReturn]


def _ids(facts: Facts, refuse: Refuse) -> None:
    sizes, rule = facts["sizes"], facts["rule"]
    vocabulary, compressed = sizes["vocabulary"], sizes["compressed"]
    if rule.get("id_space") in ("raw", "byte") and compressed != vocabulary:
        refuse("sizes.compressed", f"{vocabulary}, as the vocabulary: ids are hashed as they are", compressed)
    if compressed > vocabulary:
        refuse("sizes.compressed", f"at most {vocabulary}, the vocabulary", compressed)
    words = f"{rule.get('boundary')} {rule.get('filler')}"
    if "eos" in words and "eos_token_id" not in sizes:
        refuse("sizes.eos_token_id", "a token id, which the rule names", None)
    for name in ("pad_token_id", "eos_token_id", "image_token_id"):
        if sizes.get(name, 0) >= vocabulary:
            refuse(f"sizes.{name}", f"a token id below {vocabulary}", sizes[name])
    of_map = facts.get("token_map", {})
    if not isinstance(of_map, dict) or not isinstance(of_map.get("of", ""), str):
        refuse("token_map", "a table with the shipped map's name in `of`", of_map)
    replaced = of_map.get("replaced", {})
    known = isinstance(replaced, dict) and all(name.isdecimal() and len(name) < 20 for name in replaced)
    if not known or not all(type(x) is int and 0 <= x < vocabulary for x in [*map(int, replaced), *replaced.values()]):
        refuse("token_map.replaced", f"token ids below {vocabulary}, each for another", replaced)


def _storage(facts: Facts, refuse: Refuse) -> None:
    storage, projection, kernel = facts["storage"], facts["module"]["projection"], facts["module"]["kernel"]
    layout, shards = storage["layout"], storage.get("shards", 1)
    alone = LAYOUTS.get(projection)
    if (alone is not None and layout != alone) or (layout == "columns") != (projection == "columns"):
        refuse("storage.layout", f"one that is defined for a projection that is {projection}", layout)
    if (storage["encoding"] == "e4m3_e8m0_32") != (projection == "fused"):
        refuse("storage.encoding", f"one that is defined for a projection that is {projection}", storage["encoding"])
    if not 1 <= shards <= MOST_SHARDS:
        refuse("storage.shards", f"1 to {MOST_SHARDS}", shards)
    uneven = [rows for rows in facts["sizes"]["rows"] if rows % shards]
    if layout == "shards" and uneven:
        refuse("storage.shards", f"shards that share {uneven[0]} rows evenly", shards)
    if kernel > MOST_KERNEL:
        refuse("module.kernel", f"at most {MOST_KERNEL}", kernel)


def _constants(facts: Facts, refuse: Refuse) -> None:
    sizes, own = facts["sizes"], facts["rule"].get("mix_scope") == "column"
    layers, size = len(sizes["layers"]), sizes["size"]
    if len(set(sizes["layers"])) != layers:
        refuse("sizes.layers", "each layer once", sizes["layers"])
    columns = (size - sizes.get("smallest", 2) + 1) * sizes["heads"]
    wanted = {"moduli": (layers, columns), "offsets": (layers, columns)}
    wanted["multipliers"] = (layers, columns, size) if own else (layers, size)  # type: ignore[assignment]
    for name, shape in wanted.items():
        found = _shape(facts["constants"][name])
        if found != shape:
            refuse(f"constants.{name}", f"lists of the lengths {list(shape)}, as the sizes say", list(found))


def _shape(lists: Any) -> tuple[int, ...]:  # noqa: ANN401 - lists in lists of one length, as has been checked
    return (len(lists), *_shape(lists[0])) if isinstance(lists, list) else ()


def _dtypes(role: str, projection: str) -> tuple[str, ...]:
    """What a tensor of the role may be, so that it can be read."""
    if role in CONSTANTS:
        return ("I64",)
    if projection == "fused":
        return ("F8_E4M3", "F8_E8M0", "BF16")
    return ("F32", "F16", "BF16", *(("F8_E4M3",) if role == "table" else ()))


def _tensors(facts: Facts, refuse: Refuse) -> None:
    named = {role: entry for role, entry in facts["tensors"].items() if role != "source"}
    module, storage = facts["module"], facts["storage"]
    needed = ROLES[module["projection"]] | (CONV if module["kernel"] else set())
    needed |= BIAS if module["bias"] else set()
    scaled = storage["encoding"] == "e4m3_scalar"
    allowed = needed | CONSTANTS | (SCALE if scaled or storage["encoding"] == "bf16" else set())
    for role in sorted((needed | (SCALE if scaled else set())) - named.keys()):
        refuse(f"tensors.{role}", "a name and a dtype, which the module or the storage needs", None)
    for role in named.keys() - allowed:
        refuse(f"tensors.{role}", f"one of {', '.join(sorted(allowed))}", role)
    seen: dict[str, str] = {}
    for role, entry in named.items():
        if entry["dtype"] not in (known := _dtypes(role, module["projection"])):
            refuse(f"tensors.{role}", f"a dtype of {', '.join(known)}", entry["dtype"])
        several = (role == "table" and storage["layout"] != "joined") or (
            role == "projection" and module["projection"] == "columns"
        )
        if several and "{i}" not in entry["name"]:
            refuse(f"tensors.{role}", "a name with {i} in it: there are several", entry["name"])
        for layer in facts["sizes"]["layers"]:
            name = entry["name"].replace("{layer}", str(layer))
            if name in seen:
                refuse(f"tensors.{role}", f"a name of its own in each layer, not that of {seen[name]}", entry["name"])
            seen[name] = role


def _config_keys(facts: Facts, refuse: Refuse) -> None:
    """All that the way of reading asks for, or none: then a config says nothing, and the sizes are the profile's."""
    named = facts.get("config_keys", {}).keys() - {"source"}
    needed, more = (set(words.split()) for words in CONFIG_KEYS[facts.get("config", "plain")])
    if named and needed - named:
        refuse(f"config_keys.{min(needed - named)}", f"keys for {', '.join(sorted(needed))}", None)
    if unknown := named - needed - more:
        refuse(f"config_keys.{min(unknown)}", f"one of {', '.join(sorted(needed | more))}", min(unknown))
