"""Exchange load reports within one process, for clusters whose log is in memory.

A bus lives as long as a handle on it is held.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from weakref import WeakValueDictionary

from equipoise.shedder.load_reports import Sample, Summary, summarized


class _Summaries:
    """The state that all handles of one name share. Access `by_broker` only while `lock` is
    held.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_broker: dict[str, Summary] = {}


_shared: WeakValueDictionary[str, _Summaries] = WeakValueDictionary()
_shared_lock = threading.Lock()


class MemoryLoadBus:
    """A handle on the in-memory load bus `name`, which the first handle creates. See `LoadBus`."""

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
            return [
                self._summaries.by_broker[broker] for broker in sorted(self._summaries.by_broker)
            ]
