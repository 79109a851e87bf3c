"""Store decisions in memory, for clusters whose channel is in memory.

A log exists as long as somebody holds a handle on it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Final
from weakref import WeakValueDictionary

from equipoise.brokers.balancing.decisions import Decision

DECISIONS_MAX: Final = 1_000
"""At least an hour of rounds at the default interval. A decision takes some kilobytes."""


class _Decisions:
    """The state that all handles of one name share. Hold `lock` while you access `newest`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.newest: deque[Decision] = deque(maxlen=DECISIONS_MAX)


_shared: WeakValueDictionary[str, _Decisions] = WeakValueDictionary()
_shared_lock = threading.Lock()


class MemoryDecisionLog:
    """A handle on the in-memory decision log `name`, which the first handle creates. See
    `DecisionLog`.
    """

    def __init__(self, name: str) -> None:
        with _shared_lock:
            self._decisions = _shared.setdefault(name, _Decisions())

    def write(self, decision: Decision) -> None:
        """See `DecisionLog.write`."""
        with self._decisions.lock:
            self._decisions.newest.append(decision)

    def newest(self, at_most: int) -> Sequence[Decision]:
        """See `DecisionLog.newest`."""
        with self._decisions.lock:
            kept = list(self._decisions.newest)
        return kept[max(0, len(kept) - at_most) :]
