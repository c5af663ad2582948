"""The catalogue as pages, one per stage, beside the modules they are made of. `python tools/mistake_pages.py` writes
them."""

from __future__ import annotations

from engramctl.mistakes import catalogue
from engramctl.mistakes.record import STAGES, Stage

STEMS: dict[Stage, str] = {stage: stage for stage in STAGES} | {"map": "token_map"}
TITLES: dict[Stage, str] = {
    "map": "Mistakes of the token map",
    "constants": "Mistakes of the hash constants",
    "hash": "Mistakes of the hash",
    "history": "Mistakes of masks and history",
    "decode": "Mistakes of decoding rows",
    "project": "Mistakes of the projection",
    "gate": "Mistakes of the gate",
}


def page(stage: Stage) -> str:
    """A stage's entries as Markdown."""
    parts = [
        f"# {TITLES[stage]}",
        f"Made of the records in `{STEMS[stage]}.py` by `tools/mistake_pages.py`; a test keeps it current.",
    ]
    for entry in catalogue.every():
        if entry.stage == stage:
            lines = [f"- {name}: {getattr(entry, name)}" for name in ("symptom", "consequence", "fix", "source")]
            parts += [f"## {entry.name}", entry.what, "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    """Every page by its file name."""
    used = {entry.stage for entry in catalogue.every()}
    return {f"{STEMS[stage]}.md": page(stage) for stage in STAGES if stage in used}
