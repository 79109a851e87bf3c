"""Find the failure domain of a broker: every reader asks here.

A policy `failure-domain/NAME` (Pulsar's failure domains) overrides what the broker declares on
joining.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from equipoise.brokers.balancing.policies import (
    FAILURE_DOMAIN,
    FailureDomain,
    Maintenance,
    policies_in,
)
from equipoise.channel.core.entries import BrokerEntry
from equipoise.channel.core.view import View

BY_BROKER = "broker"
"""The source of a domain that the broker declares itself."""


class Domain(NamedTuple):
    """The failure domain of a broker, and its source: the key of a policy, or `BY_BROKER`. Both are
    None if there is none.
    """

    name: str | None
    source: str | None


def domain_of(broker: BrokerEntry, policies: Mapping[str, FailureDomain]) -> Domain:
    """Return the failure domain of a broker. `policies` are those of `domains_by_broker` or
    `domains_in`.
    """
    policy = policies.get(broker.broker)
    if policy is not None:
        return Domain(policy.domain, policy.name)
    declared = broker.joined.failure_domain
    return Domain(declared, BY_BROKER) if declared else Domain(None, None)


def domains_by_broker(policies: Iterable[FailureDomain]) -> Mapping[str, FailureDomain]:
    """Return the policy of each broker that one names. Of several, the first one counts."""
    found: dict[str, FailureDomain] = {}
    for policy in policies:
        for broker in policy.brokers:
            found.setdefault(broker, policy)
    return found


def maintenance_of(
    maintenances: Collection[Maintenance],
    domains: Mapping[str, FailureDomain],
    brokers: Iterable[BrokerEntry],
) -> Mapping[str, Maintenance]:
    """Return the maintenance of each of these brokers that has one, by broker id. The broker's own
    comes before that of its domain.

    `domains` are the policies of `domains_by_broker`.
    """
    if not maintenances:
        return {}
    known = {(policy.is_of_domain, policy.subject): policy for policy in maintenances}
    found = {
        broker.broker: known.get((False, broker.broker))
        or known.get((True, domain_of(broker, domains).name or ""))
        for broker in brokers
    }
    return {broker: policy for broker, policy in found.items() if policy is not None}


def domains_in(view: View) -> Mapping[str, FailureDomain]:
    """Return the policies of a view by broker."""
    prefix = f"{FAILURE_DOMAIN}/"
    return domains_by_broker(
        policies_in(
            {key: entry.document for key, entry in view.policies.items() if key.startswith(prefix)}
        ).domains
    )
