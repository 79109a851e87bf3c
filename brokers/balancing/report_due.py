"""When a broker reports its load: rarely while it stays as it is, and soon after it has changed.

May live here: the rule, which is that of Pulsar's `BrokerLoadDataReporter`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from equipoise.brokers.balancing.settings.balancing_settings import ReportRules
from equipoise.shedder.load_reports import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """A report that was made: the sample, when (`at_ms` of boot time), and which bundles were open and could be named."""

    sample: Sample
    at_ms: int
    open_bundles: tuple[str, ...] = ()


def report_due(last: Reported | None, now: Reported, rules: ReportRules) -> bool:
    """Whether what would be reported now is due after the report that was made last.

    It is when the bundles that can be named have changed, because whoever moves some weighs a broker by what it says; when the
    figures have changed by more than `change_percent`; and when the last report is as old as may be. It never is before the
    shortest time between two reports has passed.
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
    """By how much the figures have changed that have changed the most: use in points, the others in percent of what they were."""
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
