"""`LocalCluster` with real processes."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from equipoise.brokers.local.local_cluster import (
    ClusterEvent,
    ClusterSettings,
    EventKind,
    LocalCluster,
)
from equipoise.brokers.operations.access import opened, until
from equipoise.channel.core.errors import Bug, OperatorError
from equipoise.channel.core.log import READ_ENTRIES_MAX
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.records import BrokerRecord
from equipoise.channel.core.view import View
from equipoise.channel.log.open_log import open_log
from tests.load.log_places import settled_ms

pytestmark = pytest.mark.integration

PATIENCE_MS = 30_000
"""Of what waits for no lease."""


class Diary:
    """Notes all events of a cluster, and waits for them."""

    def __init__(self) -> None:
        self._entries: list[ClusterEvent] = []
        self._more = threading.Condition()

    def __call__(self, event: ClusterEvent) -> None:
        with self._more:
            self._entries.append(event)
            self._more.notify_all()

    def wait_for(self, *whats: EventKind) -> None:
        """Wait until these events have happened in this order, perhaps with others in between."""
        with self._more:
            assert self._more.wait_for(lambda: self._has(whats), PATIENCE_MS / 1_000), self.kinds()

    def _has(self, whats: tuple[EventKind, ...]) -> bool:
        kinds = iter(self.kinds())
        return all(what in kinds for what in whats)

    def kinds(self) -> list[EventKind]:
        """Return the kinds of the events so far."""
        return [entry.what for entry in self._entries]

    def forget(self) -> None:
        """Forget all events so far."""
        with self._more:
            self._entries.clear()


def wait_until(log: str, condition: Callable[[View], bool], what: str) -> None:
    """Wait until the view on a log is as it should be."""
    with opened(log, timeout_ms=settled_ms(log)) as access:
        until(access, lambda view: condition(view) or None, what=what)


def status(view: View, broker: str) -> str | None:
    """What the channel says of a broker."""
    entry = view.brokers.get(broker)
    return None if entry is None else entry.status


def proofs(log_url: str) -> list[bool]:
    """Return for each death on the channel whether it was declared by proof, not after silence."""
    with closing(open_log(log_url)) as log:
        reader = Reader(log=log.name, cluster="equipoise")
        records = list[object]()
        while log.wait(reader.position, timeout_ms=0):
            for entry in log.read(reader.position, limit=READ_ENTRIES_MAX):
                folded = reader.feed(entry)
                records += [folded.record] if folded.verdict.accepted else []
    return [
        record.instance_id is not None
        for record in records
        if isinstance(record, BrokerRecord) and record.status == "down"
    ]


@pytest.mark.on_every_log
def test_the_end_of_a_process_is_proven_to_the_others(tmp_path: Path, log_url: str) -> None:
    """One whose lock file was replaced shows nothing. It is declared dead after silence."""
    diary = Diary()
    settings = ClusterSettings(directory=tmp_path, log_url=log_url, brokers=3)
    with LocalCluster(settings, report=diary) as cluster:
        cluster.kill(0)
        diary.wait_for(EventKind.DECLARED_DEAD)
        assert [True] == proofs(cluster.log_url)
        lock = cluster.directories[1] / "lock"
        copy = lock.with_name("copy")
        shutil.copyfile(lock, copy)
        copy.rename(lock)
        second = cluster.broker_ids[1]
        cluster.kill(1)
        wait_until(
            cluster.log_url, lambda view: status(view, second) == "down", "the end of its lease"
        )
        assert [True, False] == proofs(cluster.log_url)


def test_brokers_are_killed_started_again_and_stopped(tmp_path: Path, log_url: str) -> None:
    """A broker can be killed and declared dead, started anew, and stopped for good, also if it is
    paused.
    """
    diary = Diary()
    settings = ClusterSettings(
        directory=tmp_path, log_url=log_url, brokers=2, evidence=True, settings={"balance": "false"}
    )
    with LocalCluster(settings, report=diary) as cluster:
        first, second = cluster.broker_ids
        assert (f"http://{first}", tmp_path / "broker-0") == (
            cluster.addresses[0],
            cluster.directories[0],
        )
        assert {EventKind.STARTED, EventKind.READY} == set(diary.kinds())

        diary.forget()
        cluster.kill(0)
        assert cluster.pid(0) is None
        # In either order: the others may see the end first.
        diary.wait_for(EventKind.ENDED)
        diary.wait_for(EventKind.DECLARED_DEAD)
        wait_until(
            cluster.log_url, lambda view: status(view, first) == "down", "the death of the first"
        )

        cluster.restart(0)
        assert cluster.pid(0) is not None
        assert ["accepts-1.jsonl", "accepts-2.jsonl"] == sorted(
            file.name for file in cluster.directories[0].glob("accepts-*")
        )

        cluster.pause(0)
        cluster.stop(0)
        assert (None, False) == (cluster.pid(0), cluster.wait_until_all_ended(timeout_ms=0))
        wait_until(
            cluster.log_url,
            lambda view: status(view, first) in ("left", "down"),
            "the leaving of the first",
        )
    assert cluster.wait_until_all_ended(timeout_ms=0)
    wait_until(
        cluster.log_url,
        lambda view: {status(view, first), status(view, second)} <= {"left", "down"},
        "the leaving of both",
    )


def test_a_broker_that_is_stopped_is_not_started_again(tmp_path: Path, log_url: str) -> None:
    """With `restart` a broker that dies is restarted, unless it is stopped, even while it waits for
    its restart.
    """
    diary = Diary()
    with LocalCluster(
        ClusterSettings(directory=tmp_path, log_url=log_url, brokers=1, restart=True), report=diary
    ) as cluster:
        pid = cluster.pid(0)
        assert pid is not None
        diary.forget()
        os.kill(pid, signal.SIGKILL)
        diary.wait_for(EventKind.ENDED, EventKind.STARTS_AGAIN)
        assert not cluster.wait_until_all_ended(timeout_ms=0)
        cluster.stop(0)
        assert cluster.wait_until_all_ended(timeout_ms=PATIENCE_MS)
        assert EventKind.STARTED not in diary.kinds()


def test_a_member_is_reported_before_the_start_returns(tmp_path: Path, log_url: str) -> None:
    """The start returns only after the listener has taken the event of each member, however slow it
    is.
    """
    diary, noted = Diary(), threading.Event()

    def slowly(event: ClusterEvent) -> None:
        if event.what is EventKind.READY:
            noted.wait(0.2)
        diary(event)

    with LocalCluster(
        ClusterSettings(directory=tmp_path, log_url=log_url, brokers=1), report=slowly
    ):
        assert [EventKind.STARTED, EventKind.READY] == diary.kinds()


def test_the_death_of_the_follower_is_reported(
    tmp_path: Path, log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the follower is reported once, and kept as `failure`. The brokers continue to
    serve.
    """

    def fail(*_: object) -> None:
        raise ValueError("odd")

    diary = Diary()
    with LocalCluster(
        ClusterSettings(directory=tmp_path, log_url=log_url, brokers=2), report=diary
    ) as cluster:
        monkeypatch.setattr(LocalCluster, "_note_ready", fail)
        diary.wait_for(EventKind.UNWATCHED)
        assert isinstance(cluster.failure, Bug)
        assert "ended with ValueError: odd" in str(cluster.failure)
        assert cluster.pid(1) is not None
        with pytest.raises(Bug, match="odd"):
            cluster.restart(0)
        assert 1 == diary.kinds().count(EventKind.UNWATCHED)


def test_a_start_that_fails_leaves_nothing(tmp_path: Path, log_url: str) -> None:
    """A service that cannot be found ends the start with its error, and all processes are gone."""
    diary = Diary()
    cluster = LocalCluster(
        ClusterSettings(
            directory=tmp_path, log_url=log_url, brokers=2, services=("nowhere:Nothing",)
        ),
        report=diary,
    )
    with (
        pytest.raises(OperatorError, match="it ended before it was ready: error: ") as caught,
        cluster,
    ):
        raise AssertionError("it started")
    assert any(broker in str(caught.value) for broker in cluster.broker_ids)
    assert cluster.wait_until_all_ended(timeout_ms=0)
    assert [EventKind.ENDED] * 2 == [what for what in diary.kinds() if what is EventKind.ENDED]
