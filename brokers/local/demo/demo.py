"""Hold what the steps of the demo share: cluster, callers, Pulsar clients, channel and screen."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from random import Random
from typing import Final

import aiohttp

from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.local.demo import operator
from equipoise.brokers.local.demo.callers import CallerProcess
from equipoise.brokers.local.demo.figures import (
    ChannelCounts,
    Utilization,
    utilization,
    work_of_bundles,
)
from equipoise.brokers.local.demo.pulsar_clients import PulsarClients
from equipoise.brokers.local.demo.screen import BrokerRow, BundleRow, Picture, Screen
from equipoise.brokers.local.local_cluster import LocalCluster
from equipoise.channel.core.errors import PeerError
from equipoise.channel.log.table_view import TableView
from equipoise.channel.system.deadline import Deadline
from equipoise.shedder.load_reports import LoadBus, Summary

COUNTERS: Final = "demo/counters"
MESSAGES: Final = "demo/messages"

# A dead or draining broker loses its bundles within its lease and grace period, 3.5 s. A busy
# machine takes longer.
_SETTLED_MS: Final = 30_000

_DRAW_S: Final = 0.25
_LOOK_S: Final = 0.25
_BUNDLES_SHOWN_MAX: Final = 8

# Rates are averages of the last two seconds.
_RATE_PICTURES: Final = 8


@dataclass(slots=True, kw_only=True)
class Demo:
    """Everything that a step may use. `began_s` is the start of the demo by the loop's clock.

    `bundles` is the number of bundles per namespace. `pulsar` is None without Pulsar clients.
    `summaries` are the load reports of the latest picture.
    """

    bundles: Mapping[str, int]
    cluster: LocalCluster
    table: TableView
    http: aiohttp.ClientSession
    callers: CallerProcess
    pulsar: PulsarClients | None
    loads: LoadBus
    counts: ChannelCounts
    screen: Screen
    random: Random
    began_s: float
    summaries: Sequence[Summary] = ()
    counted_at: deque[tuple[float, int, int]] = field(
        default_factory=lambda: deque(maxlen=_RATE_PICTURES)
    )
    turns: Iterator[str] = field(init=False)

    def __post_init__(self) -> None:
        """Operations are applied to the namespaces in turn."""
        self.turns = cycle(self.bundles)

    @property
    def now_s(self) -> float:
        """Seconds since the beginning."""
        return asyncio.get_running_loop().time() - self.began_s

    @property
    def utilization(self) -> Utilization:
        """The use of the brokers by their latest load reports."""
        return utilization(self.table.view, self.summaries)

    def say(self, text: str) -> None:
        """Show what the demo does."""
        self.screen.say(self.now_s, text)

    async def settled(self, *, without: int | None = None) -> None:
        """Wait until live brokers other than incarnation `without` own every bundle.

        Raises `DeadlineExceeded` after `_SETTLED_MS`.
        """
        for namespace in self.bundles:
            await operator.settled(self.table, namespace, without=without, timeout_ms=_SETTLED_MS)

    async def move(self, kind: MoveKind) -> float | None:
        """Have a random live broker make a move in the next namespace. Print any problem.

        Return the milliseconds that it took, None if it could not be done.
        """
        view = self.table.view
        namespace = next(self.turns)
        move = operator.choose(kind, view, namespace, self.random)
        if move is None:
            self.say(f"{kind} in {namespace}: no bundle allows it now")
            return None
        began_s = self.now_s
        addresses = [
            address
            for broker in view.live_brokers()
            if (address := broker.joined.addresses.get("http")) is not None
        ]
        problem = await operator.make(self.http, self.random.choice(addresses), move)
        if problem is not None:
            self.say(f"{move.text}: {problem}")
            return None
        return (self.now_s - began_s) * 1_000

    @contextmanager
    def killing(self) -> Iterator[None]:
        """Attribute message losses and pauses in this context to a kill."""
        if self.pulsar is not None:
            self.pulsar.tally.kill_begins(time.monotonic_ns())
        yield
        if self.pulsar is not None:
            self.pulsar.tally.kill_ends(time.monotonic_ns())

    async def messages_flow(self) -> None:
        """Wait until messages flow on every topic. Raises `DeadlineExceeded` after
        `_SETTLED_MS`.
        """
        if self.pulsar is not None:
            await self.pulsar.messages_flow(timeout_ms=_SETTLED_MS)

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
            try:
                self.summaries = await asyncio.to_thread(self.loads.latest)
            except PeerError:
                self.summaries = ()
            self.screen.show(self._picture())
            await asyncio.sleep(_DRAW_S)

    def _picture(self) -> Picture:
        view, leader, work_of = (
            self.table.view,
            self.table.view.leader(),
            work_of_bundles(self.summaries),
        )
        id_of = {incarnation: broker.broker for incarnation, broker in view.live.items()}
        bundles = [
            BundleRow(
                bundle=bundle.name,
                phase=bundle.phase,
                owner=id_of.get(bundle.server or 0, "-"),
                token=bundle.token,
                work_per_second=work_of.get(bundle.name, 0.0),
            )
            for namespace in self.bundles
            for bundle in view.bundles_of(namespace)
        ]
        used = self.utilization.used
        brokers = []
        for broker in sorted(view.brokers.values(), key=lambda broker: broker.broker):
            owned = [row for row in bundles if row.owner == broker.broker]
            brokers.append(
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
        return Picture(
            elapsed_s=self.now_s,
            headlines=self._headlines(
                alive=sum(row.status == "up" for row in brokers), bundles=len(bundles)
            ),
            brokers=brokers,
            bundles=sorted(bundles, key=lambda row: (-row.work_per_second, row.bundle))[
                :_BUNDLES_SHOWN_MAX
            ],
            bundles_count=len(bundles),
            newest=self.counts.newest,
        )

    def _headlines(self, *, alive: int, bundles: int) -> Sequence[str]:
        """Sum up calls and messages."""
        calls, messages = self.callers.tally, None if self.pulsar is None else self.pulsar.tally
        self.counted_at.append(
            (self.now_s, calls.acknowledged, 0 if messages is None else messages.receipted)
        )
        since_s, calls_before, messages_before = self.counted_at[0]
        seconds = max(self.now_s - since_s, _DRAW_S)
        headline = (
            f"{alive} brokers up, {bundles} bundles; counter:"
            f" {(calls.acknowledged - calls_before) / seconds:.0f} calls/s, {calls.acknowledged}"
            f" calls; pause now {calls.recent_pause_ms:.0f} ms, longest"
            f" {calls.longest_pause_ms:.0f} ms"
        )
        if messages is None:
            return [headline]
        messages.note_waiting(time.monotonic_ns())
        messages_line = (
            f"Pulsar: {(messages.receipted - messages_before) / seconds:.0f} messages/s,"
            f" {messages.receipted} messages; pause now {messages.recent_pause_ms:.0f} ms, longest"
            f" {messages.longest_pause_ms:.0f} ms, in kill -9"
            f" {messages.longest_pause_in_kills_ms:.0f} ms"
        )
        messages.recent_pause_ms = 0.0
        return [headline, messages_line]


async def comes_true(condition: Callable[[], bool], timeout_ms: int) -> bool:
    """Wait for a condition. Return whether it came true in time; a busy machine may be too slow."""
    deadline = Deadline.after(timeout_ms=timeout_ms)
    # What is watched has no event.
    while not (holds := condition()) and deadline.remaining_ms():  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_S)
    return holds
