"""Changes of the cluster policies: what may be set, and what is refused because nobody could have a bundle then.

May live here: the check that comes before a `policy` record is written. It is of the brokers that are up now: a policy for
brokers that are still to come is set once they are there.
"""

from __future__ import annotations

from brokers.destinations import Destinations, isolated, not_up
from brokers.errors import InvalidPolicy, PolicyLeavesNobody
from brokers.policies import ClusterPolicies, Isolation, Pin, parse_policy, policies_in, read_policies
from channel.records import Document
from channel.view import View


def check_policy_change(view: View, key: str, document: Document | None) -> None:
    """Raise if the policy `key` is not to become `document`; None takes it away.

    Raises `InvalidPolicy`, and `PolicyLeavesNobody` if some bundle that a broker could have could then be had by none, or if
    none of the brokers that the policy names is up. Where no broker is up at all, nothing can be left to nobody.
    """
    after = {name: entry.document for name, entry in view.policies.items() if name != key}
    policy = None
    if document is not None:
        policy = parse_policy(key, document)
        if policy is None:
            raise InvalidPolicy(policy=key, problem="there is no such kind of policy; its key begins with isolation/ or pin/")
        after[key] = document
    if policy is not None and not _names_somebody(view, policy):
        raise PolicyLeavesNobody(policy=key, subject="what it is about")
    policies = (read_policies(view), policies_in(after))
    now, then = (Destinations(view, policies=each) for each in policies)
    asked = set()
    for namespace in sorted(view.namespaces):
        about = tuple(_about(each, namespace) for each in policies)
        pins = tuple(tuple(pin for pin in each.pins if pin.namespace == namespace) for each in policies)
        bundles = view.bundles_of(namespace)
        # Only pins tell the bundles of a namespace apart. And what the same policies are about, now and then, has one answer: a
        # broker asks in the middle of its work, and there may be 65,536 bundles.
        for bundle in bundles if any(pins) else bundles[:1]:
            question = (about, tuple(tuple(pin.name for pin in each if pin.covers(bundle)) for each in pins))
            if question in asked:
                continue
            asked.add(question)
            if now.of(bundle).allowed and not then.of(bundle).allowed:
                raise PolicyLeavesNobody(policy=key, subject=bundle.name if any(pins) else namespace)


def _about(policies: ClusterPolicies, namespace: str) -> tuple[str, ...]:
    """The policies that are about a namespace, but for pins."""
    isolations = [policy.name for policy in policies.isolations if policy.covers(namespace)]
    return (*isolations, *(closed.name for closed in policies.closed if closed.covers(namespace)))


def _names_somebody(view: View, policy: Isolation | Pin) -> bool:
    up = tuple(broker for broker in view.live_brokers() if broker.broker not in not_up((broker,)))
    if isinstance(policy, Pin):
        return not up or any(broker.broker in policy.brokers for broker in up)
    return not up or len(isolated(up, policy, {})) < len(up)
