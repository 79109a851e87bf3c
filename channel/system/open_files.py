"""How many files, sockets among them, this process may have open, and who may have how many of them.

May live here: reading, raising and sharing out that limit. What is done if it is too low is for those to say who need so many.
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
"""Files in reserve for what a broker has open beside its clients: its log, its data directory, other brokers."""

ACCEPTED_AT_ONCE: Final = 32
"""Connections that a port takes in one turn of the loop, before it can count them: an eighth of the reserve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How many connections each port may have."""

    http: int
    pulsar: int


def shared_out(room: int, wanted: Shares) -> Shares:
    """What each port gets of what it wants, where `room` files may be open: the reserve comes first, HTTP last, but never with nothing.

    HTTP gets what Pulsar's clients leave over, or a quarter. A reserve that is half of the room is large enough.
    """
    free = max(room - reserve(room), 2)
    http = min(wanted.http, max(free // 4, free - wanted.pulsar, 1))
    return Shares(http=http, pulsar=min(wanted.pulsar, free - http))


def reserve(room: int) -> int:
    """How many files are kept free of connections."""
    return min(RESERVED, room // 2)


def room_for_files(wanted: int) -> int:
    """How many files this process may have open, once its own limit is raised to `wanted`, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    aim = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with suppress(OSError, ValueError):  # Some systems have a limit beneath the hard one, and do not tell it.
        resource.setrlimit(resource.RLIMIT_NOFILE, (aim, hard))
        return aim
    return soft


def files_left() -> tuple[int, int]:
    """How many more files this process may open, at most, and how many it may have open in all."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = sys.maxsize if soft == resource.RLIM_INFINITY else soft
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            # A new file gets the lowest number that is free; so all below it are taken.
            return limit - probe.fileno(), limit
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            return 0, limit
        raise
