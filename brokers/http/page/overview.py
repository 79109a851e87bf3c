"""Keep one overview of the cluster for all open pages of a broker.

It is made when a page asks for it, within a share of a core. With many bundles it is made less
often, and the strips of namespaces are renewed one after the other.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from itertools import count
from typing import Final

from equipoise.brokers.balancing.controls import controls_document
from equipoise.brokers.balancing.decisions import Decision
from equipoise.brokers.balancing.planning import fresh
from equipoise.brokers.balancing.settings.settings_records import settings_in
from equipoise.brokers.decision_log import DecisionTail
from equipoise.brokers.http.page.problems import problem_rows, problems_at_broker
from equipoise.brokers.http.page.sections import (
    Activity,
    Rows,
    Sections,
    Seen,
    broker_rows,
    decision_row,
    moving_rows,
)
from equipoise.brokers.http.page.weighing import (
    HOT_MAX,
    SERVERS_MAX,
    SHARE,
    Budget,
    Namespace,
    Weights,
    focus_of,
    namespace_of,
    weights_of,
)
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.entries import BundleChanged, BundleEntry, Change, NamespaceChanged
from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.table import Resync
from equipoise.channel.core.view import View
from equipoise.shedder.loads import Load

INTERVAL_NS: Final = 1_000_000_000
"""How often the overview may change."""

NAMESPACES_MAX: Final = 64
"""How many namespaces a page gets: those with bundles that nobody owns, then those with the most
load."""

UNSETTLED_MAX: Final = 1_000
"""How many bundles on their way are looked at. All may be, while no program serves them."""

DECISIONS_MAX: Final = 30

_READ_NS: Final = 2_500_000_000  # As often as a broker may report.
_READ_NS_MAX: Final = 30_000_000_000


class Overview:
    """The overview of one broker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._activity = Activity()
        self._touched: dict[str, None] = {}  # Namespaces to weigh first.
        self._numbers: dict[str, int] = {}
        self._next_number = count(1)
        self._since_ms: Mapping[str, int] = {}
        self._free_since_ms: Mapping[str, int] = {}
        self._namespaces: dict[str, Namespace] = {}
        self._weights: Weights | None = None
        self._loads: Sequence[Load] = ()
        self._fresh: Mapping[str, Load] = {}  # As they were read: they are not read all the time.
        self._tail: DecisionTail | None = None
        self._decisions: deque[tuple[str, Rows]] = deque(maxlen=DECISIONS_MAX)
        self._last_round: Decision | None = None
        self._problem: tuple[str, str] | None = None
        self._due_ns = self._read_due_ns = time.monotonic_ns()
        self._budget = Budget()
        self._lock = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._sections: Sections = {}
        self.end = worker.listen(self._folded, resynced=self._resynced)

    @property
    def view(self) -> View:
        """The view of now."""
        return self._worker.view

    def numbers(self, view: View) -> Mapping[str, int]:
        """Return the numbers of brokers, by id, with those of a view. They stay the same."""
        for name in view.brokers:
            if name not in self._numbers:
                self._numbers[name] = min(next(self._next_number), SERVERS_MAX)
        return self._numbers

    async def sections(self) -> Sections:
        """Return the overview, which is made anew if it is old."""
        async with self._lock:  # All pages share one.
            if time.monotonic_ns() >= self._due_ns:
                await self._weigh(await self._newest_weights())
                began_ns = time.thread_time_ns()
                self._sections = self._made()
                took_ns = time.thread_time_ns() - began_ns
                self._budget.spent(took_ns)
                self._due_ns = time.monotonic_ns() + max(INTERVAL_NS, round(4 * took_ns / SHARE))
            return self._sections

    async def focus(self, namespace: str, low: int, high: int, budget: Budget) -> Rows:
        """Return the part of a namespace that a page looks at, and spend its budget."""
        return await focus_of(await self._newest_weights(), namespace, low, high, budget)

    # --- making it ---

    async def _newest_weights(self) -> Weights:
        """Return the weights by the newest load reports, which are read now and then."""
        async with self._reading:  # Each page asks, and one thread at a time may read.
            now_ns, view = time.monotonic_ns(), self._worker.view
            weights = self._weights
            if weights is None or weights.view is not view or now_ns >= self._read_due_ns:
                # Its time counts for the broker: each report is read once, with or without a page.
                await asyncio.to_thread(self._read)
                began_ns = time.thread_time_ns()
                settings = settings_in(view, self._worker.config.base_settings)
                now_ms = self._worker.clock.now().wall_ms
                self._fresh = fresh(self._loads, settings, now_ms=now_ms)
                self._weights = weights = weights_of(view, self.numbers(view), self._fresh)
                took_ns = time.thread_time_ns() - began_ns
                self._budget.spent(took_ns)
                # At most half of the budget.
                wait_ns = min(_READ_NS_MAX, max(_READ_NS, round(2 * took_ns / SHARE)))
                self._read_due_ns = now_ns + wait_ns
            return weights

    def _made(self) -> Sections:
        unsettled = self._worker.view.first_unsettled(UNSETTLED_MAX)
        now_ms = self._worker.clock.now().wall_ms
        self._since_ms = _since(self._since_ms, (each.name for each in unsettled), now_ms)
        self._free_since_ms = _since(self._free_since_ms, free_in(self._namespaces), now_ms)
        seen = self._seen()
        return {
            **sections_of(seen, self._namespaces, unsettled, self._activity),
            "cluster": cluster_rows(self._worker, seen, self._namespaces),
            "decisions": dict(self._decisions),
        }

    def _read(self) -> None:
        """Read the reports and decisions beside the log, in a thread."""
        try:
            self._loads = self._worker.load_bus.latest()
            self._tail = self._tail or DecisionTail(
                self._worker.config.log_url, at_most=DECISIONS_MAX
            )
            for position, decision in self._tail.read():
                self._decisions.append((f"{position:012}", decision_row(decision)))
                self._last_round = decision if decision.kind == "shed" else self._last_round
            self._problem = None
        except EquipoiseError as error:
            self._problem = str(error), "Check the log (Kafka, or the disk)."

    def _seen(self) -> Seen:
        worker, now = self._worker, self._worker.clock.now()
        settings = settings_in(worker.view, worker.config.base_settings)
        is_readable = worker.log_is_available
        return Seen(
            view=worker.view,
            now_ms=now.wall_ms,
            settings=settings,
            numbers=self._numbers,
            fresh=self._fresh,
            suspects=frozenset(
                each.broker
                for each in worker.view.live_brokers()
                if worker.agent.is_suspect(each, now, log_is_readable=is_readable)
            ),
            since_ms=self._since_ms,
            free={
                name: (number, self._free_since_ms.get(name, now.wall_ms))
                for name, number in free_in(self._namespaces).items()
            },
            last_round=self._last_round,
            at_broker=[*self._at_broker(now.wall_ms), *([self._problem] if self._problem else [])],
        )

    def _at_broker(self, now_ms: int) -> Sequence[tuple[str, str]]:
        worker, loss = self._worker, self._worker.channel_loss
        expires_s = worker.access.certificates.expires_s
        found = problems_at_broker(
            broker=worker.broker_id,
            lost_ms=None if loss is None else loss.lost_ms,
            problem="" if loss is None else str(loss.problem),
            lag=worker.lag_records,
            expires_ms=None if expires_s is None else int(1_000 * expires_s),
            now_ms=now_ms,
        )
        return [
            *found,
            *((problem, "Read what it logs.") for problem in worker.client_problems.values()),
        ]

    async def _weigh(self, weights: Weights) -> None:
        """Weigh the namespaces: all at first, then those that changed, then the others in turn."""
        names, is_first = weights.view.namespaces, not self._namespaces
        known = {name: each for name, each in self._namespaces.items() if name in names}
        absent = (name for name in names if name not in known)
        for name in list(dict.fromkeys((*absent, *self._touched, *known))):
            if name in self._namespaces and self._budget.is_used_up:
                break
            self._touched.pop(name, None)  # Before: what changes meanwhile counts again.
            if name in names:
                found = await namespace_of(weights, name, self._budget)
                known.pop(name, None)  # So that it is the last one next time.
                known[name] = found
        self._namespaces = known
        if is_first:  # To open a page costs one whole pass.
            self._budget = Budget()

    # --- listening ---

    def _folded(self, folded: Folded) -> None:
        clock = self._worker.clock
        self._activity.folded(
            folded, self._worker.view, now_ns=clock.boot_ns(), at_ms=clock.now().wall_ms
        )
        self._touch(folded.verdict.changes)

    def _resynced(self, resync: Resync) -> None:
        self._activity.moves.resynced(resync)
        self._touch(resync.changes)

    def _touch(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, BundleChanged):
                entry = change.after or change.before
                if entry is not None:
                    self._touched[entry.namespace] = None
            elif isinstance(change, NamespaceChanged):
                self._touched[change.name] = None


def sections_of(
    seen: Seen,
    namespaces: Mapping[str, Namespace],
    unsettled: Sequence[BundleEntry],
    activity: Activity,
) -> Sections:
    """Return the sections that a view, its loads and its records have. `unsettled`: bundles on
    their way.
    """
    hot = nlargest(HOT_MAX, (each for found in namespaces.values() for each in found.hot))
    return {
        **activity.sections(),
        "brokers": broker_rows(seen),
        "problems": problem_rows(seen, unsettled),
        "moving": moving_rows(seen, unsettled, activity.moves),
        "controls": controls_document(seen.view, seen.now_ms),
        "namespaces": _shown(namespaces),
        "hot": {
            f"{place:02}": {"bundle": name, "cost": float(f"{cost:.2g}"), "server": server}
            for place, (cost, name, server) in enumerate(hot)
        },
    }


def cluster_rows(worker: Worker, seen: Seen, namespaces: Mapping[str, Namespace]) -> Rows:
    """Return the row of the cluster, as the broker of `worker` answers."""
    view, leader = seen.view, seen.view.leader()
    return {
        "name": view.cluster,
        "log": worker.log_name,
        "log_id": worker.log_id,
        "answers": worker.broker_id,
        "leader": None if leader is None else leader.broker,
        "offset": view.offset,
        "at_ms": seen.now_ms,
        "bundles": len(view.bundles),
        "namespaces": len(view.namespaces),
        "moving": sum(each.moving for each in namespaces.values()),
        "free": sum(free_in(namespaces).values()),
        "policy": seen.settings.balancing.shedder,
    }


def free_in(namespaces: Mapping[str, Namespace]) -> Mapping[str, int]:
    """Return how many bundles have no owner, of the namespaces with any."""
    return {name: each.free for name, each in namespaces.items() if each.free}


def _shown(namespaces: Mapping[str, Namespace]) -> Rows:
    shown = nlargest(
        NAMESPACES_MAX, namespaces.items(), key=lambda pair: (pair[1].free, pair[1].cost)
    )
    return {name: each.row for name, each in shown}


def _since(before: Mapping[str, int], names: Iterable[str], now_ms: int) -> Mapping[str, int]:
    return {name: before.get(name, now_ms) for name in names}
