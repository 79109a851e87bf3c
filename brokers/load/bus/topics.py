"""The topics of the load plane, beside that of the log: what each is for, how it is made, and in what one that is found differs.

May live here: names and settings, and no IO. Whoever comes first makes the topics, a broker or a load worker; one that is there
stays as it is, since whoever made it otherwise may know why. Nothing that is kept in them is needed to decide who owns what.

* `TOPIC-samples`: what brokers say of themselves, by broker.
* `TOPIC-loads`: the summaries that load workers make of it, by broker. It has one partition: who reads it wants all of them.
* `TOPIC-load-sightings` and `TOPIC-load-handovers`: what load workers tell one another; see `brokers.load.worker`.
* `TOPIC-load-brokers-changelog` and `TOPIC-load-bundles-changelog`: their tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from equipoise.brokers.load.bus.spelling import SUMMARY_BYTES_MAX
from equipoise.channel.kafka.answers import TopicFacts

PARTITIONS: Final = 8
"""Of each topic that load workers share among them: as many workers can be busy at once."""

PASSING_KEPT_MS: Final = 600_000
"""How long samples stay, and what workers tell one another: workers that were all away for so long begin where brokers are now."""

SUMMARIES_KEPT_MS: Final = 3_600_000
"""As long as files are kept (`brokers.load.bus.files`): a broker that has said nothing for an hour is gone."""

# Nothing is removed from the segment that is written to, and nothing of it is compacted.
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
# Never by age: Faust cannot restore a table from a partition that was emptied so. Workers take away what is old.
_TABLE: Final = {
    "cleanup.policy": "compact",
    "segment.ms": str(SUMMARIES_KEPT_MS // _SEGMENTS),
    "max.message.bytes": str(_MESSAGE_BYTES_MAX),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTopic:
    """One topic, as it is made."""

    name: str
    partitions: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTopics:
    """The topics beside the log of the topic `log`."""

    log: str

    @property
    def group(self) -> str:
        """The consumer group of all load workers of this log, and what the names of their tables begin with."""
        return f"{self.log}-load"

    @property
    def samples(self) -> LoadTopic:
        """What brokers write."""
        return LoadTopic(name=f"{self.log}-samples", partitions=PARTITIONS, settings=_PASSING)

    @property
    def summaries(self) -> LoadTopic:
        """What brokers read."""
        return LoadTopic(name=f"{self.log}-loads", partitions=1, settings=_SUMMARIES)

    def sightings(self, partitions: int) -> LoadTopic:
        """Which bundles were seen at which broker, by bundle."""
        return LoadTopic(name=f"{self.group}-sightings", partitions=partitions, settings=_PASSING)

    def handovers(self, partitions: int) -> LoadTopic:
        """Averages of bundles that came to another broker, in the partition of that one's samples."""
        return LoadTopic(name=f"{self.group}-handovers", partitions=partitions, settings=_PASSING)

    def brokers_table(self, partitions: int) -> LoadTopic:
        """The changelog of the table of brokers."""
        return LoadTopic(name=f"{self.group}-brokers-changelog", partitions=partitions, settings=_TABLE)

    def bundles_table(self, partitions: int) -> LoadTopic:
        """The changelog of the table of bundles."""
        return LoadTopic(name=f"{self.group}-bundles-changelog", partitions=partitions, settings=_TABLE)


def differences(topic: LoadTopic, facts: TopicFacts) -> Sequence[str]:
    """In what a topic is not as it would be made, for people; nothing breaks of it."""
    found = {name: facts.settings.get(name, "unknown") for name in topic.settings}
    told = [f"{name} is {found[name]}, not {wanted}" for name, wanted in topic.settings.items() if found[name] != wanted]
    if facts.partitions != topic.partitions:
        told.insert(0, f"it has {facts.partitions} partitions, not {topic.partitions}")
    return told
