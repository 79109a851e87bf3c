"""Serve the overview of the cluster that the page shows, as one stream of server-sent events.

The path is `GET /v1/overview`. Its answer has sections, each a table of rows by key. With
`Accept: text/event-stream` it is a stream: `sections` first, then `changes`, in which a row of null
is gone. Changes that come faster than a page may get them are combined.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import orjson
from aiohttp import web

from equipoise.brokers.errors import invalid_request
from equipoise.brokers.http.answers import json_answer
from equipoise.brokers.http.bodies import integer_of, parameter_of
from equipoise.brokers.http.caller import identity_of, requester_of
from equipoise.brokers.http.events import EVENTS, HEARTBEAT, HEARTBEAT_MS, Write, event, streamed
from equipoise.brokers.http.page.files import PageFiles
from equipoise.brokers.http.page.history import History
from equipoise.brokers.http.page.overview import INTERVAL_NS, Overview
from equipoise.brokers.http.page.past import Moment, Past
from equipoise.brokers.http.page.plans import Plans
from equipoise.brokers.http.page.sections import Rows, Sections, changes
from equipoise.brokers.http.page.weighing import Budget
from equipoise.brokers.http.readiness import reading, ready_view
from equipoise.brokers.runtime.worker import Worker
from equipoise.brokers.security.rights import OPERATE, Place
from equipoise.channel.core.errors import Overloaded
from equipoise.channel.core.ranges import HASH_MAX, check_namespace
from equipoise.channel.core.records import INTEGER_MAX

PAGES_MAX: Final = 32
"""Open pages of one broker: each may cost 0.3 % of a core, and 20 KB/s."""

BYTES_PER_SECOND_MAX: Final = 20_000

STREAM_S_MAX: Final = 300
"""How long a stream lasts. The page opens the next one, which checks its credentials again."""

_NANOSECONDS: Final = 1_000_000_000


@dataclass(slots=True, kw_only=True)
class Focus:
    """The part of a namespace that a page looks at. `rows`: as they were made last."""

    namespace: str
    low: int
    high: int
    budget: Budget = field(default_factory=Budget)
    rows: Rows = field(default_factory=dict)


class LiveOverview:
    """The path of the overview of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._overview = Overview(worker)
        self._past = Past(worker, self._overview.numbers)
        self._pages = 0
        self._closing = asyncio.Event()

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the route."""
        return (web.get("/v1/overview", self.overview, allow_head=False),)

    async def close(self, _app: web.Application) -> None:
        """End all streams, and later ones at once."""
        self._overview.end()
        self._closing.set()

    async def overview(self, request: web.Request) -> web.StreamResponse:
        """Return what the page shows of the cluster: brokers, what is wrong, namespaces, moves,
        decisions. Its form may change with any version.

        With `namespace`, it also has the bundles of that namespace from `low` to `high`. With `at`,
        it is the overview of when the log ended at that offset.
        """
        ready_view(self._worker)
        focus = _focus_in(request)
        if parameter_of(request, "at") is not None:
            moment = await self._past.at(integer_of(request, "at", default=0, at_most=INTEGER_MAX))
            # Nobody can change the past.
            return json_answer(await _sections(moment, focus, {"may_operate": False, "name": None}))
        you = self._you(request)
        if EVENTS not in request.headers.get("Accept", ""):
            return json_answer(await _sections(self._overview, focus, you))
        if self._pages >= PAGES_MAX:
            raise Overloaded(
                what=f"the list of open pages at broker {self._worker.broker_id}", limit=PAGES_MAX
            )
        self._pages += 1
        try:
            return await streamed(
                request,
                lambda write: self._send(write, lambda: _sections(self._overview, focus, you)),
            )
        finally:
            self._pages -= 1

    def _you(self, request: web.Request) -> Rows:
        """Return whether the caller may operate, and the name that its records would have."""
        authorization, identity = self._worker.access.authorization, identity_of(request)
        may_operate = (
            authorization is None
            or identity is None
            or authorization.is_allowed(identity, OPERATE, Place())
        )
        return {
            "may_operate": may_operate,
            "name": requester_of(request) if may_operate else None,
        }

    async def _send(self, write: Write, look: Callable[[], Awaitable[Sections]]) -> None:
        began_ns = last_ns = time.monotonic_ns()
        sent: Sections = {}
        while not self._closing.is_set() and not self._worker.ended:
            sections = await look()
            changed, now_ns = changes(sent, sections), time.monotonic_ns()
            wait_s = INTERVAL_NS / _NANOSECONDS
            if not sent or changed:
                data = event("changes" if sent else "sections", orjson.dumps(changed))
                await write(data)
                wait_s = max(wait_s, len(data) / BYTES_PER_SECOND_MAX if sent else 0)
                sent, last_ns = sections, now_ns
            elif now_ns - last_ns >= HEARTBEAT_MS * 1_000_000:
                await write(HEARTBEAT)
                last_ns = now_ns
            if now_ns - began_ns >= STREAM_S_MAX * _NANOSECONDS:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._closing.wait()


def page_routes(worker: Worker, overview: LiveOverview) -> Sequence[web.RouteDef]:
    """Return the routes of the page: its files, what it follows, and what it asks for."""
    return (
        *PageFiles().routes(),
        *overview.routes(),
        *History(worker).routes(),
        *(reading(worker, route) for route in Plans(worker).routes()),
    )


async def _sections(source: Overview | Moment, focus: Focus | None, you: Rows) -> Sections:
    found = {**await source.sections(), "you": you}
    if focus is None:
        return found
    if focus.namespace not in source.view.namespaces:
        text = f"there is no namespace {focus.namespace}"
        return {**found, "focus": {"": {"namespace": focus.namespace, "problem": text}}}
    if not focus.budget.is_used_up:
        focus.rows = await source.focus(focus.namespace, focus.low, focus.high, focus.budget)
    return {**found, "focus": focus.rows}


def _focus_in(request: web.Request) -> Focus | None:
    name = parameter_of(request, "namespace")
    if name is None:
        return None
    low = integer_of(request, "low", default=0, at_most=HASH_MAX)
    high = integer_of(request, "high", default=HASH_MAX, at_most=HASH_MAX)
    if low >= high:
        raise invalid_request(what="the parameters low and high", problem="low must be below high")
    return Focus(namespace=check_namespace(name), low=low, high=high)
