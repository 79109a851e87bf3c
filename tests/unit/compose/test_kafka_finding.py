"""Test which Kafka the tests use, and what happens without one."""

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
    ("given", "has_engine", "expected"),
    [(None, False, "local:1"), (None, True, "container:1"), ("given:1", True, "given:1")],
)
def test_tests_take_the_given_kafka_then_a_container_then_a_local_one(
    given: str | None,
    has_engine: bool,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
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


def test_without_a_kafka_tests_skip_locally_and_fail_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both state the reason."""
    monkeypatch.setenv("CI", "")
    with pytest.raises(pytest.skip.Exception, match=finding.GIVEN), or_skipped():
        raise NotInstalled("no route")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=finding.GIVEN), or_skipped():
        raise NotInstalled("no route")


def test_fresh_topics_have_valid_names() -> None:
    """A name has the purpose and a random part, and leaves room for a suffix."""
    one, two = fresh_topic("what for, und wieso? " * 20), fresh_topic("what for, und wieso? " * 20)
    assert one != two
    assert one.startswith("what-for-und-wieso-what-for")
    assert set(one) <= set("abcdefghijklmnopqrstuvwxyz-0123456789")
    assert len(one) <= 200


def test_a_container_has_only_settings_of_the_local_kafka() -> None:
    """It advertises the chosen address."""
    settings = container.image_settings("host:1234")
    ports = (Ports(client=1, controller=2, proxied=3),)
    assert (
        settings.keys()
        <= server_properties(1, ports=ports, proxies=(), data=Path("data"), extra={}).keys()
    )
    assert "CLIENT://host:1234" in settings["advertised.listeners"].split(",")
