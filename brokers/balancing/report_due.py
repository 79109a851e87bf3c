"""Decide when a broker reports its load, by the rule of Pulsar's `BrokerLoadDataReporter`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from equipoise.brokers.balancing.settings.balancing_settings import ReportRules
from equipoise.shedder.load_reports import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """A report that was made: the sample, its time (`at_ms`, boot time), and the names of the open bundles."""

    sample: Sample
    at_ms: int
    open_bundles: tuple[str, ...] = ()


def report_due(last: Reported | None, now: Reported, rules: ReportRules) -> bool:
    """Return whether a report of `now` is due.

    No report is due before `interval_min_ms` has passed. After that, a report is due if one of these holds:

    * The set of named bundles has changed. The leader plans moves with the reported bundles.
    * A figure has changed by more than `change_percent`.
    * The last report is `interval_max_ms` old.
    """
    if last is None:
        return True
    elapsed_ms = now.at_ms - last.at_ms
    if elapsed_ms < rules.interval_min_ms:
        return False
    return (
        elapsed_ms >= rules.interval_max_ms
        or now.open_bundles != last.open_bundles
        or change_percent(last.sample, now.sample) > rules.change_percent
    )


def change_percent(last: Sample, now: Sample) -> float:
    """Return the change of the figure that changed most: use in percentage points, all others in percent of the old value."""
    return max(
        100 * abs(now.resources.max_use - last.resources.max_use),
        _percent(last.traffic.messages_per_second, now.traffic.messages_per_second),
        _percent(last.traffic.bytes_per_second, now.traffic.bytes_per_second),
        _percent(last.bundle_count, now.bundle_count),
    )


def _percent(old: float, new: float) -> float:
    if old == 0:
        return 0.0 if new == 0 else math.inf
    return 100 * abs(old - new) / old
