"""A local cluster of which no process is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.local.local_cluster import ClusterSettings, LocalCluster
from equipoise.brokers.runtime.config import ENDING_MS
from equipoise.channel.core.errors import DeadlineExceeded
from equipoise.channel.log.memory_log import MemoryLog


def test_a_broker_is_given_the_time_that_its_settings_promise(tmp_path: Path) -> None:
    """A stop waits for the longest drain and close that the settings allow."""
    settings: dict[str, str | int] = {"drain_ms": "86400000", "close_ms": 20_000}
    assert (
        86_400_000 + 20_000 + ENDING_MS
        == LocalCluster(ClusterSettings(directory=tmp_path, settings=settings)).stop_ms
    )


def test_its_addresses_are_those_that_the_brokers_advertise(tmp_path: Path) -> None:
    plain = LocalCluster(
        ClusterSettings(directory=tmp_path, brokers=2, http_port=8080, pulsar_port=6650)
    )
    assert ("http://127.0.0.1:8080", "http://127.0.0.1:8081") == plain.addresses
    assert "pulsar://127.0.0.1:6650,127.0.0.1:6651" == plain.pulsar_url
    tls: dict[str, str | int] = {"tls_certificate": "b.pem", "tls_key": "b.key"}
    encrypted = LocalCluster(
        ClusterSettings(
            directory=tmp_path, brokers=2, http_port=8080, pulsar_port=6650, settings=tls
        )
    )
    assert ("https://127.0.0.1:8080", "https://127.0.0.1:8081") == encrypted.addresses
    assert "pulsar+ssl://127.0.0.1:6650,127.0.0.1:6651" == encrypted.pulsar_url


REFUSED: dict[str, dict[str, Any]] = {
    "lease_ms is 1 ms, which is not safe": {"settings": {"lease_ms": 1}},
    "lease: there is no such setting": {"settings": {"lease": 1}},
    "broker_id: it is each broker's own": {"settings": {"broker_id": "b"}},
    "pulsar_port: the ports of 3 brokers from 20001 on overlap": {
        "http_port": 20_000,
        "pulsar_port": 20_001,
    },
}


@pytest.mark.parametrize("problem", REFUSED)
def test_wrong_settings_are_refused_before_anything_is_created(
    problem: str, tmp_path: Path
) -> None:
    """Unsafe durations, unknown settings, settings that each broker has for itself, and overlapping
    ports are refused.
    """
    with pytest.raises(InvalidConfig, match=problem):
        LocalCluster(ClusterSettings(directory=tmp_path / "cluster", **REFUSED[problem]))
    assert [] == list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    """The error names the directory and what to do."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(
        match=r"loop cannot be used: .*; mend that, or name another directory",
    ):
        LocalCluster(ClusterSettings(directory=loop, brokers=1)).start()


def test_a_log_that_cannot_be_read_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that fails in reading the log leaves no handle on it."""

    class Noted(MemoryLog):
        closed = 0

        def close(self) -> None:
            self.closed += 1
            super().close()

    def fail(*_: object, **__: object) -> None:
        raise DeadlineExceeded(what="the end of the log", waited_ms=1)

    log = Noted(name="memory:noted")
    monkeypatch.setattr("equipoise.brokers.local.local_cluster.open_log", lambda _: log)
    monkeypatch.setattr("equipoise.brokers.local.local_cluster.read_on", fail)
    with (
        pytest.raises(DeadlineExceeded),
        LocalCluster(ClusterSettings(directory=tmp_path, brokers=1)),
    ):
        raise AssertionError("it started")
    assert log.closed == 1
