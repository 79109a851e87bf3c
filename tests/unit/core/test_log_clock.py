"""Wrong clocks: what the times of a log say where the machine that stores it had a wrong clock for
a while.

The clock of this process is the clock of the log. Tests set it.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.channel.core.codec import encode
from equipoise.channel.core.log import CLOCK_AHEAD_MS_MAX, Log
from equipoise.channel.core.propose import Author, renewed
from equipoise.channel.inspect.verify import Kind, verify
from equipoise.channel.log.open_log import open_log
from equipoise.channel.system.clocks import next_ms, position_by
from equipoise.compaction.compactor import compact
from equipoise.compaction.retention import Retention
from tests.channels.compacting import restored_to_end
from tests.unit.cli.fabricated import owned_channel

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
YEAR_MS = 365 * DAY_MS
NOW_MS = 1_790_000_000_000
TIMEOUT_MS = 5_000
RETAIN = Retention(unit="ms", amount=7 * DAY_MS)


class Clock:
    """The clock of this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = NOW_MS
        monkeypatch.setattr(time, "time_ns", lambda: self.now_ms * 1_000_000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands until a test sets it."""
    return Clock(monkeypatch)


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A log that is new."""
    return f"memory:{tmp_path}" if request.param == "memory" else f"sqlite:{tmp_path / 'log.db'}"


def append(log: Log, clock: Clock, *times_ms: int) -> list[int]:
    """Append a record at each time; their offsets."""
    offsets: list[int] = []
    for time_ms in times_ms:
        clock.now_ms = time_ms
        offsets += log.append([b"x"], timeout_ms=TIMEOUT_MS)
    return offsets


def test_one_wrong_clock_does_not_pin_the_time(url: str, clock: Clock) -> None:
    """After a record that was stamped years ahead, the next ones get the time of the clock, and
    each time leads to its record.
    """
    with closing(open_log(url)) as log:
        times_ms = [
            NOW_MS,
            NOW_MS + 7 * YEAR_MS,
            *(NOW_MS + number * HOUR_MS for number in range(1, 5)),
        ]
        offsets = append(log, clock, *times_ms)
        assert offsets[0] == log.position_at(NOW_MS)
        # The record with the wrong time counts as appended when the next one was.
        assert offsets[1] == log.position_at(NOW_MS + 1) == log.position_at(times_ms[2])
        assert offsets[3:] == [log.position_at(time_ms) for time_ms in times_ms[3:]]
        assert offsets[1] == log.ahead(offsets[0])
        assert log.ahead(offsets[2]) is None


def test_a_clock_that_is_set_back_a_little_holds_the_time(url: str, clock: Clock) -> None:
    """A step back of ten minutes is no wrong clock: the time of the log waits for the clock."""
    with closing(open_log(url)) as log:
        offsets = append(log, clock, NOW_MS, NOW_MS - CLOCK_AHEAD_MS_MAX, NOW_MS + 1)
        assert [offsets[0], offsets[2]] == [log.position_at(NOW_MS), log.position_at(NOW_MS + 1)]
        assert log.ahead(offsets[0]) is None


def test_a_clock_that_is_years_behind_makes_nothing_old(url: str, clock: Clock) -> None:
    """Records of 1970 between others count as appended when the next one was: nothing before them
    is taken for older than it is.
    """
    with closing(open_log(url)) as log:
        offsets = append(log, clock, NOW_MS, *range(1_000, 51_000, 1_000), NOW_MS + HOUR_MS)
        assert offsets[0] == log.position_at(NOW_MS)
        assert offsets[1] == log.position_at(NOW_MS + 1)


def test_a_log_that_began_years_ahead_heals(url: str, clock: Clock) -> None:
    """A log whose first records were stamped ahead tells the time again as soon as somebody appends
    with a right clock.
    """
    with closing(open_log(url)) as log:
        offsets = append(log, clock, NOW_MS + YEAR_MS, NOW_MS + YEAR_MS, NOW_MS, NOW_MS + HOUR_MS)
        assert [offsets[0], offsets[3]] == [log.position_at(NOW_MS), log.position_at(NOW_MS + 1)]


def test_who_was_ahead_counts_as_now_where_nobody_wrote_since(url: str, clock: Clock) -> None:
    """At the end of a log a wrong time is taken for now: such a record is not old."""
    with closing(open_log(url)) as log:
        offsets = append(log, clock, NOW_MS, NOW_MS + YEAR_MS)
        clock.now_ms = NOW_MS + DAY_MS
        assert offsets[1] == log.position_at(NOW_MS + DAY_MS)


@given(
    times_ms=st.lists(st.integers(1, 100), max_size=12),
    asked_ms=st.lists(st.integers(0, 110), min_size=2, max_size=5).map(sorted),
)
def test_a_later_time_never_leads_to_a_lower_position(
    times_ms: list[int], asked_ms: list[int]
) -> None:
    """Whatever times a log has, positions rise with the times that lead to them; where times rise
    it is the first that is late enough.
    """

    def first_timed(position: int, below: int, from_ms: int, to_ms: int) -> tuple[int, int] | None:
        return next(
            (
                (each, times_ms[each])
                for each in range(position, below)
                if from_ms <= times_ms[each] <= to_ms
            ),
            None,
        )

    found = [position_by(first_timed, asked, low=0, high=len(times_ms)) for asked in asked_ms]
    assert sorted(found) == found
    if sorted(times_ms) == times_ms:
        assert [bisect_left(times_ms, asked) for asked in asked_ms] == found


@pytest.mark.parametrize(
    ("before_ms", "expected_ms"),
    [
        (0, NOW_MS),
        (NOW_MS - 1, NOW_MS),
        (NOW_MS + 5, NOW_MS + 5),
        (NOW_MS + CLOCK_AHEAD_MS_MAX + 1, NOW_MS),
        (NOW_MS + YEAR_MS, NOW_MS),
    ],
)
def test_the_time_is_never_far_ahead_of_the_clock(
    clock: Clock, before_ms: int, expected_ms: int
) -> None:
    """A record is stamped at most ten minutes ahead of the clock of its writer."""
    assert (expected_ms, NOW_MS) == (next_ms(before_ms), clock.now_ms)


def poisoned(url: str, clock: Clock, hours: Sequence[int]) -> Log:
    """A channel whose records after the ninth were appended at these hours, one of which a wrong
    clock stamped years ahead.
    """
    log = open_log(url)
    log.append([data for _, data in owned_channel().entries], timeout_ms=TIMEOUT_MS)
    for hour in hours:
        clock.now_ms = NOW_MS + hour * HOUR_MS
        view = restored_to_end(log)
        broker = view.brokers["a"]
        author = Author(publisher="a", incarnation=broker.incarnation, sequence=broker.sequence + 1)
        log.append([encode(renewed(author, broker))], timeout_ms=TIMEOUT_MS)
    return log


def test_retention_by_time_goes_on(url: str, clock: Clock) -> None:
    """A record of 2033 keeps nothing: what is older than a week is cut, and no more than that, also
    before the compaction has cut it.
    """
    with closing(poisoned(url, clock, [1, 7 * 365 * 24, *range(2, 20 * 24, 24)])) as log:
        done = compact(log, retain=RETAIN, timeout_ms=TIMEOUT_MS)
        # Nine records, then one at hour 1, one years ahead, and one a day: eight of these are of
        # the last week.
        assert (1, 11, log.end() - 7) == (done.start_before, done.ahead, done.start)
        clock.now_ms += DAY_MS
        assert compact(log, retain=RETAIN, timeout_ms=TIMEOUT_MS).ahead is None


def test_verify_names_the_record_whose_time_is_ahead(url: str, clock: Clock) -> None:
    """It is a finding, with what to do, until the record is gone or its time has come."""
    with closing(poisoned(url, clock, [1, 7 * 365 * 24, 2, 3])) as log:
        [finding] = verify(log).findings
        assert (Kind.CLOCK, 11, 11) == (finding.kind, finding.first, finding.last)
        assert "Set the clock" in finding.text
        clock.now_ms += 7 * YEAR_MS
        assert verify(log).in_order
