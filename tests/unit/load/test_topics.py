"""The topics of load reports."""

from __future__ import annotations

from dataclasses import replace

from equipoise.brokers.load.bus import LOADS, SAMPLES, worker_topics
from equipoise.channel.kafka.answers import TopicFacts
from equipoise.channel.kafka.settings import SUFFIX_CHARACTERS_MAX
from equipoise.channel.kafka.side_log import differences, settings_of

TOPICS = (SAMPLES, LOADS, *worker_topics(3).values())


def test_each_topic_is_named_and_cleaned_up_as_it_needs() -> None:
    """Samples and messages between workers are deleted by age, summaries by age and key, and tables
    by key. Faust names those of tables.
    """
    assert [
        ("c-samples", "delete", 8),
        ("c-loads", "compact,delete", 1),
        ("c-load-sightings", "delete", 3),
        ("c-load-handovers", "delete", 3),
        ("c-load-brokers-changelog", "compact", 3),
        ("c-load-bundles-changelog", "compact", 3),
    ] == [
        (topic.beside("c"), settings_of(topic)["cleanup.policy"], topic.partitions)
        for topic in TOPICS
    ]
    assert max(len(topic.beside("")) for topic in TOPICS) <= SUFFIX_CHARACTERS_MAX
    assert [True, True, True, True, False, False] == [
        "retention.ms" in settings_of(topic) for topic in TOPICS
    ]


def test_differences_are_listed() -> None:
    settings = dict(settings_of(SAMPLES))
    facts = TopicFacts(
        id="x", partitions=8, replication=1, settings={**settings, "compression.type": "zstd"}
    )
    assert [] == list(differences(SAMPLES, facts))
    other = replace(facts, partitions=1, settings={**settings, "retention.ms": "-1"})
    assert ["it has 1 partitions, not 8", "retention.ms is -1, not 600000"] == list(
        differences(SAMPLES, other)
    )
