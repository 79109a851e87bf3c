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


@pytest.mark.parametrize(
    ("given", "has_engine", "expected"), [(None, False, "local:1"), (None, True, "container:1"), ("given:1", True, "given:1")]
)
def test_tests_take_the_given_kafka_then_a_container_then_a_local_one(
    given: str | None, has_engine: bool, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @contextmanager
    def local_kafka(folder: Path, *, extra: Mapping[str, str]) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(address="local:1")

    @contextmanager
    def started(extra: Mapping[str, str]) -> Iterator[str]:
        yield "container:1"

    monkeypatch.delenv(finding.GIVEN, raising=False)
    if given is not None:
        monkeypatch.setenv(finding.GIVEN, given)
    monkeypatch.setattr(container, "engine_answers", lambda: has_engine)
    monkeypatch.setattr(container, "started", started)
    monkeypatch.setattr(finding, "local_kafka", local_kafka)
    with finding.some_kafka(tmp_path) as address:
        assert expected == address


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
