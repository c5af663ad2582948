"""profiles, demo: what the tool knows, and what it can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from engramctl.cli.options import Json, Quiet

if TYPE_CHECKING:
    from engramctl.profiles import Profile


def profiles(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The model to print whole.")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List the models it knows.

    With a name: its sizes, tensors and digests; with --json every published fact of it, with its source.
    """
    from engramctl import profiles as known
    from engramctl import report

    if name is None:
        loaded = [known.load(each) for each in known.names()]
        if json:
            entries = [
                {
                    "name": p.name,
                    "title": p.title,
                    "layers": p.sizes.layers,
                    "rows": p.sizes.rows or None,
                    "variants": _variants(p),
                }
                for p in loaded
            ]
            report.as_json("profiles", True, {"profiles": entries})
            return
        report.table(
            ("name", "model", "layers", "rows", "variants"),
            [
                (p.name, p.title, _list(p.sizes.layers), _list(p.sizes.rows) or "not public", ", ".join(_variants(p)))
                for p in loaded
            ],
        )
        return
    profile = known.load(name)
    if json:
        report.as_json("profiles", True, {"profile": profile.facts})
        return
    pairs = [(size, _size(value, bool(profile.unpublished))) for size, value in vars(profile.sizes).items()]
    pairs += [(f"tensor {role}", f"{tensor.name} {tensor.dtype}") for role, tensor in profile.tensors.items()]
    pairs += [(f"digest {what}", digest) for what, digest in profile.digests.items()]
    report.facts([("name", profile.name), ("model", profile.title), *pairs])


def _variants(profile: Profile) -> list[str]:
    return list(profile.facts.get("variants", {}))


def _size(value: object, unpublished: bool) -> str:
    """A size in words: 0 is what a record of an unpublished model has in place of a number."""
    if isinstance(value, tuple):
        return _list(value) or "not public"
    return "none" if value is None else "not public" if unpublished and not value else str(value)


def _list(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def demo(json: Json = False, quiet: Quiet = False) -> None:
    """Run the whole main job on small checkpoints.

    Builds them in a temporary folder, in the real format; ends in a table of what each check compared and proves.
    """
    from engramctl import demo as show
    from engramctl import report

    steps = show.run(say=None if quiet or json else show.talk)
    ok = all(step.ok for step in steps)
    if json:
        report.as_json("demo", ok, {"steps": [step.as_dict() for step in steps]})
    else:
        report.table(("check", "compared", "with", "proves", "result"), [step.cells() for step in steps])
        wrong = sum(not step.ok for step in steps)
        report.text(f"{len(steps)} checks, " + (f"{wrong} not as expected" if wrong else "all as expected"))
    raise typer.Exit(0 if ok else 1)


COMMANDS: dict[str, Callable[..., None]] = {"demo": demo, "profiles": profiles}
