"""When a report is due: Pulsar's rule, by example."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from equipoise.brokers.balancing.settings.balancing_settings import ReportRules
from equipoise.brokers.load.sampling import Report, change_percent, report_due
from equipoise.shedder.loads import Load, Resources, Traffic, Use

RULES = ReportRules(interval_min_ms=1_000, interval_max_ms=60_000, change_percent=10)
SAMPLE = Load(
    broker="a",
    at_ms=0,
    resources=Resources(cpu=Use(used=50, limit=100)),
    traffic=Traffic(bytes_in_per_second=100, messages_out_per_second=100),
    bundle_count=100,
)
LAST = Report(sample=SAMPLE, at_ms=0, open_bundles=("x", "y"))


def used(percent: float) -> Resources:
    return Resources(cpu=Use(used=percent, limit=100))


CHANGES = {
    "nothing": (SAMPLE, 0.0),
    "use, in points": (replace(SAMPLE, resources=used(62)), 12.0),
    "less use": (replace(SAMPLE, resources=used(38)), 12.0),
    "memory, which is left out": (
        replace(SAMPLE, resources=replace(SAMPLE.resources, memory=Use(used=1, limit=1))),
        0.0,
    ),
    "messages": (replace(SAMPLE, traffic=replace(SAMPLE.traffic, messages_in_per_second=11)), 11.0),
    "bytes": (replace(SAMPLE, traffic=replace(SAMPLE.traffic, bytes_in_per_second=80)), 20.0),
    "bundles": (replace(SAMPLE, bundle_count=120), 20.0),
    "all traffic gone": (replace(SAMPLE, traffic=Traffic()), 100.0),
}


@pytest.mark.parametrize(("now", "expected"), CHANGES.values(), ids=CHANGES.keys())
def test_the_largest_change_counts(now: Load, expected: float) -> None:
    """Use changes in percentage points, all other figures in percent of the old value."""
    assert math.isclose(expected, change_percent(SAMPLE, now), abs_tol=1e-4)


def test_a_change_from_zero_is_infinite() -> None:
    nothing = Load(broker="a", at_ms=0)
    assert 0 == change_percent(nothing, nothing)
    assert math.inf == change_percent(nothing, replace(nothing, bundle_count=1))


DUE = {
    "as it was": (Report(sample=SAMPLE, at_ms=59_999, open_bundles=("x", "y")), False),
    "as it was for too long": (Report(sample=SAMPLE, at_ms=60_000, open_bundles=("x", "y")), True),
    "a change": (
        Report(sample=replace(SAMPLE, resources=used(61)), at_ms=1_000, open_bundles=("x", "y")),
        True,
    ),
    "a change that is small": (
        Report(sample=replace(SAMPLE, resources=used(59)), at_ms=1_000, open_bundles=("x", "y")),
        False,
    ),
    "a change too soon": (
        Report(sample=replace(SAMPLE, resources=used(90)), at_ms=999, open_bundles=("x", "y")),
        False,
    ),
    "a bundle for another": (Report(sample=SAMPLE, at_ms=1_000, open_bundles=("x", "z")), True),
    "a bundle for another too soon": (
        Report(sample=SAMPLE, at_ms=999, open_bundles=("x", "z")),
        False,
    ),
}


@pytest.mark.parametrize(("now", "expected"), DUE.values(), ids=DUE.keys())
def test_a_report_is_due_when_something_has_changed_or_time_has_passed(
    now: Report, expected: bool
) -> None:
    """But never before the least interval is over. The first is due at once."""
    assert (expected, True) == (report_due(LAST, now, RULES), report_due(None, now, RULES))
