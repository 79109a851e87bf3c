"""What a balancer looks at: every broker with the bundles that the view gives it, weighed by the reports of the load bus.

May live here: the snapshot's values, the cost of a load, and how view and reports are put together. A policy reads the part
that it goes by: `BalancedShedder` every bundle's cost, the strategies after Pulsar's what brokers say of themselves.

The view says whose a bundle is, the reports what it weighs. So a bundle on its way weighs on its destination already, and
a report that is older than a move misleads nobody: the weight goes with the bundle. A report names its busiest bundles only:
each of the others weighs what is left of its broker's cost for one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final

from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.view import View
from equipoise.shedder.bundle_load import BundleLoad
from equipoise.shedder.load_reports import Summary, fault_of_summary
from equipoise.shedder.loads import BrokerLoad
from equipoise.shedder.memory import Memory

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


class WeighedBrokers(Collection[WeighedBroker]):
    """The brokers of a snapshot, by id, weighed when somebody looks at them first.

    Most strategies never look, and to weigh 100,000 bundles takes a quarter of a second, in which the leader does nothing else.
    It compares as the tuple that it comes to.
    """

    def __init__(self, weigh: Callable[[], tuple[WeighedBroker, ...]]) -> None:
        """`weigh` is called once at most."""
        self._weigh = weigh

    @cached_property
    def _weighed(self) -> tuple[WeighedBroker, ...]:
        return self._weigh()

    def __iter__(self) -> Iterator[WeighedBroker]:
        return iter(self._weighed)

    def __len__(self) -> int:
        return len(self._weighed)

    def __contains__(self, broker: object) -> bool:
        return broker in self._weighed

    def __eq__(self, other: object) -> bool:
        return self._weighed == (other._weighed if isinstance(other, WeighedBrokers) else other)

    def __hash__(self) -> int:
        return hash(self._weighed)

    def __repr__(self) -> str:
        return repr(self._weighed)


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

    * `brokers`: the live brokers with all their bundles, by id: a tuple, or a `WeighedBrokers`.
    * `live`: the ids of the live brokers, in order. `apart`: those of them that neither give nor take now, and why.
    * `loads`: what brokers say of themselves, in the order in which the load bus gives it; of dead ones, too. Those of their
      bundles that are at rest have an owner in `owners`; what must not be moved now stands in `resting`, and why.
    * `policies`: which kind of policy a namespace has, if any. `rules` is asked for the bundles that a policy looks at; None:
      every live broker may have every bundle.
    * `memory` is what the plan before told to remember. `now_ms` is Unix time.
    """

    brokers: Collection[WeighedBroker] = ()
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


def costs_of(loads: Iterable[BundleLoad]) -> list[float]:
    """What bundles of these loads cost their broker, each in calls per second."""
    return [
        IDLE_COST + load.calls_per_second + load.bytes_per_second / BYTES_PER_CALL + load.sessions / SESSIONS_PER_CALL for load in loads
    ]


def take(
    view: View,
    summaries: Iterable[Summary],
    *,
    now_ms: int,
    age_ms_max: int,
    resting: Collection[str] = (),
    policies: Mapping[str, str] | None = None,
    rules: Rules | None = None,
    memory: Memory | None = None,
) -> Snapshot:
    """Weigh the cluster of `view` by the summaries that are at most `age_ms_max` old at `now_ms` (Unix time).

    A summary from the future by more than that counts as old, too: its clock tells nothing. One with a figure that no broker
    can have weighs nothing, and keeps its broker apart. `resting` are bundles that have moved lately and must not move again.

    The strategies that go by `loads` get all of them: each says by itself what is too old for it, and what cannot be. Bundles are
    weighed for a strategy that looks at `brokers`: as `view` is then, so it is to be asked before the view goes on.
    """
    told = {summary.broker: summary for summary in summaries}
    recent = [summary for summary in told.values() if abs(now_ms - summary.load.taken_ms) <= age_ms_max]
    rest = frozenset(resting)
    brokers = sorted(view.live_brokers(), key=lambda broker: broker.broker)
    loads = {name: summary.load for name, summary in told.items()}
    served = [view.bundles[each.bundle] for load in loads.values() for each in load.bundles or () if each.bundle in view.bundles]
    return Snapshot(
        brokers=WeighedBrokers(partial(_weighed, view, told, recent, rest)),
        now_ms=now_ms,
        live=tuple(broker.broker for broker in brokers),
        apart={broker.broker: _DRAINING for broker in brokers if broker.status == "draining"},
        loads=loads,
        owners={bundle.name: view.live[bundle.server].broker for bundle in served if bundle.server is not None},
        resting={bundle.name: barred for bundle in served if (barred := _why_barred(view, bundle, rest)) is not None},
        policies=policies or {},
        rules=rules,
        memory=memory or Memory(),
    )


def _weighed(view: View, told: Mapping[str, Summary], recent: Iterable[Summary], resting: frozenset[str]) -> tuple[WeighedBroker, ...]:
    """The live brokers, by id, weighed by those of the `recent` summaries that can be true."""
    scales = _Scales([summary for summary in recent if fault_of_summary(summary) is None])
    brokers = sorted(view.live_brokers(), key=lambda broker: broker.broker)
    return tuple(_weigh(view, broker, told.get(broker.broker), scales, resting) for broker in brokers)


class _Scales:
    """What each bundle costs by the summaries that count, whoever has it."""

    def __init__(self, summaries: Iterable[Summary]) -> None:
        oldest_first = sorted(summaries, key=lambda summary: (summary.load.taken_ms, summary.broker))
        self.by_broker = {summary.broker: summary for summary in oldest_first}
        self._named: dict[str, float] = {}
        for summary in oldest_first:  # So that the newest word on a bundle stays.
            self._named.update(summary.costs)
        self._unnamed = {name: cost for name, summary in self.by_broker.items() if (cost := _unnamed_cost(summary)) is not None}
        counted = [max(summary.load.bundle_count, len(summary.costs)) for summary in oldest_first]
        cost = sum(summary.cost for summary in oldest_first)
        self._mean = cost / sum(counted) if sum(counted) else IDLE_COST

    def costs(self, bundles: Sequence[BundleEntry], broker: str) -> list[float]:
        """What each bundle costs at `broker`: by its own word, else by another's who had it before, else as those that it does not name.

        No word makes it cost less than an idle one.
        """
        summary = self.by_broker.get(broker)
        own = {} if summary is None else summary.costs
        named, other = self._named, self._unnamed.get(broker, self._mean)
        return [max(own.get(bundle.name, named.get(bundle.name, other)), IDLE_COST) for bundle in bundles]


def _unnamed_cost(summary: Summary) -> float | None:
    """What each bundle costs that a summary counts and does not name, which may come out as less than nothing; None if there is none."""
    unnamed = summary.load.bundle_count - len(summary.costs)
    return (summary.cost - sum(summary.costs.values())) / unnamed if unnamed > 0 else None


def _weigh(view: View, broker: BrokerEntry, summary: Summary | None, scales: _Scales, resting: frozenset[str]) -> WeighedBroker:
    """One broker with what it owns or is to own; what is on its way to another broker weighs there."""
    owned = [bundle for bundle in view.held_by(broker.incarnation) if bundle.owner == broker.incarnation]
    bundles = [
        WeighedBundle(name=bundle.name, cost=cost, barred=_why_barred(view, bundle, resting))
        for bundle, cost in zip(owned, scales.costs(owned, broker.broker), strict=True)
    ]
    counts = broker.broker in scales.by_broker
    return WeighedBroker(
        broker=broker.broker,
        capacity=broker.joined.capacity,
        bundles=tuple(bundles),
        barred=_why_apart(broker, summary, counts=counts),
    )


def _why_barred(view: View, bundle: BundleEntry, resting: frozenset[str]) -> str | None:
    if bundle.phase != "owned":
        return f"it is {bundle.state} already"
    if bundle.name in resting:
        return "it has moved lately"
    return "its namespace is being deleted" if view.namespaces[bundle.namespace].status == "deleting" else None


def _why_apart(broker: BrokerEntry, summary: Summary | None, *, counts: bool) -> str | None:
    """Why a broker takes no part; `counts` says whether its summary is fresh and possible."""
    if broker.status == "draining":
        return _DRAINING
    if counts:
        return None
    fault = None if summary is None else fault_of_summary(summary)
    return "there is no fresh report of its load" if fault is None else f"its report cannot be true, so it is left out: {fault}"
