"""Make the overview of a past moment: fold the log up to an offset, from the nearest snapshot, and
add the load reports and decisions of then, as far as they are kept.

`equipoise channel at` shows the same view on the command line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from equipoise.brokers.balancing.planning import age_ms_max, fresh
from equipoise.brokers.balancing.settings.settings_records import settings_in
from equipoise.brokers.decision_log import newest_decisions
from equipoise.brokers.http.page.history import READ_MS_MAX, in_turns
from equipoise.brokers.http.page.overview import (
    DECISIONS_MAX,
    UNSETTLED_MAX,
    cluster_rows,
    free_in,
    sections_of,
)
from equipoise.brokers.http.page.sections import Activity, Rows, Sections, Seen, decision_row
from equipoise.brokers.http.page.weighing import (
    Budget,
    Weights,
    focus_of,
    namespace_of,
    weights_of,
)
from equipoise.brokers.load.bus import loads_at
from equipoise.brokers.operations.access import attached, folded_until
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.codec import decode
from equipoise.channel.core.log import Check, Log, Progress
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.records import AnyRecord, Unreadable
from equipoise.channel.core.view import View
from equipoise.channel.snapshots.restore import earliest, restored

KEPT_S: Final = 60.0
"""How long the last moment stays in memory, so that a page can look closer at it."""

_MS: Final = 1_000_000  # Nanoseconds.


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The overview of one moment, as `Overview` is that of now."""

    view: View
    weights: Weights
    made: Sections

    async def sections(self) -> Sections:
        """Return the overview."""
        await asyncio.sleep(0)
        return self.made

    async def focus(self, namespace: str, low: int, high: int, budget: Budget) -> Rows:
        """Return a part of a namespace."""
        return await focus_of(self.weights, namespace, low, high, budget)


class Past:
    """Folds the log for one caller at a time, and keeps one moment: each is a whole view."""

    def __init__(self, worker: Worker, numbers: Callable[[View], Mapping[str, int]]) -> None:
        """`numbers`: see `Overview.numbers`."""
        self._worker = worker
        self._numbers = numbers
        self._lock = asyncio.Lock()
        self._kept: dict[int, Moment] = {}
        self._drop: asyncio.TimerHandle | None = None

    async def at(self, offset: int) -> Moment:
        """Return the moment at a logical offset. Raises `CallerError` if the log does not have it,
        and what `attached` and `folded_until` raise.
        """
        async with self._lock:
            if offset not in self._kept:
                self._kept.clear()  # Before: two would take twice the memory.
                self._kept[offset] = await self._made(offset)
            if self._drop is not None:
                self._drop.cancel()
            self._drop = asyncio.get_running_loop().call_later(KEPT_S, self._kept.clear)
            return self._kept[offset]

    async def _made(self, offset: int) -> Moment:
        seen, activity, about = await asyncio.to_thread(_folded, self._worker.config, offset)
        view = seen.view
        weights = weights_of(view, self._numbers(view), seen.fresh)
        namespaces = {name: await namespace_of(weights, name, Budget()) for name in view.namespaces}
        # For how long bundles have had no owner is not known.
        free = {name: (number, 0) for name, number in free_in(namespaces).items()}
        seen = replace(seen, numbers=weights.numbers, free=free)
        unsettled = view.first_unsettled(UNSETTLED_MAX)
        made = {
            **sections_of(seen, namespaces, unsettled, activity),
            **about,
            "cluster": {**cluster_rows(self._worker, seen, namespaces), **about["cluster"]},
        }
        return Moment(view=view, weights=weights, made=made)


def _folded(config: WorkerConfig, offset: int) -> tuple[Seen, Activity, Sections]:
    """Return what is seen at an offset, what the records say that were read for it, and further
    rows: the decisions, and where those records and the log begin.
    """
    activity, at_ms = Activity(), 0
    with attached(
        config.log_url, timeout_ms=READ_MS_MAX, begin=partial(_nearest, offset=offset)
    ) as access:
        cluster: dict[str, object] = {"known_from": max(0, access.view.offset)}
        for folded in in_turns(folded_until(access, offset, moment=f"offset {offset}")):
            at_ms = _time_of(folded.record) or at_ms
            activity.folded(folded, access.view, now_ns=at_ms * _MS, at_ms=at_ms)
        view, cluster["log_id"] = access.view, access.log.identity
        oldest = access.log.read(access.log.start(), limit=1)
    # A log whose records were all compacted begins at its snapshot.
    first_offset, first_ms = offset, at_ms
    for entry in oldest:
        first_offset, first_ms = entry.offset + view.base, _time_of(decode(entry.data))
    cluster["first"] = {"offset": first_offset, "at_ms": first_ms}
    at_ms = at_ms or first_ms
    settings = settings_in(view, config.base_settings)
    loads = loads_at(config.log_url, at_ms=at_ms, age_ms_max=age_ms_max(settings))
    decisions = newest_decisions(config.log_url, DECISIONS_MAX, until_ms=at_ms)
    seen = Seen(
        view=view,
        now_ms=at_ms,
        settings=settings,
        fresh=fresh(loads, settings, now_ms=at_ms),
        since_ms={name: at_ns // _MS for name, at_ns in activity.moves.begun_ns().items()},
        last_round=next((each for each in decisions[::-1] if each.kind == "shed"), None),
        knows_loads=bool(loads),
    )
    rows = {f"{place:02}": decision_row(each) for place, each in enumerate(decisions)}
    return seen, activity, {"cluster": cluster, "decisions": rows}


def _nearest(log: Log, *, offset: int, check: Check, progress: Progress) -> Reader:
    """Return a reader from the log's snapshot if that is below an offset, else from its start."""
    reader = restored(log, check=check, progress=progress)
    if reader.view.offset < offset:
        return reader
    return earliest(log, check=check, progress=progress)


def _time_of(record: AnyRecord | Unreadable) -> int:
    return 0 if isinstance(record, Unreadable) else record.timestamp_ms
