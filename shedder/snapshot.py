"""Build a balancer's input: every broker with its bundles from the view, weighed by the reports of
the load bus.

* The view defines the owner of a bundle, the reports its weight. So a bundle in transition already
  counts at its destination, and a report older than a move does no harm: the weight follows the
  bundle.
* A report names only the busiest bundles, and carries the costs of many more in a column
  (`shedder.loads`). Each other bundle weighs an equal part of the rest of its broker's cost.
  A bundle that has just come is in neither: what its broker has counted covers only a part of a
  period, and equal bundles would look unequal.
* `BalancedShedder` uses the cost of every bundle; the strategies after Pulsar's use the brokers'
  reports.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Final

from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.view import View
from equipoise.shedder.costs import IDLE_COST
from equipoise.shedder.loads import (
    FIGURE_MAX,
    Load,
    Weights,
    fault_of,
    oldest_first,
    tag_of,
    unpack,
)

_OTHER_WORK_MIN: Final = 0.2  # A smaller share of a broker is chance, or what the leader does.
_CAPACITY_SHARE_MIN: Final = 0.1  # However much CPU a broker says it uses.

# So long a broker is new: long enough to be filled, also by a leader that takes over meanwhile.
_NEW_MS: Final = 60_000

# More moves than a leader begins between two rounds.
_ENDED_MAX: Final = 1_024

_Barred = Callable[[BundleEntry], str | None]

_DRAINING: Final = "it drains, and moves its bundles away itself"
SERVES_NOTHING: Final = "its program serves no namespace that exists"
"""Why a broker takes no part."""

ASKED_MAX: Final = 500_000
"""The most checks of rules per plan: bundles times brokers. With a policy for each, a check takes
half a microsecond per broker."""

LOOKS_MAX: Final = 500_000
"""The most lookups of cached answers per plan. Each takes half a microsecond."""

RESTS: Final = "it has moved lately"
"""Why a bundle that rests stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedMove:
    """A move that a leader carried out: when it ended (Unix time), and its time from the request
    until the destination owned the bundle. `destination` None: no broker has the bundle.
    """

    source: str
    destination: str | None
    at_ms: int
    duration_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """What has happened at the leader since it asked the policy last: the moves that have `ended`,
    in order, and whether rounds have `stopped`. Then a count of rounds in a row starts again.
    """

    ended: tuple[EndedMove, ...] = ()
    stopped: bool = False

    def and_ended(self, move: EndedMove) -> Since:
        """Return this with one more move, the last."""
        return replace(self, ended=(*self.ended, move)[-_ENDED_MAX:])


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighedBundle:
    """One bundle and its cost, a share of a core.

    * `barred`: why it must not move now, or None. `rests`: it has moved lately, so it moves only to
      fill a broker.
    * `is_reported`: its broker has reported what it costs there.
    """

    name: str
    cost: float
    barred: str | None = None
    rests: bool = False
    is_reported: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighedBroker:
    """One live broker and its bundles, by name. `barred`: why it neither gives nor takes now, or
    None.

    * `capacity`: in percent of a core, what `other_work`, a share of the CPU, leaves of it.
    * `noise`: the standard error of the total cost; None: not known yet.
    * `is_new`: it has joined lately.
    """

    broker: str
    capacity: int
    bundles: tuple[WeighedBundle, ...]
    noise: float | None = 0.0
    is_new: bool = False
    barred: str | None = None
    other_work: float = 0.0


class WeighedBrokers:
    """The brokers of a snapshot, by id, weighed at the first access.

    Most strategies never need them, and weighing 100,000 bundles keeps the leader busy for a
    quarter of a second.
    """

    def __init__(self, weigh: Callable[[], Iterable[WeighedBroker]]) -> None:
        """Store `weigh`, which is called at the first access."""
        self._weigh = weigh

    @cached_property
    def _weighed(self) -> list[WeighedBroker]:
        return list(self._weigh())

    def __iter__(self) -> Iterator[WeighedBroker]:
        return iter(self._weighed)

    def clear(self) -> None:
        """Free the bundles, broker by broker: 100,000 at once hold all threads of the process for
        15 ms. The next access weighs again.
        """
        weighed: list[WeighedBroker] = self.__dict__.pop("_weighed", [])
        while weighed:
            weighed.pop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The brokers that may take a bundle, by id, and why each of the others may not."""

    allowed: tuple[str, ...]
    refused: Mapping[str, str] = field(default_factory=dict)


# Returns who may take a bundle, by name. Under an unreadable rule no broker may.
Rules = Callable[[str], Candidates]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A cluster at one moment.

    * `brokers`: the live brokers with all their bundles, by id. It can be iterated repeatedly: a
      tuple, or a `WeighedBrokers`.
    * `live`: the ids of the live brokers, in order. `apart`: live brokers that neither give nor
      take now, and why.
    * `loads`: the reports in the order of the load bus, also of dead brokers.
    * `owners`: who serves each reported bundle. `resting`: the reported bundles that must not move
      now, and why.
    * `policies`: the kind of policy of a namespace, if any. `rules`: who may have a bundle; None:
      every live broker.
    * `pools`: the live brokers in groups whose programs serve namespaces in common. Bundles move
      only within a group, so a round compares the brokers of each alone. Empty: all are one.
    * `weights`: of the resources. `since`: what has happened since the last round. `now_ms`: Unix
      time.
    """

    brokers: Iterable[WeighedBroker] = ()
    now_ms: int = 0
    live: tuple[str, ...] = ()
    apart: Mapping[str, str] = field(default_factory=dict)
    loads: Mapping[str, Load] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)
    resting: Mapping[str, str] = field(default_factory=dict)
    policies: Mapping[str, str] = field(default_factory=dict)
    rules: Rules | None = None
    pools: tuple[frozenset[str], ...] = ()
    weights: Weights = field(default_factory=Weights)
    since: Since = field(default_factory=Since)

    def candidates(self, bundle: str) -> Candidates:
        """Return the brokers that may take `bundle`."""
        return Candidates(allowed=self.live) if self.rules is None else self.rules(bundle)

    def only(self, pool: frozenset[str]) -> Snapshot:
        """Return this snapshot with no other live brokers than those of one pool."""
        others = frozenset(self.live) - pool
        ended = tuple(move for move in self.since.ended if move.source not in others)
        return replace(
            self,
            brokers=WeighedBrokers(
                lambda: [each for each in self.brokers if each.broker not in others]
            ),
            live=tuple(broker for broker in self.live if broker in pool),
            apart={broker: why for broker, why in self.apart.items() if broker in pool},
            loads={broker: load for broker, load in self.loads.items() if broker not in others},
            owners={bundle: owner for bundle, owner in self.owners.items() if owner in pool},
            pools=(),
            since=replace(self.since, ended=ended),
        )


class AskedRules:
    """The answers of a snapshot's rules, asked once per bundle. Past the bounds, every further
    bundle is refused.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        # By bundle: allowed brokers, and refusals.
        self._known: dict[str, tuple[frozenset[str], Mapping[str, str]]] = {}
        self._looks = 0

    @property
    def has_reached_bound(self) -> bool:
        """Whether this plan has reached a bound."""
        return self._looks >= LOOKS_MAX or len(self._known) * len(self._snapshot.live) >= ASKED_MAX

    def refusal(self, bundle: str, broker: str) -> str | None:
        """Return why `broker` may not have `bundle`; None if it may."""
        if self._snapshot.rules is None:
            return None
        self._looks += 1
        if bundle not in self._known:
            if self.has_reached_bound:
                return "the round has reached its limit of rule checks"
            candidates = self._snapshot.candidates(bundle)
            self._known[bundle] = frozenset(candidates.allowed), candidates.refused
        allowed, refused = self._known[bundle]
        return (
            None if broker in allowed else refused.get(broker, f"the rules keep it from {broker}")
        )


def take(
    view: View,
    loads: Iterable[Load],
    *,
    now_ms: int,
    age_ms_max: int,
    resting: Collection[str] = (),
    apart: Mapping[str, str] | None = None,
    frozen: Mapping[str, str] | None = None,
) -> Snapshot:
    """Return the snapshot of `view`, weighed by loads at most `age_ms_max` old at `now_ms`
    (Unix time).

    * A report that far in the future counts as old, too. One with an impossible figure weighs
      nothing and sets its broker `apart`.
    * `resting` are bundles that have moved lately and must not move again. `apart` are brokers that
      neither give nor take now, and why.
    * `frozen` are namespaces whose bundles must not move, and why.
    * `loads` holds all reports: each strategy decides what is too old or impossible for it.
    * `brokers` is weighed at the first access, from `view` as it is then. Access it before the view
      changes.
    """
    by_broker = {load.broker: load for load in loads}
    barred, rests = partial(_why_barred, view, frozen or {}), frozenset(resting)
    brokers = sorted(view.live_brokers(), key=lambda broker: broker.broker)
    live = tuple(broker.broker for broker in brokers)
    apart = {broker: why for broker, why in (apart or {}).items() if broker in live}
    apart |= {broker.broker: _DRAINING for broker in brokers if broker.status == "draining"}
    pools, idle = _pools(brokers, view)
    unknown = {
        load.broker: f"the load of its bundles is not known: {load.problem}"
        for load in by_broker.values()
        if load.problem is not None and load.broker in live
    }
    apart = dict.fromkeys(idle, SERVES_NOTHING) | unknown | apart
    served = [
        view.bundles[each.bundle]
        for load in by_broker.values()
        for each in load.bundles
        if each.bundle in view.bundles
    ]
    weigh = partial(
        _weighed,
        view,
        by_broker,
        barred,
        rests=rests,
        apart=apart,
        now_ms=now_ms,
        age_ms_max=age_ms_max,
    )
    return Snapshot(
        brokers=WeighedBrokers(weigh),
        now_ms=now_ms,
        live=live,
        apart=apart,
        loads=by_broker,
        owners={
            bundle.name: view.live[bundle.server].broker
            for bundle in served
            if bundle.server is not None
        },
        resting={
            bundle.name: why
            for bundle in served
            if (why := barred(bundle) or (RESTS if bundle.name in rests else None)) is not None
        },
        pools=pools,
    )


def capacities_in(view: View) -> Mapping[str, int]:
    """Return the capacity of each live broker, in percent of a core."""
    return {broker.broker: broker.joined.capacity for broker in view.live_brokers()}


def rates_of(
    loads: Mapping[str, Load], percents: Mapping[str, float]
) -> Mapping[str, Mapping[str, tuple[str, float]]]:
    """Return the unit of each namespace with declared costs, and the share of a core that one
    counts as, by namespace and broker. `percents`: of brokers, see `capacities_in`.

    A broker without a bundle of a namespace reports no rate. By its capacity of the unit it has
    one. For any other broker, that of the newest report is under "".
    """
    found: dict[str, dict[str, tuple[str, float]]] = {}
    for load in oldest_first(loads.values()):
        for namespace, each in load.declared.items():
            found.setdefault(namespace, {})[load.broker] = each.unit, each.rate
    for rates in found.values():
        unit, _ = last = next(reversed(rates.values()))
        for name, load in loads.items():
            if unit in load.capacities and name in percents:
                rates.setdefault(name, (unit, percents[name] / 100 / load.capacities[unit]))
        rates[""] = last
    return found


def _pools(
    brokers: Sequence[BrokerEntry], view: View
) -> tuple[tuple[frozenset[str], ...], Sequence[str]]:
    """Return the pools of a snapshot, and the brokers whose programs serve no namespace that
    exists. These are in the first pool.
    """
    if all(broker.joined.namespaces is None for broker in brokers):
        return (), ()
    pools = list[frozenset[str]]()
    for namespace in view.namespaces:
        serving = frozenset(broker.broker for broker in brokers if broker.joined.serves(namespace))
        touched = [pool for pool in pools if pool & serving]
        pools = [pool for pool in pools if not pool & serving]
        pools += [serving.union(*touched)] if serving else []
    idle = [broker.broker for broker in brokers if not any(broker.broker in each for each in pools)]
    if not pools[1:]:  # The usual case for programs of one kind.
        return (), idle
    first, *others = sorted(pools, key=min)
    return (first.union(idle), *others), idle


def _weighed(
    view: View,
    by_broker: Mapping[str, Load],
    barred: _Barred,
    *,
    rests: Collection[str],
    apart: Mapping[str, str],
    now_ms: int,
    age_ms_max: int,
) -> tuple[WeighedBroker, ...]:
    """Return the live brokers, by id, weighed by the plausible loads of the last `age_ms_max`.

    Each has the bundles that it owns or will own. A bundle on its way elsewhere counts there.
    """
    counted = (
        load
        for load in by_broker.values()
        if abs(now_ms - load.at_ms) <= age_ms_max and fault_of(load) is None
    )
    scales = Scales(counted, capacities_in(view))
    brokers = sorted(view.live_brokers(), key=lambda broker: broker.broker)
    weighed = []
    for broker in brokers:
        owned = [
            bundle
            for bundle in view.held_by(broker.incarnation)
            if bundle.owner == broker.incarnation
        ]
        load, is_counted = by_broker.get(broker.broker), broker.broker in scales.by_broker
        weighed.append(
            WeighedBroker(
                broker=broker.broker,
                capacity=broker.joined.capacity,
                bundles=tuple(
                    WeighedBundle(
                        name=bundle.name,
                        cost=cost,
                        barred=barred(bundle),
                        rests=bundle.name in rests,
                        is_reported=is_reported,
                    )
                    for bundle, (cost, is_reported) in zip(
                        owned, scales.costs(owned, broker.broker), strict=True
                    )
                ),
                noise=load.noise if load is not None and is_counted else 0.0,
                is_new=0 <= now_ms - broker.joined.timestamp_ms < _NEW_MS,
                barred=apart.get(broker.broker) or (None if is_counted else _why_uncounted(load)),
            )
        )
    return tuple(less_other_work(weighed, scales.by_broker))


def less_other_work(
    brokers: Sequence[WeighedBroker], loads: Mapping[str, Load]
) -> list[WeighedBroker]:
    """Return the brokers with the capacity that other work leaves them: a process that its services
    started, or a thread of their own.

    Only what exceeds `_OTHER_WORK_MIN` counts, so that a small change has a small effect.
    """
    others = {name: load.other_work or 0.0 for name, load in loads.items()}
    return [
        replace(
            broker,
            other_work=other,
            capacity=max(
                1, round(broker.capacity * max(1 - (other - _OTHER_WORK_MIN), _CAPACITY_SHARE_MIN))
            ),
        )
        if (other := others.get(broker.broker, 0.0)) > _OTHER_WORK_MIN
        else broker
        for broker in brokers
    ]


class Scales:
    """The cost of each bundle by the valid loads, for any owner."""

    def __init__(self, loads: Iterable[Load], percents: Mapping[str, float]) -> None:
        in_order = oldest_first(loads)
        self.by_broker = {load.broker: load for load in in_order}
        self._named: dict[str, float] = {}
        self._columns = {
            name: unpack(load.column, load.cost) for name, load in self.by_broker.items()
        }
        self._tagged: dict[int, float] = {}
        self._rates = rates_of(self.by_broker, percents)
        self._reporters: dict[str | int, str] = {}
        for load in in_order:  # The newest report of a bundle remains.
            self._named.update(load.costs)
            self._tagged.update(self._columns[load.broker])
            if self._rates:
                self._reporters.update(dict.fromkeys(load.costs, load.broker))
                self._reporters.update(dict.fromkeys(self._columns[load.broker], load.broker))
        counted_only = {
            name: _counted_cost(load, self._columns[name]) for name, load in self.by_broker.items()
        }
        self._unnamed = {name: cost for name, cost in counted_only.items() if cost is not None}
        known = [load for load in in_order if load.costs or load.column]
        counted = sum(max(load.bundle_count, len(load.costs)) for load in known)
        cost = sum(load.cost for load in known)
        self._mean = cost / counted if counted else IDLE_COST

    def costs(self, bundles: Sequence[BundleEntry], broker: str) -> list[tuple[float, bool]]:
        """Return the cost of each bundle at `broker`, at least `IDLE_COST`, and whether the
        broker's own report has it.

        The first of these that has it: a bundle named by the broker's own report, the column of
        that report, a bundle named by another broker's report, any column, the mean of the bundles
        that the broker's report only counts.
        """
        load = self.by_broker.get(broker)
        own = {} if load is None else load.costs
        column, other = self._columns.get(broker, {}), self._unnamed.get(broker, self._mean)
        costs = []
        for bundle in bundles:
            cost, is_own = own.get(bundle.name), True
            if cost is None:
                tag = tag_of(bundle.name)
                cost = column.get(tag)
                if cost is None:
                    is_own = False
                    cost = self._named.get(bundle.name, self._tagged.get(tag, other))
                    cost *= self._exchange(bundle, tag, broker)
            # NaN fails each comparison. Capacities that others report may make it, and infinity.
            costs.append((min(max(IDLE_COST, cost), FIGURE_MAX), is_own))
        return costs

    def _exchange(self, bundle: BundleEntry, tag: int, broker: str) -> float:
        """Return what a cost that another broker has reported is multiplied by."""
        rates = self._rates.get(bundle.namespace)
        if rates is None:
            return 1.0
        reporter = self._reporters.get(bundle.name, self._reporters.get(tag, ""))
        (unit, here), (other, there) = (rates.get(name, rates[""]) for name in (broker, reporter))
        return here / there if unit == other and here and there else 1.0


def _counted_cost(load: Load, column: Mapping[int, float]) -> float | None:
    """Return the mean cost of bundles that a load only counts, which may be negative; None if
    there are none, or if it has the cost of no bundle: then all have just come.
    """
    named = load.costs
    if not named and not column:
        return None
    named_tags = {tag_of(name) for name in named}
    tagged = {tag: cost for tag, cost in column.items() if tag not in named_tags}
    counted = load.bundle_count - len(named) - len(tagged)
    return (
        (load.cost - sum(named.values()) - sum(tagged.values())) / counted if counted > 0 else None
    )


def _why_barred(view: View, frozen: Mapping[str, str], bundle: BundleEntry) -> str | None:
    if bundle.phase != "owned":
        return f"it is {bundle.state} already"
    if bundle.namespace in frozen:
        return frozen[bundle.namespace]
    return (
        "its namespace is being deleted"
        if view.namespaces[bundle.namespace].status == "deleting"
        else None
    )


def _why_uncounted(load: Load | None) -> str:
    """Return why a load does not count."""
    fault = None if load is None else fault_of(load)
    return (
        "there is no fresh report of its load"
        if fault is None
        else f"its load report is not plausible and does not count: {fault}"
    )
