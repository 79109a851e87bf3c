"""What the acts of the demo share: the cluster, its callers and clients, and the screen."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle
from random import Random
from typing import Final

import aiohttp
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from equipoise.brokers.balancing.moves import MoveKind, MoveResult, Moves
from equipoise.brokers.load.bus import LoadBus
from equipoise.brokers.local.local_cluster import LocalCluster
from equipoise.channel.core.entries import BrokerChanged
from equipoise.channel.core.errors import PeerError
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import BrokerRecord
from equipoise.channel.log.table_view import TableView
from equipoise.channel.system.clocks import Deadline
from equipoise.shedder.loads import Load
from equipoise.shedder.transfer import Spread
from tests.load import admin_requests
from tests.load.callers import CallerProcess
from tests.load.cluster import settle
from tests.pulsar.clients import Event
from tests.pulsar.fleet import Fleet

_DRAW_S: Final = 0.25
_LOOK_S: Final = 0.25


class Screen:
    """The output of the demo: lines, and on a terminal a live table below them."""

    def __init__(self) -> None:
        console = Console(highlight=False, markup=False)
        self.live = Live(console=console, auto_refresh=False, transient=True)
        self._began_s = time.monotonic()

    @property
    def now_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began_s

    def say(self, text: str) -> None:
        """Print what the demo does."""
        self.live.console.print(f"{self.now_s:6.1f} s  {text}", soft_wrap=True)

    def quote(self, lines: Iterable[str]) -> None:
        """Print the output of another program, indented."""
        self.live.console.print(*(" " * 10 + line for line in lines), sep="\n", soft_wrap=True)


@dataclass(slots=True, kw_only=True)
class Demo:
    """What an act may use. `bundles` is the number of bundles per namespace. Without Pulsar
    clients, `fleet` is None. `reports` are the latest load reports.
    """

    bundles: Mapping[str, int]
    cluster: LocalCluster
    table: TableView
    http: aiohttp.ClientSession
    callers: CallerProcess
    fleet: Fleet | None
    loads: LoadBus
    screen: Screen
    random: Random = field(default_factory=Random)
    reports: Sequence[Load] = ()
    moves: Moves = field(default_factory=Moves)
    done: Counter[MoveKind] = field(default_factory=Counter)
    cancelled: int = 0
    deaths: int = 0
    turns: Iterator[str] = field(init=False)

    def __post_init__(self) -> None:
        """Operations are applied to the namespaces in turn."""
        self.turns = cycle(self.bundles)

    def say(self, text: str) -> None:
        """Show what the demo does."""
        self.screen.say(text)

    # --- the cluster ---

    def folded(self, folded: Folded) -> None:
        """Count the moves and deaths of one record."""
        for move in self.moves.folded(folded, time.monotonic_ns()):
            self.done[move.kind] += move.result is MoveResult.DONE
            self.cancelled += move.result is MoveResult.CANCELLED
        # A broker that leaves is not counted as dead.
        if not (isinstance(folded.record, BrokerRecord) and folded.record.status == "left"):
            self.deaths += sum(
                isinstance(change, BrokerChanged) and change.dead is not None
                for change in folded.verdict.changes
            )

    @property
    def used(self) -> Mapping[str, float]:
        """The average use of each live broker's busiest resource, of those that report."""
        reported = {each.broker: each.average_use for each in self.reports}
        live = sorted(broker.broker for broker in self.table.view.live_brokers())
        return {broker: reported[broker] for broker in live if broker in reported}

    @property
    def deviation(self) -> float:
        """The deviation of the brokers' use, as Pulsar calculates it; 0 if one does not report."""
        used = self.used
        is_known = used and len(used) == len(self.table.view.live)
        return (Spread(used.values(), pulsar_exact=False).deviation or 0.0) if is_known else 0.0

    @property
    def use(self) -> str:
        """The use of the brokers in one line."""
        uses = ", ".join(f"{broker} {share:.0%}" for broker, share in self.used.items())
        return f"{uses}; deviation {self.deviation:.1%}" if uses else "no broker reports"

    def leader(self) -> int:
        """Return the number of the broker that leads."""
        leader = self.table.view.leader()
        return 0 if leader is None else self.cluster.broker_ids.index(leader.broker)

    def follower(self) -> int:
        """Return the number of a broker that does not lead."""
        return (self.leader() + 1) % len(self.cluster.broker_ids)

    def incarnation(self, number: int) -> int:
        """Return the newest incarnation of a broker."""
        return self.table.view.brokers[self.cluster.broker_ids[number]].incarnation

    async def settled(self, *, without: int | None = None) -> None:
        """Wait until live brokers other than incarnation `without` own every bundle. Raises
        `DeadlineExceeded`.
        """
        for namespace in self.bundles:
            await settle(self.cluster, self.table, namespace, without=without)

    async def move(self, kind: MoveKind) -> float | None:
        """Have the leader make a random move in the next namespace. Show any problem.

        Return the milliseconds that it took, None if it could not be done.
        """
        namespace = next(self.turns)
        move = admin_requests.choose(kind, self.table.view, namespace, self.random)
        if move is None:
            self.say(f"{kind} in {namespace}: no bundle allows it now")
            return None
        began_s = self.screen.now_s
        problem = await admin_requests.make(self.http, self.cluster.addresses[self.leader()], move)
        if problem is not None:
            self.say(f"{move.text}: {problem}")
            return None
        return (self.screen.now_s - began_s) * 1_000

    # --- the Pulsar clients ---

    @asynccontextmanager
    async def killing(self) -> AsyncIterator[None]:
        """Excuse messages that are lost in the body: non-persistent topics promise nothing when a
        broker is killed.
        """
        with ExitStack() as excuse:
            if self.fleet is not None:
                excuse.enter_context(self.fleet.excused())
            yield
            await asyncio.to_thread(excuse.close)  # It waits for messages.

    async def messages_flow(self) -> None:
        """Wait until messages sent from now on flow on every topic. Raises `ClientFailedError`."""
        if self.fleet is not None:
            await asyncio.to_thread(self.fleet.wait_flowing, time.monotonic_ns())

    # --- the screen ---

    async def keep_drawing(self) -> None:
        """Read load reports and draw the screen four times a second, until cancelled."""
        while True:
            try:
                self.reports = await asyncio.to_thread(self.loads.latest)
            except PeerError:
                self.reports = ()
            self.screen.live.update(self._picture(), refresh=True)
            await asyncio.sleep(_DRAW_S)

    def _picture(self) -> Group:
        view, used, leader = self.table.view, self.used, self.cluster.broker_ids[self.leader()]
        calls, now_s = self.callers.tally, self.screen.now_s
        producers = () if self.fleet is None else self.fleet.producers
        receipts = sum(producer.count(Event.RECEIPTED) for producer in producers)
        brokers = Table("broker", "status", "incarnation", "bundles", "in use", box=None)
        headline = (
            f"{now_s:6.1f} s  {calls.acknowledged} calls, longest pause"
            f" {calls.longest_pause_ms:.0f} ms; {receipts} messages with a receipt"
        )
        for broker in sorted(view.brokers.values(), key=lambda broker: broker.broker):
            brokers.add_row(
                broker.broker,
                f"{broker.status}, leads" if broker.broker == leader else broker.status,
                str(broker.incarnation),
                str(view.held_count(broker.incarnation)),
                f"{used[broker.broker]:.0%}" if broker.broker in used else "",
                style=None if broker.status == "up" else "yellow",
            )
        return Group(headline, brokers)


async def comes_true(condition: Callable[[], bool], timeout_ms: int) -> bool:
    """Wait for a condition. Return whether it came true in time; a busy machine may be too slow."""
    deadline = Deadline.after(timeout_ms=timeout_ms)
    # What is watched has no event.
    while not (holds := condition()) and deadline.remaining_ms():  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_S)
    return holds
