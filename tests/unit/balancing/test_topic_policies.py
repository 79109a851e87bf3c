"""Policies for topics on the channel: which values are refused, and what a value means that an
unchecked writer set.
"""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from equipoise.brokers.balancing.topic_policies import (
    AUTO_TOPIC_CREATION,
    COUNT_MAX,
    DISPATCH_RATE,
    TOPIC_POLICIES,
    misfit,
    property_policy,
    pulsar_document,
)
from equipoise.channel.core.records import TEXT_CHARACTERS_MAX, Scalar

CREATION = '{"allowAutoTopicCreation":false,"defaultNumPartitions":%s}'
DISPATCH = (
    '{"dispatchThrottlingRateInMsg":%s,"dispatchThrottlingRateInByte":%s,"ratePeriodInSecond":%s}'
)
HUGE = 10**23

IMPOSSIBLE: dict[str, Scalar] = {
    **{policy.name: HUGE for policy in TOPIC_POLICIES.values()},
    AUTO_TOPIC_CREATION.name: CREATION % HUGE,
    DISPATCH_RATE.name: DISPATCH % (HUGE, HUGE, HUGE),
    "publish_rate": f'{{"publishThrottlingRateInMsg":{HUGE}}}',
    "subscription_types_enabled": f"[{HUGE}]",
}


@pytest.mark.parametrize("name", TOPIC_POLICIES)
def test_a_number_that_json_cannot_hold_is_refused_and_counts_as_unset(name: str) -> None:
    policies = {name: IMPOSSIBLE[name]}
    assert str(misfit(name, IMPOSSIBLE[name])).startswith(f"{name} is ")
    assert TOPIC_POLICIES[name].unset == TOPIC_POLICIES[name].answer_in(policies)
    assert {} == pulsar_document(policies, "c")


@pytest.mark.parametrize("partitions", [-1, COUNT_MAX + 1, 1.5, '"3"', "true"])
def test_an_impossible_number_of_partitions_is_refused(partitions: object) -> None:
    with pytest.raises(ValidationError):
        AUTO_TOPIC_CREATION.decode(CREATION % partitions)
    for possible in (0, COUNT_MAX, "null"):
        assert None is misfit(AUTO_TOPIC_CREATION.name, CREATION % possible)


@pytest.mark.parametrize("name", [AUTO_TOPIC_CREATION.name, property_policy("team"), "unknown"])
def test_a_text_that_no_record_can_hold_is_refused(name: str) -> None:
    text = CREATION % 3
    assert None is misfit(name, text.ljust(TEXT_CHARACTERS_MAX))
    assert f"the value of {name} has 1025 characters, and may have 1024" == misfit(
        name, text.ljust(TEXT_CHARACTERS_MAX + 1)
    )
