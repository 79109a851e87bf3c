"""The policies of a namespace: which values they may have, and what is made of all others."""

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
def test_what_a_policy_may_be(value: OnChannelLoss) -> None:
    """Both words are taken, and mean what they say."""
    policies = {ON_CHANNEL_LOSS: value.value, "limit": 3}
    assert (None, value) == (misfit(policies), on_channel_loss(policies))


@pytest.mark.parametrize("value", STRANGE)
def test_what_is_no_such_word_fences(value: Scalar) -> None:
    """What somebody has written past all checks is refused to others, and taken for the safe choice."""
    policies = {ON_CHANNEL_LOSS: value}
    assert OnChannelLoss.FENCE is on_channel_loss(policies)
    assert f"on_channel_loss is {value!r}, and can only be fence or serve" == misfit(policies)


def test_without_the_policy_a_namespace_fences() -> None:
    """The default is to stop when the lease ends."""
    assert (None, OnChannelLoss.FENCE) == (misfit({}), on_channel_loss({}))


def test_what_a_view_says_of_a_namespace() -> None:
    """The newest policies count; a namespace that is not there serves nothing on."""
    channel = channel_with("a")
    assert (False, False) == (serves_on(channel.view, NAMESPACE), serves_on(channel.view, "tenant/nowhere"))
    for value, expected in (("serve", True), ("fence", False)):
        policies = {ON_CHANNEL_LOSS: value}
        channel.accept(propose.set_namespace_policies(channel.admin(), channel.view, name=NAMESPACE, policies=policies))
        assert expected == serves_on(channel.view, NAMESPACE)


@pytest.mark.parametrize(("value", "group"), [("g", "g"), ("Group-1", "group-1"), ("a b", "a b"), ("x" * 255, "x" * 255)])
def test_a_group_is_a_name_in_any_case(value: str, group: str) -> None:
    """Two spellings that differ in case are one group."""
    policies = {ANTI_AFFINITY_GROUP: value, ON_CHANNEL_LOSS: "serve"}
    assert (None, group) == (misfit(policies), anti_affinity_group(policies))


@pytest.mark.parametrize("value", ["", " ", " g", "x" * 256, 7, True])
def test_what_is_no_group_is_refused_and_is_none(value: Scalar) -> None:
    """What somebody has written past all checks puts a namespace into no group."""
    assert None is anti_affinity_group({ANTI_AFFINITY_GROUP: value})
    assert f"anti_affinity_group is {value!r}" in str(misfit({ON_CHANNEL_LOSS: "serve", ANTI_AFFINITY_GROUP: value}))
    assert None is anti_affinity_group({})
