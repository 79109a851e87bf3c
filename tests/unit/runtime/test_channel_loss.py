"""The loss of the channel at one broker: since when, why, and what it still serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from equipoise.brokers.agent.agent import Agent
from equipoise.brokers.agent.events import Instant
from equipoise.brokers.agent.handle import Handle, Lease
from equipoise.brokers.runtime.router import ChannelLoss, channel_loss
from equipoise.brokers.testing.virtual_member import VirtualClock
from equipoise.channel.core.errors import LogUnavailable
from equipoise.channel.log.subscription import Outage

NOW = Instant(100_000, 1_700_000_000_000)


@dataclass(kw_only=True)
class Broker:
    """The part of an agent that is read."""

    silent_ms: int | None = None
    handles: Mapping[str, Handle] = field(default_factory=dict)

    def out_of_touch_ms(self, now: Instant) -> int | None:
        assert now == NOW
        return self.silent_ms


def loss(broker: Broker, *, outage_ms: int | None = None) -> ChannelLoss | None:
    """Return the loss of a broker whose log cannot be read for so long."""
    error = LogUnavailable(log="memory:x", problem="it is away", in_doubt=False)
    outage = (
        None
        if outage_ms is None
        else Outage(since_ns=(NOW.boot_ms - outage_ms) * 1_000_000, error=error)
    )
    return channel_loss(
        cast("Agent", broker),
        outage,
        VirtualClock(boot_ms=NOW.boot_ms, ahead_ms=NOW.wall_ms - NOW.boot_ms),
    )


def handle(name: str, *, serves_on: bool, is_open: bool = True) -> Handle:
    """Return an open bundle of a broker that is awake, past its lease."""
    lease = Lease(incarnation=7, skew_max_ms=250, attention_ms=1_400, deadline_ms=NOW.boot_ms)
    lease.attend(NOW)
    namespace = name.rpartition("/")[0]
    return Handle(
        bundle=name,
        namespace=namespace,
        low=0,
        high=1,
        token=9,
        lease=lease,
        is_open=is_open,
        serves_on=serves_on,
    )


def test_a_broker_with_the_channel_has_no_loss() -> None:
    assert loss(Broker()) is None


def test_the_loss_counts_from_the_earlier_sign() -> None:
    """The log is away, or renewals are not read back."""
    for silent_ms, outage_ms, lost_ms in (
        (None, 300, 300),
        (7_000, None, 7_000),
        (7_000, 300, 7_000),
        (2_000, 9_000, 9_000),
    ):
        found = loss(Broker(silent_ms=silent_ms), outage_ms=outage_ms)
        assert found is not None
        assert (lost_ms, NOW.wall_ms - lost_ms, outage_ms is None) == (
            found.lost_ms,
            found.since_ms,
            found.problem is None,
        )


def test_bundles_that_serve_on_are_counted_by_namespace() -> None:
    """Only open ones, of namespaces that allow it."""
    handles = (
        handle("t/b/0_1", serves_on=True),
        handle("t/b/1_2", serves_on=True),
        handle("t/a/0_1", serves_on=True),
        handle("t/a/1_2", serves_on=True, is_open=False),
        handle("t/c/0_1", serves_on=False),
    )
    found = loss(Broker(silent_ms=4_000, handles={each.bundle: each for each in handles}))
    assert found is not None
    assert {"t/a": 1, "t/b": 2} == found.serving_on
    assert {
        "since": "2023-11-14T22:13:16.000Z",
        "lost_ms": 4_000,
        "problem": None,
        "serving_on": ["t/a", "t/b"],
    } == found.document()
