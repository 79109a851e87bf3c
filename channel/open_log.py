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

    Without `create`, a file that is not there is not made, and one that is empty stays so: for those who only want to look.

    Raises `InvalidLogUrl` for a URL that names no log, or a path where none can be; `LogNotBegun` where none is, without
    `create`; `NetworkFileSystem`, `LogDamaged`, `LogUnavailable`, `LogStorageFull` for a file that is there and cannot be used.
    """
    scheme, colon, rest = url.partition(":")
    if is_in_memory(url):
        if not rest:
            raise InvalidLogUrl(url=url, problem="it has no name")
        return MemoryLog(name=url)
    if scheme == "sqlite":
        path, _, options = rest.partition("?")
        if options not in _SYNCHRONOUS:
            raise InvalidLogUrl(url=url, problem=f"{options!r} is no option; there are synchronous=full and synchronous=normal")
        if path.startswith("//"):  # Where other programs write a host, or three slashes for a relative path: nobody can know.
            raise InvalidLogUrl(
                url=url, problem=f"one slash begins a path, not two: sqlite:/{path.lstrip('/')}, or sqlite:{path.lstrip('/')}"
            )
        return SqliteLog(path, name=url, synchronous=_SYNCHRONOUS[options], create=create)
    problem = f"there is no log of the kind {scheme!r}" if colon else "it does not begin with the kind of the log and a colon"
    raise InvalidLogUrl(url=url, problem=problem)


def is_in_memory(url: str) -> bool:
    """Whether a URL is of the kind of log that the processes of a machine cannot share."""
    return url.partition(":")[0] == "memory"


def log_path(url: str) -> str | None:
    """The path of the file that holds the log at `url`, as it stands there; None if it lies in no file."""
    scheme, _, rest = url.partition(":")
    return rest.partition("?")[0] if scheme == "sqlite" else None
