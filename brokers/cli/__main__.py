"""Run a command as a process: the console script `equipoise`, and `python -m
equipoise.brokers.cli`.

Import nothing else before Ctrl-C is set up here.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType


def main() -> None:
    """Run the command of the command line.

    While modules are imported, and again at the end, Ctrl-C ends the process at once and silently.
    In between each command decides.
    """
    _on_ctrl_c(signal.SIG_DFL)
    try:
        from equipoise.brokers.cli.main import app

        _on_ctrl_c(signal.default_int_handler)
        app(prog_name="equipoise")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    finally:
        _on_ctrl_c(signal.SIG_DFL)


def _on_ctrl_c(handler: signal.Handlers | Callable[[int, FrameType | None], object]) -> None:
    # A shell ignores SIGINT for background jobs of a script. Commands that run until stopped handle
    # it (`channel.system.stop_signals`).
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)


if __name__ == "__main__":
    main()
