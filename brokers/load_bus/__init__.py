"""The load plane: adapters of `brokers.load.LoadBus`, which carry load reports between brokers.

Here live the adapters and the choice between them. What a report says, and what is made of it, is pure and lives elsewhere.
"""

from __future__ import annotations

from pathlib import Path

from brokers.load import LoadBus
from brokers.load_bus.files import FileLoadBus
from brokers.load_bus.memory import MemoryLoadBus
from channel.errors import InvalidLogUrl
from channel.open_log import log_path


def open_load_bus(log_url: str) -> LoadBus:
    """A new handle on the load bus of the cluster whose log is at `log_url`, a URL as `channel.open_log` takes it.

    The brokers of `sqlite:PATH` use the folder `PATH.loads`, those of `memory:NAME` the memory of their process. Raises
    `InvalidLogUrl` for any other.
    """
    path = log_path(log_url)
    if path is not None:
        return FileLoadBus(Path(f"{path}.loads"))
    if log_url.startswith("memory:"):
        return MemoryLoadBus(log_url)
    raise InvalidLogUrl(url=log_url, problem="there is no load bus beside a log of this kind")
