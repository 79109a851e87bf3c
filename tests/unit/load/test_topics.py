"""The topics of load reports."""

from __future__ import annotations

from dataclasses import replace

from equipoise.brokers.load.bus.topics import PARTITIONS, LoadTopics, differences
from equipoise.channel.kafka.answers import TopicFacts
from equipoise.channel.kafka.settings import SUFFIX_CHARACTERS_MAX, TOPIC_CHARACTERS_MAX

TOPICS = LoadTopics(log="channel")


def test_each_topic_has_the_name_of_the_log_as_prefix() -> None:
    """Six topics start with the log's name. Faust names those of tables. Kafka accepts the longest
    names.
    """
    longest = LoadTopics(log="t" * TOPIC_CHARACTERS_MAX)
    for topics in (TOPICS, longest):
        shared = [
            make(3)
            for make in (
                topics.sightings,
                topics.handovers,
                topics.brokers_table,
                topics.bundles_table,
            )
        ]
        suffixes = [
            topic.name.removeprefix(topics.log)
            for topic in [topics.samples, topics.summaries, *shared]
        ]
        tables = ["-load-brokers-changelog", "-load-bundles-changelog"]
        assert ["-samples", "-loads", "-load-sightings", "-load-handovers", *tables] == suffixes
        assert {3} == {topic.partitions for topic in shared}
        assert max(map(len, suffixes)) <= SUFFIX_CHARACTERS_MAX


def test_each_topic_is_cleaned_up_as_it_needs() -> None:
    """Samples and messages between workers are deleted by age, summaries by age and key, and tables
    by key.
    """
    shared = [
        make(PARTITIONS)
        for make in (TOPICS.sightings, TOPICS.handovers, TOPICS.brokers_table, TOPICS.bundles_table)
    ]
    policies = [
        topic.settings["cleanup.policy"] for topic in [TOPICS.samples, TOPICS.summaries, *shared]
    ]
    assert ["delete", "compact,delete", "delete", "delete", "compact", "compact"] == policies


def test_differences_are_listed() -> None:
    topic = TOPICS.samples
    facts = TopicFacts(
        id="x",
        partitions=PARTITIONS,
        replication=1,
        settings={**topic.settings, "compression.type": "zstd"},
    )
    assert [] == list(differences(topic, facts))
    other = replace(facts, partitions=1, settings={**topic.settings, "retention.ms": "-1"})
    assert ["it has 1 partitions, not 8", "retention.ms is -1, not 600000"] == list(
        differences(topic, other)
    )
