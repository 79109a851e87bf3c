"""Misplaced bundles: those whose owner a rule keeps from them that was set, or began to count, after they had come to it.

May live here: which bundles these are, and where each is to go. Pure; the leader's rounds carry it out.

Only what binds a bundle to brokers misplaces it, isolation policies and pins. Who is preferred, and who has as many topics as
it may have, is looked at when a bundle is placed; a broker that drains moves everything away by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from equipoise.brokers.balancing.decisions import STAYS_MAX
from equipoise.brokers.balancing.destinations import Destinations
from equipoise.brokers.balancing.placement import Placement
from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.records import TEXT_CHARACTERS_MAX
from equipoise.channel.core.view import View
from equipoise.shedder.plan import Move, Stay


def policy_violations(
    view: View, destinations: Destinations, *, placement: Placement, at_most: int, resting: Collection[str] = ()
) -> tuple[tuple[Move, ...], tuple[Stay, ...]]:
    """Up to `at_most` moves of bundles away from brokers that may not have them, to where `placement` puts them.

    A bundle stays, and it is said why, while it is in `resting`, which keeps a rule that goes by load from moving it to and fro,
    and while nobody else may have it: bad service is better than none. Stays are those that were met on the way to the moves, and of
    bundles that nobody may have the first `STAYS_MAX`. `view` is the one of `destinations`; the latter and `placement` are to know
    the same rules and loads.
    """
    movable: dict[str, _Kept] = {}
    stays: list[Stay] = []
    for kept in _kept_from_owner(view, destinations):
        if len(movable) == at_most:
            break
        if kept.bundle.name in resting:
            stays.append(kept.stay("it has moved just now"))
        elif _has_a_place(destinations, kept):
            movable[kept.bundle.name] = kept
        elif len(stays) < STAYS_MAX:
            stays.append(kept.stay("nobody else may have it"))
    if not movable:
        return (), tuple(stays)  # At once, as in nearly every round: to place nothing costs a look at all brokers, too.
    avoid = {name: frozenset({kept.owner.incarnation}) for name, kept in movable.items()}
    placed = placement.place(view, [kept.bundle for kept in movable.values()], avoid=avoid, at_most=at_most)
    moves = []
    for name, kept in movable.items():
        destination = view.live[placed[name]].broker if name in placed else None
        # One who may not have it, by a placement that knows of other loads, would have to give it back.
        if destination in destinations.bound(kept.bundle).allowed:
            moves.append(Move(bundle=name, source=kept.owner.broker, destination=destination, reason=kept.reason, cause="Unknown"))
        else:
            stays.append(kept.stay("it finds no place among those who may"))
    return tuple(moves), tuple(stays)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A bundle, who owns it, and why that one may not."""

    bundle: BundleEntry
    owner: BrokerEntry
    reason: str

    def stay(self, problem: str) -> Stay:
        return Stay(subject=self.bundle.name, reason=f"{self.reason}; but {problem}")


def _has_a_place(destinations: Destinations, kept: _Kept) -> bool:
    """Whether another broker may have it. The first answer is cheap, and says no to thousands; the second knows of preferences."""
    bundle = kept.bundle
    return bool(destinations.bound(bundle).allowed and destinations.of(bundle, avoid={kept.owner.incarnation}).allowed)


def _kept_from_owner(view: View, destinations: Destinations) -> Iterator[_Kept]:
    """The bundles that are owned by a broker that is up and may not have them."""
    for bundle in _ruled(view, destinations):
        if bundle.phase != "owned":
            continue
        assert bundle.owner is not None, "an owned bundle has an owner"
        owner = view.live[bundle.owner]
        told = destinations.bound(bundle).refused.get(owner.broker)
        if told is not None and owner.status == "up":
            yield _Kept(bundle=bundle, owner=owner, reason=f"{owner.broker} may not have it: {told}"[:TEXT_CHARACTERS_MAX])


def _ruled(view: View, destinations: Destinations) -> Iterator[BundleEntry]:
    """The bundles that a policy can be about; none, and none is looked at, where there is no policy.

    An isolation policy is about its namespaces, and about whatever its primaries have, since it keeps these for them. A pin is
    about its namespace.
    """
    policies = destinations.policies
    if not (policies.isolations or policies.closed or policies.pins):
        return
    isolated = {namespace for namespace, kind in destinations.bound_namespaces.items() if kind == "isolation"}
    pinned = {pin.namespace for pin in policies.pins if pin.namespace in view.namespaces}
    namespaces = sorted(isolated | pinned)
    for namespace in namespaces:
        bundles = view.bundles_of(namespace)
        if namespace not in pinned:
            # Only pins tell its bundles apart, and there may be 65,536: the right owners of them are passed over at a glance.
            refused = {view.brokers[broker].incarnation for broker in destinations.bound(bundles[0]).refused}
            bundles = [bundle for bundle in bundles if bundle.owner in refused]
        yield from bundles
    seen = frozenset(namespaces)
    for broker in view.live_brokers():
        if broker.broker in destinations.kept:
            yield from (bundle for bundle in view.held_by(broker.incarnation) if bundle.namespace not in seen)
