"""The policies of a namespace: allowed values, and what other values mean."""

from __future__ import annotations

import pytest

from equipoise.brokers.balancing.namespace_policies import (
    ANTI_AFFINITY_GROUP,
    ON_CHANNEL_LOSS,
    OnChannelLoss,
    anti_affinity_group,
    misfit,
    on_channel_loss,
    serves_on,
)
from equipoise.channel.core import propose
from equipoise.channel.core.records import Scalar
from tests.channels.folding import NAMESPACE, channel_with

STRANGE: tuple[Scalar, ...] = ("Serve", "", "serve ", True, 0, 1)


@pytest.mark.parametrize("value", list(OnChannelLoss))
def test_both_values_are_accepted(value: OnChannelLoss) -> None:
    policies = {ON_CHANNEL_LOSS: value.value, "limit": 3}
    assert (None, value) == (misfit(policies), on_channel_loss(policies))


@pytest.mark.parametrize("value", STRANGE)
def test_an_unknown_value_is_refused_and_means_fence(value: Scalar) -> None:
    """A value that an unchecked writer set counts as the safe one."""
    policies = {ON_CHANNEL_LOSS: value}
    assert OnChannelLoss.FENCE is on_channel_loss(policies)
    assert f"on_channel_loss is {value!r}, and can only be fence or serve" == misfit(policies)


def test_without_the_policy_a_namespace_fences() -> None:
    assert (None, OnChannelLoss.FENCE) == (misfit({}), on_channel_loss({}))


def test_a_view_knows_whether_a_namespace_keeps_serving() -> None:
    """The newest policies count. A missing namespace does not keep serving."""
    channel = channel_with("a")
    assert (False, False) == (
        serves_on(channel.view, NAMESPACE),
        serves_on(channel.view, "tenant/nowhere"),
    )
    for value, expected in (("serve", True), ("fence", False)):
        policies = {ON_CHANNEL_LOSS: value}
        channel.accept(
            propose.set_namespace_policies(
                channel.admin(), channel.view, name=NAMESPACE, policies=policies
            )
        )
        assert expected == serves_on(channel.view, NAMESPACE)


@pytest.mark.parametrize(
    ("value", "group"), [("g", "g"), ("Group-1", "group-1"), ("a b", "a b"), ("x" * 255, "x" * 255)]
)
def test_a_group_is_a_name_in_any_case(value: str, group: str) -> None:
    policies = {ANTI_AFFINITY_GROUP: value, ON_CHANNEL_LOSS: "serve"}
    assert (None, group) == (misfit(policies), anti_affinity_group(policies))


@pytest.mark.parametrize("value", ["", " ", " g", "x" * 256, 7, True])
def test_an_invalid_group_is_refused_and_ignored(value: Scalar) -> None:
    assert None is anti_affinity_group({ANTI_AFFINITY_GROUP: value})
    assert f"anti_affinity_group is {value!r:.80}" in str(
        misfit({ON_CHANNEL_LOSS: "serve", ANTI_AFFINITY_GROUP: value})
    )


@pytest.mark.parametrize("policy", [ON_CHANNEL_LOSS, ANTI_AFFINITY_GROUP])
def test_the_refusal_of_a_long_value_is_short(policy: str) -> None:
    assert len(misfit({policy: "x" * 4_096}) or "") < 256
    assert None is anti_affinity_group({})
