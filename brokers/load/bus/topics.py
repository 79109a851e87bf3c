"""Define the topics of the load bus beside the log's: names, settings, and how an existing topic
differs.

The first broker or load worker creates the topics; existing ones stay as they are. Ownership never
depends on their content.

* `TOPIC-samples`: samples of brokers, by broker.
* `TOPIC-loads`: the summaries that load workers make of them, by broker. One partition, since
  readers want all of them.
* `TOPIC-load-sightings` and `TOPIC-load-handovers`: messages between load workers (see
  `brokers.load.worker`).
* `TOPIC-load-brokers-changelog` and `TOPIC-load-bundles-changelog`: the tables of load workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from equipoise.brokers.load.bus.documents import SUMMARY_BYTES_MAX
from equipoise.channel.kafka.answers import TopicFacts

PARTITIONS: Final = 8
"""Partitions of each topic that load workers share: the most workers that can be busy at once."""

PASSING_KEPT_MS: Final = 600_000
"""How long samples and messages between workers are kept. Workers that were all away for longer
start from the brokers' current state."""

SUMMARIES_KEPT_MS: Final = 3_600_000
"""The same as for files (`brokers.load.bus.files`): a broker without a report for an hour is
gone."""

# Kafka neither deletes nor compacts the segment that is being written, so segments are a fraction
# of the retention.
_SEGMENTS: Final = 4

# A message, its key of at most 512 characters, and Kafka's framing.
_MESSAGE_BYTES_MAX: Final = SUMMARY_BYTES_MAX + 4_096

_PASSING: Final = {
    "cleanup.policy": "delete",
    "retention.ms": str(PASSING_KEPT_MS),
    "segment.ms": str(PASSING_KEPT_MS // _SEGMENTS),
    "max.message.bytes": str(_MESSAGE_BYTES_MAX),
}
_SUMMARIES: Final = {
    "cleanup.policy": "compact,delete",
    "retention.ms": str(SUMMARIES_KEPT_MS),
    "segment.ms": str(SUMMARIES_KEPT_MS // _SEGMENTS),
    "max.message.bytes": str(_MESSAGE_BYTES_MAX),
}
# No retention by age: Faust cannot restore a table from a partition emptied like that. Workers
# delete old rows.
_TABLE: Final = {
    "cleanup.policy": "compact",
    "segment.ms": str(SUMMARIES_KEPT_MS // _SEGMENTS),
    "max.message.bytes": str(_MESSAGE_BYTES_MAX),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTopic:
    """The properties of one topic when it is created."""

    name: str
    partitions: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTopics:
    """The topics beside the topic `log`."""

    log: str

    @property
    def group(self) -> str:
        """The consumer group of all load workers of this log, and the prefix of their tables'
        names.
        """
        return f"{self.log}-load"

    @property
    def samples(self) -> LoadTopic:
        """Samples, written by brokers."""
        return LoadTopic(name=f"{self.log}-samples", partitions=PARTITIONS, settings=_PASSING)

    @property
    def summaries(self) -> LoadTopic:
        """Summaries, read by brokers."""
        return LoadTopic(name=f"{self.log}-loads", partitions=1, settings=_SUMMARIES)

    def sightings(self, partitions: int) -> LoadTopic:
        """Which bundles were seen at which broker, by bundle."""
        return LoadTopic(name=f"{self.group}-sightings", partitions=partitions, settings=_PASSING)

    def handovers(self, partitions: int) -> LoadTopic:
        """Averages of bundles that moved, in the partition of the new broker's samples."""
        return LoadTopic(name=f"{self.group}-handovers", partitions=partitions, settings=_PASSING)

    def brokers_table(self, partitions: int) -> LoadTopic:
        """The changelog of the table of brokers."""
        return LoadTopic(
            name=f"{self.group}-brokers-changelog", partitions=partitions, settings=_TABLE
        )

    def bundles_table(self, partitions: int) -> LoadTopic:
        """The changelog of the table of bundles."""
        return LoadTopic(
            name=f"{self.group}-bundles-changelog", partitions=partitions, settings=_TABLE
        )


def differences(topic: LoadTopic, facts: TopicFacts) -> Sequence[str]:
    """Return how a topic differs from a newly created one, for people. The differences are
    harmless.
    """
    found = {name: facts.settings.get(name, "unknown") for name in topic.settings}
    different = [
        f"{name} is {found[name]}, not {wanted}"
        for name, wanted in topic.settings.items()
        if found[name] != wanted
    ]
    if facts.partitions != topic.partitions:
        different.insert(0, f"it has {facts.partitions} partitions, not {topic.partitions}")
    return different
