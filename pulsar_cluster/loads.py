"""Parse Pulsar's load reports, and estimate the load of each bundle from them.

Each broker reports its total load on the topic `BROKER_LOADS`, and its busiest bundles on
`TOP_BUNDLES`. The key of a message is the broker. What a report leaves out:

* It names at most `loadBalancerMaxNumberOfBundlesInBundleLoadReport` bundles (default 10). If it is
  full, each other bundle of the broker weighs an equal part of the rest of the broker's load.
* It names no bundle without throughput. If it is not full, its broker's other bundles have none.
* It names no bundle of Pulsar's own namespace, and by default none of a namespace with an isolation
  policy or an anti-affinity group. So these share the rest even if the report is not full. So do
  bundles whose entry is unusable.

Brokers empty their reports (a message without a value) when they get or give a bundle, and report
anew after some seconds.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import orjson

from equipoise.channel.core.errors import PeerError
from equipoise.pulsar_cluster.records import BROKER_LOADS, TOP_BUNDLES, Report
from equipoise.pulsar_cluster.table import is_of_system
from equipoise.shedder.loads import (
    RATES,
    BundleTraffic,
    Load,
    Resources,
    Traffic,
    Use,
    fault_among,
    fault_of,
)
from equipoise.shedder.reported import format_age, format_duration

BUNDLES_MAX: Final = 10
"""How many bundles a report names by default."""

_RATE_FIELDS: Final = ("msgThroughputIn", "msgThroughputOut", "msgRateIn", "msgRateOut")
_NOT_NUMBERS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
"""How Pulsar's JSON writes numbers that JSON does not have: as texts."""


class _Named(NamedTuple):
    """The load of a bundle as `broker` reported it at `published_ms`."""

    broker: str
    published_ms: int
    traffic: BundleTraffic


class _Top(NamedTuple):
    """The newest report of a broker's busiest bundles: the usable entries, lightest first, as
    Pulsar orders them, the bundles of the others, and how many there are.
    """

    usable: tuple[_Named, ...] = ()
    faulty: frozenset[str] = frozenset()
    length: int = 0


_NO_TOP: Final = _Top()


class LoadReports:
    """The newest reports of each broker, and the newest load of each bundle that any report named.

    `loads` are the brokers' total loads. `problems` are the unusable parts of the newest reports,
    by broker or bundle. A bundle whose entry is unusable is still named: the others of its report
    weigh what they would weigh beside a usable one.
    """

    def __init__(self) -> None:
        """Begin without reports."""
        self.loads: dict[str, Load] = {}
        self.problems: dict[str, str] = {}
        self.top: dict[str, _Top] = {}
        self.named: dict[str, _Named] = {}

    def take(self, report: Report) -> None:
        """Take the next report of either topic. An unusable one removes the broker's former
        report, and is named in `problems`.
        """
        broker = report.broker
        if report.topic == BROKER_LOADS:
            self.loads.pop(broker, None)
            self.problems.pop(broker, None)
            if report.value is not None:
                try:
                    self.loads[broker] = _broker_load(broker, report.value, report.at_ms)
                except PeerError as error:
                    self.problems[broker] = (
                        f"its load report is not plausible and does not count: {error}"
                    )
        elif report.topic == TOP_BUNDLES:
            for bundle in sorted(self.top.pop(broker, _NO_TOP).faulty):
                self.problems.pop(bundle, None)
            if report.value is not None:
                self.top[broker] = self._top_bundles(report, report.value)

    def measure(self, broker: str, bundles: Collection[BundleTraffic], at_ms: int) -> None:
        """Take the measured loads of all bundles of a broker in place of the report that it has not
        sent. Its resources stay unknown.
        """
        if broker not in self.loads and broker not in self.problems:
            total = Traffic(
                **{field: sum(getattr(each.traffic, field) for each in bundles) for field in RATES}
            )
            topics = sum(each.topics for each in bundles)
            self.loads[broker] = Load(
                broker=broker,
                at_ms=at_ms,
                traffic=total,
                average_bytes_per_second=total.bytes_per_second,
                bundle_count=len(bundles),
                topics=topics,
            )

    def top_of(self, broker: str) -> _Top:
        """Return the newest report of a broker's bundles, an empty one if there is none."""
        return self.top.get(broker, _NO_TOP)

    def _top_bundles(self, report: Report, value: bytes) -> _Top:
        found, faulty = [], set[str]()
        try:
            entries = _entries(value)
        except PeerError as error:
            self.problems[report.broker] = f"its report of bundles cannot be read: {error}"
            return _NO_TOP
        for entry in entries:
            try:
                traffic = _bundle_traffic(entry)
            except PeerError as error:
                name = entry.get("bundleName") if isinstance(entry, Mapping) else None
                self.problems[str(name or report.broker)] = (
                    f"its load, as {report.broker} reported it, does not count: {error}"
                )
                faulty.add(str(name or report.broker))
                continue
            self.problems.pop(traffic.bundle, None)
            named = _Named(report.broker, report.at_ms, traffic)
            self.named[traffic.bundle] = named
            found.append(named)
        return _Top(tuple(found), frozenset(faulty), len(entries))


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """The load of a cluster's bundles and brokers.

    * `bundles`: the load of each bundle. `loads`: the reports that count, with the bundles that
      they name.
    * `unknown`: the bundles whose load no report and no measure has: they weigh what an unnamed
      bundle does on average.
    * `apart`: the brokers without a report that counts, and why. `notes`: what else was left out,
      one sentence each.
    """

    bundles: Mapping[str, BundleTraffic]
    unknown: frozenset[str] = frozenset()
    loads: Mapping[str, Load]
    apart: Mapping[str, str]
    notes: tuple[str, ...]


class HeldBundle(NamedTuple):
    """A bundle that a broker has, and since when: Unix time of its record."""

    bundle: str
    since_ms: int


def weigh(
    held: Mapping[str, Collection[HeldBundle]],
    reports: LoadReports,
    *,
    now_ms: int,
    age_ms_max: int,
    bundles_max: int = BUNDLES_MAX,
    with_policies: Collection[str] = (),
    measured: Mapping[str, BundleTraffic] | None = None,
) -> Weighed:
    """Return the load of every bundle that the live brokers have (`held`, by broker), at `now_ms`
    (Unix time).

    The first of these counts: the load in `measured`, in the owner's report, in the newest report
    of another broker, or an equal part of the rest of the owner's load. Reports older than
    `age_ms_max` do not count. Reports of brokers that are gone only serve for bundles that they
    gave away. `bundles_max` is how many bundles a full report names. `with_policies` are bundles
    that reports never name.
    """
    usable, apart = _sorted_out(held, reports, now_ms=now_ms, age_ms_max=age_ms_max)
    named = {
        bundle: each.traffic
        for bundle, each in reports.named.items()
        if abs(now_ms - each.published_ms) <= age_ms_max
    }
    rests = {
        broker: _rest_of(
            broker, load, held[broker], reports, bundles_max=bundles_max, unnamed=with_policies
        )
        for broker, load in usable.items()
    }
    mean = _mean([rest.each for rest in rests.values()])
    better = dict(measured or {})
    bundles: dict[str, BundleTraffic] = {}
    unknown: set[str] = set()
    for broker, holds in held.items():
        top = reports.top_of(broker)
        own = {each.traffic.bundle: each.traffic for each in top.usable if broker in usable}
        known = ChainMap(better, own, named)
        for bundle, since_ms in holds:
            rest = rests.get(broker)
            if rest is not None and since_ms > rest.at_ms:
                rest = None  # It has come since the report.
            if bundle not in known and (rest is None or bundle in top.faulty):
                unknown.add(bundle)
            unnamed = mean if rest is None else rest.traffic_of(bundle)
            bundles[bundle] = known.get(bundle) or BundleTraffic(bundle=bundle, traffic=unnamed)
    loads = {
        broker: replace(
            load,
            bundles=tuple(each.traffic for each in reports.top_of(broker).usable),
        )
        for broker, load in usable.items()
    }
    return Weighed(
        bundles=bundles,
        unknown=frozenset(unknown),
        loads=loads,
        apart=apart,
        notes=tuple(_left_out(reports, held.keys(), apart)),
    )


def _left_out(reports: LoadReports, live: Collection[str], apart: Collection[str]) -> Iterator[str]:
    """Yield what else does not count: reports of brokers that are gone, and unusable parts."""
    for broker in sorted({*reports.loads, *reports.top}.difference(live)):
        yield f"{broker} is gone: its load report does not count"
    for subject, problem in sorted(reports.problems.items()):
        if subject not in apart:
            yield f"{subject}: {problem}"


class _Rest(NamedTuple):
    """What a report of `at_ms` does not name: the equal part of each other bundle.

    `is_full`: it names as many as it can. If it is not, only `nameless` bundles can have a load.
    """

    at_ms: int
    each: Traffic
    nameless: Collection[str]
    is_full: bool

    def traffic_of(self, bundle: str) -> Traffic:
        """Return the traffic of a bundle that the report does not name."""
        return self.each if self.is_full or bundle in self.nameless else Traffic()


def _rest_of(
    broker: str,
    load: Load,
    held: Collection[HeldBundle],
    reports: LoadReports,
    *,
    bundles_max: int,
    unnamed: Collection[str],
) -> _Rest:
    """Return the rest of a broker's report. It never names bundles in `unnamed`."""
    top = reports.top_of(broker)
    is_full = top.length >= bundles_max
    nameless = top.faulty | {
        bundle for bundle, _ in held if bundle in unnamed or is_of_system(bundle)
    }
    count = max(1, load.bundle_count - len(top.usable) if is_full else len(nameless))
    left = {
        field: max(
            0.0,
            getattr(load.traffic, field)
            - sum(getattr(each.traffic.traffic, field) for each in top.usable),
        )
        for field in RATES
    }
    each = Traffic(**{field: value / count for field, value in left.items()})
    return _Rest(load.at_ms, each, nameless, is_full)


def _mean(parts: list[Traffic]) -> Traffic:
    count = len(parts)
    return (
        Traffic(**{field: sum(getattr(part, field) for part in parts) / count for field in RATES})
        if count
        else Traffic()
    )


def _sorted_out(
    brokers: Iterable[str], reports: LoadReports, *, now_ms: int, age_ms_max: int
) -> tuple[dict[str, Load], dict[str, str]]:
    """Return the reports that count, and why the other brokers have none."""
    usable: dict[str, Load] = {}
    apart: dict[str, str] = {}
    for broker in brokers:
        load = reports.loads.get(broker)
        if load is None:
            apart[broker] = reports.problems.get(broker, "it has not reported its load")
        elif abs(now_ms - load.at_ms) > age_ms_max:
            age, limit = format_age(now_ms - load.at_ms), format_duration(age_ms_max)
            apart[broker] = f"its load report is outdated: it was made {age} (limit: {limit})"
        else:
            usable[broker] = load
    return usable, apart


# --- parsing ---


def _broker_load(broker: str, value: bytes, published_ms: int) -> Load:
    """Parse the report of a broker. Raise `PeerError`."""
    document = _document(value)
    load = Load(
        broker=broker,
        at_ms=_count(document, "updatedAt") or published_ms,
        resources=Resources(
            cpu=_use(document, "cpu"),
            memory=_use(document, "memory"),
            direct_memory=_use(document, "directMemory"),
            bandwidth_in=_use(document, "bandwidthIn"),
            bandwidth_out=_use(document, "bandwidthOut"),
        ),
        traffic=_traffic(document),
        average_use=_figure(document, "weightedMaxEMA"),
        average_bytes_per_second=_figure(document, "msgThroughputEMA"),
        bundle_count=_count(document, "bundleCount"),
        topics=_count(document, "topics"),
    )
    fault = fault_of(load)
    if fault is not None:
        raise PeerError(fault)
    return load


def _entries(value: bytes) -> list[object]:
    document = _document(value)
    entries = document.get("topBundlesLoadData", document.get("top_bundles_load_data"))
    if not isinstance(entries, list):
        raise PeerError("its list of bundles is missing")
    return entries


def _bundle_traffic(entry: object) -> BundleTraffic:
    """Parse one bundle of a report. Raise `PeerError`."""
    bundle = entry.get("bundleName") if isinstance(entry, Mapping) else None
    stats = entry.get("stats") if isinstance(entry, Mapping) else None
    if not isinstance(bundle, str) or not isinstance(stats, Mapping):
        raise PeerError("it has no name or no figures")
    traffic = _traffic(stats)
    fault = fault_among(traffic, RATES)
    if fault is not None:
        raise PeerError(f"it has {fault}")
    return BundleTraffic(
        bundle=bundle,
        traffic=traffic,
        topics=_count(stats, "topics"),
        consumers=_count(stats, "consumerCount"),
        producers=_count(stats, "producerCount"),
        cache_bytes=_count(stats, "cacheSize"),
    )


def _document(value: bytes) -> Mapping[str, object]:
    try:
        document = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise PeerError(f"it is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise PeerError("it is not a JSON object")
    return document


def _traffic(document: Mapping[str, object]) -> Traffic:
    bytes_in, bytes_out, messages_in, messages_out = (
        _figure(document, field) for field in _RATE_FIELDS
    )
    return Traffic(
        bytes_in_per_second=bytes_in,
        bytes_out_per_second=bytes_out,
        messages_in_per_second=messages_in,
        messages_out_per_second=messages_out,
    )


def _use(document: Mapping[str, object], field: str) -> Use:
    """Return a resource. Not every version of Pulsar reports every one. A negative limit is one
    that the broker does not know.
    """
    use = document.get(field)
    if use is None:
        return Use()
    if not isinstance(use, Mapping):
        raise PeerError(f"{field}={use!r:.40}")
    limit = _figure(use, "limit")
    return Use(used=_figure(use, "usage"), limit=0.0 if limit < 0 else limit)


def _figure(document: Mapping[str, object], field: str) -> float:
    value = document.get(field)
    if isinstance(value, str) and value in _NOT_NUMBERS:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PeerError(f"{field} is missing" if value is None else f"{field}={value!r:.40}")
    return float(value)


def _count(document: Mapping[str, object], field: str) -> int:
    value = document.get(field, 0)
    if type(value) is not int or value < 0:
        raise PeerError(f"{field}={value!r:.40}")
    return value
