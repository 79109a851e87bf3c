"""Bring together the demo's cluster, callers, Pulsar clients, channel and screen."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from random import Random
from typing import Final

import aiohttp

from equipoise.brokers.errors import LoadBusUnavailable
from equipoise.brokers.local.demo import operator
from equipoise.brokers.local.demo.calling import CallerProcess
from equipoise.brokers.local.demo.chronicle import Chronicle
from equipoise.brokers.local.demo.evenness import evenness_of
from equipoise.brokers.local.demo.messages import MessageTally
from equipoise.brokers.local.demo.messaging import PulsarClients
from equipoise.brokers.local.demo.operator import Deed
from equipoise.brokers.local.demo.screen import BrokerRow, BundleRow, MessagesShown, Picture, Screen
from equipoise.brokers.local.local_cluster import LocalCluster
from equipoise.channel.core.view import View
from equipoise.channel.log.table_view import TableView
from equipoise.channel.system.deadline import Deadline
from equipoise.shedder.load_reports import LoadBus, Summary

COUNTERS: Final = "demo/counters"
MESSAGES: Final = "demo/messages"

# A dead or draining broker loses its bundles within its lease and grace period, 3.5 s. A busy machine takes longer.
_SETTLED_MS: Final = 30_000

_DRAW_S: Final = 0.25
_BUNDLES_SHOWN_MAX: Final = 8

# Rates are averages of the last two seconds.
_RATE_PICTURES: Final = 8


@dataclass(slots=True, kw_only=True)
class Stage:
    """Everything that an act may use. `began_s` is the start of the demo by the loop's clock.

    `bundles` is the number of bundles per namespace. `pulsar` is None without Pulsar clients. `summaries` are the load reports of the
    latest picture.
    """

    bundles: Mapping[str, int]
    cluster: LocalCluster
    table: TableView
    http: aiohttp.ClientSession
    callers: CallerProcess
    pulsar: PulsarClients | None
    loads: LoadBus
    chronicle: Chronicle
    screen: Screen
    random: Random
    began_s: float
    summaries: Sequence[Summary] = ()
    counted_at: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=_RATE_PICTURES))
    turns: Iterator[str] = field(init=False)

    def __post_init__(self) -> None:
        """Operations are applied to the namespaces in turn."""
        self.turns = cycle(self.bundles)

    @property
    def now_s(self) -> float:
        """Seconds since the beginning."""
        return asyncio.get_running_loop().time() - self.began_s

    def say(self, text: str) -> None:
        """Show what the demo does."""
        self.screen.say(self.now_s, text)

    def quote(self, lines: Sequence[str]) -> None:
        """Show the output of another program."""
        self.screen.quote(lines)

    async def settled(self, *, without: int | None = None) -> None:
        """Wait until live brokers other than incarnation `without` own every bundle.

        Raises `DeadlineExceeded` after `_SETTLED_MS`.
        """
        for namespace in self.bundles:
            await operator.settled(self.table, namespace, without=without, timeout_ms=_SETTLED_MS)

    async def renewed(self, broker: str, last: int, deadline: Deadline) -> None:
        """Wait until a broker has a record behind offset `last`: it has reconnected, or is dead.

        Raises `DeadlineExceeded`.
        """
        while (entry := self.table.view.brokers.get(broker)) is not None and entry.last <= last:
            deadline.check(f"a word of {broker}")
            await asyncio.sleep(_DRAW_S)

    async def move(self, deed: Deed) -> float | None:
        """Have some live broker do a deed in the namespace whose turn it is. Report a problem.

        Return the milliseconds that it took, None if it could not be done.
        """
        view = self.table.view
        namespace = next(self.turns)
        move = operator.choose(deed, view, namespace, self.random)
        if move is None:
            self.say(f"{deed} in {namespace}: there is nothing that could be done")
            return None
        began_s = self.now_s
        addresses = [address for broker in view.live_brokers() if (address := broker.joined.addresses.get("http")) is not None]
        problem = await operator.make(self.http, self.random.choice(addresses), move)
        if problem is None:
            return (self.now_s - began_s) * 1_000
        self.say(f"{move.text}: {problem}")
        return None

    @contextmanager
    def killing(self) -> Iterator[None]:
        """Attribute message losses and pauses in this context to a kill."""
        if self.pulsar is None:
            yield
            return
        self.pulsar.tally.kill_begins(time.monotonic_ns())
        yield
        self.pulsar.tally.kill_ends(time.monotonic_ns())

    async def flow_again(self) -> None:
        """Wait until messages flow on every topic. Raises `DeadlineExceeded` after `_SETTLED_MS`."""
        if self.pulsar is not None:
            await self.pulsar.flow_again(timeout_ms=_SETTLED_MS)

    def number_of_leader(self) -> int:
        """Return the number of the broker that leads."""
        leader = self.table.view.leader()
        return 0 if leader is None else self.cluster.broker_ids.index(leader.broker)

    def incarnation(self, number: int) -> int:
        """Return the newest incarnation of a broker of the cluster."""
        return self.table.view.brokers[self.cluster.broker_ids[number]].incarnation

    async def keep_drawing(self) -> None:
        """Draw the picture four times a second, until cancelled."""
        while True:
            self.screen.show(await self._picture())
            await asyncio.sleep(_DRAW_S)

    async def _picture(self) -> Picture:
        self.summaries = await asyncio.to_thread(_latest, self.loads)
        work_of = _work_of_bundles(self.summaries)
        view, tally, now_s = self.table.view, self.callers.tally, self.now_s
        self.counted_at.append((now_s, tally.acknowledged, 0 if self.pulsar is None else self.pulsar.tally.receipted))
        since_s, calls_before, messages_before = self.counted_at[0]
        seconds = max(now_s - since_s, _DRAW_S)
        bundles = [
            BundleRow(
                bundle=bundle.name,
                phase=bundle.phase,
                owner=_id_of(view, bundle.server),
                token=bundle.token,
                work_per_second=work_of.get(bundle.name, 0.0),
            )
            for namespace in self.bundles
            for bundle in view.bundles_of(namespace)
        ]
        busiest = sorted(bundles, key=lambda row: (-row.work_per_second, row.bundle))[:_BUNDLES_SHOWN_MAX]
        return Picture(
            elapsed_s=now_s,
            brokers=_broker_rows(view, bundles, evenness_of(view, self.summaries).used),
            bundles=busiest,
            bundles_count=len(bundles),
            newest=self.chronicle.newest,
            calls_per_second=(tally.acknowledged - calls_before) / seconds,
            calls=tally.acknowledged,
            recent_pause_ms=tally.recent_pause_ms,
            longest_pause_ms=tally.longest_pause_ms,
            messages=None if self.pulsar is None else _messages(self.pulsar.tally, messages_before, seconds),
        )


def _messages(tally: MessageTally, before: int, seconds: float) -> MessagesShown:
    """Return what is shown of messages. `before` had a receipt `seconds` ago."""
    tally.sweep(time.monotonic_ns())
    shown = MessagesShown(
        per_second=(tally.receipted - before) / seconds,
        receipted=tally.receipted,
        recent_pause_ms=tally.recent_pause_ms,
        longest_pause_ms=tally.longest_pause_ms,
        longest_pause_in_kills_ms=tally.longest_pause_in_kills_ms,
        lost=tally.lost,
        lost_in_kills=tally.lost_in_kills,
        out_of_order=tally.out_of_order,
    )
    tally.recent_pause_ms = 0.0
    return shown


def _latest(loads: LoadBus) -> Sequence[Summary]:
    """Return the latest load reports; none while the load bus is unavailable."""
    try:
        return loads.latest()
    except LoadBusUnavailable:
        return ()


def _work_of_bundles(summaries: Sequence[Summary]) -> dict[str, float]:
    """Return calls plus messages in and out per second, by bundle. The newest load report wins."""
    work_of: dict[str, float] = {}
    for summary in sorted(summaries, key=lambda summary: summary.load.taken_ms):
        work_of.update({bundle.bundle: bundle.traffic.messages_per_second for bundle in summary.load.bundles or ()})
    return work_of


def _broker_rows(view: View, bundles: list[BundleRow], used: Mapping[str, float]) -> list[BrokerRow]:
    leader = view.leader()
    rows = []
    for broker in sorted(view.brokers.values(), key=lambda broker: broker.broker):
        owned = [row for row in bundles if row.owner == broker.broker]
        rows.append(
            BrokerRow(
                broker=broker.broker,
                status=broker.status,
                leads=leader is not None and leader.incarnation == broker.incarnation,
                incarnation=broker.incarnation,
                bundles=len(owned),
                work_per_second=sum(row.work_per_second for row in owned),
                used=used.get(broker.broker),
            )
        )
    return rows


def _id_of(view: View, incarnation: int | None) -> str:
    broker = None if incarnation is None else view.live.get(incarnation)
    return "-" if broker is None else broker.broker
