"""Find free ports for processes on this machine."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from contextlib import ExitStack
from itertools import islice
from typing import Final

from equipoise.channel.core.errors import OperatorError

HOST: Final = "127.0.0.1"

# Below the ports that Linux gives to outgoing connections. One of those could take a process's port
# while the process is down.
PORTS = range(10_000, 32_000)
_TRIES_MAX: Final = 1_000


def free_ports(count: int, *, besides: Collection[int] = ()) -> list[int]:
    """Return ports that are free now and not in `besides`. Raises `OperatorError`."""
    tried = random.sample(PORTS, _TRIES_MAX)
    found = list(islice((port for port in tried if port not in besides and are_free(port)), count))
    if len(found) < count:
        raise _none_free(count)
    return found


def free_row(count: int) -> int:
    """Return the first of `count` consecutive ports that are free now. Raises `OperatorError`."""
    for first in random.sample(PORTS, _TRIES_MAX):
        if are_free(*range(first, first + count)):
            return first
    raise _none_free(count)


def are_free(*ports: int) -> bool:
    """Return whether a server could listen on all of these ports now."""
    with ExitStack() as held:
        try:
            for port in ports:
                held.enter_context(socket.create_server((HOST, port)))
        except OSError:
            return False
    return True


def _none_free(count: int) -> OperatorError:
    return OperatorError(
        f"no {count} free ports were found on {HOST} in {_TRIES_MAX} tries; end the programs that"
        " listen on them"
    )
