"""Partitioned topics in the policies of a namespace."""

from __future__ import annotations

from equipoise.brokers.pulsar.topics.names import PARTITIONS_MAX, partitions_in, policy_of

TOPIC = "non-persistent://public/default/t"


def test_the_policies_say_how_many_partitions_there_are() -> None:
    """Each policy of the kind is a topic; other policies, and what is no sensible number, are none."""
    policies: dict[str, str | int | bool] = {
        policy_of(TOPIC): 4,
        "other": 7,
        policy_of("x"): "four",
        policy_of("y"): 0,
        policy_of("z"): PARTITIONS_MAX + 1,
    }
    assert {TOPIC: 4} == partitions_in(policies)
