"""Log lines of repeated failures: the first, one per interval, and the end."""

from __future__ import annotations

import logging

import pytest

from equipoise.brokers.runtime.failures import FailedAppends, LoggedFailures, error_text
from equipoise.channel.core.errors import LogStorageFull, LogUnavailable, Overloaded

RENEWAL = b'{"kind":"broker","key":"a"}'
MOVE = b'{"kind":"bundle","key":"t/n/0x00000000_0xffffffff"}'
FULL = LogStorageFull(log="memory:x")
AWAY = LogUnavailable(log="memory:x", problem="it is locked", in_doubt=False)
BUSY = Overloaded(what="the row", limit=3)
FAILED = f"append failed: {FULL}"
OVER = "appends succeed again"


@pytest.fixture(autouse=True)
def every_level(caplog: pytest.LogCaptureFixture) -> None:
    """See lines of every level."""
    caplog.set_level(logging.DEBUG, logger="equipoise.brokers.runtime.failures")
    caplog.set_level(logging.DEBUG, logger="brokers.test")


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, object, object]]:
    """Return each line: its message, its key, and how many failures it stands for."""
    return [(line.message, line.__dict__.get("key"), line.__dict__["failures"]) for line in caplog.records]


def test_an_outage_is_logged_once_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A thousand failures a second for half a minute are a first line, two that count, and the end with the rest."""
    appends = FailedAppends(broker="b")
    for now_ms in range(25_000):
        appends.failed(MOVE if now_ms == 0 else RENEWAL, FULL, now_ms)
    appends.appended()
    appends.appended()
    move = "t/n/0x00000000_0xffffffff"
    assert [(FAILED, move, 1), (FAILED, "a", 10_000), (FAILED, "a", 10_000), (OVER, None, 4_999)] == lines(caplog)
    first = caplog.records[0]
    assert ("b", "bundle") == (first.__dict__["broker"], first.__dict__["kind"])


def test_a_log_that_takes_every_other_record_is_no_louder(caplog: pytest.LogCaptureFixture) -> None:
    """Outages that follow one another at once are logged as one, with every failure counted once."""
    appends = FailedAppends(broker="b")
    for now_ms in range(25_000):
        appends.failed(RENEWAL, FULL, now_ms)
        appends.appended()
    end = (OVER, None, 0)
    assert [(FAILED, "a", 1), end, (FAILED, "a", 10_000), end, (FAILED, "a", 10_000), end] == lines(caplog)


def test_a_later_outage_is_logged_anew(caplog: pytest.LogCaptureFixture) -> None:
    """After an interval the first failure is logged at once, with its own error."""
    appends = FailedAppends(broker="b")
    appends.appended()
    appends.failed(RENEWAL, FULL, 1_000_000)
    appends.appended()
    appends.failed(RENEWAL, AWAY, 1_060_000)
    assert [(FAILED, "a", 1), (OVER, None, 0), (f"append failed: {AWAY}", "a", 1)] == lines(caplog)


def test_a_failure_of_a_task_is_a_warning_and_a_bug_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """A bug has its traceback, and every line the broker and the count."""
    failures = LoggedFailures(logging.getLogger("brokers.test"), broker="a", failed="it failed", over="it succeeds again")
    for error, now_ms in ((BUSY, 0), (BUSY, 59_999), (KeyError("x"), 60_000), (BUSY, 60_001)):
        failures.failed(error, now_ms)
    failures.succeeded()
    failures.succeeded()
    assert [
        ("WARNING", f"it failed: {BUSY}", 1, False),
        ("ERROR", "it failed: KeyError: 'x'", 2, True),
        ("INFO", "it succeeds again", 1, False),
    ] == [(line.levelname, line.getMessage(), line.__dict__["failures"], bool(line.exc_info)) for line in caplog.records]
    assert {"a"} == {line.__dict__["broker"] for line in caplog.records}


def test_only_foreign_errors_are_described_with_their_type() -> None:
    """Messages of our errors are whole sentences."""
    assert [str(BUSY), "ValueError: odd"] == [error_text(error) for error in (BUSY, ValueError("odd"))]
