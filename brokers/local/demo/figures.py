"""Calculate what the demo shows of the channel and of the brokers' load reports."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from equipoise.brokers.balancing.moves import MoveKind, MoveResult, Moves
from equipoise.channel.core.difference import Resync
from equipoise.channel.core.entries import BrokerChanged
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import BrokerRecord, Renewed
from equipoise.channel.core.view import View
from equipoise.channel.inspect.story import Names, describe
from equipoise.shedder.load_reports import Summary
from equipoise.shedder.loads import BundleTraffic
from equipoise.shedder.spread import Spread

_NEWEST_MAX: Final = 8


class ChannelCounts:
    """Counts of moves and deaths, and the newest records as text. Pass every record to `folded`,
    with the view just after it.

    Call `resynced` where records were skipped; their events are not counted.
    """

    def __init__(self, look: Callable[[], View]) -> None:
        """`look` returns the current view."""
        self._look = look
        self._names = Names(look(), short=True)
        self._moves = Moves()
        self.newest: deque[str] = deque(maxlen=_NEWEST_MAX)
        self.done: Counter[MoveKind] = Counter()
        self.cancelled = 0
        self.deaths = 0

    def folded(self, folded: Folded) -> None:
        """Count one record. Keep it as text, unless it is a renewal."""
        self._names.learn(folded)
        for move in self._moves.folded(folded, time.monotonic_ns()):
            self.done[move.kind] += move.result is MoveResult.DONE
            self.cancelled += move.result is MoveResult.CANCELLED
        left = isinstance(folded.record, BrokerRecord) and folded.record.status == "left"
        if not left:  # A broker that leaves is not counted as dead.
            self.deaths += sum(
                isinstance(change, BrokerChanged) and change.dead is not None
                for change in folded.verdict.changes
            )
        if not (isinstance(folded.record, Renewed) and folded.verdict.accepted):
            self.newest.append(f"{folded.offset}  {describe(folded, self._look(), self._names)[0]}")

    def resynced(self, resync: Resync) -> None:
        """Continue after skipped records."""
        self._names = Names(self._look(), short=True)
        self._moves.resynced(resync)
        self.newest.append(
            f"the records between offsets {resync.before} and {resync.offset} were truncated before"
            " they were read"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """The average use of each live broker's resources, by id. `silent` brokers have not
    reported.
    """

    used: Mapping[str, float]
    silent: tuple[str, ...] = ()

    @property
    def deviation(self) -> float | None:
        """The deviation of all uses, as `TransferShedder` calculates it; None if a broker is
        silent.
        """
        return (
            None
            if self.silent or not self.used
            else Spread(self.used.values(), pulsar_exact=False).deviation
        )

    def within(self, target: float) -> bool:
        """Return whether the deviation is known and at most `target`."""
        return self.deviation is not None and self.deviation <= target

    @property
    def text(self) -> str:
        """The uses and their deviation in one line."""
        uses = (
            ", ".join(f"{broker} {used:.0%}" for broker, used in self.used.items())
            or "no broker reports"
        )
        return (
            f"{uses}; no report from {', '.join(self.silent)}"
            if self.silent
            else f"{uses}; deviation {self.deviation:.1%}"
        )


def utilization(view: View, summaries: Iterable[Summary]) -> Utilization:
    """Return how evenly the live brokers of `view` are used."""
    reported = {summary.broker: summary.load.averages.weighted_max for summary in summaries}
    live = sorted(broker.broker for broker in view.live_brokers())
    return Utilization(
        used={broker: reported[broker] for broker in live if broker in reported},
        silent=tuple(broker for broker in live if broker not in reported),
    )


def busiest(view: View, summaries: Iterable[Summary], namespace: str) -> BundleTraffic | None:
    """Return the bundle of a namespace with the most messages that can be split, by its owner's
    report; None if there is none.
    """
    fit = [
        bundle
        for summary in summaries
        for bundle in summary.load.bundles or ()
        if bundle.topics != 1 and _is_owned(view, bundle.bundle, namespace, summary.broker)
    ]
    return max(
        fit, key=lambda bundle: (bundle.traffic.messages_per_second, bundle.bundle), default=None
    )


def _is_owned(view: View, name: str, namespace: str, broker: str) -> bool:
    bundle = view.bundles.get(name)
    owner = None if bundle is None or bundle.owner is None else view.live.get(bundle.owner)
    return (
        bundle is not None
        and bundle.namespace == namespace
        and owner is not None
        and owner.broker == broker
    )


def work_of_bundles(summaries: Sequence[Summary]) -> Mapping[str, float]:
    """Return calls plus messages in and out per second, by bundle. The newest load report wins."""
    work_of: dict[str, float] = {}
    for summary in sorted(summaries, key=lambda summary: summary.load.taken_ms):
        work_of.update(
            {
                bundle.bundle: bundle.traffic.messages_per_second
                for bundle in summary.load.bundles or ()
            }
        )
    return work_of
