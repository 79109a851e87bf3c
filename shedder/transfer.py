"""Implement Pulsar's `TransferShedder`: pair the most loaded broker with the least loaded one, and
move half of the difference.

* It acts if, for several rounds in a row, the deviation of the brokers' average uses is above the
  target, or one broker is idle or overloaded compared with the others.
* The amount is a throughput. If half of the difference is 10 % of a broker's load, the broker gives
  10 % of its throughput.
* If a bundle is too heavy, lighter ones may come back for it (a swap).

With `pulsar_exact` it decides as the class of Pulsar 4.2.4, with its faults.
docs/reference/balancing.md lists the differences and their reasons.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar, Final

from equipoise.channel.core.ranges import namespace_in
from equipoise.shedder.loads import BundleTraffic, Load
from equipoise.shedder.plan import Budget, Cause, Idle, Move, Plan
from equipoise.shedder.policy import (
    ANY,
    EXACT,
    REPORT_TTL_MS,
    SEARCHED_HISTORY,
    SOME,
    Measure,
    Policy,
    SearchRange,
    setting,
)
from equipoise.shedder.reported import (
    Reported,
    bundles_of,
    format_duration,
    format_percent,
    format_rate,
    in_order,
    reported,
    why_held,
)
from equipoise.shedder.snapshot import Snapshot


class Spread:
    """Mean and population deviation of loads, which are fractions.

    With `pulsar_exact` it keeps a sum of squares, as Pulsar does. Similar loads then lose all
    digits, and a negative variance makes the deviation NaN.
    """

    def __init__(self, loads: Iterable[float], *, pulsar_exact: bool) -> None:
        self._loads = list(loads)
        self._pulsar_exact = pulsar_exact
        total = self._squares = 0.0
        for load in self._loads:
            total += load
            self._squares += load * load
        self.mean = total / len(self._loads)
        self.deviation = self._by_squares() if pulsar_exact else self._measured()

    def move(self, most: float, least: float, shed: float) -> None:
        """Move `shed` from a broker of load `most` to one of load `least`. No load becomes
        negative.
        """
        given, got = max(most - shed, 0.0), least + shed
        if self._pulsar_exact:
            self._squares -= most * most + least * least
            self._squares += given * given + got * got
            self.deviation = math.sqrt(abs(self._variance_by_squares()))
            return
        self._loads[self._loads.index(most)] = given
        self._loads[self._loads.index(least)] = got
        self.deviation = self._measured()

    def _measured(self) -> float:
        return math.sqrt(
            math.fsum((load - self.mean) * (load - self.mean) for load in self._loads)
            / len(self._loads)
        )

    def _by_squares(self) -> float:
        variance = self._variance_by_squares()
        return math.sqrt(variance) if variance >= 0 else math.nan

    def _variance_by_squares(self) -> float:
        return self._squares / len(self._loads) - self.mean * self.mean


# A broker counts as idle below the mean times half of the target, but never above half of the mean.
_IDLE_SHARE_MAX: Final = 0.5

# A swap must take at least a quarter of its throughput from the source.
_SWAP_SHARE_MAX: Final = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferMemory:
    """The uneven rounds in a row (`hits`), and when the last move from or to a broker ended, Unix
    time.
    """

    hits: int = 0
    gave_ms: Mapping[str, int] = field(default_factory=dict)
    got_ms: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferShedder(Policy):
    """Pulsar's, which names the destination of each move.

    `pulsar_debug`: only Pulsar's debug mode counts what a swap brings back.
    """

    target_deviation: float = setting(
        "Standard deviation of the brokers' use above which bundles move, as a fraction.",
        ANY,
        default=0.25,
    )
    hit_count_threshold: int = setting(
        "Number of uneven rounds in a row before bundles move.", default=3
    )
    sources_max: int = setting("Limit of brokers that give bundles in one round.", SOME, default=3)
    transfer: bool = setting("Names a destination for each move, and tries swaps.", default=True)
    overloaded_percent: float = setting(
        "Use above which a broker may count as overloaded, in percent.", ANY, default=85
    )
    load_ttl_ms: int = setting("Age at which a report no longer counts.", default=REPORT_TTL_MS)
    cool_down_ms: int = setting(
        "Time after a move until a broker's next report counts again.", default=180_000
    )
    with_policies: bool = setting("Also moves bundles of namespaces with policies.", default=False)
    excluded_namespaces: frozenset[str] = setting(
        "Namespaces whose bundles never move.", default=frozenset[str]()
    )
    pulsar_exact: bool = setting(EXACT, default=False)
    pulsar_debug: bool = setting(
        "With `pulsar_exact`: counts the bundles that a swap brings back, as Pulsar does in debug"
        " mode.",
        default=False,
    )

    waits_rounds: ClassVar[bool] = True
    searched: ClassVar[Mapping[str, SearchRange]] = MappingProxyType(
        {
            "transfer.target_deviation": SearchRange(least=0.02, most=0.5, log=True),
            "transfer.hit_count_threshold": SearchRange(least=0, most=10),
            "transfer.sources_max": SearchRange(least=1, most=20, log=True),
            "transfer.cool_down_ms": SearchRange(least=0, most=600_000),
            "reports.history": SEARCHED_HISTORY,
        }
    )

    @property
    def measure(self) -> Measure:
        """See `Policy.measure`."""
        return Measure(kind="use", ttl_ms=self.load_ttl_ms)

    def plan(self, snapshot: Snapshot, memory: object = None) -> tuple[Plan, TransferMemory]:
        """See `Policy.plan`."""
        known = _up_to_now(memory, snapshot)
        seen = (
            self._as_pulsar(snapshot, known) if self.pulsar_exact else self._sound(snapshot, known)
        )
        known = replace(known, gave_ms=seen.gave_ms, got_ms=seen.got_ms)
        if seen.idle is not None:
            return _idle_plan(Plan(idle=seen.idle), snapshot, seen.out), known
        spread = Spread((load.average_use for load in seen.counted), pulsar_exact=self.pulsar_exact)
        found = Plan(mean=spread.mean, deviation=spread.deviation, deviation_after=spread.deviation)
        round_ = _Round(settings=self, snapshot=snapshot, order=seen.order, spread=spread)
        cause = round_.cause(0, len(seen.order) - 1)
        known = replace(known, hits=known.hits + 1 if cause is not None else 0)
        if known.hits <= self.hit_count_threshold:
            reason = self._why_waiting(known.hits, spread)
            idle = Idle(result="Skip", cause="HitCount", reason=reason)
            return _idle_plan(replace(found, idle=idle), snapshot, seen.out), known
        round_.run()
        found = replace(found, deviation_after=spread.deviation)
        stays = {**seen.out, **round_.stays()}
        if not round_.moves:
            idle = Idle(
                result="Skip",
                cause=round_.why_none(),
                reason="the load is uneven, and no bundle can be moved: see each broker",
            )
            return _idle_plan(replace(found, idle=idle), snapshot, stays), known
        found = replace(found, moves=tuple(round_.moves), stays=in_order(stays, round_.moves))
        return found, replace(known, hits=0)

    def as_if_due(
        self, snapshot: Snapshot, budget: Budget | None = None, at_ms: int = 0
    ) -> TransferMemory:
        """See `Policy.as_if_due`."""
        del snapshot, budget, at_ms
        return TransferMemory(hits=self.hit_count_threshold)

    def _sound(self, snapshot: Snapshot, known: TransferMemory) -> _Evaluation:
        """Return the brokers that take part, or why none does: live brokers with plausible
        reports.
        """
        found = reported(snapshot, ttl_ms=self.load_ttl_ms)
        gave_ms = self._still_cooling(snapshot, found, known.gave_ms)
        got_ms = self._still_cooling(snapshot, found, known.got_ms)
        cooling = [broker for broker in found.loads if broker in gave_ms or broker in got_ms]
        idle = None
        if cooling:
            idle = self._cooling(cooling[0])
        elif not found.loads:
            idle = _nobody(has_outdated=found.has_outdated)
        elif found.silent:
            idle = _silent(found.silent[0], len(found.silent))
        # Ties keep the order of ids.
        order = sorted(found.loads.items(), key=lambda each: each[1].average_use)
        return _Evaluation(
            order=order,
            counted=tuple(found.loads.values()),
            gave_ms=gave_ms,
            got_ms=got_ms,
            idle=idle,
            out=found.out,
        )

    def _still_cooling(
        self, snapshot: Snapshot, found: Reported, ended_ms: Mapping[str, int]
    ) -> dict[str, int]:
        """Return the brokers whose last report is less than `cool_down_ms` younger than their last
        move, with the time of the move.

        For a broker without a report, only the time since the move counts. A time in the future
        counts as now: a clock that was set back must not make the cool-down last for ever.
        """
        cooling: dict[str, int] = {}
        for broker, moved_ms in ended_ms.items():
            since_ms = min(moved_ms, snapshot.now_ms)
            load = found.loads.get(broker)
            known_ms = snapshot.now_ms if load is None else min(load.at_ms, snapshot.now_ms)
            if known_ms - since_ms < self.cool_down_ms:
                cooling[broker] = since_ms
        return cooling

    def _as_pulsar(self, snapshot: Snapshot, known: TransferMemory) -> _Evaluation:
        """Like `_sound`, as Pulsar does it: over all stored reports, in their order, up to a broker
        that is cooling down.
        """
        missing = dict.fromkeys(snapshot.live)
        gave_ms = dict(known.gave_ms)
        out: dict[str, str] = {}
        counted: list[Load] = []
        order = sorted(
            snapshot.loads.items(),
            key=lambda each: (
                math.isnan(each[1].average_use),
                each[1].average_use,
            ),
        )
        for broker, load in snapshot.loads.items():
            missing.pop(broker, None)
            if snapshot.now_ms - load.at_ms > self.load_ttl_ms:
                out[broker] = (
                    f"its load report is outdated (limit: {format_duration(self.load_ttl_ms)})"
                )
                continue
            if broker in gave_ms:
                if load.at_ms - gave_ms[broker] < self.cool_down_ms:
                    return _Evaluation(
                        order=order,
                        counted=counted,
                        gave_ms=gave_ms,
                        got_ms={},
                        idle=self._cooling(broker),
                        out=out,
                    )
                del gave_ms[broker]
            counted.append(load)
        idle = None
        if not counted:
            idle = _nobody(has_outdated=bool(out))
        elif missing:
            idle = _silent(next(iter(missing)), len(missing))
        return _Evaluation(
            order=order, counted=counted, gave_ms=gave_ms, got_ms={}, idle=idle, out=out
        )

    def _cooling(self, broker: str) -> Idle:
        silence = f"has sent no report {format_duration(self.cool_down_ms)} after it"
        reason = f"{broker} was part of a move, and {silence}: its load is not known yet"
        return Idle(result="Skip", cause="CoolDown", reason=reason)

    def _why_waiting(self, hits: int, spread: Spread) -> str:
        if hits == 0:
            return (
                f"the load is even: the deviation is {format_percent(spread.deviation)} around a"
                f" mean of {format_percent(spread.mean)} (allowed:"
                f" {format_percent(self.target_deviation)}), and no broker is idle or overloaded"
            )
        return (
            f"the load has been uneven for {hits} rounds in a row; moves begin after"
            f" {self.hit_count_threshold}"
        )


def _up_to_now(memory: object, snapshot: Snapshot) -> TransferMemory:
    """Return the memory with the moves that have ended since. After a move, brokers that are gone
    are forgotten.
    """
    known, since = (
        memory if isinstance(memory, TransferMemory) else TransferMemory(),
        snapshot.since,
    )
    if since.stopped:
        known = replace(known, hits=0)
    if not since.ended:
        return known
    gave_ms = {**known.gave_ms} | {move.source: move.at_ms for move in since.ended}
    got_ms = {**known.got_ms} | {
        move.destination: move.at_ms for move in since.ended if move.destination is not None
    }
    return replace(known, gave_ms=_of(snapshot.live, gave_ms), got_ms=_of(snapshot.live, got_ms))


def _of(live: Collection[str], times: Mapping[str, int]) -> Mapping[str, int]:
    return {broker: time_ms for broker, time_ms in times.items() if broker in live}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evaluation:
    """The evaluation of a snapshot: brokers from the least loaded to the most, brokers that cool
    down, and why nothing can be done.

    `counted` are the loads that make the mean. With `pulsar_exact`, outdated brokers are in `order`
    but not in `counted`.
    """

    order: Sequence[tuple[str, Load]]
    counted: Sequence[Load]
    gave_ms: Mapping[str, int]
    got_ms: Mapping[str, int]
    idle: Idle | None
    out: Mapping[str, str]


@dataclass(slots=True, kw_only=True)
class _Round:
    """The pairs of one round, from the two ends of the order inwards."""

    settings: TransferShedder
    snapshot: Snapshot
    order: Sequence[tuple[str, Load]]
    spread: Spread
    moves: list[Move] = field(default_factory=list)
    _moved: set[str] = field(default_factory=set)
    _why: dict[str, str] = field(default_factory=dict)
    _without_load: int = 0
    _without_bundles: int = 0

    def cause(self, low: int, high: int) -> Cause | None:
        """Return why the pair is worth a move, or None. It checks the spread of all, then the least
        loaded, then the most loaded.
        """
        settings, least, most = self.settings, self.order[low][1], self.order[high][1]
        if self.spread.deviation > settings.target_deviation:
            return "Overloaded"
        share = min(_IDLE_SHARE_MAX, max(0.0, settings.target_deviation / 2))
        is_unused = least.average_use < self.spread.mean * share
        if is_unused or least.average_bytes_per_second < most.average_bytes_per_second * share:
            return "Underloaded"
        use = most.average_use
        if (
            use > settings.overloaded_percent / 100
            and use > self.spread.mean + settings.target_deviation
        ):
            return "Overloaded"
        return None

    def run(self) -> None:
        """Plan the moves. A source is used once, with or without success; a destination until it
        has received something.
        """
        low, high, sources = 0, len(self.order) - 1, 0
        while sources < self.settings.sources_max and low < high:
            cause = self.cause(low, high)
            if cause is None:
                break
            if self._shed(self.order[high], self.order[low], cause):
                sources += 1
                low += 1
            high -= 1

    def why_none(self) -> Cause:
        """Return the cause to count for a round without moves."""
        return (
            "NoLoadData"
            if self._without_load
            else "NoBundles"
            if self._without_bundles
            else "HitCount"
        )

    def stays(self) -> dict[str, str]:
        """Return why each checked broker and bundle stays, and the use of the others."""
        mean = format_percent(self.spread.mean)
        uses = {
            name: f"use is {format_percent(load.average_use)} (mean: {mean})"
            for name, load in self.order
        }
        return {**uses, **self._why}

    def _shed(self, source: tuple[str, Load], destination: tuple[str, Load], cause: Cause) -> bool:
        """Plan the moves between two brokers, in both directions. Return whether there are any."""
        (name, load), (_, least) = source, destination
        bundles = bundles_of(load)
        if len(bundles) < 2:  # noqa: PLR2004
            self._why[name] = "it should give bundles, but reported " + (
                "only one, which stays" if bundles else "none"
            )
            self._without_bundles += len(bundles)
            self._without_load += not bundles
            return False
        offload = (load.average_use - least.average_use) / 2
        pair = _Pair(
            round=self,
            source=source,
            destination=destination,
            cause=cause,
            budget=self._budget(load, offload),
            back=iter(bundles_of(least)),
        )
        pair.run(bundles)
        if not pair.out > 0:
            self._why[name] = "it should give bundles, but none that it reported can move"
            self._without_bundles += 1
            return False
        shed = _over((pair.out - pair.gain) * load.average_use, load.traffic.bytes_per_second)
        self.spread.move(load.average_use, least.average_use, shed)
        return True

    def _budget(self, load: Load, offload: float) -> float:
        """Return how many bytes per second a broker may give, if `offload` of its load is to go."""
        # Load 0 gives no relation to throughput. Pulsar then gives away all but one bundle.
        if load.average_use == 0:
            return math.inf if self.settings.pulsar_exact else 0.0
        return load.traffic.bytes_per_second * offload / load.average_use

    def add(
        self, bundle: BundleTraffic, source: str, destination: str, cause: Cause, reason: str
    ) -> None:
        """Plan one move."""
        target = destination if self.settings.transfer else None
        self.moves.append(
            Move(
                bundle=bundle.bundle, source=source, destination=target, cause=cause, reason=reason
            )
        )
        self._moved.add(bundle.bundle)

    def stay(self, bundle: BundleTraffic, reason: str) -> None:
        """Note why a bundle stays."""
        self._why[bundle.bundle] = reason

    def why_not(
        self, bundle: BundleTraffic, source: str, destination: str, *, is_swapped: bool = False
    ) -> str | None:
        """Return why a bundle may not move between the brokers; None if it may. Pulsar checks less
        for one that comes back in a swap.
        """
        settings, snapshot, name = self.settings, self.snapshot, bundle.bundle
        if not (settings.pulsar_exact and is_swapped):
            held = why_held(snapshot, name, source)
            if held is not None:
                return held
            if namespace_in(name) in settings.excluded_namespaces:
                return "its namespace is excluded from moves"
            if name in self._moved:
                return "it already moves"
        policy = snapshot.policies.get(namespace_in(name))
        if policy is not None and not settings.with_policies:
            return f"its namespace has a policy ({policy}), and such bundles do not move"
        candidates = snapshot.candidates(name)
        if settings.transfer or settings.pulsar_exact:
            return (
                None
                if destination in candidates.allowed
                else candidates.refused.get(destination, f"the rules keep it from {destination}")
            )
        return (
            None
            if any(broker != source for broker in candidates.allowed)
            else "the rules allow no other broker"
        )


@dataclass(slots=True, kw_only=True)
class _Pair:
    """The exchange between two brokers within a budget. Throughputs are bytes per second.

    `out` is planned to go, `gain` to come back.
    """

    round: _Round
    source: tuple[str, Load]
    destination: tuple[str, Load]
    cause: Cause
    budget: float
    back: Iterator[BundleTraffic]
    out: float = 0.0
    gain: float = 0.0

    def run(self, bundles: Sequence[BundleTraffic]) -> None:
        """Try the reported bundles of the source, lightest first. One of them always stays."""
        source, destination, settings = self.source[0], self.destination[0], self.round.settings
        remaining = len(bundles)
        for bundle in bundles:
            throughput = bundle.traffic.bytes_per_second
            refusal = self.round.why_not(bundle, source, destination)
            if refusal is not None:
                self.round.stay(bundle, refusal)
                continue
            if remaining <= 1:
                self.round.stay(
                    bundle, f"it is the last bundle that {source} reported, and one must stay"
                )
                break
            if throughput == 0:
                self.round.stay(bundle, "it has no traffic, so a move would change nothing")
                continue
            back: Sequence[BundleTraffic] = ()
            if self.out - self.gain + throughput > self.budget:
                back = self._swap(throughput)
                if not back:
                    left = max(0.0, self.budget - self.out + self.gain)
                    self.round.stay(
                        bundle,
                        f"its traffic is {format_rate(throughput)}, but {source} should give only"
                        f" {format_rate(left)} more",
                    )
                    break
            for each in back:
                self.round.add(
                    each,
                    destination,
                    source,
                    self.cause,
                    f"it returns to {source} in exchange for {bundle.bundle}",
                )
                if settings.pulsar_debug or not settings.pulsar_exact:
                    self.gain += each.traffic.bytes_per_second
            self.round.add(bundle, source, destination, self.cause, self._reason(throughput))
            self.out += throughput
            remaining -= 1

    def _swap(self, throughput: float) -> Sequence[BundleTraffic]:
        """Return bundles of the destination that compensate for one of `throughput` that is too
        heavy alone; empty if there are none.
        """
        if not self.round.settings.transfer:
            return ()
        giving = self.source[1].traffic.bytes_per_second
        most = giving - self.out + self.gain - throughput
        least = self.destination[1].traffic.bytes_per_second + self.out - self.gain + throughput
        chosen: list[BundleTraffic] = []
        for bundle in self._offered():
            weight = bundle.traffic.bytes_per_second
            if weight == 0 or not (most + weight < giving and least - weight < giving):
                continue
            if (
                self.round.why_not(bundle, self.destination[0], self.source[0], is_swapped=True)
                is not None
            ):
                continue
            chosen.append(bundle)
            most, least = most + weight, least - weight
            # The budget is half of the difference. Moving more than the whole difference would
            # increase it.
            if least <= most < giving * _SWAP_SHARE_MAX and (
                self.round.settings.pulsar_exact or giving - most <= 2 * self.budget
            ):
                return chosen
        return ()

    def _offered(self) -> Iterable[BundleTraffic]:
        """Return the bundles that may come back. Pulsar looks at each once per pair; here all are
        offered again for the next bundle.
        """
        return self.back if self.round.settings.pulsar_exact else bundles_of(self.destination[1])

    def _reason(self, throughput: float) -> str:
        (source, load), (destination, least) = self.source, self.destination
        return (
            f"transfer: use is {format_percent(load.average_use)} at {source} and"
            f" {format_percent(least.average_use)} at {destination}; the bundle has"
            f" {format_rate(throughput)} of the {format_rate(load.traffic.bytes_per_second)} at"
            f" {source}"
        )


def _nobody(*, has_outdated: bool) -> Idle:
    if has_outdated:
        return Idle(result="Skip", cause="OutDatedData", reason="all load reports are outdated")
    return Idle(result="Skip", cause="NoBrokers", reason="no broker has a fresh load report")


def _silent(broker: str, number: int) -> Idle:
    reason = f"{broker} has not reported its load" + (
        f", nor have {number - 1} others" if number > 1 else ""
    )
    return Idle(result="Skip", cause="NoLoadData", reason=f"{reason}: the round waits")


def _idle_plan(plan: Plan, snapshot: Snapshot, stays: Mapping[str, str]) -> Plan:
    """Return the plan of a round without moves. Its reason applies to each broker without a reason
    of its own.
    """
    assert plan.idle is not None
    return replace(
        plan, stays=in_order({**dict.fromkeys(snapshot.live, plan.idle.reason), **stays}, ())
    )


def _over(number: float, divisor: float) -> float:
    """Divide by IEEE rules, with infinity and NaN where Python raises."""
    if divisor:
        return number / divisor
    return math.copysign(math.inf, number) if number else math.nan
