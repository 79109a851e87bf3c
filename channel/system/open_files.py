"""Read, raise and share out the number of files, including sockets, that this process may open.

Callers decide what to do if it is too low.
"""

from __future__ import annotations

import errno
import resource
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

RESERVED: Final = 256
"""Files reserved for everything but clients: the broker's log, its data directory, other
brokers."""

ACCEPTED_AT_ONCE: Final = 32
"""Connections that a port accepts in one turn of the loop, before it can count them: an eighth of
the reserve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How many connections each port may have."""

    http: int
    pulsar: int


def shared_out(room: int, wanted: Shares) -> Shares:
    """Return each port's share of `room` files: the reserve comes first and HTTP last, but never
    with nothing.

    HTTP gets what Pulsar's clients leave over, or a quarter. The reserve is at most half of the
    room.
    """
    free = max(room - reserve(room), 2)
    http = min(wanted.http, max(free // 4, free - wanted.pulsar, 1))
    return Shares(http=http, pulsar=min(wanted.pulsar, free - http))


def reserve(room: int) -> int:
    """Return how many files are kept free of connections."""
    return min(RESERVED, room // 2)


def room_for_files(wanted: int) -> int:
    """Return how many files this process may open, after raising its own limit towards `wanted`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    aim = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    # Some systems have an undocumented limit below the hard one.
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (aim, hard))
        return aim
    return soft


def files_left() -> tuple[int, int]:
    """Return how many more files this process may open, and its limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = sys.maxsize if soft == resource.RLIM_INFINITY else soft
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            # A new file gets the lowest free number, so all below it are taken.
            return limit - probe.fileno(), limit
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            return 0, limit
        raise
