"""Every adapter of `Log`, for the suites that ask the same of each: test_log_contract.py and
test_snapshot_store_contract.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from equipoise.channel.core.log import Log
from equipoise.channel.kafka.answers import Bounds
from equipoise.channel.kafka.client import PartitionConsumer
from equipoise.channel.log.open_log import open_log
from equipoise.channel.sqlite.log import SqliteLog
from tests.kafka.fixtures import Kafka
from tests.kafka.topics import delete_topics


def open_polling(path: str) -> Log:
    """An SQLite log on a system that has no inotify."""
    return SqliteLog(path, name="sqlite:polled.db", use_inotify=False)


def report_end_of_kafka(patch: pytest.MonkeyPatch, end: int) -> None:
    """Let clients of Kafka ask a node that was cut off when the log ended there."""
    patch.setattr(
        PartitionConsumer, "bounds", lambda consumer, *, timeout_ms: Bounds(low=0, high=end + 1)
    )


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One way to open a log: where it lies, with places to fill in, and how a new handle on it is
    made.
    """

    id: str
    place: str
    open: Callable[[str], Log] = open_log
    report_end: Callable[[pytest.MonkeyPatch, int], None] | None = None
    """How to let nodes report an old end from now on, where several nodes have the log."""

    @property
    def needs_kafka(self) -> bool:
        """Whether it lies in a topic, and not in a file or in memory."""
        return "{kafka}" in self.place


ADAPTERS = (
    Adapter(id="memory", place="memory:{folder}"),
    Adapter(id="sqlite-full", place="sqlite:{folder}/log.db"),
    Adapter(id="sqlite-normal", place="sqlite:{folder}/log.db?synchronous=normal"),
    Adapter(id="sqlite-polling", place="{folder}/polled.db", open=open_polling),
    Adapter(id="kafka", place="kafka://{kafka}/{topic}", report_end=report_end_of_kafka),
)

# As parameters: what is asked of a real Kafka is an integration test, and the rest is none.
EACH_ADAPTER = [
    pytest.param(each, id=each.id, marks=[pytest.mark.integration] * each.needs_kafka)
    for each in ADAPTERS
]


class Handles:
    """Opens handles on one log, and closes them all."""

    def __init__(self, adapter: Adapter, folder: Path, *, kafka: Kafka | None = None) -> None:
        self._adapter = adapter
        self._folder = folder
        self._kafka = kafka
        self._topic = kafka.topic("contract") if kafka else ""
        self._opened: list[Log] = []

    def __call__(self) -> Log:
        address = self._kafka.address if self._kafka else ""
        log = self._adapter.open(
            self._adapter.place.format(folder=self._folder, kafka=address, topic=self._topic)
        )
        self._opened.append(log)
        return log

    def close(self) -> None:
        for log in self._opened:
            log.close()

    def delete(self) -> None:
        """Delete what the log lies in, once all handles are closed."""
        for file in self._folder.iterdir():
            file.unlink()
        if self._kafka:
            delete_topics(self._kafka.address, [self._topic])


def handles_on(adapter: Adapter, folder: Path, request: pytest.FixtureRequest) -> Handles:
    """The opener of handles on one new log; a Kafka is looked for only where it is needed."""
    return Handles(
        adapter, folder, kafka=request.getfixturevalue("kafka") if adapter.needs_kafka else None
    )
