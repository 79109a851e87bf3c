"""Decide which brokers may have a bundle, and why each of the others may not.

Theory of operation:

* Placement and shedders share one answer, `Destinations.of`, so neither undoes the work of the
  other.
* A hard rule may drop every broker: then the bundle waits. Hard rules: alive, not draining or in
  maintenance, below the topic limit, a program that serves the namespace, isolation policies, pins,
  and the caller's `avoid`.
* A preference keeps the best of the brokers that hard rules leave, so it always leaves one.
  Preferences: room (`brokers.balancing.room`), later versions (if set), and anti-affinity of
  namespaces.
* The balancer itself moves no bundle to a broker without room: `movable_to`.

**Anti-affinity.** The namespaces of one group (policy `anti_affinity_group`) keep apart. The order
of choice:

1. Failure domains (`brokers.balancing.policies`): those with the fewest other namespaces of
   the group. Of these, the domain that already has the bundle's namespace, so that a namespace uses
   few domains.
2. Brokers with the fewest other namespaces of the group; of these, those with the fewest bundles of
   the group.

Counts come from the view, without the bundle itself. For namespaces of one bundle this gives the
even distribution that Pulsar documents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

from equipoise.brokers.balancing.namespace_policies import anti_affinity_group
from equipoise.brokers.balancing.policies import (
    ClusterPolicies,
    Isolation,
    Pattern,
    domain_of,
    domains_by_broker,
    is_named,
    maintenance_of,
    read_policies,
)
from equipoise.brokers.balancing.room import Refused, Room
from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.view import View
from equipoise.shedder.loads import Load
from equipoise.shedder.snapshot import Candidates, WeighedBroker

DEFAULT_DOMAIN: Final = "default-domain"
"""The failure domain of a broker without one; Pulsar's name for it."""

# Numbers and an optional suffix, as in semantic versions. Trailing numbers may be missing.
_match_version: Final = re.compile(
    r"v?(\d+(?:\.\d+)*)[-.]?([0-9A-Za-z.-]*)(?:\+([0-9A-Za-z.-]*))?", re.ASCII
).fullmatch

_NOBODY: Final[frozenset[int]] = frozenset()

Brokers = tuple[BrokerEntry, ...]
_Identifiers = tuple[tuple[bool, int, str], ...]
VersionRank = tuple[tuple[int, ...], bool, _Identifiers, bool, _Identifiers]

_NO_VERSION: Final[VersionRank] = ((-1,), False, (), False, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRules:
    """The settings of the placement rules, with Pulsar's names in brackets.

    * `topics_max`: the most topics of a broker (`loadBalancerBrokerMaxTopics`).
    * `prefer_later_versions`: use only brokers of the latest version (`preferLaterVersions`).
    * `failure_domains`: anti-affinity uses failure domains, too (`failureDomainsEnabled`).
    * `memory_percent_max`: how much of its memory a broker may use for a bundle to move there.
    """

    topics_max: int = 50_000
    memory_percent_max: float = 85.0
    prefer_later_versions: bool = False
    failure_domains: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Meant:
    """The brokers that an isolation policy names, by id. A broker may be both primary and
    secondary.
    """

    primaries: Mapping[str, None]
    secondaries: Mapping[str, None]


class Destinations:
    """The allowed destinations for one view and one set of load reports (by broker id), as of
    construction.

    Call `placed` for each bundle of a batch, so that it counts for the next ones. `policies`
    replace the view's, to check a change before it is made.
    """

    def __init__(
        self,
        view: View,
        *,
        loads: Mapping[str, Load] | None = None,
        rules: PlacementRules | None = None,
        policies: ClusterPolicies | None = None,
    ) -> None:
        self.view = view
        self._loads = loads or {}
        self._rules = rules or PlacementRules()
        self.room = self._room(())
        """What the brokers have room for."""
        self.policies = read_policies(view) if policies is None else policies
        self._about: dict[str, ClusterPolicies] = {}  # By namespace.
        # By the namespace, if programs differ, and the names of the policies of a bundle.
        self._bound: dict[tuple[str, ...], Candidates] = {}
        self._groups: dict[str, _Group] = {}
        self._meanings: dict[str, Meant] = {}
        everybody = tuple(view.brokers[broker] for broker in sorted(view.brokers))
        self.maintained: Refused = {
            broker: f"it is in maintenance ({policy.name}: {policy.reason})"
            for broker, policy in maintenance_of(
                self.policies.maintenances, domains_by_broker(self.policies.domains), everybody
            ).items()
        }
        """The brokers in maintenance, by id, and why."""
        steps = (
            not_up,
            self._maintained,
            lambda left: too_many_topics(left, self._loads, self._rules.topics_max),
        )
        fit, refused = _sift(everybody, {}, steps)
        self._fit, self._unfit = fit, refused
        self.live = tuple(broker for broker in everybody if broker.live)
        self._programs_differ = any(broker.joined.namespaces is not None for broker in self.live)
        # By namespace, if programs differ: the brokers that fit and serve it, and the others.
        self._serving: dict[str, tuple[Brokers, Candidates]] = {}

    def _room(self, weighed: Iterable[WeighedBroker]) -> Room:
        percent_max = self._rules.memory_percent_max
        return Room(self.view, self._loads, percent_max=percent_max, weighed=weighed)

    def weigh(self, brokers: Iterable[WeighedBroker]) -> None:
        """Count costs that services declare, too, by the brokers of a snapshot."""
        self.room = self._room(brokers)

    def of(self, bundle: BundleEntry, *, avoid: Collection[int] = _NOBODY) -> Candidates:
        """Return which brokers may have `bundle`. `avoid` are incarnations that must not have it
        now.
        """
        left, unbound = self._who_serves(bundle.namespace)
        steps = tuple(_about(step, bundle) for step in self._steps(bundle))
        if not avoid and not steps:
            return unbound
        refused = dict(unbound.refused)
        if avoid:
            left, refused = _sift(left, refused, (lambda left: refused_lately(left, avoid),))
        left, refused = _sift(left, refused, steps)
        return Candidates(allowed=tuple(broker.broker for broker in left), refused=refused)

    def movable_to(self, bundle: BundleEntry, *, avoid: Collection[int] = _NOBODY) -> Candidates:
        """Return where the balancer may move `bundle`: those of `of` with room for it."""
        found, full = self.of(bundle, avoid=avoid), self.room.refusals(bundle.name)
        if not full:
            return found
        return Candidates(
            allowed=tuple(broker for broker in found.allowed if broker not in full),
            refused={**full, **found.refused},
        )

    def _who_serves(self, namespace: str) -> tuple[Brokers, Candidates]:
        key = namespace if self._programs_differ else ""
        found = self._serving.get(key)
        if found is None:
            step = partial(not_serving, namespace=namespace)
            fit, refused = _sift(self._fit, self._unfit, (step,))
            allowed = tuple(broker.broker for broker in fit)
            found = self._serving[key] = fit, Candidates(allowed=allowed, refused=refused)
        return found

    def bound(self, bundle: BundleEntry) -> Candidates:
        """Return which brokers isolation policies, pins, maintenance and their programs allow for
        `bundle`, and why they refuse each other live broker.

        A broker that drains, or has reached the topic limit, is refused only if these rules keep it
        from the bundle. Bundles with the same policies share one cached answer.
        """
        names = (
            bundle.namespace if self._programs_differ else "",
            *self._policies_of(bundle.namespace).names(bundle),
        )
        found = self._bound.get(names)
        if found is None:
            refused = dict(self._forbidden(self._fit, bundle))
            for broker in self.live:
                if broker.broker in self._unfit:
                    # Ask for one such broker at a time: only brokers that take bundles count when a
                    # policy counts its available primaries.
                    reason = self._forbidden((*self._fit, broker), bundle).get(broker.broker)
                    reason = reason or self.maintained.get(broker.broker)
                    refused.update({} if reason is None else {broker.broker: reason})
            allowed = tuple(broker.broker for broker in self._fit if broker.broker not in refused)
            found = self._bound[names] = Candidates(allowed=allowed, refused=refused)
        return found

    def placed(self, bundle: BundleEntry, broker: str) -> None:
        """Count `bundle` at `broker` from now on."""
        self.room.take(bundle.name, broker)
        group = self._group_of(bundle.namespace)
        if group is not None:
            group.move(bundle, broker)

    @cached_property
    def bound_namespaces(self) -> Mapping[str, str]:
        """The namespaces with an isolation policy or an anti-affinity group, and which of the two.

        Pulsar's shedders leave these alone by default.
        """
        found = {}
        for namespace in sorted(self.view.namespaces):
            about = self._policies_of(namespace)
            if about.isolations or about.closed:
                found[namespace] = "isolation"
            elif anti_affinity_group(self.view.namespaces[namespace].policies) is not None:
                found[namespace] = "anti-affinity"
        return found

    @cached_property
    def kept(self) -> Mapping[str, str]:
        """The live brokers that are a primary of an isolation policy, by id, and the name of the
        first such policy.
        """
        found: dict[str, str] = {}
        for policy in self.policies.isolations:
            for broker in self._meant(policy).primaries:
                found.setdefault(broker, policy.name)
        return found

    # --- the filters that ask about a bundle ---

    def _steps(self, bundle: BundleEntry) -> tuple[Callable[[Brokers, BundleEntry], Refused], ...]:
        """Return those that may refuse a broker."""
        policies = self.policies
        hard: tuple[Callable[[Brokers, BundleEntry], Refused], ...] = ()
        # Not stored: an object that holds its own methods waits for the garbage collector, here
        # with a view of 100,000 bundles.
        if policies.isolations or policies.pins or policies.closed:
            hard = (self._isolated, self._pinned_elsewhere)
        preferences = (
            *((self._full,) if self.room.refusals(bundle.name) else ()),
            *((_older,) if self._rules.prefer_later_versions else ()),
            *((self._crowded,) if self._group_of(bundle.namespace) is not None else ()),
        )
        return (*hard, *preferences)

    def _maintained(self, left: Brokers) -> Refused:
        return {
            broker.broker: self.maintained[broker.broker]
            for broker in left
            if broker.broker in self.maintained
        }

    def _forbidden(self, brokers: Brokers, bundle: BundleEntry) -> Refused:
        steps = (
            partial(not_serving, namespace=bundle.namespace),
            _about(self._isolated, bundle),
            _about(self._pinned_elsewhere, bundle),
        )
        return _sift(brokers, {}, steps)[1]

    def _isolated(self, left: Brokers, bundle: BundleEntry) -> Refused:
        about = self._policies_of(bundle.namespace)
        if about.closed:
            closed = about.closed[0]
            reason = (
                f"the policy {closed.name} cannot be read, so nobody may have what it is about:"
                f" {closed.problem}"
            )
            return {broker.broker: reason for broker in left}
        if not about.isolations:
            kept = self.kept
            return {
                broker.broker: f"{kept[broker.broker]} keeps it for other namespaces"
                for broker in left
                if broker.broker in kept
            }
        dropped: dict[str, str] = {}
        for policy in about.isolations:
            rest = tuple(broker for broker in left if broker.broker not in dropped)
            dropped.update(isolated(rest, policy, self._meant(policy), self._loads))
        return dropped

    def _policies_of(self, namespace: str) -> ClusterPolicies:
        """Return the policies of a namespace. Their patterns are matched once per namespace."""
        found = self._about.get(namespace)
        if found is None:
            found = self._about[namespace] = self.policies.about(namespace)
        return found

    def _meant(self, policy: Isolation) -> Meant:
        """Return the live brokers that a policy names. Its patterns are matched once."""
        found = self._meanings.get(policy.name)
        if found is None:
            found = self._meanings[policy.name] = meant_by(policy, self.live)
        return found

    def _pinned_elsewhere(self, left: Brokers, bundle: BundleEntry) -> Refused:
        """Return the brokers that a pin of the bundle does not name. With several pins, each must
        name the broker.
        """
        dropped = {}
        for pin in self._policies_of(bundle.namespace).pins:
            if pin.covers(bundle):
                reason = f"{pin.name} keeps this bundle at {', '.join(pin.brokers)}"
                dropped.update(
                    {broker.broker: reason for broker in left if broker.broker not in pin.brokers}
                )
        return dropped

    def _full(self, left: Brokers, bundle: BundleEntry) -> Refused:
        refused = self.room.refusals(bundle.name)
        full = {
            broker.broker: refused[broker.broker] for broker in left if broker.broker in refused
        }
        return full if len(full) < len(left) else {}

    def _crowded(self, left: Brokers, bundle: BundleEntry) -> Refused:
        group = self._group_of(bundle.namespace)
        if group is None:
            return {}
        dropped: dict[str, str] = {}
        if self._rules.failure_domains:
            dropped.update(group.crowded_domains(left, bundle))
        dropped.update(
            group.crowded_brokers(
                tuple(broker for broker in left if broker.broker not in dropped), bundle
            )
        )
        return dropped

    def _group_of(self, namespace: str) -> _Group | None:
        entry = self.view.namespaces.get(namespace)
        name = None if entry is None else anti_affinity_group(entry.policies)
        if name is None:
            return None
        if name not in self._groups:
            policies = domains_by_broker(self.policies.domains)
            domains = {
                broker.broker: domain_of(broker, policies).name or DEFAULT_DOMAIN
                for broker in self.live
            }
            self._groups[name] = _Group(name, self.view, self.live, domains)
        return self._groups[name]


# --- the filters: of each broker that they drop, why ---


def not_up(brokers: Brokers) -> Refused:
    """Return the brokers that are not alive, or drain."""
    said = {"draining": "it drains", "left": "it has left", "down": "it is down"}
    return {broker.broker: said[broker.status] for broker in brokers if broker.status != "up"}


def not_serving(brokers: Brokers, namespace: str) -> Refused:
    """Return the brokers whose programs do not serve a namespace."""
    return {
        broker.broker: f"its program does not serve {namespace}"
        for broker in brokers
        if not broker.joined.serves(namespace)
    }


def refused_lately(brokers: Brokers, avoid: Collection[int]) -> Refused:
    """Return the brokers to avoid now, regardless of the other rules."""
    return {
        broker.broker: "it must not have this bundle now"
        for broker in brokers
        if broker.incarnation in avoid
    }


def too_many_topics(brokers: Brokers, loads: Mapping[str, Load], topics_max: int) -> Refused:
    """Return the brokers that have reached the topic limit. A broker without a report has no
    topics.
    """
    topics = {
        broker.broker: loads[broker.broker].topics for broker in brokers if broker.broker in loads
    }
    return {
        name: f"it has {count} topics, and may have {topics_max}"
        for name, count in topics.items()
        if count >= topics_max
    }


def older_versions(brokers: Brokers) -> Refused:
    """Return the brokers whose version is not the latest. An unreadable version counts as the
    oldest.
    """
    ranks = {broker.broker: version_rank(broker.joined.version) for broker in brokers}
    latest = max(ranks.values(), default=_NO_VERSION)
    return {
        broker.broker: f"its version ({broker.joined.version or 'unknown'}) is not the latest"
        for broker in brokers
        if ranks[broker.broker] != latest
    }


def meant_by(policy: Isolation, brokers: Brokers) -> Meant:
    """Return the brokers that a policy names by id or host."""

    def named(patterns: tuple[Pattern, ...]) -> dict[str, None]:
        return dict.fromkeys(
            broker.broker for broker in brokers if is_named(patterns, broker.broker)
        )

    return Meant(primaries=named(policy.primary), secondaries=named(policy.secondary))


def isolated(
    brokers: Brokers, policy: Isolation, meant: Meant, loads: Mapping[str, Load]
) -> Refused:
    """Return the brokers that `policy` excludes: all but primaries and, while too few primaries are
    available, secondaries.

    `meant` are the brokers that the policy names.
    """
    primaries = [broker.broker for broker in brokers if broker.broker in meant.primaries]
    available = [
        name for name in primaries if not _is_full(loads.get(name), policy.usage_threshold)
    ]
    fails_over = len(available) < policy.min_limit
    dropped = {}
    for broker in brokers:
        if broker.broker in meant.primaries:
            continue
        if broker.broker not in meant.secondaries:
            dropped[broker.broker] = f"{policy.name} gives this namespace other brokers"
        elif not fails_over:
            dropped[broker.broker] = (
                f"{policy.name} has {len(available)} primaries available, and needs"
                f" {policy.min_limit}"
            )
    return dropped


def version_rank(version: str) -> VersionRank:
    """Return a sort key that orders versions as semantic versions, including builds. An invalid
    version comes first.
    """
    match = _match_version(version)
    if match is None:
        return _NO_VERSION
    numbers = [int(number) for number in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    before, build = match[2], match[3]
    return (
        tuple(numbers),
        not before,
        _identifiers(before),
        build is not None,
        _identifiers(build or ""),
    )


def _identifiers(text: str) -> _Identifiers:
    """Return the dot-separated identifiers in order: numbers by value, before words."""
    return tuple(
        (not part.isdecimal(), int(part) if part.isdecimal() else 0, part)
        for part in text.split(".")
        if part
    )


def _is_full(load: Load | None, usage_threshold: int) -> bool:
    # NaN is full, too.
    return load is not None and not load.average_use * 100 < usage_threshold


def _sift(
    left: Brokers, refused: Mapping[str, str], steps: Iterable[Callable[[Brokers], Refused]]
) -> tuple[Brokers, dict[str, str]]:
    """Return the brokers left after all steps, and all refused brokers with reasons."""
    everything = dict(refused)
    for step in steps:
        dropped = step(left)
        if dropped:
            everything.update(dropped)
            left = tuple(broker for broker in left if broker.broker not in dropped)
    return left, everything


def _older(left: Brokers, _: BundleEntry) -> Refused:
    return older_versions(left)


def _about(
    step: Callable[[Brokers, BundleEntry], Refused], bundle: BundleEntry
) -> Callable[[Brokers], Refused]:
    return lambda left: step(left, bundle)


# --- anti-affinity ---


class _Group:
    """The namespaces of one anti-affinity group, and how many of their bundles each live broker
    has. `domains` are by broker.
    """

    def __init__(
        self,
        name: str,
        view: View,
        live: Brokers,
        domains: Mapping[str, str],
    ) -> None:
        self._name = name
        self._domains = domains
        self._live = live
        self._holder: dict[str, str] = {}  # By bundle.
        # By broker, then namespace.
        self._counts: dict[str, dict[str, int]] = {broker.broker: {} for broker in live}
        for namespace in sorted(view.namespaces):
            if anti_affinity_group(view.namespaces[namespace].policies) != name:
                continue
            for bundle in view.bundles_of(namespace):
                owner = None if bundle.owner is None else view.live.get(bundle.owner)
                if owner is not None:
                    self.move(bundle, owner.broker)

    def move(self, bundle: BundleEntry, broker: str) -> None:
        """Count a bundle at a broker instead of where it was."""
        before = self._holder.get(bundle.name)
        if before is not None:
            self._counts[before][bundle.namespace] -= 1
        self._holder[bundle.name] = broker
        counts = self._counts[broker]
        counts[bundle.namespace] = counts.get(bundle.namespace, 0) + 1

    def crowded_domains(self, brokers: Brokers, bundle: BundleEntry) -> Refused:
        """Return the brokers of all failure domains that are not the best."""
        domains = {self._domains[broker.broker] for broker in brokers}
        if len(domains) <= 1:
            return {}
        # A domain fails as a whole, so its brokers that may not have the bundle count, too.
        ranks = {
            domain: self._rank(
                [broker.broker for broker in self._live if self._domains[broker.broker] == domain],
                bundle,
                domain=True,
            )
            for domain in sorted(domains)
        }
        return self._behind(
            {broker.broker: ranks[self._domains[broker.broker]] for broker in brokers}, domain=True
        )

    def crowded_brokers(self, brokers: Brokers, bundle: BundleEntry) -> Refused:
        """Return all brokers that are not the best."""
        return self._behind(
            {
                broker.broker: self._rank([broker.broker], bundle, domain=False)
                for broker in brokers
            },
            domain=False,
        )

    def _rank(
        self, brokers: Iterable[str], bundle: BundleEntry, *, domain: bool
    ) -> tuple[int, int]:
        """Return how crowded brokers are for a bundle; least is best.

        The first number counts other namespaces of the group. The second prefers the namespace's
        own domain, or counts bundles of a broker.
        """
        names = tuple(brokers)
        counts = {name: dict(self._counts[name]) for name in names}
        holder = self._holder.get(bundle.name)
        if holder in counts:
            counts[holder][bundle.namespace] -= 1
        bundles = sum(sum(each.values()) for each in counts.values())
        here = {namespace for each in counts.values() for namespace, count in each.items() if count}
        others = len(here - {bundle.namespace})
        return (others, int(bundle.namespace not in here) if domain else bundles)

    def _behind(self, ranks: Mapping[str, tuple[int, int]], *, domain: bool) -> Refused:
        least = min(ranks.values(), default=(0, 0))
        dropped = {}
        for broker, rank in ranks.items():
            if rank == least:
                continue
            subject = "its failure domain" if domain else "it"
            if domain and rank[0] == least[0]:
                dropped[broker] = (
                    f"{subject} is not the one where this namespace is, and {self._name} is a group"
                    " of anti-affinity"
                )
                continue
            more, fewer = (rank[0], least[0]) if rank[0] != least[0] else (rank[1], least[1])
            of = "other namespaces" if rank[0] != least[0] else "bundles"
            dropped[broker] = (
                f"{subject} has {more} {of} of the anti-affinity group {self._name}, and another"
                f" has {fewer}"
            )
        return dropped
