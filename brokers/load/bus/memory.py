"""The load bus of one process: a dict shared by name, for clusters whose log is in memory.

May live here: `MemoryLoadBus` and what handles of one name share. A bus lives as long as a handle on it is held.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from weakref import WeakValueDictionary

from equipoise.shedder.load_reports import Sample, Summary, summarized


class _Summaries:
    """What all handles of one name share; `by_broker` is touched only while `lock` is held."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_broker: dict[str, Summary] = {}


_shared: WeakValueDictionary[str, _Summaries] = WeakValueDictionary()
_shared_lock = threading.Lock()


class MemoryLoadBus:
    """A handle on the bus in memory that bears `name`; the first handle makes it. See `LoadBus`."""

    def __init__(self, name: str) -> None:
        with _shared_lock:
            self._summaries = _shared.setdefault(name, _Summaries())

    def publish(self, sample: Sample) -> None:
        """See `LoadBus.publish`."""
        with self._summaries.lock:
            by_broker = self._summaries.by_broker
            by_broker[sample.broker] = summarized(by_broker.get(sample.broker), sample)

    def withdraw(self, broker: str) -> None:
        """See `LoadBus.withdraw`."""
        with self._summaries.lock:
            self._summaries.by_broker.pop(broker, None)

    def latest(self) -> Sequence[Summary]:
        """See `LoadBus.latest`."""
        with self._summaries.lock:
            return [self._summaries.by_broker[broker] for broker in sorted(self._summaries.by_broker)]
