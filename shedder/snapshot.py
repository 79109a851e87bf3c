"""What a balancer looks at: every broker with the bundles that the view gives it, weighed by the reports of the load bus.

May live here: the snapshot's values, the cost of a load, and how view and reports are put together. A policy reads the part
that it goes by: `Leveller` every bundle's cost, the strategies after Pulsar's what brokers say of themselves.

The view says whose a bundle is, the reports what it weighs. So a bundle on its way weighs on its destination already, and
a report that is older than a move misleads nobody: the weight goes with the bundle. What cannot be weighed is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from brokers.load import BundleLoad, Report
from channel.entries import BrokerEntry, BundleEntry
from channel.view import View
from shedder.loads import BrokerLoad
from shedder.memory import Memory

# Costs are counted in calls per second. The other weights say what takes a broker about as long as one small call: to move
# 16 KiB, at 160 MB/s where a call takes 0.1 ms; and to keep a hundred sessions alive for a second, at a ping every minute
# or two from each.
BYTES_PER_CALL: Final = 16_384
SESSIONS_PER_CALL: Final = 100

# What a bundle costs before anybody calls it. So bundles spread by number while there is little load, and by load when
# there is much; and a handful of calls, which is noise, moves nothing.
IDLE_COST: Final = 10.0

_DRAINING: Final = "it drains, and moves everything away by itself"


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
class Candidates:
    """Who may take a bundle, by id; and of each of the others why not, told for people."""

    allowed: tuple[str, ...]
    refused: Mapping[str, str] = field(default_factory=dict)


# Who may take a bundle, by its name. A rule that cannot be read lets nobody take it.
Rules = Callable[[str], Candidates]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A cluster at one moment: its live brokers, by id, and what else is known of it.

    * `live`: the ids of the live brokers, in order. `apart`: those of them that neither give nor take now, and why.
    * `loads`: what brokers say of themselves, in the order in which the load bus gives it; of dead ones, too. Those of their
      bundles that are at rest have an owner in `owners`; what must not be moved now stands in `resting`, and why.
    * `policies`: which kind of policy a namespace has, if any. `rules` is asked for the bundles that a policy looks at; None:
      every live broker may have every bundle.
    * `memory` is what the plan before told to remember. `now_ms` is Unix time.
    """

    brokers: tuple[WeighedBroker, ...] = ()
    now_ms: int = 0
    live: tuple[str, ...] = ()
    apart: Mapping[str, str] = field(default_factory=dict)
    loads: Mapping[str, BrokerLoad] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)
    resting: Mapping[str, str] = field(default_factory=dict)
    policies: Mapping[str, str] = field(default_factory=dict)
    rules: Rules | None = None
    memory: Memory = field(default_factory=Memory)

    def candidates(self, bundle: str) -> Candidates:
        """Who may take `bundle`."""
        return Candidates(allowed=self.live) if self.rules is None else self.rules(bundle)


def cost_of(load: BundleLoad) -> float:
    """What a bundle of this load costs its broker, in calls per second."""
    return IDLE_COST + load.calls_per_second + load.bytes_per_second / BYTES_PER_CALL + load.sessions / SESSIONS_PER_CALL


def take(
    view: View,
    reports: Iterable[Report],
    *,
    now_ms: int,
    age_ms_max: int,
    resting: Collection[str] = (),
    loads: Mapping[str, BrokerLoad] | None = None,
    policies: Mapping[str, str] | None = None,
    rules: Rules | None = None,
    memory: Memory | None = None,
) -> Snapshot:
    """Weigh the cluster of `view` by the reports that are at most `age_ms_max` old at `now_ms` (Unix time).

    A report from the future by more than that counts as old, too: its clock tells nothing. `resting` are bundles that have
    moved lately and must not move again. The rest is for the strategies that go by `loads`: see `Snapshot`.
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
    told = loads or {}
    served = [view.bundles[each.bundle] for load in told.values() for each in load.bundles or () if each.bundle in view.bundles]
    return Snapshot(
        brokers=tuple(_weigh(view, broker, by_broker.get(broker.broker), anywhere, rest) for broker in brokers),
        now_ms=now_ms,
        live=tuple(broker.broker for broker in brokers),
        apart={broker.broker: _DRAINING for broker in brokers if broker.status == "draining"},
        loads=told,
        owners={bundle.name: view.live[bundle.server].broker for bundle in served if bundle.server is not None},
        resting={bundle.name: barred for bundle in served if (barred := _why_barred(view, bundle, rest)) is not None},
        policies=policies or {},
        rules=rules,
        memory=memory or Memory(),
    )


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
        return _DRAINING
    if report is None:
        return "there is no fresh report of its load"
    if unknown:
        return f"what {len(unknown)} of its bundles weigh is not known yet, {unknown[0]} for one"
    return None
