"""Log lines of repeated failures: the first, one per interval, and the end."""

from __future__ import annotations

import logging
from functools import partial

import pytest

from equipoise.channel.core.errors import LogStorageFull, Overloaded
from equipoise.channel.system.failures import LoggedFailures, error_text

FULL = LogStorageFull(log="memory:x")
BUSY = Overloaded(what="the queue", limit=3)
FAILED, OVER = f"it failed: {FULL}", "it succeeds again"
INTERVAL_MS = 10_000


@pytest.fixture
def failures(caplog: pytest.LogCaptureFixture) -> LoggedFailures:
    """Return the failures of a task, whose lines of every level are captured."""
    caplog.set_level(logging.DEBUG, logger="brokers.test")
    return LoggedFailures(
        logging.getLogger("brokers.test"),
        broker="a",
        failed="it failed",
        over=OVER,
        interval_ms=INTERVAL_MS,
    )


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, object, object]]:
    """Return each line: its message, its field `key`, and how many failures it stands for."""
    return [
        (line.getMessage(), line.__dict__.get("key"), line.__dict__["failures"])
        for line in caplog.records
    ]


def test_an_outage_is_logged_once_then_counted(
    failures: LoggedFailures, caplog: pytest.LogCaptureFixture
) -> None:
    """A line has the fields of the failure that it reports. Success without an outage writes no
    line.
    """
    failures.succeeded()
    for now_ms in range(25_000):
        failures.failed(FULL, now_ms, partial(dict, key="first" if now_ms == 0 else "later"))
    failures.succeeded()
    failures.succeeded()
    assert [
        (FAILED, "first", 1),
        (FAILED, "later", 10_000),
        (FAILED, "later", 10_000),
        (OVER, None, 4_999),
    ] == lines(caplog)


def test_short_outages_in_a_row_are_logged_as_one(
    failures: LoggedFailures, caplog: pytest.LogCaptureFixture
) -> None:
    """Every failure is counted once."""
    for now_ms in range(25_000):
        failures.failed(FULL, now_ms)
        failures.succeeded()
    end = (OVER, None, 0)
    assert [
        (FAILED, None, 1),
        end,
        (FAILED, None, 10_000),
        end,
        (FAILED, None, 10_000),
        end,
    ] == lines(caplog)


def test_a_failure_is_a_warning_and_a_bug_is_an_error_with_a_traceback(
    failures: LoggedFailures, caplog: pytest.LogCaptureFixture
) -> None:
    for error, now_ms in (
        (BUSY, 0),
        (BUSY, INTERVAL_MS - 1),
        (KeyError("x"), INTERVAL_MS),
        (BUSY, INTERVAL_MS + 1),
    ):
        failures.failed(error, now_ms)
    failures.succeeded()
    assert [
        ("WARNING", f"it failed: {BUSY}", 1, False),
        ("ERROR", "it failed: KeyError: 'x'", 2, True),
        ("INFO", OVER, 1, False),
    ] == [
        (line.levelname, line.getMessage(), line.__dict__["failures"], bool(line.exc_info))
        for line in caplog.records
    ]
    assert {"a"} == {line.__dict__["broker"] for line in caplog.records}


def test_only_foreign_errors_are_described_with_their_type() -> None:
    assert [str(BUSY), "ValueError: odd"] == [
        error_text(error) for error in (BUSY, ValueError("odd"))
    ]
