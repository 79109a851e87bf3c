"""Policies of a namespace under races: each change affects one policy, however stale the view of
its proposal.

A change with an expected value fails if the value is another one, and the error names that value.
"""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.agent.requests import SetPolicy, Unset, record_of
from equipoise.channel.core.entries import Verdict
from equipoise.channel.core.records import AnyRecord, Reason
from tests.channels.folding import NAMESPACE, Channel, channel_with

BROKERS = ("a", "b", "c")

values = st.one_of(st.none(), st.integers(min_value=0, max_value=2))
intents = st.builds(
    SetPolicy,
    name=st.just(NAMESPACE),
    policy=st.sampled_from(["x", "y", "z"]),
    value=values,
    expected=st.one_of(st.just(Unset.UNSET), values),
)


def proposed(
    channel: Channel, broker: str, intent: SetPolicy, expected: dict[str, object]
) -> AnyRecord | None:
    """The record that a broker makes of an intent against the present view; None if the expected
    value is not set.
    """
    make = record_of(channel.view, intent)
    if isinstance(make, Verdict):
        now = expected.get(intent.policy)
        assert intent.expected not in (Unset.UNSET, now)
        assert Reason.ILLEGAL_TRANSITION == make.reason
        assert f"is now {'not set' if now is None else now}," in (make.problem or "")
        return None
    assert intent.expected in (Unset.UNSET, expected.get(intent.policy))
    return make(channel.author(broker))


@given(rounds=st.lists(st.lists(intents, min_size=1, max_size=len(BROKERS)), max_size=6))
def test_policies_survive_races(rounds: list[list[SetPolicy]]) -> None:
    """In each round brokers propose at once. All but the first lose and try again, and none undoes
    the change of another.
    """
    channel = channel_with(*BROKERS)
    expected: dict[str, object] = {}
    for together in rounds:
        pairs = zip(BROKERS, together, strict=False)
        waiting = deque(
            (broker, intent, proposed(channel, broker, intent, expected))
            for broker, intent in pairs
        )
        while waiting:
            broker, intent, record = waiting.popleft()
            if record is None:
                continue
            verdict = channel.put(record)
            if verdict.reason is not None:
                assert Reason.STALE == verdict.reason
                waiting.append((broker, intent, proposed(channel, broker, intent, expected)))
                continue
            expected.pop(intent.policy, None)
            if intent.value is not None:
                expected[intent.policy] = intent.value
            assert expected == channel.view.namespaces[NAMESPACE].policies
    channel.check()
