"""Define what a policy remembers between rounds: a value that goes in with the snapshot and comes out with the plan.

So a plan can be computed again from its input. A new leader starts with an empty memory.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory of all strategies. Each reads its own fields and keeps the others.

    * `hits`: rounds in a row with uneven load (`TransferShedder`).
    * `gave_ms`, `got_ms`: when the last move from or to a broker ended, Unix time (`TransferShedder`).
    * `averages`: of each broker's use, a fraction (`ThresholdShedder` with `pulsar_exact`).
    * `low_hits`, `high_hits`: rounds in which a broker differed from its partner, at all and much (`AvgShedder`).
    """

    hits: int = 0
    gave_ms: Mapping[str, int] = field(default_factory=dict)
    got_ms: Mapping[str, int] = field(default_factory=dict)
    averages: Mapping[str, float] = field(default_factory=dict)
    low_hits: Mapping[str, int] = field(default_factory=dict)
    high_hits: Mapping[str, int] = field(default_factory=dict)

    def without_hits(self) -> Memory:
        """Return this memory after rounds have stopped: counts of rounds in a row start again at 0."""
        return replace(self, hits=0, low_hits={}, high_hits={})

    def after_move(self, source: str, destination: str | None, *, now_ms: int, live: Container[str]) -> Memory:
        """Return this memory after a move: older reports of both ends no longer count. `destination` None: no broker has the bundle yet.

        Brokers that are not `live` are forgotten here, because a strategy that does not read this never forgets them.
        """
        gave_ms, got_ms = {**self.gave_ms, source: now_ms}, dict(self.got_ms)
        if destination is not None:
            got_ms[destination] = now_ms
        return replace(self, gave_ms=_of(live, gave_ms), got_ms=_of(live, got_ms))


def _of(live: Container[str], times: Mapping[str, int]) -> Mapping[str, int]:
    return {broker: time_ms for broker, time_ms in times.items() if broker in live}
