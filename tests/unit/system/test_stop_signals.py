"""Who hears SIGINT: the handler that a command finds, and the one that it sets."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

import pytest

from equipoise.channel.system.stop_signals import hear_interrupts


def handler_of_a_program(_number: int, _frame: FrameType | None) -> None:
    """What a program that calls a command has SIGINT do."""


@pytest.mark.parametrize(
    ("found", "left"),
    [
        (signal.SIG_IGN, signal.default_int_handler),
        (signal.default_int_handler, signal.default_int_handler),
        (handler_of_a_program, handler_of_a_program),
    ],
)
@pytest.mark.usefixtures("hears_interrupts")
def test_only_an_ignored_interrupt_gets_a_handler(
    found: signal.Handlers | Callable[..., object], left: object
) -> None:
    """SIGINT raises `KeyboardInterrupt` where it was ignored, and does what it did where somebody
    set a handler.
    """
    signal.signal(signal.SIGINT, found)
    hear_interrupts()
    assert left == signal.getsignal(signal.SIGINT)
