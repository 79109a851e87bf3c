"""The stage of the demo: a cluster, its callers and Pulsar clients, its channel, and the screen, put together.

May live here: what acts need of the parts, and the picture that is drawn of them. What happens on the stage is in `acts`.
"""

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

# A broker that is dead or drains is looked after within its lease and margin, 3.5 s; on a busy machine that takes longer.
_SETTLED_MS: Final = 30_000

_DRAW_S: Final = 0.25
_BUNDLES_SHOWN_MAX: Final = 8

# Rates are those of the last two seconds.
_RATE_PICTURES: Final = 8


@dataclass(slots=True, kw_only=True)
class Stage:
    """Everything that an act may use. `now_s` counts from `began_s`, both of the loop's clock.

    `bundles` says how many bundles each namespace gets. `pulsar` is None where there are no Pulsar clients. `summaries` is what
    brokers said of their load when the picture was drawn last.
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
        """Deeds are done to one namespace after the other."""
        self.turns = cycle(self.bundles)

    @property
    def now_s(self) -> float:
        """Seconds since the beginning."""
        return asyncio.get_running_loop().time() - self.began_s

    def say(self, text: str) -> None:
        """Tell what is done."""
        self.screen.say(self.now_s, text)

    def quote(self, lines: Sequence[str]) -> None:
        """Show what another program has printed."""
        self.screen.quote(lines)

    # --- what acts do ---

    async def settled(self, *, without: int | None = None) -> None:
        """Wait until every bundle is owned, by none but live brokers, and by none of incarnation `without`.

        Raises `DeadlineExceeded` after `_SETTLED_MS`.
        """
        for namespace in self.bundles:
            await operator.settled(self.table, namespace, without=without, timeout_ms=_SETTLED_MS)

    async def renewed(self, broker: str, last: int, deadline: Deadline) -> None:
        """Wait until a broker has a record on the channel behind offset `last`: it is in touch again, or known to be dead.

        Raises `DeadlineExceeded`.
        """
        while (entry := self.table.view.brokers.get(broker)) is not None and entry.last <= last:
            deadline.check(f"a word of {broker}")
            await asyncio.sleep(_DRAW_S)

    async def move(self, deed: Deed) -> None:
        """Have some live broker do a deed somewhere in the namespace whose turn it is, and say what came of it."""
        view = self.table.view
        namespace = next(self.turns)
        move = operator.choose(deed, view, namespace, self.random)
        if move is None:
            self.say(f"{deed} in {namespace}: there is nothing that could be done")
            return
        began_s = self.now_s
        addresses = [address for broker in view.live_brokers() if (address := broker.joined.addresses.get("http")) is not None]
        problem = await operator.make(self.http, self.random.choice(addresses), move)
        took_ms = (self.now_s - began_s) * 1_000
        self.say(f"{move.text}: {problem or f'done in {took_ms:.0f} ms'}")

    @contextmanager
    def killing(self) -> Iterator[None]:
        """While this lasts, what becomes of messages is put down to a kill."""
        if self.pulsar is None:
            yield
            return
        self.pulsar.tally.kill_begins(time.monotonic_ns())
        yield
        self.pulsar.tally.kill_ends(time.monotonic_ns())

    async def flow_again(self) -> None:
        """Wait until messages come through on every topic. Raises `DeadlineExceeded` after `_SETTLED_MS`."""
        if self.pulsar is not None:
            await self.pulsar.flow_again(timeout_ms=_SETTLED_MS)

    def number_of_leader(self) -> int:
        """Which broker of the cluster leads."""
        leader = self.table.view.leader()
        return 0 if leader is None else self.cluster.broker_ids.index(leader.broker)

    def incarnation(self, number: int) -> int:
        """The newest incarnation of a broker of the cluster."""
        return self.table.view.brokers[self.cluster.broker_ids[number]].incarnation

    # --- what the screen shows ---

    async def keep_drawing(self) -> None:
        """Draw the picture, four times a second, until cancelled."""
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
    """What is shown of messages, of which `before` were receipted `seconds` ago."""
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
    """What brokers say of themselves; nothing while the load bus is away."""
    try:
        return loads.latest()
    except LoadBusUnavailable:
        return ()


def _work_of_bundles(summaries: Sequence[Summary]) -> dict[str, float]:
    """Calls, and messages in and out, per second of each bundle that a broker names in its load report; the newest word counts."""
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
