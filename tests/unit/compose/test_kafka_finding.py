"""Test which Kafka the tests use, and what happens without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from compose.local_kafka.jars import NotInstalled
from compose.local_kafka.node import Ports, server_properties
from tests.kafka import container, finding
from tests.kafka.fixtures import or_skipped


def test_without_a_kafka_tests_skip_locally_and_fail_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both state the reason."""
    monkeypatch.setenv("CI", "")
    with pytest.raises(pytest.skip.Exception, match=finding.GIVEN), or_skipped():
        raise NotInstalled("no route")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=finding.GIVEN), or_skipped():
        raise NotInstalled("no route")


def test_a_container_has_only_settings_of_the_local_kafka() -> None:
    """It advertises the chosen address."""
    settings = container.image_settings("host:1234")
    ports = (Ports(client=1, controller=2, proxied=3),)
    assert (
        settings.keys()
        <= server_properties(1, ports=ports, proxies=(), data=Path("data"), extra={}).keys()
    )
    assert "CLIENT://host:1234" in settings["advertised.listeners"].split(",")
