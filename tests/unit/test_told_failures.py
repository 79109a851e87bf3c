"""The two lines of something that fails over and over: what they say, and how loud they are."""

from __future__ import annotations

import logging

import pytest

from equipoise.brokers.runtime.failures import LoggedFailures, error_text
from equipoise.channel.core.errors import Overloaded

FULL = Overloaded(what="the row", limit=3)


def test_a_failure_is_a_warning_a_bug_an_error_and_the_end_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Of an outage there are the first line, one when a minute is over, with a traceback if it is a bug by then, and the last."""
    failures = LoggedFailures(logging.getLogger("brokers.test"), broker="a", failed="it failed", over="it succeeds again")
    with caplog.at_level("INFO", logger="brokers.test"):
        failures.failed(FULL, 0)
        failures.failed(FULL, 59_999)
        failures.failed(KeyError("x"), 60_000)
        failures.failed(FULL, 60_001)
        failures.succeeded()
        failures.succeeded()
    told = [(line.levelname, line.getMessage(), line.__dict__["failures"], bool(line.exc_info)) for line in caplog.records]
    assert [
        ("WARNING", f"it failed: {FULL}", 1, False),
        ("ERROR", "it failed: KeyError: 'x'", 2, True),
        ("INFO", "it succeeds again", 1, False),
    ] == told
    assert {"a"} == {line.__dict__["broker"] for line in caplog.records}


def test_an_error_is_told_in_a_sentence() -> None:
    """Ours have one; of others the type belongs to it."""
    assert [str(FULL), "ValueError: odd"] == [error_text(error) for error in (FULL, ValueError("odd"))]
