"""Channels without a forgery in which something that must end does not: a stuck bundle, a stopped deletion, a silent broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final

from equipoise.channel.core import propose
from equipoise.channel.core.lifecycle import Phase
from equipoise.channel.core.propose import Author
from equipoise.spark_jobs.sequence.arrivals import Arrival, Source
from tests.folding import NAMESPACE, Channel, channel_in, channel_with
from tests.injected.honest import BEGAN_MS
from tests.injected.injection import Injected, Kind

_RENEW_MS: Final = 1_000

# Longer than any bound on what may be in flight, or silent, with the patience of every broker before it.
_LASTS_MS: Final = 400_000

_STUCK: Final[tuple[Phase, ...]] = ("assigning", "transferring", "handing_over", "unloading", "splitting")
_SILENT_AFTER: Final = (5, 60)
_TRIED_EVERY_S: Final = (5, 40)


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

    def author(self, name: str) -> Author:
        """A broker, with the number of a new attempt."""
        broker = self.channel.view.brokers[name]
        return Author(publisher=name, incarnation=broker.incarnation, sequence=broker.sequence + 1)

    def renew(self, *, without: str | None = None) -> None:
        """A second passes, in which everybody renews but one."""
        began_ms = self.at_ms
        for name, broker in self.channel.view.brokers.items():
            if broker.live and name != without:
                self.channel.accept(propose.renewed(self.author(name), replace(broker)))
                self.take()
        self.at_ms = began_ms + _RENEW_MS


def _stuck(phase: Phase, _seed: int, rng: Random) -> Injected:
    told = _Told(channel_in(phase, "other"), rng)
    bundle = told.channel.bundle()
    while told.at_ms < BEGAN_MS + _LASTS_MS:
        told.renew()
    return Injected(
        arrivals=told.arrivals,
        rules=frozenset({"stuck_in_flight"}),
        subjects=frozenset({f"bundle:{bundle.name}"}),
        offsets=frozenset({bundle.last}),
    )


def _silent(_seed: int, rng: Random) -> Injected:
    """One of three stops renewing, and the two others say nothing of it."""
    told = _Told(channel_with("a:1", "b:1", "c:1"), rng)
    for _ in range(rng.randrange(*_SILENT_AFTER)):
        told.renew()
    name = rng.choice(("a:1", "b:1", "c:1"))
    last = told.channel.broker(name).last
    while told.at_ms < BEGAN_MS + _LASTS_MS:
        told.renew(without=name)
    return Injected(
        arrivals=told.arrivals,
        rules=frozenset({"silent_too_long"}),
        subjects=frozenset({f"broker:{name}"}),
        offsets=frozenset({last}),
    )


def _freed_and_left(_seed: int, rng: Random) -> Injected:
    """The owner of a bundle dies, and of the two who live nobody takes what it had."""
    told = _Told(channel_in("owned", "other"), rng)
    for _ in range(rng.randrange(*_SILENT_AFTER)):
        told.renew()
    told.channel.die("owner")
    told.take()
    return _is_stuck(told, since=told.channel.view.offset)


def _passed_to_and_fro(_seed: int, rng: Random) -> Injected:
    """Nobody opens a bundle, and each time before the bound it is assigned to another."""
    told = _Told(channel_in("assigning", "other"), rng)
    return _is_stuck(told, since=told.channel.bundle().last, each_time=_assign_to_another)


def _refused_by_all(_seed: int, rng: Random) -> Injected:
    """Whoever gets a bundle gives it back at once, for ever."""
    told = _Told(channel_in("free", "other"), rng)
    return _is_stuck(told, since=told.channel.bundle().last, each_time=_assign_and_refuse)


def _assign_to_another(told: _Told) -> None:
    names = [name for name in ("owner", "other") if told.channel.incarnation(name) != told.channel.bundle().owner]
    told.channel.accept(propose.assign(told.author("source"), told.channel.bundle(), owner=told.channel.incarnation(names[0])))


def _assign_and_refuse(told: _Told) -> None:
    told.channel.accept(propose.assign(told.author("source"), told.channel.bundle(), owner=told.channel.incarnation("owner")))
    told.channel.accept(propose.refuse(told.author("owner"), told.channel.bundle(), reason="it is full"))


def _is_stuck(told: _Told, *, since: int, each_time: Callable[[_Told], None] | None = None) -> Injected:
    """The only bundle of a channel is stuck since an offset, whatever is done about it every so often."""
    while told.at_ms < BEGAN_MS + _LASTS_MS:
        for _ in range(told.rng.randrange(*_TRIED_EVERY_S)):
            told.renew()
        if each_time is not None:
            each_time(told)
            told.take()
    subject = f"bundle:{told.channel.bundle().name}"
    return Injected(arrivals=told.arrivals, rules=frozenset({"stuck_in_flight"}), subjects=frozenset({subject}), offsets=frozenset({since}))


def _deletion_stops(_seed: int, rng: Random) -> Injected:
    """Somebody lets a namespace go, and never takes it away."""
    told = _Told(channel_in("owned"), rng)
    told.channel.accept(propose.start_deleting_namespace(told.channel.admin(), told.channel.view, name=NAMESPACE))
    since = told.channel.view.offset
    told.take()
    while told.at_ms < BEGAN_MS + _LASTS_MS:
        told.renew()
    return Injected(
        arrivals=told.arrivals,
        rules=frozenset({"deleting_too_long"}),
        subjects=frozenset({f"namespace:{NAMESPACE}"}),
        offsets=frozenset({since}),
    )


STORIES: Final = (
    *(Kind(name=f"stuck_{phase}", inject=partial(_stuck, phase)) for phase in _STUCK),
    Kind(name="freed_and_left", inject=_freed_and_left),
    Kind(name="passed_to_and_fro", inject=_passed_to_and_fro),
    Kind(name="refused_by_all", inject=_refused_by_all),
    Kind(name="deletion_stops", inject=_deletion_stops),
    Kind(name="silent_and_not_told", inject=_silent),
)
