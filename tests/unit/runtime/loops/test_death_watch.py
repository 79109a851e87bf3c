"""Which brokers a broker watches, and the thread that looks at their locks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.brokers.runtime.data_directory import DataDirectory
from equipoise.brokers.runtime.loops.death_watch import WATCHED_MAX, Looking, neighbours
from equipoise.channel.core.view import View
from equipoise.channel.system.process_lock import LockedFile
from tests.channels.folding import Channel, joined

HERE = LockedFile(boot_id="here", device=1, inode=2, path="/data/lock")
PATIENCE_S = 60.0


def view_of(locks: dict[str, str | None]) -> View:
    channel = Channel()
    channel.genesis()
    for broker, lock in locks.items():
        channel.accept(replace(joined(broker, channel.view, instance_id=broker), lock=lock))
    return channel.view


def test_a_broker_watches_those_of_its_machine() -> None:
    """Not itself, and none of another boot or without a lock."""
    there = replace(HERE, boot_id="there")
    view = view_of({"a": str(HERE), "b": str(HERE), "c": str(there), "d": None, "e": "nonsense"})
    mine = view.brokers["a"].incarnation
    assert ["b"] == [broker.broker for broker in neighbours(view, mine, "here")]
    assert ["a", "b"] == [broker.broker for broker in neighbours(view, None, "here")]


def test_each_broker_is_watched_by_as_many() -> None:
    """By those before it in age; the youngest by the oldest."""
    names = [f"b{number:02}" for number in range(WATCHED_MAX + 3)]
    view = view_of(dict.fromkeys(names, str(HERE)))
    watched = {
        name: [broker.broker for broker in neighbours(view, view.brokers[name].incarnation, "here")]
        for name in names
    }
    for index, name in enumerate(names):
        assert [names[(index + 1 + k) % len(names)] for k in range(WATCHED_MAX)] == watched[name]


class Ended:
    """Collects what a thread finds."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.changed = threading.Condition()

    def __call__(self, instance_id: str) -> None:
        with self.changed:
            self.found.append(instance_id)
            self.changed.notify_all()

    def wait_for(self, *instance_ids: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: [*instance_ids] == self.found, PATIENCE_S)


@pytest.fixture
def ended() -> Ended:
    return Ended()


@pytest.fixture
def looking(ended: Ended) -> Iterator[Looking]:
    looking = Looking(ended)
    yield looking
    looking.stop()
    assert "death watch" not in [thread.name for thread in threading.enumerate()]


def held(path: Path, instance_id: str) -> tuple[DataDirectory, LockedFile]:
    directory = DataDirectory(path)
    directory.write_instance_id(instance_id)
    assert directory.lock is not None
    return directory, directory.lock


def test_an_end_is_found_once_and_nothing_else(
    tmp_path: Path, looking: Looking, ended: Ended
) -> None:
    """Neither a path that leads nowhere nor an id that is not in the file shows anything."""
    one, lock = held(tmp_path / "one", "first")
    two, other = held(tmp_path / "two", "second")
    nowhere = replace(lock, path=str(tmp_path / "nowhere"))
    looking.at({"first": lock, "second": other, "third": nowhere, "another": lock})
    one.close()
    ended.wait_for("first")
    two.close()
    ended.wait_for("first", "second")


def test_what_comes_later_is_watched_too(tmp_path: Path, looking: Looking, ended: Ended) -> None:
    one, lock = held(tmp_path / "one", "first")
    looking.at({"first": lock})
    looking.at({})
    one.close()
    again, lock = held(tmp_path / "one", "second")
    looking.at({"second": lock})
    again.close()
    ended.wait_for("second")
