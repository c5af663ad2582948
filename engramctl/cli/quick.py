"""What makes a command start quickly: only the asked-for command is built, and easy values skip Typer's converter.

Since 0.27 or so Typer converts each value, absent ones too, by pydantic, whose import takes as long as Typer's own.
Values that need no converting are passed on here; whatever does need it goes to Typer, with its messages.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_origin

import typer
from typer.core import TyperGroup
from typer.main import get_command

from engramctl.errors import EngramctlError

WHOLE = re.compile(r"-?[0-9]{1,18}")
LOOKED_AT = ("exists", "writable", "resolve_path", "path_type")  # with these Typer does more than make a path
HELP = ["--help", "-h"]
STDOUT = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
LAZY = "_runtime_param"  # where such a Typer keeps a parameter's converter; others have none, and need none

HOMES = {  # each command's module under engramctl.cli, in the order in which one meets them
    "demo": "about",
    "synth": "convert",
    "map": "convert",
    "params": "convert",
    "repack": "repack",
    "unpack": "mend",
    "show": "convert",
    "repair": "mend",
    "hash": "use",
    "lookup": "use",
    "run": "run",
    "profiles": "about",
    "check": "check",
    "probe": "probe",
    "bench": "bench",
}


class Group(TyperGroup):
    """A command of commands, whose help lists each with the whole first sentence of its own."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        with formatter.section("Commands"):
            formatter.write_dl([(name, _sentence(command.help)) for name, command in self.commands.items()])


class Commands(TyperGroup):
    """All commands; each is imported when it is asked for, and built only if it is to run."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401
        return list(HOMES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
        if cmd_name not in HOMES:
            return None
        if cmd_name not in self.commands:
            self.commands[cmd_name] = _built(cmd_name, self.epilog)
        return self.commands[cmd_name]

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(name)) for name in HOMES])


def _home(name: str) -> Any:  # noqa: ANN401
    return import_module(f"engramctl.cli.{HOMES[name]}")


def _summary(name: str) -> str:
    """The first line that its help begins with, with its stop."""
    home = _home(name)
    text = inspect.getdoc(home.COMMANDS[name]) if name in getattr(home, "COMMANDS", ()) else home.app.info.help
    return _sentence(text)


def _sentence(text: str | None) -> str:
    return (text or "").split("\n\n")[0].replace("\n", " ").split(". ")[0].rstrip(".") + "."


def _built(name: str, epilog: str | None) -> Any:  # noqa: ANN401
    home = _home(name)
    app = home.app if name not in getattr(home, "COMMANDS", ()) else typer.Typer(rich_markup_mode=None)
    app._add_completion = False
    if app is not getattr(home, "app", None):
        app.command(name, epilog=epilog)(home.COMMANDS[name])
    command = get_command(app)
    command.name = name
    return quicken(command)


def quicken(command: Any) -> Any:  # noqa: ANN401
    """The command, whose parameters, and those of its commands, pass easy values by Typer's converter."""
    for parameter in command.get_params(typer.Context(command, help_option_names=HELP)):
        if getattr(parameter, LAZY, parameter) is None:
            setattr(parameter, LAZY, _Easy(parameter))
        if _is_path(parameter):
            parameter.process_value = partial(_path, parameter, parameter.process_value)
            parameter.get_help_record = partial(_paths, parameter.get_help_record)
    for each in getattr(command, "commands", {}).values():
        quicken(each)
    return command


def _is_path(parameter: Any) -> bool:  # noqa: ANN401
    kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    if kind is None:  # a Typer that has click's types
        return type(parameter.type).__name__.endswith("Path")
    return kind is Path or Path in get_args(kind)


def _paths(record: Callable[[Any], Any], context: Any) -> Any:  # noqa: ANN401
    """An argument's line of help, in which several paths are no matter of Python's."""
    found = record(context)
    return found and (found[0].replace("<list[Path]>", "<path>..."), *found[1:])


def _path(parameter: Any, convert: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:  # noqa: ANN401
    """No empty path: what a shell makes of a variable that is not set would be the folder where one stands. An output
    by a name of standard output is that."""
    if value == "" or (isinstance(value, (list, tuple)) and "" in value):
        where = max(parameter.opts, key=len) if parameter.opts[0].startswith("-") else parameter.metavar
        raise EngramctlError(where or parameter.name.upper(), "a path", "an empty one")
    return convert(context, "-" if "-o" in parameter.opts and value in STDOUT else value)


class _Easy:
    """A parameter's converter: what is absent, text, choices, whole numbers, plain paths; the true one for the rest."""

    def __init__(self, parameter: Any) -> None:  # noqa: ANN401
        self._parameter = parameter
        self._many = bool(parameter.multiple or parameter.nargs == -1)

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ANN401
        if value is None:
            return () if self._many else None
        kind, info = self._parameter.type_descriptor.annotation, self._parameter.type_descriptor.parameter_info
        if getattr(info, "parser", None) is None and getattr(info, "click_type", None) is None:
            made = [_easy(kind, value, info)]
            if self._many and get_origin(kind) is list and isinstance(value, (list, tuple)):
                made = [_easy(get_args(kind)[0], each, info) for each in value]
            if None not in made:
                return made if self._many else made[0]
        setattr(self._parameter, LAZY, None)
        return self._parameter.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _easy(kind: Any, value: Any, info: Any) -> Any:  # noqa: ANN401
    """The value as `kind`, if nothing can be wrong with it and Typer would only do the same; else None."""
    fitting = isinstance(kind, type) and isinstance(value, (str, kind))
    if not fitting:
        return None
    if issubclass(kind, enum.Enum):
        return next((one for one in kind if value in (one, one.value)), None)
    if kind is int and WHOLE.fullmatch(str(value)):
        least, most = getattr(info, "min", None), getattr(info, "max", None)
        fits = (least is None or int(value) >= least) and (most is None or int(value) <= most)
        return int(value) if fits else None
    if kind is Path and not any(getattr(info, name, None) for name in LOOKED_AT):
        return Path(value) if str(value) == "-" or Path(value) != Path("-") else Path.cwd() / "-"  # a file, said ./-
    return value if kind is str else None
