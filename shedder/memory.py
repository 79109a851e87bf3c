"""What a policy of balancing remembers from one round to the next: a value that goes in with the snapshot and comes out with the plan.

May live here: that value, and how it changes between rounds. So a plan can be made anew from what it was made of, and a new
leader begins with an empty memory.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Each strategy looks at what is its own, and leaves the rest as it is.

    `hits`: rounds in a row in which the load was uneven (`TransferShedder`). `gave_ms`, `got_ms`: when a bundle's move from a
    broker or to it last ended, Unix time (`TransferShedder`). `averages`: of each broker's use, a fraction
    (`ThresholdShedder` as Pulsar's). `low_hits`, `high_hits`: rounds in which a broker differed from its partner, at all and
    much (`AvgShedder`).
    """

    hits: int = 0
    gave_ms: Mapping[str, int] = field(default_factory=dict)
    got_ms: Mapping[str, int] = field(default_factory=dict)
    averages: Mapping[str, float] = field(default_factory=dict)
    low_hits: Mapping[str, int] = field(default_factory=dict)
    high_hits: Mapping[str, int] = field(default_factory=dict)

    def without_hits(self) -> Memory:
        """This memory when rounds have ceased: what was counted in a row begins anew afterwards."""
        return replace(self, hits=0, low_hits={}, high_hits={})

    def after_move(self, source: str, destination: str | None, *, now_ms: int, live: Container[str]) -> Memory:
        """This memory when a move has ended, after which what both ends said of their load counts no more; None: nobody got it yet.

        Brokers that are not `live` are forgotten: whoever comes back begins anew, and a strategy that reads none of this forgets nothing.
        """
        gave_ms, got_ms = {**self.gave_ms, source: now_ms}, dict(self.got_ms)
        if destination is not None:
            got_ms[destination] = now_ms
        return replace(self, gave_ms=_of(live, gave_ms), got_ms=_of(live, got_ms))


def _of(live: Container[str], times: Mapping[str, int]) -> Mapping[str, int]:
    return {broker: time_ms for broker, time_ms in times.items() if broker in live}
