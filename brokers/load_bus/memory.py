"""The load bus of one process: a dict shared by name, for clusters whose log is in memory.

May live here: `MemoryLoadBus` and what handles of one name share. A bus lives as long as a handle on it is held.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from weakref import WeakValueDictionary

from brokers.load import Report


class _Reports:
    """What all handles of one name share; `by_broker` is touched only while `lock` is held."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_broker: dict[str, Report] = {}


_shared: WeakValueDictionary[str, _Reports] = WeakValueDictionary()
_shared_lock = threading.Lock()


class MemoryLoadBus:
    """A handle on the bus in memory that bears `name`; the first handle makes it. See `LoadBus`."""

    def __init__(self, name: str) -> None:
        with _shared_lock:
            self._reports = _shared.setdefault(name, _Reports())

    def publish(self, report: Report) -> None:
        """See `LoadBus.publish`."""
        with self._reports.lock:
            self._reports.by_broker[report.broker] = report

    def latest(self) -> Sequence[Report]:
        """See `LoadBus.latest`."""
        with self._reports.lock:
            return [self._reports.by_broker[broker] for broker in sorted(self._reports.by_broker)]
