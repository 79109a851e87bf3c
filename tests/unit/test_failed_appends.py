"""What a broker's log tells of an outage of appends: its beginning, how it goes on, its end, and nothing besides."""

from __future__ import annotations

import logging

import pytest

from equipoise.brokers.runtime.failures import FailedAppends
from equipoise.channel.core.errors import LogStorageFull, LogUnavailable

RENEWAL = b'{"kind":"broker","key":"a"}'
MOVE = b'{"kind":"bundle","key":"t/n/0x00000000_0xffffffff"}'
FULL = LogStorageFull(log="memory:x")
AWAY = LogUnavailable(log="memory:x", problem="it is locked", in_doubt=False)
FAILED = f"append failed: {FULL}"
OVER = "appends succeed again"

Told = tuple[str, object, object]


@pytest.fixture(autouse=True)
def every_level(caplog: pytest.LogCaptureFixture) -> None:
    """See what is told at any level."""
    caplog.set_level(logging.DEBUG, logger="equipoise.brokers.runtime.failures")


def told(caplog: pytest.LogCaptureFixture) -> list[Told]:
    """Each line: what it says, of which key, and how many failures it stands for."""
    return [(line.message, line.__dict__.get("key"), line.__dict__["failures"]) for line in caplog.records]


def test_an_outage_is_told_once_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A thousand failures a second for half a minute are a first line, two that count, and the end with the rest."""
    appends = FailedAppends(broker="b")
    for now_ms in range(25_000):
        appends.failed(MOVE if now_ms == 0 else RENEWAL, FULL, now_ms)
    appends.appended()
    appends.appended()
    move = "t/n/0x00000000_0xffffffff"
    assert [(FAILED, move, 1), (FAILED, "a", 10_000), (FAILED, "a", 10_000), (OVER, None, 4_999)] == told(caplog)
    first = caplog.records[0]
    assert ("b", "bundle") == (first.__dict__["broker"], first.__dict__["kind"])


def test_a_log_that_takes_every_other_record_is_no_louder(caplog: pytest.LogCaptureFixture) -> None:
    """Outages that follow one another at once are told as one that goes on, with every failure counted once."""
    appends = FailedAppends(broker="b")
    for now_ms in range(25_000):
        appends.failed(RENEWAL, FULL, now_ms)
        appends.appended()
    assert [(FAILED, "a", 1), (OVER, None, 0), (FAILED, "a", 10_000), (OVER, None, 0), (FAILED, "a", 10_000), (OVER, None, 0)] == told(
        caplog
    )


def test_a_later_outage_is_told_anew(caplog: pytest.LogCaptureFixture) -> None:
    """Once some time has passed, the first failure is told at once, with its own error."""
    appends = FailedAppends(broker="b")
    appends.appended()
    appends.failed(RENEWAL, FULL, 1_000_000)
    appends.appended()
    appends.failed(RENEWAL, AWAY, 1_060_000)
    assert [(FAILED, "a", 1), (OVER, None, 0), (f"append failed: {AWAY}", "a", 1)] == told(caplog)
