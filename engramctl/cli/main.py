"""`engramctl`: the commands, put together. Each is imported when it is asked for, and imports what it needs when it
runs, so that --help stays quick."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from engramctl.cli import edge, quick

app = typer.Typer(
    cls=quick.Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=False,
    context_settings={"help_option_names": quick.HELP},
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


def run(arguments: list[str]) -> int:
    """One command line, to its exit code."""
    return edge.run(app, _times(arguments))


def _times(arguments: list[str]) -> list[str]:
    """`run --profile` without a name asks for the times of its stages; with one it names the model, as everywhere."""
    bare = [
        at
        for at, word in enumerate(arguments)
        if word == "--profile" and (at + 1 == len(arguments) or arguments[at + 1].startswith("-"))
    ]
    if arguments[:1] != ["run"] or not bare:
        return arguments
    return ["--times" if at in bare else word for at, word in enumerate(arguments)]


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))
