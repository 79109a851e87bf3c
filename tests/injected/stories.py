"""Channels without a forgery in which something does not end: a stuck bundle, a stopped deletion, a
silent broker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final

from equipoise.channel.core import propose
from equipoise.channel.core.lifecycle import Phase
from equipoise.channel.core.propose import Author
from equipoise.spark_jobs.sequence.rows import Arrival, Source
from tests.channels.folding import NAMESPACE, Channel, channel_in, channel_with
from tests.injected.honest import BEGAN_MS
from tests.injected.injection import Injected, Kind, injected

_RENEW_MS: Final = 1_000

# Longer than any limit of a move or a silence.
_LASTS_MS: Final = 400_000

_STUCK: Final[tuple[Phase, ...]] = (
    "assigning",
    "transferring",
    "handing_over",
    "unloading",
    "splitting",
)
_SILENT_AFTER: Final = (5, 60)
_TRIED_EVERY_S: Final = (5, 40)


class _TimedChannel:
    """A channel, each record with a time."""

    def __init__(self, channel: Channel, rng: Random) -> None:
        self.channel = channel
        self.rng = rng
        self.at_ms = BEGAN_MS
        self.arrivals: list[Arrival] = []
        self.take()

    def take(self) -> None:
        """Give a time to the new records of the channel."""
        for offset, data in self.channel.entries[len(self.arrivals) :]:
            self.at_ms += self.rng.randrange(1, 20)
            self.arrivals.append(Arrival(Source.CHANNEL, offset, self.at_ms, data))

    def author(self, name: str) -> Author:
        """Return a broker as author, with its next number."""
        broker = self.channel.view.brokers[name]
        return Author(publisher=name, incarnation=broker.incarnation, sequence=broker.sequence + 1)

    def renew(self, *, without: str | None = None) -> None:
        """Let a second pass, in which all live brokers but one renew."""
        began_ms = self.at_ms
        for name, broker in self.channel.view.brokers.items():
            if broker.live and name != without:
                self.channel.accept(propose.renewed(self.author(name), replace(broker)))
                self.take()
        self.at_ms = began_ms + _RENEW_MS


def _stuck(phase: Phase, _seed: int, rng: Random) -> Injected:
    timed = _TimedChannel(channel_in(phase, "other"), rng)
    return _is_stuck(timed, since=timed.channel.bundle().last)


def _silent(_seed: int, rng: Random) -> Injected:
    """One of three brokers stops renewing, and the two others do not declare it dead."""
    timed = _TimedChannel(channel_with("a:1", "b:1", "c:1"), rng)
    for _ in range(rng.randrange(*_SILENT_AFTER)):
        timed.renew()
    name = rng.choice(("a:1", "b:1", "c:1"))
    last = timed.channel.broker(name).last
    while timed.at_ms < BEGAN_MS + _LASTS_MS:
        timed.renew(without=name)
    return injected(timed.arrivals, "silent_too_long", f"broker:{name}", last)


def _freed_and_left(_seed: int, rng: Random) -> Injected:
    """The owner of a bundle dies, and no other broker takes the bundle."""
    timed = _TimedChannel(channel_in("owned", "other"), rng)
    for _ in range(rng.randrange(*_SILENT_AFTER)):
        timed.renew()
    timed.channel.die("owner")
    timed.take()
    return _is_stuck(timed, since=timed.channel.view.offset)


def _passed_to_and_fro(_seed: int, rng: Random) -> Injected:
    """A bundle is assigned to another broker again and again, and none opens it."""
    timed = _TimedChannel(channel_in("assigning", "other"), rng)
    return _is_stuck(timed, since=timed.channel.bundle().last, each_time=_assign_to_another)


def _refused_by_all(_seed: int, rng: Random) -> Injected:
    """Each broker that gets the bundle refuses it."""
    timed = _TimedChannel(channel_in("free", "other"), rng)
    return _is_stuck(timed, since=timed.channel.bundle().last, each_time=_assign_and_refuse)


def _assign_to_another(timed: _TimedChannel) -> None:
    names = [
        name
        for name in ("owner", "other")
        if timed.channel.incarnation(name) != timed.channel.bundle().owner
    ]
    timed.channel.accept(
        propose.assign(
            timed.author("source"),
            timed.channel.bundle(),
            owner=timed.channel.incarnation(names[0]),
        )
    )


def _assign_and_refuse(timed: _TimedChannel) -> None:
    timed.channel.accept(
        propose.assign(
            timed.author("source"), timed.channel.bundle(), owner=timed.channel.incarnation("owner")
        )
    )
    timed.channel.accept(
        propose.refuse(timed.author("owner"), timed.channel.bundle(), reason="it is full")
    )


def _is_stuck(
    timed: _TimedChannel, *, since: int, each_time: Callable[[_TimedChannel], None] | None = None
) -> Injected:
    """Let the only bundle be stuck since an offset. `each_time` is tried meanwhile."""
    while timed.at_ms < BEGAN_MS + _LASTS_MS:
        for _ in range(timed.rng.randrange(*_TRIED_EVERY_S)):
            timed.renew()
        if each_time is not None:
            each_time(timed)
            timed.take()
    subject = f"bundle:{timed.channel.bundle().name}"
    return injected(timed.arrivals, "stuck_in_flight", subject, since)


def _deletion_stops(_seed: int, rng: Random) -> Injected:
    """A namespace is set to deleting, and never deleted."""
    timed = _TimedChannel(channel_in("owned"), rng)
    timed.channel.accept(
        propose.start_deleting_namespace(timed.channel.admin(), timed.channel.view, name=NAMESPACE)
    )
    since = timed.channel.view.offset
    timed.take()
    while timed.at_ms < BEGAN_MS + _LASTS_MS:
        timed.renew()
    return injected(timed.arrivals, "deleting_too_long", f"namespace:{NAMESPACE}", since)


def _writes_after_leaving(_seed: int, rng: Random) -> Injected:
    """A broker leaves, and then wants a bundle."""
    channel = channel_with("a", "b", bundles=2)
    channel.own("b")
    timed = _TimedChannel(channel, rng)
    timed.renew()
    channel.accept(propose.left(timed.author("a"), channel.broker("a")))
    timed.take()
    timed.renew(without="a")
    channel.put(propose.unload(timed.author("a"), channel.bundle()))
    timed.take()
    return injected(timed.arrivals, "writes_after_leaving", "broker:a", timed.arrivals[-1].offset)


STORIES: Final = (
    Kind(name="writes_after_leaving", inject=_writes_after_leaving),
    *(Kind(name=f"stuck_{phase}", inject=partial(_stuck, phase)) for phase in _STUCK),
    Kind(name="freed_and_left", inject=_freed_and_left),
    Kind(name="passed_to_and_fro", inject=_passed_to_and_fro),
    Kind(name="refused_by_all", inject=_refused_by_all),
    Kind(name="deletion_stops", inject=_deletion_stops),
    Kind(name="silent_and_not_told", inject=_silent),
)
