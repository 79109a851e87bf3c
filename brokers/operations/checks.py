"""Check a request against the view before it is proposed, and describe its rejection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from equipoise.brokers.agent.requests import (
    CreateNamespace,
    Intent,
    MergeBundles,
    SetClusterPolicy,
    SplitBundle,
    Transfer,
    action_of,
)
from equipoise.brokers.balancing.destinations import Destinations
from equipoise.brokers.balancing.policy_changes import check_policy_change
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.settings_records import settings_in
from equipoise.brokers.balancing.splitting.split_points import (
    ALGORITHMS,
    SPECIFIED_POSITIONS_DIVIDE,
)
from equipoise.brokers.errors import (
    Rejected,
    conflict,
    counted,
    destination_forbidden,
    invalid_request,
)
from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.errors import CallerError, NotFound, invalid_boundaries
from equipoise.channel.core.ranges import check_broker_id, check_cuts, tenant_in
from equipoise.channel.core.records import (
    CUTS_MAX,
    TEXT_CHARACTERS_MAX,
    Reason,
)
from equipoise.channel.core.view import View

_NAMES_SHOWN_MAX: Final = 8

_OVERTAKEN: Final = frozenset({Reason.STALE, Reason.ILLEGAL_TRANSITION, Reason.UNKNOWN_BUNDLE})


@contextmanager
def unless_overtaken() -> Iterator[None]:
    """Ignore the refusal of one step of many because another writer was faster."""
    try:
        yield
    except Rejected as error:
        if error.reason not in _OVERTAKEN:
            raise


def check_request(view: View, intent: Intent) -> None:
    """Raise for what would surely be rejected, with more detail than a rejection.

    Raise `Rejected`, the errors of `check_policy_change`, and `CallerError` beyond the quota of a
    tenant.
    """
    match intent:
        case SetClusterPolicy(policy=policy, document=document):
            check_policy_change(view, policy, document)
        case CreateNamespace(name=name) if name in view.namespaces:
            count, created = len(view.bundles_of(name)), view.namespaces[name].created
            advice = f"see its {count} bundles: equipoise namespaces bundles {name}"
            raise conflict(
                name,
                f"it already exists (created at offset {created})",
                action=action_of(intent),
                advice=advice,
            )
        case CreateNamespace(name=name, boundaries=boundaries):
            _check_quota(view, intent, name, namespaces=1, bundles=len(boundaries) - 1)
        case SplitBundle(bundle=name, positions=positions):
            _check_quota(view, intent, name, bundles=1 if positions is None else len(positions))
        case Transfer(bundle=name, destination=destination) if name in view.bundles:
            check_served(view, view.bundles[name], destination)
        case MergeBundles(left=name) if name in view.bundles:
            _check_merge(view, view.bundles[name])


def _check_quota(view: View, intent: Intent, name: str, **added: int) -> None:
    """Raise `CallerError` if the tenant of `name` may not have so many namespaces or bundles
    more.
    """
    tenant = tenant_in(name)
    quotas = settings_in(view, BalancingSettings()).tenants
    own = [namespace for namespace in view.namespaces if tenant_in(namespace) == tenant]
    has = {
        "namespaces": len(own),
        "bundles": sum(len(view.bundles_of(namespace)) for namespace in own),
    }
    for what, more in added.items():
        setting = f"{what}_max"
        most: int = getattr(quotas, setting)
        if has[what] + more > most:
            problem = (
                f"tenant {tenant} has {has[what]} {what}, and may have {most}, which {more} more"
                " would exceed"
            )
            advice = (
                f"delete some, or raise the limit: equipoise balancing set tenants.{setting}=NUMBER"
            )
            raise CallerError(f"cannot {action_of(intent)} {name}: {problem}; {advice}")


def _check_merge(view: View, left: BundleEntry) -> None:
    right = view.right_neighbour(left)
    if right is not None and left.phase == right.phase == "owned" and left.owner != right.owner:
        key, problem = (
            f"{left.name} and {right.name}",
            f"they belong to {owner_of(view, left)} and {owner_of(view, right)}",
        )
        raise conflict(key, problem, action="merge", advice="transfer one of them first")


def check_unused(namespace: str, topics: Sequence[str]) -> None:
    """Raise `Rejected` if a namespace that is to be deleted has topics with clients."""
    if topics:
        problem = f"it has {counted(len(topics), 'topic')} in use, such as {topics[0]}"
        raise conflict(
            namespace,
            problem,
            action="delete namespace",
            advice="stop their clients, or use --force",
        )


def check_served(view: View, bundle: BundleEntry, destination: str) -> None:
    """Raise `Rejected` if the program of `destination` does not serve the namespace of a bundle."""
    broker, namespace = view.brokers.get(destination), bundle.namespace
    if broker is None or not broker.live or broker.joined.serves(namespace):
        return
    takers = [taker.broker for taker in view.takers(namespace)]
    advice = (
        f"name one that does: {_listed(takers)}"
        if takers
        else f"start a program that serves {namespace}"
    )
    raise conflict(
        bundle.name,
        f"the program of {destination} does not serve {namespace}",
        action="move",
        advice=advice,
        reason=Reason.NOT_SERVED,
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN_MAX
    return ", ".join(names[:_NAMES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


def check_destination(view: View, bundle: BundleEntry, destination: str) -> None:
    """Raise `CallerError` if isolation policies or pins keep a bundle from `destination`, and
    `Rejected` if its program does not serve the namespace.

    Load is ignored. The channel refuses dead brokers.
    """
    check_served(view, bundle, destination)
    rules = settings_in(view, BalancingSettings()).placement
    problem = Destinations(view, rules=rules).bound(bundle).refused.get(destination)
    if problem is not None:
        raise destination_forbidden(bundle=bundle.name, broker=destination, problem=problem)


def check_split(bundle: BundleEntry, algorithm: str, positions: Sequence[int] | None) -> None:
    """Check a split before its owner is asked. The owner's service checks an algorithm of its own.

    Raises `CallerError`, `CallerError`.
    """
    if not algorithm.isprintable() or not 0 < len(algorithm) <= TEXT_CHARACTERS_MAX:
        problem = (
            f"{algorithm[:TEXT_CHARACTERS_MAX]!r} is not a name of up to {TEXT_CHARACTERS_MAX}"
            " printable characters"
        )
        raise invalid_request(what="the split algorithm", problem=problem)
    if positions is None:
        if algorithm == SPECIFIED_POSITIONS_DIVIDE:
            raise invalid_boundaries(
                subject=bundle.name,
                problem=f"{algorithm} needs positions, and there are none; give them",
            )
        return
    if algorithm in ALGORITHMS and algorithm != SPECIFIED_POSITIONS_DIVIDE:
        problem = (
            f"{algorithm} finds its positions itself; use {SPECIFIED_POSITIONS_DIVIDE} to give them"
        )
        raise invalid_boundaries(subject=bundle.name, problem=problem)
    if len(positions) > CUTS_MAX:
        problem = (
            f"one split makes at most {CUTS_MAX} cuts, not {len(positions)}; split the children"
            " again"
        )
        raise invalid_boundaries(subject=bundle.name, problem=problem)
    check_cuts(bundle.low, bundle.high, positions)


def known_broker(view: View, broker_id: str) -> BrokerEntry:
    """Return a broker that has joined. Raises `InvalidName` and `NotFound`."""
    broker = view.brokers.get(check_broker_id(broker_id))
    if broker is None:
        raise NotFound(
            f"no broker {broker_id!r} has ever joined; see who has: equipoise brokers list --all"
        )
    return broker


def live_broker(view: View, broker_id: str) -> BrokerEntry:
    """Return the live incarnation of a broker. Raises `InvalidName`, `NotFound`, and `Rejected` if
    it has left or is down.
    """
    broker = known_broker(view, broker_id)
    if not broker.live:
        problem = f"it is {broker.status} since offset {broker.last}"
        raise Rejected(
            key=broker_id,
            reason=Reason.DEAD_TARGET,
            problem=problem,
            offset=None,
            action="use broker",
        )
    return broker


def owner_of(view: View, bundle: BundleEntry) -> str:
    """Return the id of the broker that owns `bundle`, as `broker_named` does."""
    return "nobody" if bundle.owner is None else broker_named(view, bundle.owner)


def broker_named(view: View, incarnation: int) -> str:
    """Return the id of a broker, or the incarnation of one that has died since."""
    broker = view.live.get(incarnation)
    return f"#{incarnation}" if broker is None else broker.broker
