"""Serve the assignment of a namespace as a table, by long poll, or as a stream of changes.

The path is `GET /v1/assignment/{tenant}/{namespace}`. Its answers are hints, like every lookup: the
owner's lease decides whether work may be done. A client that reaches the wrong broker asks again.

* Table: `{"offset": N, "unserved": null, "bundles": [row, ...]}` in order of the hash space.
  `AssignmentRow` defines a row. `unserved` is why no broker can get a bundle of the namespace.
* Long poll: with `after=N` the table is sent once the namespace has changed after that offset, or
  204 at the timeout.
* Stream: with `Accept: text/event-stream`, server-sent events with their offset as id:
  * `table`: first, also after a reconnect.
  * `change`: `{"offset", "unserved", "bundles": [row, ...], "gone": [name, ...]}`. Changes that
    come faster than a client reads are combined.
  * `deleted`: the namespace was deleted.

Full documents of the view's entries, for other paths, are made here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypedDict

import orjson
from aiohttp import web

from equipoise.brokers.balancing.controls import why_frozen
from equipoise.brokers.balancing.named import namespace_named, patterns_of, server_of
from equipoise.brokers.balancing.planning import broker_id_of
from equipoise.brokers.balancing.policies import Maintenance, domain_of, domains_in
from equipoise.brokers.balancing.quarantine import why_quarantined
from equipoise.brokers.http.answers import JSON, done
from equipoise.brokers.http.bodies import integer_of, namespace_of
from equipoise.brokers.http.events import (
    EVENTS,
    HEARTBEAT,
    HEARTBEAT_MS,
    Write,
    event,
    streamed,
)
from equipoise.brokers.http.readiness import ready_view
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.entries import (
    BrokerEntry,
    BundleChanged,
    BundleEntry,
    Change,
    NamespaceChanged,
)
from equipoise.channel.core.errors import Overloaded
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import INTEGER_MAX
from equipoise.channel.core.table import Resync
from equipoise.channel.core.view import View
from equipoise.channel.inspect.story import why_unserved
from equipoise.channel.log.listeners import Listen
from equipoise.channel.system.clocks import Deadline


class AssignmentRow(TypedDict):
    """The broker that serves a bundle. `broker` is None while there is none, or during a handover;
    the next change has it.
    """

    bundle: str
    low: int
    high: int
    state: str
    broker: str | None
    addresses: dict[str, str]
    token: int


def assignment_row(view: View, bundle: BundleEntry) -> AssignmentRow:
    """Return the row of a bundle, as far as the view knows its broker."""
    server = server_of(view, bundle)
    return {
        "bundle": bundle.name,
        "low": bundle.low,
        "high": bundle.high,
        "state": bundle.state,
        "broker": None if server is None else server.broker,
        "addresses": {} if server is None else dict(server.joined.addresses),
        "token": bundle.token,
    }


def bundle_document(view: View, bundle: BundleEntry) -> dict[str, object]:
    """Return everything that the view holds of a bundle. `owner` and `source` are broker ids;
    separate fields have their incarnations.

    `quarantine` and `frozen` are the reasons of these controls, `unserved` is why no broker can get
    it.
    """
    return {
        "offset": view.offset,
        "bundle": bundle.name,
        "namespace": bundle.namespace,
        "low": bundle.low,
        "high": bundle.high,
        "state": bundle.state,
        "phase": bundle.phase,
        "owner": broker_id_of(view, bundle.owner),
        "owner_incarnation": bundle.owner,
        "source": broker_id_of(view, bundle.source),
        "source_incarnation": bundle.source,
        "token": bundle.token,
        "last": bundle.last,
        "algorithm": bundle.algorithm,
        "positions": bundle.positions,
        "quarantine": why_quarantined(view, bundle.name),
        "unserved": why_unserved(view, bundle.namespace) if bundle.phase == "free" else None,
        "frozen": why_frozen(view, bundle.namespace),
    }


def broker_document(
    view: View, broker: BrokerEntry, *, suspect: bool, maintenance: Maintenance | None
) -> dict[str, object]:
    """Return everything that the view holds of a broker, dead or alive. `suspect`: its renewal is
    late for this reader.
    """
    joined, leader = broker.joined, view.leader()
    held, domain = view.held_by(broker.incarnation), domain_of(broker, domains_in(view))
    return {
        "broker": broker.broker,
        "incarnation": broker.incarnation,
        "status": broker.status,
        "leader": leader is not None and leader.incarnation == broker.incarnation,
        "suspect": suspect,
        "maintenance": None if maintenance is None else maintenance.reason,
        "last": broker.last,
        "bundles": sum(
            1 for bundle in held if bundle.owner == broker.incarnation and bundle.phase == "owned"
        ),
        "addresses": dict(joined.addresses),
        "capacity": joined.capacity,
        "failure_domain": domain.name,
        "failure_domain_source": domain.source,
        "labels": dict(joined.labels),
        "namespaces": patterns_of(broker),
        "version": joined.version,
        "supported_level": joined.supported_level,
        "lease_ms": joined.lease_ms,
        "renew_ms": joined.renew_ms,
        "grace_ms": joined.grace_ms,
    }


POLL_MS_DEFAULT: Final = 30_000
POLL_MS_MAX: Final = 300_000
"""Limit of the duration of a poll. Proxies cut connections that are silent for longer than five
minutes, mostly sooner."""

TABLES_REMEMBERED_MAX: Final = 64
"""Limit of cached tables. One of 1,000 bundles takes 200 KB, so 13 MB in all."""

FOLLOWERS_MAX: Final = 10_000
"""Limit of concurrent long polls and streams. Each is a socket and about 20 KiB, so 200 MB in
all."""


class Follower:
    """A follower of a namespace. `changed` holds the names of its bundles that changed and were not
    taken yet.
    """

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self._changed: dict[str, None] = {}

    def touch(self, bundle: str | None) -> None:
        """Note that a bundle changed, or the namespace itself (None)."""
        if bundle is not None:
            self._changed[bundle] = None
        self._woken.set()

    def take(self) -> list[str]:
        """Return the names of the bundles that changed since the last call."""
        changed = list(self._changed)
        self._changed.clear()
        self._woken.clear()
        return changed

    async def wait(self, *, timeout_ms: int) -> bool:
        """Wait until something changed, for at most `timeout_ms`. Return whether something did."""
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                await self._woken.wait()
        except TimeoutError:
            return False
        return True


class AssignmentFeed:
    """Knows the offset at which each namespace last changed, and wakes its followers. `is_closed`
    means that followers must end.
    """

    def __init__(self, listen: Listen, *, broker: str) -> None:
        """`listen` is the worker's. `broker` is its id, for messages."""
        self._broker = broker
        self._offsets: dict[str, int] = {}
        self._followers: dict[str, dict[Follower, None]] = {}
        self._count = 0
        self._end = listen(self._folded, resynced=self._resynced)
        self.is_closed = False

    def offset_of(self, view: View, namespace: str) -> int:
        """Return the offset at which a namespace of `view`, or one of its bundles, last changed."""
        offset = self._offsets.get(namespace)
        if offset is None:
            lasts = (
                view.namespaces[namespace].last,
                *(bundle.last for bundle in view.bundles_of(namespace)),
            )
            offset = self._offsets[namespace] = max(lasts)
        return offset

    @contextmanager
    def follower(self, namespace: str) -> Iterator[Follower]:
        """Follow a namespace. Raises `Overloaded` if there are too many followers."""
        if self._count >= FOLLOWERS_MAX:
            raise Overloaded(
                what=f"the list of assignment followers at broker {self._broker}",
                limit=FOLLOWERS_MAX,
            )
        follower = Follower()
        self._count += 1
        followers = self._followers.setdefault(namespace, {})
        followers[follower] = None
        try:
            yield follower
        finally:
            self._count -= 1
            del followers[follower]
            if not followers:
                self._followers.pop(namespace, None)

    def close(self) -> None:
        """Stop listening, and wake all followers."""
        self.is_closed = True
        self._end()
        for followers in self._followers.values():
            for follower in followers:
                follower.touch(None)

    def _folded(self, folded: Folded) -> None:
        self._note(folded.verdict.changes, folded.offset)

    def _resynced(self, resync: Resync) -> None:
        """Wake the followers after a resync, so that they take the newest state. Offsets are looked
        up again.
        """
        self._offsets.clear()
        self._note(resync.changes, None)

    def _note(self, changes: Iterable[Change], offset: int | None) -> None:
        for change in changes:
            if not isinstance(change, BundleChanged | NamespaceChanged):
                continue
            entry, bundle = change.after or change.before, None
            assert entry is not None, "a change has a side"
            namespace = entry.name
            if isinstance(entry, BundleEntry):
                namespace, bundle = entry.namespace, entry.name
            if offset is not None:
                self._offsets[namespace] = offset
            for follower in self._followers.get(namespace, ()):
                follower.touch(bundle)
            if isinstance(change, NamespaceChanged) and change.after is None:
                self._offsets.pop(namespace, None)


class Assignment:
    """The assignment paths of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._feed = AssignmentFeed(worker.listen, broker=worker.broker_id)
        # The latest encoded table per namespace: many clients request the same one at the same
        # moment.
        self._tables: dict[str, tuple[int, str | None, bytes]] = {}

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the route."""
        # No HEAD: a wait for a change is useless without the change.
        return (web.get("/v1/assignment/{tenant}/{namespace}", self.assignment, allow_head=False),)

    async def close(self, _app: web.Application) -> None:
        """End all polls and streams."""
        self._feed.close()

    async def assignment(self, request: web.Request) -> web.StreamResponse:
        """Return who serves each bundle of a namespace, as a table, by long poll, or as a stream of
        changes.
        """
        namespace = namespace_named(ready_view(self._worker), namespace_of(request)).name
        if EVENTS in request.headers.get("Accept", ""):
            return await self._stream(request, namespace)
        after = integer_of(request, "after", default=-1, at_most=INTEGER_MAX)
        timeout_ms = integer_of(request, "timeout_ms", default=POLL_MS_DEFAULT, at_most=POLL_MS_MAX)
        if not await self._changed_after(
            request, namespace, after, Deadline.after(timeout_ms=timeout_ms)
        ):
            return done()
        return web.Response(body=self._table(namespace), content_type=JSON)

    async def _changed_after(
        self, request: web.Request, namespace: str, after: int, deadline: Deadline
    ) -> bool:
        """Wait until a namespace has changed after an offset. Return whether it has by the
        deadline.

        Stop when the client has disconnected. aiohttp does not notify, so this checks the
        connection from time to time.
        """
        with self._feed.follower(namespace) as follower:
            while not self._feed.is_closed:
                view = self._view_with(namespace)
                if self._feed.offset_of(view, namespace) > after:
                    return True
                if not deadline.remaining_ms() or request.transport is None:
                    return False
                await follower.wait(timeout_ms=min(deadline.remaining_ms(), HEARTBEAT_MS))
                follower.take()
        return False

    def _view_with(self, namespace: str) -> View:
        """Return the view if it has the namespace. Raises `UnknownNamespace`."""
        namespace_named(self._worker.view, namespace)
        return self._worker.view

    def _table(self, namespace: str) -> bytes:
        view = self._view_with(namespace)
        offset = self._feed.offset_of(view, namespace)
        unserved = why_unserved(view, namespace)
        before = self._tables.get(namespace)
        if before is not None and before[:2] == (offset, unserved):
            return before[2]
        rows = [assignment_row(view, bundle) for bundle in view.bundles_of(namespace)]
        table = orjson.dumps({"offset": offset, "unserved": unserved, "bundles": rows})
        if len(self._tables) >= TABLES_REMEMBERED_MAX:
            self._tables.clear()
        self._tables[namespace] = (offset, unserved, table)
        return table

    async def _stream(self, request: web.Request, namespace: str) -> web.StreamResponse:
        with self._feed.follower(namespace) as follower:
            return await streamed(
                request, lambda write: self._send_changes(write, namespace, follower)
            )

    async def _send_changes(self, write: Write, namespace: str, follower: Follower) -> None:
        has_table, sent = False, None
        while not self._feed.is_closed:
            changed, view = follower.take(), self._worker.view
            if namespace not in view.namespaces:
                await write(event("deleted", b"{}", view.offset))
                return
            offset = self._feed.offset_of(view, namespace)
            unserved = why_unserved(view, namespace)
            if not has_table:
                await write(event("table", self._table(namespace), offset))
                has_table = True
            # A program that starts or ends is no change of the namespace: the next event says it.
            elif changed or unserved != sent:
                data = _change(view, offset, unserved, changed)
                await write(event("change", data, offset))
            else:
                await write(HEARTBEAT)
            sent = unserved
            await follower.wait(timeout_ms=HEARTBEAT_MS)


def _change(view: View, offset: int, unserved: str | None, changed: Sequence[str]) -> bytes:
    there = [bundle for name in changed if (bundle := view.bundles.get(name)) is not None]
    gone = [name for name in changed if name not in view.bundles]
    return orjson.dumps(
        {
            "offset": offset,
            "unserved": unserved,
            "bundles": [assignment_row(view, bundle) for bundle in there],
            "gone": gone,
        }
    )
