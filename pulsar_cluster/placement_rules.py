"""Decide which brokers of a Pulsar cluster may take a bundle: namespace isolation policies and
anti-affinity groups, as Pulsar has them.

* Isolation: a namespace with a policy may use only its primaries. While fewer than `min_limit` of
  these are live, it may use the secondaries, too. A namespace without a policy may use only brokers
  that are a primary of no policy. Patterns match a broker's host. Where several policies cover one
  namespace, a broker must suit each. Pulsar uses the first that it finds.
* Anti-affinity: bundles of the namespaces of a group go to the failure domains, and there to the
  brokers, with the fewest bundles of the group. The bundle that is to move is not counted at its
  source. Pulsar counts it, and so may move it from a broker with one bundle of the group to
  another.
* A broker with too many topics takes none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from equipoise.brokers.balancing.policies import (
    USAGE_THRESHOLD_DEFAULT,
    Isolation,
    Pattern,
    host_of,
    is_match,
)
from equipoise.channel.core.errors import CallerError
from equipoise.channel.core.ranges import namespace_in
from equipoise.shedder.snapshot import Candidates

_NO_DOMAIN: Final = "default-domain"
"""Pulsar's name for the domain of brokers that are in none."""


def _unreadable(name: str, problem: str) -> CallerError:
    """Return the error for an isolation policy that cannot be read here, so nobody knows which
    brokers it keeps apart.
    """
    return CallerError(
        f"the isolation policy {name!r} cannot be read: {problem}; correct it (pulsar-admin"
        f" ns-isolation-policy get CLUSTER {name})"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPolicies:
    """What the administrators of a cluster have set about placement.

    * `isolations`: the isolation policies. `groups`: the anti-affinity group of each namespace that
      has one.
    * `domains`: the failure domain of each broker that is in one; empty if the cluster does not use
      them.
    * `topics_max`: a broker with as many topics takes no bundle.
    """

    isolations: tuple[Isolation, ...] = ()
    groups: Mapping[str, str] = field(default_factory=dict)
    domains: Mapping[str, str] = field(default_factory=dict)
    topics_max: int = 50_000

    def kind_of(self, namespace: str) -> Literal["isolation", "anti-affinity"] | None:
        """Return which kind of policy a namespace has, if any: the reports of load then leave its
        bundles out.
        """
        if any(policy.covers(namespace) for policy in self.isolations):
            return "isolation"
        return "anti-affinity" if namespace in self.groups else None


def parse_isolation(name: str, document: object) -> Isolation:
    """Parse a policy as the admin API returns it. Raises `CallerError`."""
    if not isinstance(document, Mapping):
        raise _unreadable(name, "it is not a JSON object")
    failover = document.get("auto_failover_policy") or {}
    parameters = failover.get("parameters") if isinstance(failover, Mapping) else None
    limit = parameters.get("min_limit", "1") if isinstance(parameters, Mapping) else "1"
    try:
        min_limit = int(limit)
    except (TypeError, ValueError):
        raise _unreadable(name, f"min_limit is {limit!r:.40}") from None
    return Isolation(
        name=name,
        namespaces=_patterns(name, document, "namespaces"),
        primary=_patterns(name, document, "primary"),
        secondary=_patterns(name, document, "secondary"),
        min_limit=min_limit,
        usage_threshold=USAGE_THRESHOLD_DEFAULT,  # No rule here asks for the use of brokers.
    )


def _patterns(name: str, document: Mapping[str, object], field: str) -> tuple[Pattern, ...]:
    texts = document.get(field) or []
    if not isinstance(texts, list):
        raise _unreadable(name, f"{field} is not a list")
    try:
        return tuple(re.compile(text) for text in texts)
    except (re.error, TypeError) as error:
        raise _unreadable(
            name, f"{field} has a pattern that Python cannot read: {error}"
        ) from error


class PlacementRules:
    """The rules for one distribution of bundles over brokers. `move` keeps the counts of
    anti-affinity up to date.
    """

    def __init__(
        self,
        policies: ClusterPolicies,
        brokers: Collection[str],
        owners: Mapping[str, str],
        *,
        topics: Mapping[str, int] | None = None,
    ) -> None:
        """`brokers` are the live ones, `owners` the broker of each bundle, `topics` how many topics
        a broker has.
        """
        self._policies = policies
        self._brokers = tuple(sorted(brokers))
        self._owners = dict(owners)
        self._full = {
            broker for broker, count in (topics or {}).items() if count >= policies.topics_max
        }
        self._dedicated = {
            broker: policy.name
            for policy in reversed(policies.isolations)
            for broker in self._brokers
            if is_match(policy.primary, host_of(broker))
        }
        self._isolated: dict[str, Mapping[str, str]] = {}
        self._counts: dict[str, Counter[str]] = {}
        for bundle, broker in self._owners.items():
            group = policies.groups.get(namespace_in(bundle))
            if group is not None:
                self._counts.setdefault(group, Counter())[broker] += 1

    def move(self, bundle: str, destination: str) -> None:
        """Count `bundle` at `destination` from now on."""
        group = self._policies.groups.get(namespace_in(bundle))
        if group is not None:
            self._counts[group][self._owners[bundle]] -= 1
            self._counts[group][destination] += 1
        self._owners[bundle] = destination

    def brokers_of(self, namespace: str) -> frozenset[str]:
        """Return the brokers that isolation policies leave to a namespace."""
        if namespace not in self._isolated:
            self._isolated[namespace] = self._refused_by_isolation(namespace)
        return frozenset(self._brokers).difference(self._isolated[namespace])

    def candidates(self, bundle: str) -> Candidates:
        """Return the brokers that may take `bundle`, and why the others may not."""
        namespace = namespace_in(bundle)
        if namespace not in self._isolated:
            self._isolated[namespace] = self._refused_by_isolation(namespace)
        refused = dict(self._isolated[namespace])
        owner = self._owners.get(bundle)
        limit = self._policies.topics_max
        refused |= {
            broker: f"it has {limit} topics or more"
            for broker in sorted(self._full - refused.keys())
            if broker != owner
        }
        group = self._policies.groups.get(namespace)
        if group is not None:
            left = [broker for broker in self._brokers if broker not in refused]
            refused |= self._refused_by_group(group, left, without=owner)
        return Candidates(
            allowed=tuple(broker for broker in self._brokers if broker not in refused),
            refused=refused,
        )

    def _refused_by_isolation(self, namespace: str) -> Mapping[str, str]:
        covering = [policy for policy in self._policies.isolations if policy.covers(namespace)]
        if not covering:
            return {
                broker: f"it is a primary of the isolation policy {name}"
                for broker, name in self._dedicated.items()
            }
        refused: dict[str, str] = {}
        for policy in covering:
            primaries = {
                broker for broker in self._brokers if is_match(policy.primary, host_of(broker))
            }
            for broker in self._brokers:
                if broker in primaries:
                    continue
                if not is_match(policy.secondary, host_of(broker)):
                    refused.setdefault(
                        broker,
                        f"the isolation policy {policy.name} gives this namespace other brokers",
                    )
                elif len(primaries) >= policy.min_limit:
                    enough = f"has {len(primaries)} primaries live, and needs {policy.min_limit}"
                    refused.setdefault(broker, f"the isolation policy {policy.name} {enough}")
        return refused

    def _refused_by_group(
        self, group: str, left: Iterable[str], *, without: str | None
    ) -> Mapping[str, str]:
        """Return which of the brokers `left` have more bundles of the group than others. A bundle
        at `without` is not counted.
        """
        counts = self._counts.get(group, Counter[str]())
        numbers = {broker: counts[broker] - (broker == without) for broker in left}
        kept = numbers
        if self._policies.domains and numbers:
            totals = Counter[str]()
            for broker, number in numbers.items():
                totals[self._domain(broker)] += number
            least = min(totals.values())
            kept = {
                broker: number
                for broker, number in numbers.items()
                if totals[self._domain(broker)] == least
            }
        fewest = min(kept.values(), default=0)
        why = (
            f"it or its failure domain has more bundles of the anti-affinity group {group} than"
            " others"
        )
        return {broker: why for broker in numbers if kept.get(broker) != fewest}

    def _domain(self, broker: str) -> str:
        return self._policies.domains.get(broker, _NO_DOMAIN)
