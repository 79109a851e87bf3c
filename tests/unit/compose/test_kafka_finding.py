"""Which Kafka the tests take, and what becomes of them where there is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from compose.local_kafka.errors import NotInstalled
from compose.local_kafka.server_properties import Ports, server_properties
from tests.kafka import container, finding
from tests.kafka.fixtures import fresh_topic, or_skipped


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No Kafka is given, no engine answers, and a local one is at `local:1`."""

    @contextmanager
    def local_kafka(folder: Path, *, extra: Mapping[str, str]) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(address="local:1")

    monkeypatch.delenv(finding.GIVEN, raising=False)
    monkeypatch.setattr(container, "engine_answers", lambda: False)
    monkeypatch.setattr(finding, "local_kafka", local_kafka)
    return monkeypatch


def found(tmp_path: Path) -> str:
    """Where the Kafka is that the tests would take."""
    with finding.some_kafka(tmp_path) as address:
        return address


def test_a_local_kafka_is_the_last_resort(ways: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where none is given and no engine answers, a local one is started."""
    assert "local:1" == found(tmp_path)


def test_an_engine_goes_before_a_local_kafka(ways: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where an engine for containers answers, Kafka runs in one."""

    @contextmanager
    def started(extra: Mapping[str, str]) -> Iterator[str]:
        yield "container:1"

    ways.setattr(container, "engine_answers", lambda: True)
    ways.setattr(container, "started", started)
    assert "container:1" == found(tmp_path)


def test_a_kafka_that_is_given_goes_before_all(ways: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever names a Kafka gets that one, and no engine is asked."""

    def engine_answers() -> bool:
        raise AssertionError("it was asked")

    ways.setattr(container, "engine_answers", engine_answers)
    ways.setenv(finding.GIVEN, "given:1")
    assert "given:1" == found(tmp_path)


def test_a_machine_without_a_kafka_is_told_of_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs a Kafka is skipped with the reason on a machine that has none, and fails in CI."""
    monkeypatch.setenv("CI", "")
    with pytest.raises(pytest.skip.Exception, match=finding.GIVEN), or_skipped():
        raise NotInstalled("no route")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=finding.GIVEN), or_skipped():
        raise NotInstalled("no route")


def test_fresh_topics_have_names_that_kafka_takes() -> None:
    """A name is made of the purpose and of chance, of Kafka's characters, and leaves room for a suffix."""
    one, two = fresh_topic("what for, und wieso? " * 20), fresh_topic("what for, und wieso? " * 20)
    assert one != two
    assert one.startswith("what-for-und-wieso-what-for")
    assert set(one) <= set("abcdefghijklmnopqrstuvwxyz-0123456789")
    assert len(one) <= 200


def test_the_image_is_told_settings_that_kafka_has() -> None:
    """All that a container is told is known to the local Kafka, too, and clients are told the address that was chosen."""
    told = container.image_settings("host:1234")
    ports = (Ports(client=1, controller=2, proxied=3),)
    assert told.keys() <= server_properties(1, ports=ports, proxies=(), data=Path("data"), extra={}).keys()
    assert "CLIENT://host:1234" in told["advertised.listeners"].split(",")
