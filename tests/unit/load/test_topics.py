"""The topics of the load plane."""

from __future__ import annotations

from dataclasses import replace

from equipoise.brokers.load.bus.topics import PARTITIONS, LoadTopics, differences
from equipoise.channel.kafka.answers import TopicFacts
from equipoise.channel.kafka.settings import SUFFIX_CHARACTERS_MAX, TOPIC_CHARACTERS_MAX

TOPICS = LoadTopics(log="channel")


def test_each_topic_lies_beside_the_log() -> None:
    """Six topics bear the log's name, those of tables in the form that Faust gives them, and Kafka takes all names, of the longest too."""
    longest = LoadTopics(log="t" * TOPIC_CHARACTERS_MAX)
    for topics in (TOPICS, longest):
        shared = [make(3) for make in (topics.sightings, topics.handovers, topics.brokers_table, topics.bundles_table)]
        suffixes = [topic.name.removeprefix(topics.log) for topic in [topics.samples, topics.summaries, *shared]]
        tables = ["-load-brokers-changelog", "-load-bundles-changelog"]
        assert ["-samples", "-loads", "-load-sightings", "-load-handovers", *tables] == suffixes
        assert {3} == {topic.partitions for topic in shared}
        assert max(map(len, suffixes)) <= SUFFIX_CHARACTERS_MAX


def test_only_what_is_needed_for_ever_is_kept_for_ever() -> None:
    """Samples and what workers tell one another go by age, summaries by age and by key, and tables by key alone."""
    shared = [make(PARTITIONS) for make in (TOPICS.sightings, TOPICS.handovers, TOPICS.brokers_table, TOPICS.bundles_table)]
    policies = [topic.settings["cleanup.policy"] for topic in [TOPICS.samples, TOPICS.summaries, *shared]]
    assert ["delete", "compact,delete", "delete", "delete", "compact", "compact"] == policies


def test_what_differs_is_told() -> None:
    """A topic that somebody made otherwise is told of in words, one that is as it should be is not."""
    topic = TOPICS.samples
    facts = TopicFacts(id="x", partitions=PARTITIONS, replication=1, settings={**topic.settings, "compression.type": "zstd"})
    assert [] == list(differences(topic, facts))
    other = replace(facts, partitions=1, settings={**topic.settings, "retention.ms": "-1"})
    assert ["it has 1 partitions, not 8", "retention.ms is -1, not 600000"] == list(differences(topic, other))
