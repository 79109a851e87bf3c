"""Export metrics of the compactions that a broker ran.

Only the leader compacts, so a new leader starts at zero.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge


class CompactionMetrics:
    """Filled by `brokers.server.compacting`; zeros at a broker that has not compacted."""

    def __init__(self, registry: CollectorRegistry, *, broker: str, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """`now_ns` is a clock that only rises."""
        self._now_ns = now_ns
        self._ended_ns: int | None = None

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"equipoise_{name}", text, ("broker",), registry=registry).labels(broker)

        self._horizon = gauge("compaction_horizon_offset", "The offset up to which this broker has compacted the channel.")
        self._duration = gauge("compaction_duration_seconds", "How long the last compaction by this broker took.")
        self._uncompacted = gauge("uncompacted_records", "Records folded since this broker's last compaction, or its start.")
        self._archived = gauge(
            "archive_archived_offset", "The lowest offset up to which every archive that holds the log has read; 0: none does."
        )
        self._lapsed = gauge("archive_holds_lapsed", "Archives whose holds are too old to count.")
        text = "The offset of the first record of the last compaction that has a time ahead of the clock; 0: none has."
        self._ahead = gauge("log_clock_ahead_offset", text)
        gauge("compaction_age_seconds", "The time since the last compaction by this broker.").set_function(self._age_s)
        text = "Compactions by this broker that did not come to their end."
        self._failures = Counter("equipoise_compaction_failures_total", text, ("broker",), registry=registry).labels(broker)

    def succeeded(self, *, horizon: int, took_ms: int) -> None:
        """Note a compaction that succeeded."""
        self._ended_ns = self._now_ns()
        self._horizon.set(horizon)
        self._duration.set(took_ms / 1_000)

    def holds(self, *, archived_to: int | None, lapsed: int) -> None:
        """Set what archives keep on the log."""
        self._archived.set(archived_to or 0)
        self._lapsed.set(lapsed)

    def clock_ahead(self, offset: int | None) -> None:
        """Set the offset of the first record that has a time ahead of the clock."""
        self._ahead.set(offset or 0)

    def failed(self) -> None:
        """Count a compaction that failed."""
        self._failures.inc()

    def uncompacted(self, records: int) -> None:
        """Set the number of records that wait for the next compaction."""
        self._uncompacted.set(records)

    def _age_s(self) -> float:
        return 0.0 if self._ended_ns is None else (self._now_ns() - self._ended_ns) / 1e9
