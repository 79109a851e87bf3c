"""Ports that are free, for processes that a test starts."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from typing import Final

# Below those that Linux gives to connections that go out, so that nothing takes the port of a process that is down for a while.
_PORTS: Final = range(10_000, 32_000)
_TRIES_MAX: Final = 1_000


def free_row_of_ports(count: int) -> int:
    """The first of `count` ports in a row that are free now."""
    for first in random.sample(_PORTS, _TRIES_MAX):
        with ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first
    raise AssertionError("no row of ports is free")
