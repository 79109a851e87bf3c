"""The load plane without Faust and Kafka: topics as lists, tables as dicts, and one worker for all
partitions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from equipoise.brokers.load.documents import encode_load
from equipoise.brokers.load.worker.steps import (
    Arrived,
    BrokerUpdate,
    BundleUpdate,
    LeftOut,
    on_handover,
    on_sample,
    on_sighting,
)
from equipoise.shedder.loads import Load


@dataclass(kw_only=True)
class Topic:
    """The messages of each partition, and the read positions."""

    partitions: dict[int, list[tuple[bytes, bytes]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    position: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def append(self, partition: int, key: bytes, value: bytes) -> None:
        """Write a message."""
        self.partitions[partition].append((key, value))

    def drain(self, take: Callable[[Arrived], None]) -> bool:
        """Read all new messages. Return whether there were any."""
        is_new = False
        for partition, messages in self.partitions.items():
            while (offset := self.position[partition]) < len(messages):
                key, value = messages[offset]
                self.position[partition] = offset + 1
                take(Arrived(partition=partition, offset=offset, key=key, value=value))
                is_new = True
        return is_new

    def read_again(self, count: int) -> None:
        """Go back, as after reads that were not committed."""
        for partition in self.partitions:
            self.position[partition] = max(0, self.position[partition] - count)


class LoadPlane:
    """Brokers publish samples, `work` reads until nothing is new, and `loads` has what brokers
    read.
    """

    def __init__(self, *, partitions: int, now_ms: int) -> None:
        self._count = partitions
        self._now_ms = now_ms
        self._samples, self._sightings, self._handovers = Topic(), Topic(), Topic()
        self._brokers: dict[bytes, bytes] = {}
        self._bundles: dict[bytes, bytes] = {}
        self.loads: dict[bytes, bytes] = {}

    def publish(self, sample: Load) -> None:
        key = sample.broker.encode()
        self._samples.append(self._partition(key), key, encode_load(sample))

    def work(self) -> None:
        while any(
            [
                self._samples.drain(self._on_sample),
                self._sightings.drain(self._on_sighting),
                self._handovers.drain(self._on_handover),
            ]
        ):
            pass

    def read_again(self, count: int) -> None:
        """Go back, as after reads that were not committed."""
        for topic in (self._samples, self._sightings, self._handovers):
            topic.read_again(count)

    def _partition(self, key: bytes) -> int:
        return sum(key) % self._count

    def _on_sample(self, message: Arrived) -> None:
        self._tell(
            message, on_sample(self._brokers.get(message.key or b""), message, now_ms=self._now_ms)
        )

    def _on_handover(self, message: Arrived) -> None:
        self._tell(
            message,
            on_handover(self._brokers.get(message.key or b""), message, now_ms=self._now_ms),
        )

    def _on_sighting(self, message: Arrived) -> None:
        key = message.key or b""
        outcome = on_sighting(
            self._bundles.get(key), message, now_ms=self._now_ms, partitions=self._count
        )
        if isinstance(outcome, BundleUpdate):
            self._bundles[key] = outcome.row
            if outcome.handover is not None:
                self._handovers.append(*outcome.handover)

    def _tell(self, message: Arrived, outcome: BrokerUpdate | LeftOut) -> None:
        key = message.key or b""
        if isinstance(outcome, LeftOut) or outcome.row is None or outcome.load is None:
            return
        self._brokers[key], self.loads[key] = outcome.row, outcome.load
        for name, value in outcome.sightings:
            self._sightings.append(self._partition(name), name, value)
