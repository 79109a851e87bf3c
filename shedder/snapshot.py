"""What a balancer looks at: every broker with the bundles that the view gives it, weighed by the reports of the load bus.

May live here: the snapshot's values, the cost of a load, and how view and reports are put together.

The view says whose a bundle is, the reports what it weighs. So a bundle on its way weighs on its destination already, and
a report that is older than a move misleads nobody: the weight goes with the bundle. What cannot be weighed is not touched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from brokers.load import BundleLoad, Report
from channel.entries import BrokerEntry, BundleEntry
from channel.view import View

# Costs are counted in calls per second. The other weights say what takes a broker about as long as one small call: to move
# 16 KiB, at 160 MB/s where a call takes 0.1 ms; and to keep a hundred sessions alive for a second, at a ping every minute
# or two from each.
BYTES_PER_CALL: Final = 16_384
SESSIONS_PER_CALL: Final = 100

# What a bundle costs before anybody calls it. So bundles spread by number while there is little load, and by load when
# there is much; and a handful of calls, which is noise, moves nothing.
IDLE_COST: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighedBundle:
    """One bundle and what it costs, in calls per second. `barred` says why it must not be moved now; None: it may be."""

    name: str
    cost: float
    barred: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighedBroker:
    """One live broker and its bundles, by name. `barred` says why it neither gives nor takes now; None: it does both."""

    broker: str
    capacity: int
    bundles: tuple[WeighedBundle, ...]
    barred: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A cluster at one moment: its live brokers, by id."""

    brokers: tuple[WeighedBroker, ...]


def cost_of(load: BundleLoad) -> float:
    """What a bundle of this load costs its broker, in calls per second."""
    return IDLE_COST + load.calls_per_second + load.bytes_per_second / BYTES_PER_CALL + load.sessions / SESSIONS_PER_CALL


def take(view: View, reports: Iterable[Report], *, now_ms: int, age_ms_max: int, resting: Collection[str] = ()) -> Snapshot:
    """Weigh the cluster of `view` by the reports that are at most `age_ms_max` old at `now_ms` (Unix time).

    A report from the future by more than that counts as old, too: its clock tells nothing. `resting` are bundles that have
    moved lately and must not move again.
    """
    fresh = sorted(
        (report for report in reports if abs(now_ms - report.at_ms) <= age_ms_max), key=lambda report: (report.at_ms, report.broker)
    )
    by_broker = {report.broker: report for report in fresh}
    anywhere: dict[str, BundleLoad] = {}
    for report in fresh:  # Oldest first: the newest word on a bundle stays.
        anywhere.update(report.bundles)
    rest = frozenset(resting)
    brokers = sorted(view.live_brokers(), key=lambda broker: broker.broker)
    return Snapshot(brokers=tuple(_weigh(view, broker, by_broker.get(broker.broker), anywhere, rest) for broker in brokers))


def _weigh(
    view: View, broker: BrokerEntry, report: Report | None, anywhere: Mapping[str, BundleLoad], resting: frozenset[str]
) -> WeighedBroker:
    """One broker with what it owns or is to own. Its own word on a bundle comes before that of a former owner."""
    known = anywhere if report is None else {**anywhere, **report.bundles}
    bundles, unknown = [], []
    for bundle in view.held_by(broker.incarnation):
        if bundle.owner != broker.incarnation:
            continue  # It is on its way to another broker, and weighs there.
        load = known.get(bundle.name)
        if load is None:
            unknown.append(bundle.name)
        else:
            bundles.append(WeighedBundle(name=bundle.name, cost=cost_of(load), barred=_why_barred(view, bundle, resting)))
    return WeighedBroker(
        broker=broker.broker,
        capacity=broker.joined.capacity if report is None else report.capacity,
        bundles=tuple(bundles),
        barred=_why_apart(broker, report, unknown),
    )


def _why_barred(view: View, bundle: BundleEntry, resting: frozenset[str]) -> str | None:
    if bundle.phase != "owned":
        return f"it is {bundle.state} already"
    if bundle.name in resting:
        return "it has moved lately"
    return "its namespace is being deleted" if view.namespaces[bundle.namespace].status == "deleting" else None


def _why_apart(broker: BrokerEntry, report: Report | None, unknown: list[str]) -> str | None:
    if broker.status == "draining":
        return "it drains, and moves everything away by itself"
    if report is None:
        return "there is no fresh report of its load"
    if unknown:
        return f"what {len(unknown)} of its bundles weigh is not known yet, {unknown[0]} for one"
    return None
