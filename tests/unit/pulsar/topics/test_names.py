"""Test topic names: which are served, which are partitions, and how many partitions a topic has."""

from __future__ import annotations

import pytest

from equipoise.brokers.pulsar.topics.names import (
    PARTITIONS_MAX,
    partition_of,
    partitioned_name,
    partitions_in,
    policy_of,
    served_topic,
)
from equipoise.brokers.pulsar.wire.errors import NotServed
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import ServerError
from equipoise.channel.core.ranges import topic_hash


@pytest.mark.parametrize(
    ("name", "index", "parent"),
    [
        ("t-partition-0", 0, "t"),
        ("t-partition-12", 12, "t"),
        ("t-partition-1-partition-2", 2, "t-partition-1"),
        ("t-partition-01", -1, "t-partition-01"),
        ("t-partition--1", -1, "t-partition--1"),
        ("t-partition-", -1, "t-partition-"),
        ("t-partition-1x", -1, "t-partition-1x"),
        ("two\nlines-partition-3", 3, "two\nlines"),
        ("-partition-3", 3, ""),
        ("t", -1, "t"),
    ],
)
def test_a_partition_ends_with_its_decimal_index(name: str, index: int, parent: str) -> None:
    assert (index, parent) == (partition_of(name), partitioned_name(name))


def test_a_non_persistent_topic_is_served() -> None:
    topic = served_topic("non-persistent://public/default/t")
    assert ("public/default", "t", 0xC9179F49) == (
        topic.namespace,
        topic.local,
        topic_hash(topic.full),
    )


@pytest.mark.parametrize(
    "name",
    [
        "",
        "non-persistent://public/default/",
        "non-persistent://a/b/c/d",
        "kafka://a/b/c",
        "non-persistent://a b/c/d",
    ],
)
def test_an_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(NotServed) as caught:
        served_topic(name)
    assert ServerError.InvalidTopicName == caught.value.error


@pytest.mark.parametrize("name", ["persistent://public/default/t", "t", "public/default/t"])
def test_a_persistent_topic_is_refused_with_its_non_persistent_name(name: str) -> None:
    with pytest.raises(NotServed, match="use non-persistent://public/default/t") as caught:
        served_topic(name)
    assert ServerError.NotAllowedError == caught.value.error


def test_partition_counts_are_read_from_policies() -> None:
    """Other policies and invalid counts are skipped."""
    topic = "non-persistent://public/default/t"
    policies: dict[str, str | int | bool] = {
        policy_of(topic): 4,
        "other": 7,
        policy_of("x"): "four",
        policy_of("y"): 0,
        policy_of("z"): PARTITIONS_MAX + 1,
    }
    assert {topic: 4} == partitions_in(policies)
