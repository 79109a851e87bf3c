"""Load: what a bundle costs its broker, how samples become averages, and what brokers tell each other of it.

May live here: the values of a load report, the port that carries reports, and pure arithmetic over samples. Reading loads
from services and clocks is the worker's business, carrying reports that of the adapters in `brokers.load_bus`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Final, Protocol

from brokers.errors import InvalidLoad

# Half of what an average says is younger than this: two balance intervals, so that a burst of one interval moves nothing
# by itself, and a lasting change is believed within half a minute.
HALF_LIFE_MS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Messaging:
    """What the topics of a bundle carry: rates per second over the last sample, and what there is. For people, not the balancer.

    Raises `InvalidLoad` for a number that is negative or not finite.
    """

    messages_in_per_second: float = 0.0
    bytes_in_per_second: float = 0.0
    messages_out_per_second: float = 0.0
    bytes_out_per_second: float = 0.0
    producers: int = 0
    consumers: int = 0
    topics: int = 0

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleLoad:
    """What a bundle costs its broker: rates per second over the last sample, and what is open.

    `messaging` says more of a bundle of topics. Raises `InvalidLoad` for a number that is negative or not finite.
    """

    calls_per_second: float = 0.0
    bytes_per_second: float = 0.0
    sessions: int = 0
    messaging: Messaging | None = None

    def __post_init__(self) -> None:
        _check(self)


def _check(load: BundleLoad | Messaging) -> None:
    for number in fields(load):
        if number.name != "messaging" and not 0 <= getattr(load, number.name) < math.inf:  # What is not a number fails this, too.
            raise InvalidLoad(subject="bundle", field=number.name, value=getattr(load, number.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one broker says of itself: every bundle that it has open, busy or idle, with its averaged load.

    `at_ms` is Unix time by the publisher's clock, because a report may cross machines; it only tells how old a report is.
    `capacity` is the broker's weight, above 0; raises `InvalidLoad` for another.
    """

    broker: str
    at_ms: int
    capacity: int
    bundles: Mapping[str, BundleLoad] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.capacity <= 0:
            raise InvalidLoad(subject="broker", field="capacity", value=self.capacity)


class LoadBus(Protocol):
    """Carries load reports between brokers: the latest of each, and lossy.

    What holds for every adapter, and is tested by one suite for all of them:

    * `latest` gives at most one report of each broker, ordered by its id: one that was published as a whole, and the
      newest, or nearly.
    * A report may be lost, late, or outlive its broker; nothing about safety rides on it. Who reads looks at its age.
    * Both calls may block for as long as a small file takes: a host in an event loop makes them in a thread.
    * Several handles on one bus, in one process or in many, are independent. A handle may be used by one thread at a time.
    """

    def publish(self, report: Report) -> None:
        """Make `report` the latest of its broker. Raises `LoadBusUnavailable`; the next one may succeed."""
        ...

    def latest(self) -> Sequence[Report]:
        """The latest report of each broker; one that cannot be read is left out. Raises `LoadBusUnavailable`."""
        ...


class Averages:
    """Decaying averages of the bundles' loads: a sample of `elapsed_ms` ago weighs half as much after each half life."""

    def __init__(self, *, half_life_ms: int = HALF_LIFE_MS) -> None:
        self._half_life_ms = half_life_ms
        self._averages: Mapping[str, BundleLoad] = {}

    def update(self, sample: Mapping[str, BundleLoad], *, elapsed_ms: int) -> Mapping[str, BundleLoad]:
        """The averages after `sample`, which was taken `elapsed_ms` after the one before, by name of bundle.

        The first sample of a bundle is its average, so that a bundle that has just moved is known from the start. A bundle
        that is not in the sample is forgotten. Sessions are counted, not averaged.
        """
        old_share = 0.5 ** (max(elapsed_ms, 0) / self._half_life_ms)
        before = self._averages
        self._averages = {name: _blend(before.get(name, load), load, old_share) for name, load in sample.items()}
        return self._averages


def _blend(old: BundleLoad, new: BundleLoad, old_share: float) -> BundleLoad:
    def blended(before: float, now: float) -> float:
        return now + (before - now) * old_share

    messaging = new.messaging
    if messaging is not None and old.messaging is not None:
        messaging = Messaging(
            messages_in_per_second=blended(old.messaging.messages_in_per_second, messaging.messages_in_per_second),
            bytes_in_per_second=blended(old.messaging.bytes_in_per_second, messaging.bytes_in_per_second),
            messages_out_per_second=blended(old.messaging.messages_out_per_second, messaging.messages_out_per_second),
            bytes_out_per_second=blended(old.messaging.bytes_out_per_second, messaging.bytes_out_per_second),
            producers=messaging.producers,
            consumers=messaging.consumers,
            topics=messaging.topics,
        )
    return BundleLoad(
        calls_per_second=blended(old.calls_per_second, new.calls_per_second),
        bytes_per_second=blended(old.bytes_per_second, new.bytes_per_second),
        sessions=new.sessions,
        messaging=messaging,
    )
