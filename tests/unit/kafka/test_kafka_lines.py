"""What of the Kafka client's library comes to a process's log: each thing once in a while."""

from __future__ import annotations

import logging

import pytest

from equipoise.channel.kafka import lines as kafka_lines
from equipoise.channel.kafka.lines import QUIET_S, NotAgain

AT = (
    "[equipoise#{client}] [thrd:{node}/bootstrap]: {node}/bootstrap: Connect to ipv4#{node}"
    " failed: "
)
REFUSED = f"FAIL {AT}Connection refused (after {{ms}}ms in state CONNECT{{more}})"
TIMED_OUT = (
    f"FAIL {AT}Connection setup timed out in state CONNECT (after {{ms}}ms in state CONNECT)"
)


class Clock:
    """Time, as a test wants it."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that the filter sees."""
    clock = Clock()
    monkeypatch.setattr(kafka_lines, "time", clock)
    return clock


def line(message: str, *, level: int = logging.WARNING) -> logging.LogRecord:
    """One line of the library."""
    return logging.LogRecord(kafka_lines.LIBRARY_LOGGER, level, "", 0, message, (), None)


def refused(number: int) -> str:
    """The same failure, as a client, port and try of this number tell it."""
    client = f"{'producer' if number % 2 else 'consumer'}-{number}"
    more = "" if number % 3 else f", {number} identical error(s) suppressed"
    return REFUSED.format(client=client, node=f"127.0.0.1:{9_000 + number}", ms=number, more=more)


def test_an_outage_is_a_line_a_minute(clock: Clock) -> None:
    """Every client of a broker fails to connect several times a second, and one of them is told of
    it each minute.
    """
    said = NotAgain()
    told = []
    for number in range(1_300):
        if said.filter(line(refused(number))):
            told.append(clock.now_s)
        clock.now_s += 0.125
    assert [1_000.0, 1_060.0, 1_120.0] == told


def test_another_failure_is_told_at_once(clock: Clock) -> None:
    """What differs in more than numbers and names of clients is another sentence, and so is another
    node's name.
    """
    said = NotAgain()
    first = refused(1)
    others = (
        TIMED_OUT.format(client="producer-1", node="127.0.0.1:9001", ms=1),
        first.replace("127.0.0.1", "kafka-a"),
    )
    assert [True, False, True, True] == [
        said.filter(line(message)) for message in (first, first, *others)
    ]
    clock.now_s += QUIET_S
    assert said.filter(line(first))


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_what_is_no_trouble_is_for_those_who_want_all(
    level: int, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A Kafka that has just started lets a producer wait for its number; that it is asked again is
    news for nobody.
    """
    said = line(
        "GETPID [equipoise#producer-2] [thrd:main]: Failed to acquire idempotence PID from broker"
        " 127.0.0.1:9092/1: Broker: Coordinator load in progress: retrying"
    )
    with caplog.at_level(level, logger=kafka_lines.LIBRARY_LOGGER):
        assert (level == logging.DEBUG, "DEBUG") == (NotAgain().filter(said), said.levelname)


def test_nothing_is_louder_than_a_warning(clock: Clock) -> None:
    """What a line means for the log is told by those who use the log."""
    said = line(
        "ERROR [equipoise#consumer-1] [thrd:app]: 1/1 brokers are down", level=logging.ERROR
    )
    assert NotAgain().filter(said)
    assert (logging.WARNING, "WARNING") == (said.levelno, said.levelname)
