"""The edge: the one place where errors become messages, JSON and exit codes.

0 done, nothing differs; 1 something differs; 2 could not tell. Interrupted 130, terminated 143, closed pipe 141.
A bug is none of these: it keeps its traceback and exits 2.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import signal
import sys
import traceback
from types import FrameType
from typing import Any, TextIO

import typer

from engramctl.cli import quick, usage
from engramctl.errors import EngramctlError
from formats import os_errors
from formats.errors import FormatError

OK, DIFFERS, UNKNOWN = 0, 1, 2
INTERRUPTED, CLOSED_PIPE, TERMINATED = 130, 141, 143
EXITS = (
    "Exit codes: 0 done, or nothing differs; 1 something differs; "
    "2 could not tell (usage, unreadable or damaged input, too little disk); "
    "130 Ctrl-C, 141 a closed pipe, 143 terminated."
)
SOON = 0.02  # seconds after which an interrupted import is looked at again
GROUPS = ("check", "probe")  # commands whose next word belongs to the command's name

# The base of all usage errors, whichever click typer carries.
UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]


class Terminated(BaseException):
    """SIGTERM, raised where it struck so that files are closed and kept or removed as on Ctrl-C."""


def run(app: typer.Typer, arguments: list[str]) -> int:
    """Run one command line to its exit code; nothing but a bug writes more than two lines on stderr."""
    try:
        return _run(app, arguments)
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):  # told by now, if anybody listens: not once more, by the interpreter's end
                with contextlib.suppress(OSError, ValueError):
                    _forget(stream)


def _run(app: typer.Typer, arguments: list[str]) -> int:
    _on_signals()
    closed = _open_streams()
    try:
        if closed:
            return _refuse(arguments, "standard output", "an open stream", "a closed one")
        return _called(app, arguments)
    except FormatError as error:
        return _refuse(arguments, error.where, error.expected, error.found)
    except EngramctlError as error:
        return _refuse(arguments, error.where, error.expected, error.found, error.hint)
    except UsageError as error:
        return _refuse(arguments, *_usage(app, error.format_message(), arguments))
    except (KeyboardInterrupt, typer.Abort) as stop:
        return _stopped("interrupted", INTERRUPTED, stop)
    except Terminated as stop:
        return _stopped("terminated", TERMINATED, stop)
    except BrokenPipeError:
        _forget(sys.stdout)
        return CLOSED_PIPE
    except OSError as error:
        return _refuse(arguments, *os_errors.words(error))
    except MemoryError:
        return _refuse(arguments, "memory", "enough for what was asked", "too little")
    except Exception:
        traceback.print_exc()
        return UNKNOWN


def _usage(app: typer.Typer, message: str, arguments: list[str]) -> tuple[str, str, str, str]:
    def names(group: str) -> list[str]:
        every = _built(app)
        of = every.get_command(None, group) if group else every
        return list(of.list_commands(None))

    return usage.parts(_command(arguments, " "), message, arguments, names)


def _called(app: typer.Typer, arguments: list[str]) -> int:
    try:
        code = call(app, arguments)
        sys.stdout.flush()
    except Exception as error:
        if _struck:  # a library made another error of it, as compiled modules do while they are imported
            raise _struck[0] from error
        raise
    return code


@functools.cache  # a demo of 30 commands need not repeat it
def _built(app: typer.Typer) -> Any:  # noqa: ANN401  (whichever click typer carries)
    return quick.quicken(typer.main.get_command(app))


def call(app: typer.Typer, arguments: list[str]) -> int:
    """One command line, whose exceptions arrive here: typer's own main keeps Ctrl-C and a closed pipe to itself."""
    command = _built(app)
    try:
        with command.make_context("engramctl", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as wanted:
        return wanted.exit_code
    return OK


def _open_streams() -> bool:
    """A stream that was closed before the start is one that fails when it is used, and no file takes its number.
    Returns whether standard output was closed."""
    closed = sys.stdout is None
    for name, mode, flags in (("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode))
    if type(sys.stdout) is io.TextIOWrapper and isinstance(sys.stdout.buffer, io.RawIOBase):
        encoding = sys.stdout.encoding  # PYTHONUNBUFFERED, where a write that a closed pipe cuts short is no error
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(sys.stdout.detach()), encoding)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # whatever a file's name holds
    return closed


_struck: list[BaseException] = []  # what signals raised in this command


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise what the signal means, but let an import end first: broken off, it may keep Python's import lock, for which
    other threads then wait for ever, or the interruption is lost in one of its callbacks."""
    if _importing(frame):
        signal.signal(signal.SIGALRM, lambda _, now: _interrupt(number, now))
        signal.setitimer(signal.ITIMER_REAL, SOON)
        return
    _struck.append(KeyboardInterrupt() if number == signal.SIGINT else Terminated())
    raise _struck[-1]


def _importing(frame: FrameType | None) -> bool:
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def _on_signals() -> None:
    _struck.clear()
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody wants it ignored
        signal.signal(signal.SIGINT, _interrupt)


def _refuse(arguments: list[str], where: str, expected: str, found: str, hint: str | None = None) -> int:
    """Say on stderr, and with --json on stdout too, why the request could not be met."""
    where, expected, found = (_one_line(text) for text in (where, expected, found))
    say(f"error: {where}: expected {expected}, found {found}")
    if hint:
        say(f"hint: {_one_line(hint)}")
    try:
        if _wants_json(arguments):
            error = {"where": where, "expected": expected, "found": found}
            report: dict[str, Any] = {"schema": f"engramctl/{_command(arguments, '-')}/1", "ok": False, "error": error}
            sys.stdout.write(json.dumps(report, indent=1) + "\n")
            sys.stdout.flush()
    except BrokenPipeError:
        _forget(sys.stdout)
        return CLOSED_PIPE
    except OSError:  # standard output itself is what failed
        _forget(sys.stdout)
    return UNKNOWN


def _stopped(word: str, code: int, stop: BaseException) -> int:
    say("; ".join([word, *map(str, stop.args)]))
    return code


def say(text: str) -> None:
    """One line of talk on stderr, after what was printed before it."""
    with contextlib.suppress(OSError, ValueError):  # of standard output, whose turn to fail comes
        sys.stdout.flush()
    with contextlib.suppress(OSError):  # nobody to talk to: the exit code still says it
        sys.stderr.write(f"engramctl: {text}\n")
        sys.stderr.flush()


def _forget(stream: TextIO) -> None:
    """Nobody reads on: let the interpreter's last flush go nowhere instead of complaining."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def _one_line(text: str) -> str:
    """Printable and on one line, whatever bytes a hostile file put into its names."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.split(" ")))


def _wants_json(arguments: list[str]) -> bool:
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in before


def _command(arguments: list[str], joint: str) -> str:
    """The command's name as typed: "map", or "check-map"; "engramctl" where none was."""
    words = [word for word in arguments if not word.startswith("-")]
    name = words[:2] if words[:1] and words[0] in GROUPS else words[:1]
    return joint.join(name) or "engramctl"
