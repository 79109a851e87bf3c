"""The topic of load reports."""

from __future__ import annotations

from dataclasses import replace

from equipoise.brokers.load.bus import LOADS
from equipoise.channel.kafka.answers import TopicFacts
from equipoise.channel.kafka.settings import SUFFIX_CHARACTERS_MAX
from equipoise.channel.kafka.side_log import differences, settings_of


def test_reports_are_deleted_by_age_and_key() -> None:
    settings = settings_of(LOADS)
    assert ("compact,delete", "3600000") == (settings["cleanup.policy"], settings["retention.ms"])
    assert len(LOADS.beside("")) <= SUFFIX_CHARACTERS_MAX


def test_differences_are_listed() -> None:
    settings = dict(settings_of(LOADS))
    facts = TopicFacts(
        id="x", partitions=1, replication=1, settings={**settings, "compression.type": "zstd"}
    )
    assert [] == list(differences(LOADS, facts))
    other = replace(facts, partitions=8, settings={**settings, "retention.ms": "-1"})
    assert ["it has 8 partitions, not 1", "retention.ms is -1, not 3600000"] == list(
        differences(LOADS, other)
    )
