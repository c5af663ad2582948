"""`engramctl`: the commands, put together. Each imports what it needs when it runs, so that --help stays quick."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from engramctl.cli import about, check, convert, edge, mend, use

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=False,
    help="Convert, check and explain hashed n-gram memory tables (DeepSeek V4.1 Flash Engram).",
    epilog=edge.EXITS,
)


def _version(wanted: bool) -> None:
    if wanted:
        from engramctl import __version__

        sys.stdout.write(f"engramctl {__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Convert, check and explain hashed n-gram memory tables (DeepSeek V4.1 Flash Engram)."""


COMMANDS = about.COMMANDS | convert.COMMANDS | mend.COMMANDS | use.COMMANDS
# as one meets them
ORDER = ("demo", "synth", "map", "params", "repack", "unpack", "show", "repair", "hash", "lookup", "run", "profiles")
for name in sorted(COMMANDS, key=ORDER.index):
    app.command(name, epilog=edge.EXITS)(COMMANDS[name])
app.add_typer(check.app, name="check")


def run(arguments: list[str]) -> int:
    """One command line, to its exit code."""
    return edge.run(app, arguments)


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))
