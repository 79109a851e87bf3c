"""A local cluster of which no process is started: how long it waits for an end, and what it lets go of."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.brokers.errors import DataDirectoryUnusable, InvalidConfig
from equipoise.brokers.local.local_cluster import ClusterSettings, LocalCluster
from equipoise.brokers.runtime.config import ENDING_MS
from equipoise.channel.core.errors import DeadlineExceeded
from equipoise.channel.log.memory_log import MemoryLog


def test_a_broker_is_given_the_time_that_its_settings_promise(tmp_path: Path) -> None:
    """Nobody is killed in the middle of the drain, or of the last close, that it was told it may take."""
    settings: dict[str, str | int] = {"drain_ms": "86400000", "close_ms": 20_000}
    assert 86_400_000 + 20_000 + ENDING_MS == LocalCluster(ClusterSettings(directory=tmp_path, settings=settings)).stop_ms


def test_ports_that_overlap_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    """Whoever names two rows of ports that overlap is told so as soon as the cluster is described."""
    with pytest.raises(InvalidConfig, match="pulsar_port: the ports of 3 brokers from 20001 on overlap"):
        LocalCluster(ClusterSettings(directory=tmp_path / "cluster", http_port=20_000, pulsar_port=20_001))
    assert [] == list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    """A loop of symbolic links as the directory of a cluster is refused with the directory and what to do."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(DataDirectoryUnusable, match=r"loop cannot be used: .*; mend that, or name another directory"):
        LocalCluster(ClusterSettings(directory=loop, brokers=1)).start()


def test_a_log_that_cannot_be_read_is_let_go_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(DeadlineExceeded), LocalCluster(ClusterSettings(directory=tmp_path, brokers=1)):
        raise AssertionError("it started")
    assert log.closed == 1
