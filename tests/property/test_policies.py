"""Policies of a namespace under races: whoever sets one changes that one, however stale the view it was proposed against.

May live here: properties of `SetPolicy`, with brokers that propose at once and try again when they lose.
"""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from brokers.agent.intents import SetPolicy
from brokers.agent.requests import record_of
from channel.entries import Verdict
from channel.records import AnyRecord, Reason
from tests.folding import NAMESPACE, Channel, channel_with

BROKERS = ("a", "b", "c")

intents = st.builds(
    SetPolicy,
    name=st.just(NAMESPACE),
    policy=st.sampled_from(["x", "y", "z"]),
    value=st.one_of(st.none(), st.integers(min_value=0, max_value=9)),
)


def proposed(channel: Channel, broker: str, intent: SetPolicy) -> AnyRecord:
    """The record that a broker makes of an intent, against the view as it is."""
    make = record_of(channel.view, intent)
    assert not isinstance(make, Verdict)
    return make(channel.author(broker))


@given(rounds=st.lists(st.lists(intents, min_size=1, max_size=len(BROKERS)), max_size=6))
def test_policies_survive_races(rounds: list[list[SetPolicy]]) -> None:
    """In each round brokers propose at once, so that all but the first lose and try again; no one undoes what another has set."""
    channel = channel_with(*BROKERS)
    expected: dict[str, object] = {}
    for together in rounds:
        waiting = deque((broker, intent, proposed(channel, broker, intent)) for broker, intent in zip(BROKERS, together, strict=False))
        while waiting:
            broker, intent, record = waiting.popleft()
            verdict = channel.put(record)
            if verdict.reason is not None:
                assert Reason.STALE == verdict.reason
                waiting.append((broker, intent, proposed(channel, broker, intent)))
                continue
            expected.pop(intent.policy, None)
            if intent.value is not None:
                expected[intent.policy] = intent.value
            assert expected == channel.view.namespaces[NAMESPACE].policies
    channel.check()
