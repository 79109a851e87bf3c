"""Describe one broker's loss of the channel. The agent decides what it means for leases and
handles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from equipoise.brokers.agent.agent import Agent
from equipoise.brokers.runtime.clock import Clock
from equipoise.channel.log.subscription import Outage


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLoss:
    """One broker's loss of the channel: it cannot read the log, or has read back no own renewal for
    half a lease.

    It cannot know whether others lost it, too.

    * `since_ms`: Unix time.
    * `problem`: the log's last error, if it cannot be read.
    * `serving_on`: open bundles per namespace with `on_channel_loss: serve`, which outlast the
      lease.
    """

    since_ms: int
    lost_ms: int
    problem: str | None
    serving_on: Mapping[str, int]

    def document(self) -> dict[str, object]:
        """Return the loss as a JSON document."""
        since = datetime.fromtimestamp(self.since_ms / 1_000, UTC).isoformat(
            timespec="milliseconds"
        )
        return {
            "since": since.replace("+00:00", "Z"),
            "lost_ms": self.lost_ms,
            "problem": self.problem,
            "serving_on": sorted(self.serving_on),
        }


def channel_loss(agent: Agent, outage: Outage | None, clock: Clock) -> ChannelLoss | None:
    """Return this broker's loss of the channel, if any. `outage` is set while the log cannot be
    read.
    """
    now = clock.now()
    outage_ms = 0 if outage is None else (clock.boot_ns() - outage.since_ns) // 1_000_000
    out_of_touch_ms = agent.out_of_touch_ms(now)
    if outage is None and out_of_touch_ms is None:
        return None
    lost_ms = max(outage_ms, out_of_touch_ms or 0)
    serving_on = Counter(
        handle.namespace
        for handle in agent.handles.values()
        if handle.serves_on and handle.passes(now)
    )
    problem = None if outage is None else str(outage.error)
    return ChannelLoss(
        since_ms=now.wall_ms - lost_ms, lost_ms=lost_ms, problem=problem, serving_on=serving_on
    )
