"""From a URL to a `Log`: the one place that knows all adapters.

May live here: `open_log`, the grammar of log URLs, and what can be told from a URL alone.
"""

from __future__ import annotations

from typing import Final

from channel.errors import InvalidLogUrl
from channel.log import Log
from channel.memory_log import MemoryLog
from channel.sqlite_log import SqliteLog, Synchronous

_SYNCHRONOUS: Final = {"synchronous=full": Synchronous.FULL, "synchronous=normal": Synchronous.NORMAL, "": Synchronous.FULL}


def open_log(url: str, *, create: bool = True) -> Log:
    """A new handle on the log at `url`.

    * `sqlite:PATH` is one file for all processes of one machine. PATH is taken as it stands up to the first `?`, and
      a relative one starts in the working folder. `?synchronous=normal` makes appends several times cheaper; a power cut
      may then take the newest ones back (see `Synchronous`).
    * `memory:NAME` is shared by the threads of this process, and lives while a handle is open.

    Without `create`, a file that is not there is not made: for those who only want to look.

    Raises `InvalidLogUrl` for a URL that names no log, or a path where none can be; `NetworkFileSystem`, `LogDamaged`,
    `LogUnavailable`, `LogStorageFull` for a file that is there and cannot be used.
    """
    scheme, _, rest = url.partition(":")
    if scheme == "memory":
        if not rest:
            raise InvalidLogUrl(url=url, problem="it has no name")
        return MemoryLog(name=url)
    if scheme == "sqlite":
        path, _, options = rest.partition("?")
        if options not in _SYNCHRONOUS:
            raise InvalidLogUrl(url=url, problem=f"{options!r} is no option; there are synchronous=full and synchronous=normal")
        return SqliteLog(path, name=url, synchronous=_SYNCHRONOUS[options], create=create)
    raise InvalidLogUrl(url=url, problem=f"there is no log of the kind {scheme!r}")


def log_path(url: str) -> str | None:
    """The path of the file that holds the log at `url`, as it stands there; None if it lies in no file."""
    scheme, _, rest = url.partition(":")
    return rest.partition("?")[0] if scheme == "sqlite" else None
