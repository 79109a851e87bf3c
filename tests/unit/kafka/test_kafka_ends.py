"""Which end of a topic is that of the log: the node that is asked may be cut off, and the topic may
have lost its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from equipoise.channel.core.errors import LogUnavailable, LogWentBack, OperatorError
from equipoise.channel.kafka.answers import KafkaFailed, Trouble
from equipoise.channel.kafka.log import KafkaLog
from tests.kafka.fake_kafka import SILENCE, FakeKafka

TIMEOUT_MS = 1_000
WAYS: dict[str, Callable[[KafkaLog], object]] = {
    "read": lambda log: log.read(4, limit=10),
    "wait": lambda log: log.wait(4, timeout_ms=0),
    "end": lambda log: log.end(),
    "start": lambda log: log.start(),
    "truncate": lambda log: log.truncate(4, timeout_ms=TIMEOUT_MS),
}


@pytest.fixture
def kafka() -> FakeKafka:
    """A Kafka without messages."""
    return FakeKafka()


@pytest.fixture
def log(kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaLog]:
    """A handle on a log of three entries, which it has appended and read."""
    with closing(kafka.opened(monkeypatch)) as opened:
        assert [1, 2, 3] == list(opened.append([b"a", b"b", b"c"], timeout_ms=TIMEOUT_MS))
        assert [b"a", b"b", b"c"] == [entry.data for entry in opened.read(1, limit=10)]
        yield opened


@pytest.mark.parametrize("way", WAYS)
def test_an_old_end_is_an_outage_until_an_append_is_acknowledged(
    kafka: FakeKafka, log: KafkaLog, way: str
) -> None:
    kafka.old_end, kafka.refusal = 1, SILENCE
    for _ in range(3):
        with pytest.raises(
            LogUnavailable,
            match=r"ends the topic topic at 1, below offset 3, .* cut off .*no acknowledgement",
        ):
            WAYS[way](log)
    assert 1 == kafka.headers
    kafka.refusal = None
    WAYS[way](log)
    kafka.old_end = None
    assert (1 + (way == "truncate") * 3, 4) == (log.start(), log.end())
    assert [5] == list(log.append([b"d"], timeout_ms=TIMEOUT_MS))
    assert [(5, b"d")] == list(log.read(4, limit=10))


@pytest.mark.parametrize("lost", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_a_lost_end_stops_every_use(kafka: FakeKafka, log: KafkaLog, way: str, lost: int) -> None:
    kafka.lose(lost)
    with pytest.raises(LogWentBack) as caught:
        WAYS[way](log)
    assert (4, 3 - lost) == (caught.value.position, caught.value.end)


@pytest.mark.parametrize("lost", [1, 2])
def test_an_append_that_gets_an_offset_again_stops_every_use(
    kafka: FakeKafka, log: KafkaLog, lost: int
) -> None:
    """It does so although the log has then grown past what was read."""
    kafka.lose(lost)
    with pytest.raises(LogWentBack):
        log.append([b"d"] * 5, timeout_ms=TIMEOUT_MS)
    for use in WAYS.values():
        with pytest.raises(LogWentBack):
            use(log)


@pytest.mark.parametrize("create", [True, False])
def test_a_position_of_an_earlier_run_is_believed(
    kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch, create: bool
) -> None:
    """A new handle knows no end, but its reader does. A handle that makes no log proves the end,
    too.
    """
    kafka.opened(monkeypatch).close()
    with closing(kafka.opened(monkeypatch, create=create)) as log:
        kafka.refusal = SILENCE
        with pytest.raises(LogUnavailable):
            log.read(21, limit=1)
        kafka.refusal = None
        with pytest.raises(LogWentBack) as caught:
            log.read(21, limit=1)
        assert (21, 0) == (caught.value.position, caught.value.end)


def test_who_may_not_append_proves_nothing(
    kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.opened(monkeypatch).close()
    with closing(kafka.opened(monkeypatch, create=False)) as log:
        kafka.refusal = KafkaFailed(trouble=Trouble.DENIED, problem="no right")
        with pytest.raises(LogUnavailable, match="no right"):
            log.read(21, limit=1)
        assert 0 == log.end()


def test_nothing_is_appended_to_another_topic(kafka: FakeKafka, log: KafkaLog) -> None:
    kafka.identity, kafka.old_end = "other", 1
    with pytest.raises(OperatorError):
        log.read(4, limit=10)
    assert 1 == kafka.headers
