"""Shards as partitions of a topic, by a consumer group of Kafka."""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from tests.benchmarks.peers.program import Program
from tests.benchmarks.peers.threads import InThread

POLL_S = 0.1


class Adapter(InThread):
    """Serves the shards whose partitions this consumer is assigned."""

    def __init__(self, program: Program, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self._program = program
        client = {"group.id": "peers", **settings["client"]}
        if settings["static"]:
            client["group.instance.id"] = f"program-{program.slot}"
        self._consumer = Consumer(client)

    def run(self) -> None:
        self._consumer.subscribe(["shards"], on_assign=self._assigned, on_revoke=self._revoked)
        while not self.is_ending:
            self._consumer.poll(POLL_S)
        self._consumer.close()

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self._program.open_soon(each.partition)

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._program.close_and_wait(each.partition for each in partitions)
