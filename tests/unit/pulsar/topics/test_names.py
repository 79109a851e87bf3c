"""Names of topics: which are served, which are partitions, and how many partitions a topic has."""

from __future__ import annotations

import pytest

from equipoise.brokers.pulsar.topics.names import PARTITIONS_MAX, partition_of, partitioned_name, partitions_in, policy_of, served_topic
from equipoise.brokers.pulsar.wire.errors import NotServed, ServerError
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
    """What is not spelled as Pulsar spells it is part of an ordinary name."""
    assert (index, parent) == (partition_of(name), partitioned_name(name))


def test_a_topic_that_need_not_be_stored_is_served() -> None:
    """By its full name, the one that is hashed."""
    topic = served_topic("non-persistent://public/default/t")
    assert ("public/default", "t", 0xC9179F49) == (topic.namespace, topic.local, topic_hash(topic.full))


@pytest.mark.parametrize(
    "name", ["", "non-persistent://public/default/", "non-persistent://a/b/c/d", "kafka://a/b/c", "non-persistent://a b/c/d"]
)
def test_what_is_no_name_is_refused_as_that(name: str) -> None:
    """With the code for it, and a sentence."""
    with pytest.raises(NotServed) as caught:
        served_topic(name)
    assert ServerError.INVALID_TOPIC_NAME == caught.value.error


@pytest.mark.parametrize("name", ["persistent://public/default/t", "t", "public/default/t"])
def test_a_topic_that_would_have_to_be_stored_is_refused_with_the_one_that_would_not(name: str) -> None:
    """The sentence says how the same topic is called without a store."""
    with pytest.raises(NotServed, match="use non-persistent://public/default/t") as caught:
        served_topic(name)
    assert ServerError.NOT_ALLOWED == caught.value.error


def test_the_policies_say_how_many_partitions_there_are() -> None:
    """Each policy of the kind is a topic; other policies, and what is no sensible number, are none."""
    topic = "non-persistent://public/default/t"
    policies: dict[str, str | int | bool] = {
        policy_of(topic): 4,
        "other": 7,
        policy_of("x"): "four",
        policy_of("y"): 0,
        policy_of("z"): PARTITIONS_MAX + 1,
    }
    assert {topic: 4} == partitions_in(policies)
