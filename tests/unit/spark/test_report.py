"""Test the report's figures and formats."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, timedelta, timezone

import pytest

from equipoise.spark_jobs.report.figures import (
    NONE,
    PAUSE_BINS_PER_DECADE,
    Period,
    format_count,
    format_duration,
    format_share,
    format_time,
    format_zone,
    gravity,
    local_zone,
    pause_bar_ms,
    period_shown,
)
from equipoise.spark_jobs.sources.reading import TIME_MS_MAX

HELD = Period(from_ms=1_000, to_ms=5_000)
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    name: str
    from_ms: int | None
    to_ms: int | None
    shown: Period | None


REQUESTED = (
    Requested(name="all", from_ms=None, to_ms=None, shown=HELD),
    Requested(name="within", from_ms=2_000, to_ms=3_000, shown=Period(from_ms=2_000, to_ms=3_000)),
    Requested(
        name="from before it began",
        from_ms=0,
        to_ms=3_000,
        shown=Period(from_ms=1_000, to_ms=3_000),
    ),
    Requested(
        name="beyond its end", from_ms=4_000, to_ms=9_000, shown=Period(from_ms=4_000, to_ms=5_000)
    ),
    Requested(name="after it", from_ms=5_000, to_ms=None, shown=None),
    Requested(name="before it", from_ms=None, to_ms=1_000, shown=None),
)


@pytest.mark.parametrize("case", REQUESTED, ids=lambda case: case.name)
def test_the_shown_period_is_the_requested_part_of_the_archive(case: Requested) -> None:
    assert case.shown == period_shown(HELD, case.from_ms, case.to_ms)
    assert period_shown(None, case.from_ms, case.to_ms) is None


def test_bars_of_pauses_meet() -> None:
    """Each bar ends where the next begins, and the first begins at 0."""
    bars = [pause_bar_ms(number) for number in range(PAUSE_BINS_PER_DECADE * 3 + 1)]
    assert [0.0, *(high for _, high in bars[:-1])] == [low for low, _ in bars]
    assert (100.0, 1_000.0) == pytest.approx(
        (bars[PAUSE_BINS_PER_DECADE * 2][0], bars[PAUSE_BINS_PER_DECADE * 3][0])
    )


def test_unknown_rules_rank_last() -> None:
    """A later version may have written findings by rules that this one does not know."""
    assert ["token_fell", "of_later"] == sorted(("of_later", "token_fell"), key=gravity)


DURATIONS = {
    None: NONE,
    0: "0 ms",
    87.4: "87 ms",
    1_400: "1.4 s",
    60_000: "1 min",
    200_000: "3 min 20 s",
    2 * HOUR_MS + 300_000: "2 h 5 min",
    76 * HOUR_MS: "3 d 4 h",
}


def test_durations_have_their_largest_unit_and_the_next() -> None:
    assert list(DURATIONS.values()) == [format_duration(duration_ms) for duration_ms in DURATIONS]


def test_counts_and_shares_are_formatted_for_people() -> None:
    """A small share is not shown as zero."""
    assert ["1,204 moves", "1 move", "0", "2 boxes"] == [
        format_count(1_204, "move"),
        format_count(1, "move"),
        format_count(0),
        format_count(2, "box", "boxes"),
    ]
    assert ["25.0 %", "0.0 %", "below 0.1 %", NONE] == [
        format_share(1, 4),
        format_share(0, 4),
        format_share(1, 100_000),
        format_share(0, 0),
    ]


def test_times_are_shown_in_one_zone() -> None:
    east = timezone(timedelta(hours=2))
    assert ("1970-01-01 00:00:00", "1970-01-01 02:00:00") == (
        format_time(0, UTC),
        format_time(0, east),
    )
    assert ("UTC", "UTC+02:00") == (format_zone(UTC), format_zone(east))


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/Los_Angeles"])
def test_the_end_of_the_year_9999_can_be_shown(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged row may hold the last millisecond of that year in UTC, or the first one after
    it.
    """
    with monkeypatch.context() as patched:
        patched.setenv("TZ", zone)
        time.tzset()
        shown = [format_time(at_ms, local_zone(at_ms)) for at_ms in (TIME_MS_MAX, TIME_MS_MAX + 1)]
    time.tzset()
    assert ["9999"] * 2 == [each[:4] for each in shown]
