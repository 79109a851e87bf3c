"""Stories: short channels in which nobody forges anything, and something that must end does not.

May live here: clusters that renew and do nothing else for some minutes of the log's time, while a bundle is stuck, or one of
them has fallen silent.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from typing import Final

from channel import propose
from channel.lifecycle import Phase
from channel.propose import Author
from spark_jobs.arrivals import Arrival, Source
from tests.folding import Channel, channel_in, channel_with
from tests.planted.honest import BEGAN_MS
from tests.planted.planted import Kind, Planted

_RENEW_MS: Final = 1_000

# Longer than any bound on what may be in flight, or silent, with the patience of every broker before it.
_LASTS_MS: Final = 400_000

_STUCK: Final[tuple[Phase, ...]] = ("assigning", "transferring", "handing_over", "unloading", "splitting")
_SILENT_AFTER: Final = (5, 60)


class _Told:
    """A channel, each record with a time."""

    def __init__(self, channel: Channel, rng: Random) -> None:
        self.channel = channel
        self.rng = rng
        self.at_ms = BEGAN_MS
        self.arrivals: list[Arrival] = []
        self._sequences: dict[int, int] = {}
        self.take()

    def take(self) -> None:
        """Give a time to what the channel has that has none yet."""
        for offset, data in self.channel.entries[len(self.arrivals) :]:
            self.at_ms += self.rng.randrange(1, 20)
            self.arrivals.append(Arrival(Source.CHANNEL, offset, self.at_ms, None, data))

    def renew(self, *, without: str | None = None) -> None:
        """A second passes, in which everybody renews but one."""
        began_ms = self.at_ms
        for name, broker in self.channel.view.brokers.items():
            if broker.live and name != without:
                author = Author(publisher=name, incarnation=broker.incarnation, sequence=broker.sequence + 1)
                self.channel.accept(propose.renewed(author, replace(broker)))
                self.take()
        self.at_ms = began_ms + _RENEW_MS


def _stuck(phase: Phase, _seed: int, rng: Random) -> Planted:
    told = _Told(channel_in(phase, "other"), rng)
    bundle = told.channel.bundle()
    while told.at_ms < BEGAN_MS + _LASTS_MS:
        told.renew()
    return Planted(
        arrivals=told.arrivals,
        rules=frozenset({"stuck_in_flight"}),
        subjects=frozenset({f"bundle:{bundle.name}"}),
        offsets=frozenset({bundle.last}),
    )


def _silent(_seed: int, rng: Random) -> Planted:
    """One of three stops renewing, and the two others say nothing of it."""
    told = _Told(channel_with("a:1", "b:1", "c:1"), rng)
    for _ in range(rng.randrange(*_SILENT_AFTER)):
        told.renew()
    name = rng.choice(("a:1", "b:1", "c:1"))
    last = told.channel.broker(name).last
    while told.at_ms < BEGAN_MS + _LASTS_MS:
        told.renew(without=name)
    return Planted(
        arrivals=told.arrivals,
        rules=frozenset({"silent_too_long"}),
        subjects=frozenset({f"broker:{name}"}),
        offsets=frozenset({last}),
    )


STORIES: Final = (
    *(Kind(name=f"stuck_{phase}", plant=partial(_stuck, phase)) for phase in _STUCK),
    Kind(name="silent_and_not_told", plant=_silent),
)
