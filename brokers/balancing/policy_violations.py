"""Find bundles whose owner violates an isolation policy or a pin, and plan where they go.

Preferences and topic limits count only when a bundle is placed. A broker that drains or is in
maintenance moves its bundles away without this module.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from equipoise.brokers.balancing.decisions import STAYS_MAX
from equipoise.brokers.balancing.destinations import Destinations
from equipoise.brokers.balancing.placement import Placement
from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.records import TEXT_CHARACTERS_MAX
from equipoise.shedder.plan import Move, Stay


def policy_violations(
    destinations: Destinations, *, placement: Placement, at_most: int, resting: Collection[str] = ()
) -> tuple[tuple[Move, ...], tuple[Stay, ...]]:
    """Return up to `at_most` moves of bundles away from brokers that may not have them, to the
    brokers that `placement` chooses.

    A bundle stays, with a reason, in two cases:

    * It is in `resting`. Otherwise a rule that depends on load could move it back and forth.
    * No other broker may have it. A forbidden owner is better than none.

    The search ends after `at_most` moves, so later stays are missing. At most `STAYS_MAX` stays are
    about bundles that no other broker may have. `destinations` and `placement` must have the same
    rules and loads.
    """
    view = destinations.view
    movable: dict[str, _Kept] = {}
    stays: list[Stay] = []
    for kept in _kept_from_owner(destinations):
        if len(movable) == at_most:
            break
        if kept.bundle.name in resting:
            stays.append(kept.stay("it has just moved"))
        elif _has_a_place(destinations, kept):
            movable[kept.bundle.name] = kept
        elif len(stays) < STAYS_MAX:
            stays.append(kept.stay("no other broker may have it"))
    if not movable:
        return (), tuple(stays)  # The usual case: placing nothing would still look at all brokers.
    avoid = {name: frozenset({kept.owner.incarnation}) for name, kept in movable.items()}
    placed = placement.place(
        view, [kept.bundle for kept in movable.values()], avoid=avoid, at_most=at_most
    )
    moves = []
    for name, kept in movable.items():
        destination = view.live[placed[name]].broker if name in placed else None
        # `placement` may use other loads and choose a forbidden broker, which would have to give
        # the bundle back.
        if destination in destinations.bound(kept.bundle).allowed:
            moves.append(
                Move(
                    bundle=name,
                    source=kept.owner.broker,
                    destination=destination,
                    reason=kept.reason,
                    cause="Unknown",
                )
            )
        else:
            stays.append(kept.stay("placement finds no place among the allowed brokers"))
    return tuple(moves), tuple(stays)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A bundle, its owner, and why the owner may not have it."""

    bundle: BundleEntry
    owner: BrokerEntry
    reason: str

    def stay(self, problem: str) -> Stay:
        return Stay(subject=self.bundle.name, reason=f"{self.reason}; but {problem}")


def _has_a_place(destinations: Destinations, kept: _Kept) -> bool:
    """Return whether another broker may have it. The first check is cheap and excludes most; the
    second also knows preferences.
    """
    bundle = kept.bundle
    return bool(
        destinations.bound(bundle).allowed
        and destinations.of(bundle, avoid={kept.owner.incarnation}).allowed
    )


def _kept_from_owner(destinations: Destinations) -> Iterator[_Kept]:
    """Yield the bundles whose owner is up and may not have them."""
    for bundle in _ruled(destinations):
        if bundle.phase != "owned":
            continue
        assert bundle.owner is not None, "an owned bundle has an owner"
        owner = destinations.view.live[bundle.owner]
        reason = destinations.bound(bundle).refused.get(owner.broker)
        if (
            reason is not None
            and owner.status == "up"
            and owner.broker not in destinations.maintained
        ):
            yield _Kept(
                bundle=bundle,
                owner=owner,
                reason=f"{owner.broker} may not have it: {reason}"[:TEXT_CHARACTERS_MAX],
            )


def _ruled(destinations: Destinations) -> Iterator[BundleEntry]:
    """Yield the bundles that a policy may concern. Without policies, yield nothing and look at
    nothing.

    An isolation policy concerns its namespaces and all bundles of its primaries, which are reserved
    for these namespaces. A pin concerns its namespace.
    """
    view, policies = destinations.view, destinations.policies
    if not (policies.isolations or policies.closed or policies.pins):
        return
    isolated = {
        namespace
        for namespace, kind in destinations.bound_namespaces.items()
        if kind == "isolation"
    }
    pinned = {pin.namespace for pin in policies.pins if pin.namespace in view.namespaces}
    namespaces = sorted(isolated | pinned)
    for namespace in namespaces:
        bundles = view.bundles_of(namespace)
        if namespace not in pinned:
            # Without pins all bundles of a namespace have one answer. There may be 65,536, so skip
            # allowed owners at once.
            refused = {
                view.brokers[broker].incarnation
                for broker in destinations.bound(bundles[0]).refused
            }
            bundles = [bundle for bundle in bundles if bundle.owner in refused]
        yield from bundles
    seen = frozenset(namespaces)
    for broker in view.live_brokers():
        if broker.broker in destinations.kept:
            yield from (
                bundle
                for bundle in view.held_by(broker.incarnation)
                if bundle.namespace not in seen
            )
