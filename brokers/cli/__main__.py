"""Where the process of a command begins and ends: the console script `equipoise`, and `python -m equipoise.brokers.cli`.

May live here: what must be settled before anything else is imported, which is what Ctrl-C does at that time.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType


def main() -> None:
    """Run the command that the command line names.

    While modules are still imported, and again when all is done, Ctrl-C ends the process at once and in silence; in between
    it does what each command says.
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
    # A shell ignores it for what runs in the background of a script. What runs until it is stopped hears it
    # (`channel.system.stop_signals`).
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)


if __name__ == "__main__":
    main()
