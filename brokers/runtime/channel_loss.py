"""The loss of the channel, as one broker sees it: since when, why, and what it serves on all the same.

May live here: the drawing together of what the agent and the log's thread know of it, for those who tell it to people and to
machines. What follows from it for leases and handles is the agent's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from equipoise.brokers.agent.agent import Agent
from equipoise.brokers.runtime.clock import Clock
from equipoise.channel.log.seat import Outage


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLoss:
    """The channel is lost to a broker: it cannot read it, or has read none of its own renewals back for half a lease.

    Whether it is alone with that it cannot know. `since_ms` is Unix time, `problem` what the log said last, if it cannot be
    read. `serving_on` counts the open bundles of each namespace that says `on_channel_loss: serve`: they outlast the lease.
    """

    since_ms: int
    lost_ms: int
    problem: str | None
    serving_on: Mapping[str, int]

    def document(self) -> dict[str, object]:
        """As JSON has it."""
        since = datetime.fromtimestamp(self.since_ms / 1_000, UTC).isoformat(timespec="milliseconds")
        return {
            "since": since.replace("+00:00", "Z"),
            "lost_ms": self.lost_ms,
            "problem": self.problem,
            "serving_on": sorted(self.serving_on),
        }


def channel_loss(agent: Agent, outage: Outage | None, clock: Clock) -> ChannelLoss | None:
    """What a broker knows of its loss of the channel; None while it has it. `outage` is set while the log cannot be read."""
    now = clock.now()
    outage_ms = 0 if outage is None else (clock.boot_ns() - outage.since_ns) // 1_000_000
    out_of_touch_ms = agent.out_of_touch_ms(now)
    if outage is None and out_of_touch_ms is None:
        return None
    lost_ms = max(outage_ms, out_of_touch_ms or 0)
    serving_on = Counter(handle.namespace for handle in agent.handles.values() if handle.serves_on and handle.passes(now))
    problem = None if outage is None else str(outage.error)
    return ChannelLoss(since_ms=now.wall_ms - lost_ms, lost_ms=lost_ms, problem=problem, serving_on=serving_on)
