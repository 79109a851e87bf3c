"""Build a balancer's input: every broker with its bundles from the view, weighed by the reports of
the load bus.

* The view defines the owner of a bundle, the reports its weight. So a bundle in transition already
  counts at its destination, and a report older than a move does no harm: the weight follows the
  bundle.
* A bundle that has just filled a broker costs what it cost before. The first reports of that broker
  do not have it, or only seconds of it.
* A report names only the busiest bundles, and carries the costs of many more in a column
  (`shedder.cost_column`). Each other bundle weighs an equal part of the rest of its broker's cost.
* `BalancedShedder` uses the cost of every bundle; the strategies after Pulsar's use the brokers'
  reports.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Final

from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.view import View
from equipoise.shedder.bundle_load import BundleLoad
from equipoise.shedder.cost_column import tag_of, unpack
from equipoise.shedder.load_reports import Summary, fault_of_summary
from equipoise.shedder.loads import BrokerLoad

# Costs are in calls per second. The other weights are amounts that take a broker about as long as
# one small call: to move 16 KiB (160 MB/s at 0.1 ms per call), and to keep 100 sessions alive for a
# second (a ping every minute or two from each).
BYTES_PER_CALL: Final = 16_384
SESSIONS_PER_CALL: Final = 100

# The cost of a bundle without load. Bundles spread by number under little load and by load under
# much, and the noise of a few calls moves nothing.
IDLE_COST: Final = 10.0

_OTHER_WORK_MIN: Final = 0.2  # A smaller share of the CPU is chance, or what the leader does.
_CAPACITY_SHARE_MIN: Final = 0.1  # However much CPU a broker says it uses.

# So long a broker is new: long enough to be filled, also by a leader that takes over meanwhile.
_NEW_MS: Final = 60_000

# Enough for a median that one slow move does not change.
_DURATIONS_MAX: Final = 32

_Barred = Callable[[BundleEntry], str | None]

_DRAINING: Final = "it drains, and moves its bundles away itself"

RESTS: Final = "it has moved lately"
"""Why a bundle that rests stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory of all strategies. Each reads its own fields and keeps the others.

    * `hits`: rounds in a row with uneven load (`TransferShedder`).
    * `gave_ms`, `got_ms`: when the last move from or to a broker ended, Unix time
      (`TransferShedder`).
    * `averages`: of each broker's use, a fraction (`ThresholdShedder` with `pulsar_exact`).
    * `low_hits`, `high_hits`: rounds in which a broker differed from its partner, at all and much
      (`AvgShedder`).
    * `uneven_since_ms`: since when a broker's load has been too far from the mean, Unix time
      (`BalancedShedder`).
    * `churn`: the share of all load that moved lately, as of `churn_ms`, Unix time
      (`BalancedShedder`).
    * `filling`: the brokers that are filled until they have their share (`BalancedShedder`).
    * `costs`: what each bundle cost before it moved to fill a broker, as long as it rests
      (`BalancedShedder`).
    * `durations_ms`: of the last moves, from the request until the destination owned the bundle
      (`BalancedShedder`).
    """

    hits: int = 0
    gave_ms: Mapping[str, int] = field(default_factory=dict)
    got_ms: Mapping[str, int] = field(default_factory=dict)
    averages: Mapping[str, float] = field(default_factory=dict)
    low_hits: Mapping[str, int] = field(default_factory=dict)
    high_hits: Mapping[str, int] = field(default_factory=dict)
    uneven_since_ms: Mapping[str, int] = field(default_factory=dict)
    churn: float = 0.0
    churn_ms: int = 0
    filling: frozenset[str] = frozenset()
    costs: Mapping[str, float] = field(default_factory=dict)
    durations_ms: tuple[int, ...] = ()

    def without_hits(self) -> Memory:
        """Return this memory after rounds have stopped: counts of rounds in a row start again at
        0.
        """
        return replace(self, hits=0, low_hits={}, high_hits={}, uneven_since_ms={})

    def after_move(
        self,
        source: str,
        destination: str | None,
        *,
        now_ms: int,
        duration_ms: int,
        live: Container[str],
    ) -> Memory:
        """Return this memory after a move: older reports of both ends no longer count.
        `destination` None: no broker has the bundle yet.

        Brokers that are not `live` are forgotten here, because a strategy that does not read this
        never forgets them.
        """
        durations_ms = (*self.durations_ms, duration_ms)[-_DURATIONS_MAX:]
        gave_ms, got_ms = {**self.gave_ms, source: now_ms}, dict(self.got_ms)
        if destination is not None:
            got_ms[destination] = now_ms
        return replace(
            self, gave_ms=_of(live, gave_ms), got_ms=_of(live, got_ms), durations_ms=durations_ms
        )


def _of(live: Container[str], times: Mapping[str, int]) -> Mapping[str, int]:
    return {broker: time_ms for broker, time_ms in times.items() if broker in live}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighedBundle:
    """One bundle and its cost, in calls per second.

    `barred`: why it must not move now, or None. `rests`: it has moved lately, so it moves only to
    fill a broker.
    """

    name: str
    cost: float
    barred: str | None = None
    rests: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighedBroker:
    """One live broker and its bundles, by name. `barred`: why it neither gives nor takes now, or
    None.

    * `capacity`: what `other_work`, a share of the CPU, leaves of it.
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
    * `memory`: from the previous plan. `now_ms`: Unix time.
    """

    brokers: Iterable[WeighedBroker] = ()
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
        """Return the brokers that may take `bundle`."""
        return Candidates(allowed=self.live) if self.rules is None else self.rules(bundle)


def costs_of(loads: Iterable[BundleLoad]) -> list[float]:
    """Return the cost of each load, in calls per second."""
    return [
        IDLE_COST
        + load.calls_per_second
        + load.bytes_per_second / BYTES_PER_CALL
        + load.sessions / SESSIONS_PER_CALL
        for load in loads
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
    maintained: Mapping[str, str] | None = None,
    frozen: Mapping[str, str] | None = None,
) -> Snapshot:
    """Return the snapshot of `view`, weighed by summaries at most `age_ms_max` old at `now_ms`
    (Unix time).

    * A summary that far in the future counts as old, too. One with an impossible figure weighs
      nothing and sets its broker `apart`.
    * `resting` are bundles that have moved lately and must not move again. `maintained` are brokers
      that give their bundles away, and why.
    * `frozen` are namespaces whose bundles must not move, and why.
    * `loads` holds all reports: each strategy decides what is too old or impossible for it.
    * `brokers` is weighed at the first access, from `view` as it is then. Access it before the view
      changes.
    """
    by_broker = {summary.broker: summary for summary in summaries}
    recent = [
        summary
        for summary in by_broker.values()
        if abs(now_ms - summary.load.taken_ms) <= age_ms_max
    ]
    barred, rests = partial(_why_barred, view, frozen or {}), frozenset(resting)
    costs = (
        {}
        if memory is None
        else {name: cost for name, cost in memory.costs.items() if name in rests}
    )
    brokers = sorted(view.live_brokers(), key=lambda broker: broker.broker)
    loads = {name: summary.load for name, summary in by_broker.items()}
    served = [
        view.bundles[each.bundle]
        for load in loads.values()
        for each in load.bundles or ()
        if each.bundle in view.bundles
    ]
    apart = {
        broker.broker: maintained[broker.broker]
        for broker in brokers
        if maintained and broker.broker in maintained
    }
    apart |= {broker.broker: _DRAINING for broker in brokers if broker.status == "draining"}
    return Snapshot(
        brokers=WeighedBrokers(
            partial(
                _weighed,
                view,
                by_broker,
                recent,
                barred,
                rests=rests,
                costs=costs,
                apart=apart,
                now_ms=now_ms,
            )
        ),
        now_ms=now_ms,
        live=tuple(broker.broker for broker in brokers),
        apart=apart,
        loads=loads,
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
        policies=policies or {},
        rules=rules,
        memory=memory or Memory(),
    )


def _weighed(
    view: View,
    by_broker: Mapping[str, Summary],
    recent: Iterable[Summary],
    barred: _Barred,
    *,
    rests: Collection[str],
    costs: Mapping[str, float],
    apart: Mapping[str, str],
    now_ms: int,
) -> tuple[WeighedBroker, ...]:
    """Return the live brokers, by id, weighed by the plausible `recent` summaries.

    Each has the bundles that it owns or will own. A bundle on its way elsewhere counts there.
    """
    scales = _Scales([summary for summary in recent if fault_of_summary(summary) is None])
    brokers = sorted(view.live_brokers(), key=lambda broker: broker.broker)
    weighed = []
    for broker in brokers:
        owned = [
            bundle
            for bundle in view.held_by(broker.incarnation)
            if bundle.owner == broker.incarnation
        ]
        summary, is_counted = by_broker.get(broker.broker), broker.broker in scales.by_broker
        weighed.append(
            WeighedBroker(
                broker=broker.broker,
                capacity=broker.joined.capacity,
                bundles=tuple(
                    WeighedBundle(
                        name=bundle.name,
                        cost=costs.get(bundle.name, cost),
                        barred=barred(bundle),
                        rests=bundle.name in rests,
                    )
                    for bundle, cost in zip(owned, scales.costs(owned, broker.broker), strict=True)
                ),
                noise=summary.noise if summary is not None and is_counted else 0.0,
                is_new=0 <= now_ms - broker.joined.timestamp_ms < _NEW_MS,
                barred=apart.get(broker.broker)
                or (None if is_counted else _why_uncounted(summary)),
            )
        )
    uses = {
        name: (summary.cpu_use, summary.cpu_cost)
        for name, summary in scales.by_broker.items()
        if summary.cpu_use is not None
    }
    return tuple(less_other_work(weighed, uses))


def less_other_work(
    brokers: Sequence[WeighedBroker], uses: Mapping[str, tuple[float, float]]
) -> list[WeighedBroker]:
    """Return the brokers with the capacity that other work leaves them.

    `uses`: the CPU use of a broker, a fraction of its limit, and the cost of the bundles that it
    had in this time.

    Use is in proportion to cost per capacity, as at the median broker. What a broker uses beyond is
    other work: a process that its services started, or calls that cost more than others. Only what
    exceeds `_OTHER_WORK_MIN` counts, so that a small change has a small effect.
    """
    known = {
        broker.broker: (use, cost / broker.capacity)
        for broker in brokers
        for use, cost in (uses.get(broker.broker, (0.0, 0.0)),)
        if cost >= IDLE_COST  # Of less, nothing can be concluded.
    }
    if all(use <= _OTHER_WORK_MIN for use, _ in known.values()):
        return list(brokers)
    rates = sorted(use / fill for use, fill in known.values())
    rate = rates[(len(rates) - 1) // 2]
    others = {name: use - rate * fill for name, (use, fill) in known.items()}
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


class _Scales:
    """The cost of each bundle by the valid summaries, for any owner."""

    def __init__(self, summaries: Iterable[Summary]) -> None:
        oldest_first = sorted(
            summaries, key=lambda summary: (summary.load.taken_ms, summary.broker)
        )
        self.by_broker = {summary.broker: summary for summary in oldest_first}
        self._named: dict[str, float] = {}
        self._columns = {
            name: unpack(summary.column, summary.cost) for name, summary in self.by_broker.items()
        }
        self._tagged: dict[int, float] = {}
        for summary in oldest_first:  # The newest report of a bundle remains.
            self._named.update(summary.costs)
            self._tagged.update(self._columns[summary.broker])
        counted_only = {
            name: _counted_cost(summary, self._columns[name])
            for name, summary in self.by_broker.items()
        }
        self._unnamed = {name: cost for name, cost in counted_only.items() if cost is not None}
        counted = [max(summary.load.bundle_count, len(summary.costs)) for summary in oldest_first]
        cost = sum(summary.cost for summary in oldest_first)
        self._mean = cost / sum(counted) if sum(counted) else IDLE_COST

    def costs(self, bundles: Sequence[BundleEntry], broker: str) -> list[float]:
        """Return the cost of each bundle at `broker`, at least `IDLE_COST`.

        The first of these that has it: a bundle named by the broker's own report, the column of
        that report, a bundle named by another broker's report, any column, the mean of the bundles
        that the broker's report only counts.
        """
        summary = self.by_broker.get(broker)
        own = {} if summary is None else summary.costs
        column, other = self._columns.get(broker, {}), self._unnamed.get(broker, self._mean)
        costs = []
        for bundle in bundles:
            cost = own.get(bundle.name)
            if cost is None:
                tag = tag_of(bundle.name)
                cost = column.get(tag, self._named.get(bundle.name, self._tagged.get(tag, other)))
            costs.append(max(cost, IDLE_COST))
        return costs


def _counted_cost(summary: Summary, column: Mapping[int, float]) -> float | None:
    """Return the mean cost of bundles that a summary only counts, which may be negative; None if
    there are none.
    """
    named = summary.costs
    named_tags = {tag_of(name) for name in named}
    tagged = {tag: cost for tag, cost in column.items() if tag not in named_tags}
    counted = summary.load.bundle_count - len(named) - len(tagged)
    return (
        (summary.cost - sum(named.values()) - sum(tagged.values())) / counted
        if counted > 0
        else None
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


def _why_uncounted(summary: Summary | None) -> str:
    """Return why a summary does not count."""
    fault = None if summary is None else fault_of_summary(summary)
    return (
        "there is no fresh report of its load"
        if fault is None
        else f"its load report is not plausible and does not count: {fault}"
    )
