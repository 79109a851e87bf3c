"""Check a change of a cluster policy before its record is written.

The check looks at the brokers that are up now. Set a policy for future brokers once they have
joined.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from equipoise.brokers.balancing.destinations import Destinations, isolated, meant_by, not_up
from equipoise.brokers.balancing.named import namespaces_of
from equipoise.brokers.balancing.policies import (
    ABOUT_PLACEMENT,
    FREEZE,
    GRANT,
    PAUSE,
    QUARANTINE,
    TENANT,
    Control,
    FailureDomain,
    Grant,
    Isolation,
    Maintenance,
    Pin,
    Tenant,
    domains_in,
    is_maintenance,
    parse_policy,
    policies_in,
    read_policies,
)
from equipoise.brokers.errors import InvalidPolicy, Rejected, conflict
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.records import Document, Reason
from equipoise.channel.core.view import View

_CHANGE = "change the policy"


def check_policy_change(view: View, key: str, document: Document | None) -> None:
    """Raise if the policy `key` must not become `document`; None removes the policy.

    Raises `InvalidPolicy`. Raises `Rejected` in these cases:

    * A bundle that some broker may have now would have no allowed broker.
    * None of the brokers that the policy names is up.
    * A failure domain names a broker of another one, or a tenant that is removed has namespaces.

    If no broker is up, the first two do not apply.
    """
    policy = None if document is None else parse_policy(key, document)
    if document is not None and policy is None:
        kinds = ", ".join(f"{kind}/" for kind in ABOUT_PLACEMENT)
        raise InvalidPolicy(
            policy=key,
            problem=f"there is no such kind of policy; its key begins with one of {kinds}",
        )
    match policy:
        case None if key.startswith(f"{TENANT}/"):
            _check_is_empty(view, key.partition("/")[2])
        case FailureDomain():
            _check_is_alone(view, policy)
        case None if key.partition("/")[0] in (GRANT, PAUSE, FREEZE, QUARANTINE):
            pass
        case None if is_maintenance(key):
            pass
        case None | Isolation() | Pin() | Maintenance():
            _check_leaves_somebody(view, key, policy, document)
        case Control() | Tenant() | Grant():
            pass


def _check_is_empty(view: View, tenant: str) -> None:
    namespaces = namespaces_of(view, tenant)
    if namespaces:
        more = f" and {len(namespaces) - 1} more" if len(namespaces) > 1 else ""
        problem, advice = (
            f"it still has namespace {namespaces[0]}{more}",
            "delete its namespaces first",
        )
        raise conflict(
            tenant, problem, action="delete tenant", advice=advice, reason=Reason.BUNDLES_IN_USE
        )


def _check_is_alone(view: View, policy: FailureDomain) -> None:
    """Raise if a broker of this domain is in another one: a broker that fails with two domains
    would make them one.
    """
    policies = domains_in(view)
    for broker in policy.brokers:
        other = policies.get(broker, policy)
        if other.name != policy.name:
            problem = f"broker {broker} is in the failure domain {other.domain}"
            raise conflict(
                policy.domain, problem, action="set failure domain", advice="remove it there first"
            )


def _check_leaves_somebody(
    view: View, key: str, policy: Isolation | Pin | Maintenance | None, document: Document | None
) -> None:
    after = {name: entry.document for name, entry in view.policies.items() if name != key}
    after |= {} if document is None else {key: document}
    if isinstance(policy, Isolation | Pin) and not _names_somebody(view, policy):
        advice = "name brokers that are up (equipoise brokers list), or start them first"
        raise conflict(
            key, "none of the brokers that it names is up", action=_CHANGE, advice=advice
        )
    policies = (read_policies(view), policies_in(after))
    now, then = (Destinations(view, policies=each) for each in policies)
    asked = set()
    for namespace in sorted(view.namespaces):
        about = tuple(each.about(namespace) for each in policies)
        pins = [pin for each in about for pin in each.pins]
        # A broker runs this check between other work, and there may be 65,536 bundles. Bundles with
        # the same policies before and after have the same answer, so ask only once for each
        # combination.
        for bundle in _unlike(view.bundles_of(namespace), pins):
            question = tuple(each.names(bundle) for each in about)
            if question in asked:
                continue
            asked.add(question)
            if now.of(bundle).allowed and not then.of(bundle).allowed:
                raise _leaves_nobody(
                    key, policy, bundle, subject=bundle.name if pins else namespace
                )


def _leaves_nobody(
    key: str, policy: Isolation | Pin | Maintenance | None, bundle: BundleEntry, *, subject: str
) -> Rejected:
    """Return the refusal of a change after which no broker may have `bundle`. A primary broker is
    reserved for the policy's namespaces.
    """
    if isinstance(policy, Isolation) and not policy.covers(bundle.namespace):
        problem = (
            "it would reserve brokers for the namespaces that it names, and leave none for"
            f" {subject}, which it does not name"
        )
        advice = (
            "leave at least one broker out of `primary`, or let `namespaces` match this one, too"
        )
    elif isinstance(policy, Maintenance):
        problem, advice = (
            f"no other broker that is up could own {subject}",
            "start another broker, or end another maintenance first",
        )
    elif policy is None:
        problem, advice = (
            f"without it, no broker that is up could own {subject}",
            "change the policies that reserve the brokers first",
        )
    else:
        problem = f"no broker that is up could own {subject}"
        advice = "name more brokers that are up (equipoise brokers list)"
    return conflict(key, problem, action=_CHANGE, advice=advice)


def _unlike(bundles: Sequence[BundleEntry], pins: Sequence[Pin]) -> Iterable[BundleEntry]:
    """Yield one bundle for each group of bundles that the same pins cover.

    A pin covers a bundle if it starts before the bundle ends, and ends after the bundle starts. So
    the answer depends only on how many ends of pins lie below each side of the bundle. n pins give
    at most 4n + 1 groups.
    """
    ends = sorted({end for pin in pins for end in (pin.low, pin.high)})
    firsts: dict[tuple[int, int], BundleEntry] = {}
    for bundle in bundles:
        firsts.setdefault((bisect_right(ends, bundle.low), bisect_left(ends, bundle.high)), bundle)
    return firsts.values()


def _names_somebody(view: View, policy: Isolation | Pin) -> bool:
    up = tuple(broker for broker in view.live_brokers() if broker.broker not in not_up((broker,)))
    if isinstance(policy, Pin):
        return not up or any(broker.broker in policy.brokers for broker in up)
    return not up or len(isolated(up, policy, meant_by(policy, up), {})) < len(up)
