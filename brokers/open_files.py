"""How many files, sockets among them, this process may have open.

May live here: reading and raising that limit. What is done if it is too low is for those to say who need so many.
"""

from __future__ import annotations

import resource
from contextlib import suppress


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
