"""Carry load reports between brokers, through a side log beside the channel's log.

Each broker publishes its own load, with averages over its earlier reports. The first broker creates
the side log; an existing one stays as it is. Ownership never depends on its content.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import takewhile
from typing import Final

from equipoise.brokers.load.documents import LOAD_BYTES_MAX, decode_load, encode_load, light
from equipoise.channel.core.errors import PeerError
from equipoise.channel.core.side_log import Document, SideTopic, read_on
from equipoise.channel.log.open_log import open_side_log
from equipoise.shedder.loads import BundleTraffic, Load, averaged, blended, kept_share

LOADS: Final = SideTopic(
    name="loads",
    content="the load bus",
    consequence="nothing is balanced until that is mended",
    kept_ms=3_600_000,  # A broker without a report for an hour is gone.
    rows_max=100_000,  # 100 to 200 MB, a day of three brokers.
    cleanup="compact,delete",
    document_bytes_max=LOAD_BYTES_MAX,
)
"""Loads with averages, by broker."""


def loads_at(log_url: str, *, at_ms: int, age_ms_max: int) -> Sequence[Load]:
    """Return the load of each broker as it was known at Unix time `at_ms`, ordered by id, of those
    that reported within `age_ms_max` before. Raises what `open_side_log` raises, and
    `SideLogUnavailable`.
    """
    with closing(open_side_log(log_url, LOADS)) as reports:
        found = read_on(reports, reports.position_at(at_ms - age_ms_max))
        # The last report of a broker replaces the others.
        values = {
            kept.key: kept.value for kept in takewhile(lambda each: each.at_ms <= at_ms, found)
        }
    return [load for broker in sorted(values) for load in _decoded(values[broker])]


def _decoded(value: bytes | None) -> Sequence[Load]:
    """Return a load; nothing if it was withdrawn, or cannot be read."""
    try:
        return (decode_load(value or b""),)
    except PeerError:
        return ()


class LoadBus:
    """A handle on the load reports of one cluster, for any thread: they wait for one another.

    * A report may be lost, late, or outlive its broker. Safety does not depend on it. Readers check
      its age.
    * Averages are over the reports that arrived, from any handle.
    * A broker without a report for `LOADS.kept_ms` is gone.
    * Calls may block for as long as writing a small file.

    Each method raises `SideLogUnavailable`; the next call may succeed.
    """

    def __init__(self, log_url: str) -> None:
        """Raises what `open_side_log` raises."""
        self._loads = open_side_log(log_url, LOADS)
        self._lock = threading.Lock()
        self._position: int | None = None
        # By broker, with the time when it came.
        self._latest: dict[str, tuple[int, Load]] = {}
        # By bundle, as the broker that reported it last has it.
        self._bundles: dict[str, tuple[Load, BundleTraffic]] = {}

    def publish(self, load: Load) -> None:
        """Publish what a broker has measured, as `light` leaves it, with averages."""
        load = light(load)
        with self._lock:
            self._read_on()
            _, before = self._latest.get(load.broker, (0, None))
            found = averaged(before, load)
            bundles = tuple(self._continued(bundle, load) for bundle in found.bundles)
            document = encode_load(replace(found, bundles=bundles))
            self._loads.append([Document(load.broker, document)])

    def withdraw(self, broker: str) -> None:
        """Remove the reports of a broker that leaves."""
        with self._lock:
            self._loads.append([Document(broker, None)])

    def latest(self) -> Sequence[Load]:
        """Return the latest load of each broker, ordered by id, without unreadable ones."""
        with self._lock:
            self._read_on()
            return [self._latest[broker][1] for broker in sorted(self._latest)]

    def _continued(self, bundle: BundleTraffic, load: Load) -> BundleTraffic:
        """Return a bundle with the average that it had at another broker, if that reported it
        last: it has moved.
        """
        last, former = self._bundles.get(bundle.bundle, (load, None))
        if last.broker == load.broker:
            return bundle
        kept = kept_share(load.history, elapsed_ms=load.at_ms - last.at_ms)
        return blended(former, bundle, kept=kept)

    def _read_on(self) -> None:
        oldest_ms = time.time_ns() // 1_000_000 - LOADS.kept_ms
        position = self._position
        if position is None:
            position = self._loads.position_at(oldest_ms)
        # Only the newest of each broker is decoded: a new handle reads the reports of an hour.
        newest = {}
        for kept in read_on(self._loads, position):
            newest[kept.key] = kept
            position = kept.position + 1
        self._position = position  # Not before: what an error interrupts is read again.
        for broker, kept in newest.items():
            try:
                load = decode_load(kept.value or b"")
            except PeerError:
                self._latest.pop(broker, None)
                continue
            self._latest[broker] = kept.at_ms, load
            self._bundles |= {bundle.bundle: (load, bundle) for bundle in load.bundles}
        self._latest = {
            broker: kept for broker, kept in self._latest.items() if kept[0] > oldest_ms
        }
        self._bundles = {
            bundle: seen for bundle, seen in self._bundles.items() if seen[0].at_ms > oldest_ms
        }
