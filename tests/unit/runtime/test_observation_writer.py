"""The writer of observations: all that is told is written in batches, and no place that hangs or fails is in the way of serving."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import orjson
import pytest

from equipoise.brokers.runtime.clock import SystemClock
from equipoise.brokers.runtime.observations import writer as module
from equipoise.brokers.runtime.observations.records import Kind, Observation, ObservationsUnavailable, Served
from equipoise.brokers.runtime.observations.writer import ObservationWriter

PATIENCE_S = 20.0


class Place:
    """A place for observations in memory, that waits before each write for `gate`, and fails while `is_away`."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()
        self.is_away = False
        self.attempts = 0
        self.batches: list[list[int]] = []

    def write(self, kind: Kind, observations: Sequence[Observation]) -> None:
        self.reached.set()
        assert self.gate.wait(PATIENCE_S)
        self.attempts += 1
        if self.is_away:
            raise ObservationsUnavailable(place="in a test", problem="it is away")
        assert Kind.SERVING is kind
        self.batches.append([orjson.loads(each.document)["token"] for each in observations])

    @property
    def tokens(self) -> list[int]:
        """All that was written, in order."""
        return [token for batch in self.batches for token in batch]


def served(token: int) -> Served:
    """A beginning under some token."""
    return Served(
        log="log",
        broker="b",
        incarnation=1,
        bundle="t/n/0x00000000_0xffffffff",
        token=token,
        boot="boot",
        started_ns=1,
        answered_ns=None,
        lease_deadline_ns=2,
        ended=None,
        by_token=False,
        at_ms=3,
        at_ns=1,
    )


def writer_to(place: Place) -> ObservationWriter:
    """A writer to that place."""
    return ObservationWriter(lambda: place, broker="b", clock=SystemClock())


def test_all_that_was_told_is_written_in_order() -> None:
    """At the end nothing is left, and a thousand are written at once rather than one by one."""
    place = Place()
    place.gate.clear()
    writer = writer_to(place)
    writer.served(served(0))
    assert place.reached.wait(PATIENCE_S)
    for token in range(1, 2_000):
        writer.served(served(token))
    place.gate.set()
    writer.close()
    assert list(range(2_000)) == place.tokens
    assert [1, 1_000, 999] == [len(batch) for batch in place.batches if batch]


def test_a_place_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The end has a bound, with a full row too, and says that something is missing."""
    monkeypatch.setattr(module, "CLOSE_S", 0.01)
    monkeypatch.setattr(module, "_WAITING_MAX", 1)
    place = Place()
    place.gate.clear()
    writer = writer_to(place)
    writer.served(served(0))
    assert place.reached.wait(PATIENCE_S)
    for token in range(1, 4):
        writer.served(served(token))
    writer.close()
    assert "still being written" in caplog.text
    place.gate.set()
    monkeypatch.setattr(module, "CLOSE_S", PATIENCE_S)
    writer.close()
    assert [0, 1] == place.tokens
    assert "2 observations were dropped" in caplog.text


def test_a_place_that_is_away_is_tried_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What it did not take is written when it is back, in order, and two lines tell of it."""
    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    place = Place()
    place.is_away = True
    with caplog.at_level(logging.INFO, logger=module.__name__):
        writer = writer_to(place)
        writer.served(served(1))
        wait_for(lambda: "observations not stored" in caplog.text)
        writer.served(served(2))
        place.is_away = False
        writer.close()
    assert [1, 2] == place.tokens
    assert "it is away" in caplog.text
    assert "observations are stored again" in caplog.text


def test_a_place_that_stays_away_loses_what_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many attempts, or at the broker's end after one more, what waits for it is lost."""
    monkeypatch.setattr(module, "_RETRY_S", 0.0)
    monkeypatch.setattr(module, "_ATTEMPTS_MAX", 3)
    place = Place()
    place.is_away = True
    writer = writer_to(place)
    writer.served(served(1))
    wait_for(lambda: 3 == place.attempts)
    place.is_away = False
    writer.served(served(2))
    wait_for(lambda: [2] == place.tokens)
    monkeypatch.setattr(module, "_RETRY_S", PATIENCE_S)
    place.is_away = True
    writer.served(served(3))
    wait_for(lambda: 5 == place.attempts)
    writer.close()
    assert [2] == place.tokens


def test_a_defect_of_a_place_costs_one_batch(caplog: pytest.LogCaptureFixture) -> None:
    """It is told with its traceback, and what comes later is written."""
    place, errors = Place(), iter([ValueError("a bug")])

    def opening() -> Place:
        for error in errors:
            raise error
        return place

    writer = ObservationWriter(opening, broker="b", clock=SystemClock())
    writer.served(served(1))
    wait_for(lambda: "ValueError: a bug" in caplog.text)
    writer.served(served(2))
    writer.close()
    assert [2] == place.tokens


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    looks = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if condition():
            return
        looks.wait(0.01)
    raise AssertionError("it did not come to be")
