"""Clocks that move only when a test says so: one of CPU time for each thread, and one of time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from equipoise.brokers.load import metering


class CpuClocks:
    """`use` takes CPU time. `passed_ns` is the time in which no thread computes, `jumped_ns` is how
    wrong the clocks of CPU time are.
    """

    def __init__(self) -> None:
        self.used = dict[int, int]()
        self.jumped_ns = 0
        self.passed_ns = 0

    def cpu_ns(self) -> int:
        """Return the CPU time of this thread."""
        return self.used.get(threading.get_ident(), 0) + self.jumped_ns

    def now_ns(self) -> int:
        """Return the time."""
        return sum(self.used.values()) + self.passed_ns

    def use(self, ns: int) -> None:
        """Use CPU time in this thread."""
        ident = threading.get_ident()
        self.used[ident] = self.used.get(ident, 0) + ns


@contextmanager
def cpu_clocks() -> Iterator[CpuClocks]:
    """Have `metering` read these clocks, for each step."""
    made = CpuClocks()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metering, "SHORT_NS", 0)
        patch.setattr(metering, "FRESH_NS", 0)
        patch.setattr(metering, "thread_time_ns", made.cpu_ns)
        patch.setattr(metering, "monotonic_ns", made.now_ns)
        patch.setattr(metering, "threads", metering.Threads())
        yield made
