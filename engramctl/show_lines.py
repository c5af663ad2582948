"""What `show` found, for people: names and values, one a line."""

from __future__ import annotations

from typing import Any

from engramctl.show import LISTED


def lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    """The same for people: names and values."""
    nearest = f"none; nearest is {found['nearest']}" if found["nearest"] else "none"
    pairs = [(found["kind"], found["path"]), ("dialect", found["dialect"] or nearest)]
    if found.get("sure"):
        pairs.append(("sure", found["sure"]))
    if found.get("unfinished"):
        pairs.append(("unfinished", f"repack has not finished it; {found['way_on']}"))
    pairs += [("note", note) for note in found.get("notes", [])]
    pairs += [("missing", name) for name in found["missing"]]
    pairs += [("missing shard", name) for name in found.get("missing_shards", [])]
    pairs += [("wrong", f"{w['where']}: expected {w['expected']}, found {w['found']}") for w in found["wrong"]]
    if found["config_problem"]:
        pairs.append(("config", found["config_problem"]))
    for name, loader in found["loaders"].items():
        total = loader.get("why_total", len(loader["why"]))
        whys = [f"{why['where']}: expected {why['expected']}, found {why['found']}" for why in loader["why"]]
        another = len(found["loaders"]) > 1 and name != (found["dialect"] or found["nearest"])
        if another:  # one reason is enough
            whys = [f"{whys[0]} (and {total - 1} more)" if len(whys) > 1 else whys[0]] if whys else []
        elif total > len(whys):
            whys.append(f"and {total - len(whys)} more")
        said = loader.get("said", "accepts it" if loader["accepts"] else "refuses it")
        pairs.append((f"loader {name}", said))
        pairs += [("", why) for why in whys]
    if "file_bytes" in found:
        size = f"{found['file_bytes']:,} bytes"
        pairs.append(("format", f"GGUF version {found['version']}, alignment {found['alignment']}, {size}"))
    if found["sizes"]:
        known = {name: value for name, value in found["sizes"].items() if value is not None}
        sizes = (f"{name}{_meaning(name)} {_listed(value)}" for name, value in known.items())
        pairs.append(("sizes", ", ".join(sizes)))
    pairs += [
        ("differs", f"{name}: {_listed(d['here'])}, profile {found['profile']} has {_listed(d['profile'])}")
        for name, d in found["differs_from_profile"].items()
    ]
    pairs += [("fact", f"{name}: {_fact(value)}") for name, value in found.get("facts", {}).items()]
    pairs += _token_map(found["token_map"])
    stored = found["constants"].items()
    pairs += [("constant", f"{name}: {c['type']} {_short(c)}{_meaning(name)}") for name, c in stored]
    pairs += [
        (
            "tensor",
            f"{t['name']}: {t.get('type') or t.get('dtype')} {t['shape']} at {t['start']:,}"
            f"{' of ' + t['file'] if 'file' in t else ''}, {t['bytes'] or 0:,} bytes",
        )
        for t in found["tensors"]
    ]
    return pairs


def _token_map(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Where the map is from, and its counts and digest where they were looked at."""
    if "summary" in found:
        return [("token map", f"{found['origin']}, {found['summary']}")]
    said = [f"{value}" for value in found.values() if value is not None]
    return [("token map", ", ".join(said))] if said else []


def _fact(value: object) -> str:
    """What a file of rows says of itself; ranges of rows as --rows takes them."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_fact(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        ranges = all(isinstance(item, (list, tuple)) and len(item) == 2 for item in value)
        return ",".join(f"{item[0]}:{item[1]}" for item in value) if ranges else ", ".join(map(str, value))
    return "none" if value is None else str(value)


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _meaning(name: str) -> str:
    if name == "pad_token_id" or name.endswith(".pad_token_id"):
        return " (raw)"
    return " (compressed: what the token map has for the raw pad)" if name.endswith(".pad_id") else ""


def _short(constant: dict[str, Any]) -> str:
    value = constant.get("value", constant.get("begins"))
    if isinstance(value, list):
        more = ", ..." if constant["count"] > LISTED else ""
        return f"[{', '.join(map(str, value[:LISTED]))}{more}] of {constant['count']}"
    return str(value)
