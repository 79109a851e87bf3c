"""End this process when its parent ends. The parent holds the other end of this process's standard
input.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Annotated, Final

import typer

StopOnEofOption = Annotated[
    bool, typer.Option("--stop-on-eof", help="Stop when the standard input ends.", hidden=True)
]

_STANDARD_INPUT: Final = 0
_READ_BYTES: Final = 4_096


def end_with_standard_input() -> None:
    """Send this process SIGTERM when its standard input ends. The kernel closes it when the parent
    dies.
    """
    threading.Thread(target=_wait_for_eof, name="stop-on-eof", daemon=True).start()


def _wait_for_eof() -> None:
    while os.read(_STANDARD_INPUT, _READ_BYTES):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
