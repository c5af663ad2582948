"""`engramctl` and `python -m engramctl`: signals are heard before the commands, which take a while, are imported."""

from __future__ import annotations

import os
import signal
from types import FrameType

STOPS = {signal.SIGINT: (b"interrupted", 130), signal.SIGTERM: (b"terminated", 143)}  # as cli.edge says it later


def _stop(number: int, frame: FrameType | None) -> None:
    """Nothing is begun yet, so nothing is left behind."""
    word, code = STOPS[signal.Signals(number)]
    try:
        os.write(2, b"engramctl: " + word + b"\n")
    finally:
        os._exit(code)


def main() -> None:
    """The console script."""
    before = {number: signal.getsignal(number) for number in STOPS}
    heard = [number for number in STOPS if before[number] is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, _stop)
    from engramctl.cli import main as commands

    for number in heard:
        signal.signal(number, before[number])
    commands.main()


if __name__ == "__main__":
    main()
