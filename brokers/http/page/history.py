"""Serve the past of a bundle: its records, as `equipoise channel why` shows them, and its load over
the last hour.

The path is `GET /v1/bundle/{tenant}/{namespace}/{bundle}/history`. The bundle need not exist any
more.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from typing import Final, TypeVar

from aiohttp import web

from equipoise.brokers.http.answers import json_answer
from equipoise.brokers.http.bodies import bundle_of
from equipoise.brokers.http.page.sections import record_row, rounded
from equipoise.brokers.http.readiness import ready_view
from equipoise.brokers.load.bus import LOADS
from equipoise.brokers.load.documents import decode_load
from equipoise.brokers.operations.access import attached, entries
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.errors import LogClosed, PeerError
from equipoise.channel.core.ranges import parse_bundle
from equipoise.channel.inspect.story import Names, ending_of, story_of
from equipoise.channel.log.open_log import open_side_log
from equipoise.shedder.loads import tag_of, unpack

T = TypeVar("T")

RECORDS_MAX: Final = 100
"""How many records are shown: the newest."""

READ_MS_MAX: Final = 10_000
"""How long one history is read: about 100,000 records. `equipoise channel why` reads longer."""

_PIECE: Final = 200
"""Entries that are folded at once: about 5 ms. Then the broker's own work has as long."""

_MINUTE_MS: Final = 60_000
_MINUTES: Final = LOADS.kept_ms // _MINUTE_MS
_REPORTS_MAX: Final = 256
"""Reports that are looked at for each minute: all of 10 brokers, or one each of 100 and more."""


class History:
    """The path of one worker. One history is read at a time: each folds the log."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._lock = asyncio.Lock()

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the route."""
        return (web.get("/v1/bundle/{tenant}/{namespace}/{bundle}/history", self.history),)

    async def history(self, request: web.Request) -> web.Response:
        """Return the newest records about a bundle, or about what it was split from or merged of,
        in words, and its load in each minute of the last hour: Unix time, broker, share of a core.
        """
        ready_view(self._worker)
        bundle, log_url = bundle_of(request), self._worker.config.log_url
        async with self._lock:
            story = await asyncio.to_thread(_story, log_url, bundle)
            loads = await asyncio.to_thread(
                _loads, log_url, bundle, now_ms=self._worker.clock.now().wall_ms
            )
        return json_answer({**story, "loads": loads})


def _story(log_url: str, bundle: str) -> dict[str, object]:
    name, shown, number = parse_bundle(bundle), deque[object](maxlen=RECORDS_MAX), 0
    with attached(log_url, timeout_ms=READ_MS_MAX) as access:
        names, known_from = Names(access.view), access.view.offset
        with suppress(LogClosed):
            for folded, lines in story_of(name, access.reader, names, in_turns(entries(access))):
                number += 1
                shown.append({"offset": folded.offset, **record_row(folded, lines)})
        ending = ending_of(name, access.view, names)
    return {
        "known_from": max(0, known_from),
        "left_out": number - len(shown),
        "records": list(shown),
        "ending": ending,
    }


def in_turns(found: Iterable[T]) -> Iterator[T]:
    """Yield entries or records, and leave the interpreter to others for as long as the work on them
    takes.
    """
    began_ns = time.thread_time_ns()
    for place, entry in enumerate(found, start=1):
        yield entry
        if place % _PIECE == 0:
            time.sleep((time.thread_time_ns() - began_ns) / 1e9)
            began_ns = time.thread_time_ns()


def _loads(log_url: str, bundle: str, *, now_ms: int) -> list[tuple[int, str, float]]:
    """Return the load of a bundle in each minute that a report has it: Unix time, broker, share of
    a core.
    """
    tag, found = tag_of(bundle), list[tuple[int, str, float]]()
    with closing(open_side_log(log_url, LOADS)) as reports:
        for minute in range(_MINUTES, 0, -1):
            from_ms = now_ms - minute * _MINUTE_MS
            for kept in reports.read(reports.position_at(from_ms), limit=_REPORTS_MAX):
                if kept.at_ms >= from_ms + _MINUTE_MS:
                    break
                with suppress(PeerError):
                    load = decode_load(kept.value or b"")
                    cost = load.costs.get(bundle, unpack(load.column, load.cost).get(tag))
                    if cost is not None:
                        found.append((kept.at_ms, kept.key, rounded(cost)))
                        break
    return found
