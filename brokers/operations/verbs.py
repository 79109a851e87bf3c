"""Define the operations that operators request, but for moves of bundles
(`brokers.operations.moves`).

An operation checks the request, proposes records through its `Port`, waits for their effect and
returns the answer. All raise:

* `Rejected` if the channel refuses a record.
* `NotFound` for what does not exist, and other `CallerError`s for impossible requests.
* `DeadlineExceeded` if the operation had not ended in time. It may still end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

from equipoise.brokers.agent.requests import (
    CreateNamespace,
    DeleteNamespace,
    Intent,
    SetClusterPolicy,
    SetPolicy,
    SetSettings,
    StartDeletingNamespace,
)
from equipoise.brokers.balancing.controls import freeze_key
from equipoise.brokers.balancing.grants import (
    check_role,
    grant_key,
    permission_policy,
    permission_value,
)
from equipoise.brokers.balancing.named import (
    namespace_named,
    policy_named,
    tenant_named,
    tenants_in,
)
from equipoise.brokers.balancing.policies import (
    DOMAIN_MAINTENANCE,
    MAINTENANCE,
    PAUSE_KEY,
    TENANT,
    control_document,
    domain_of,
    domains_in,
    grant_document,
    quarantine_key,
    tenant_document,
)
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.settings_records import (
    Changes,
    SettingsChange,
    change_in,
    check_changes,
    settings_in,
)
from equipoise.brokers.errors import conflict, counted
from equipoise.brokers.operations.checks import (
    live_broker,
    unless_overtaken,
)
from equipoise.brokers.operations.moves import all_released, unloads_of
from equipoise.brokers.operations.outcomes import Answer, accepted_at
from equipoise.brokers.operations.port import Port, propose_each
from equipoise.brokers.security.rights import Action, Right
from equipoise.channel.core.errors import CallerError, NotFound
from equipoise.channel.core.ranges import check_tenant, even_boundaries
from equipoise.channel.core.records import Document, Scalar
from equipoise.channel.core.view import View

_SHOWN: Final = 64

_MOVING: Final = frozenset({"assigning", "transferring", "handing_over", "unloading", "splitting"})


# --- namespaces ---


async def create_namespace(
    port: Port,
    name: str,
    boundaries: Sequence[int] | None = None,
    policies: Document | None = None,
    *,
    base: BalancingSettings | None = None,
) -> Answer:
    """Create a namespace with one bundle between each two adjacent `boundaries`.

    Without boundaries, make as many equal bundles as the settings on the channel, or else in
    `base`, define.
    """
    if boundaries is None:
        settings = settings_in(port.view, base or BalancingSettings())
        boundaries = even_boundaries(settings.balancing.namespace_bundles)
    intent = CreateNamespace(name=name, boundaries=boundaries, policies=policies or {})
    count = len(boundaries) - 1
    return await _accepted(
        port,
        intent,
        f"{name} is created with {counted(count, 'bundle')}",
        namespace=name,
        bundles=count,
    )


async def set_namespace_policy(port: Port, name: str, policy: str, value: Scalar | None) -> Answer:
    """Set one policy of the namespace `name`, or remove it (None). Other policies stay."""
    namespace_named(port.view, name)
    intent = SetPolicy(name=name, policy=policy, value=value)
    sentence = f"{policy} of {name} is {'no longer set' if value is None else value}"
    return await _accepted(port, intent, sentence, namespace=name, **{policy: value})


async def set_namespace_policies(
    port: Port, name: str, values: Mapping[str, Scalar | None]
) -> None:
    """Set or remove policies of the namespace `name`, one after the other."""
    for policy, value in values.items():
        await set_namespace_policy(port, name, policy, value)


async def delete_namespace(
    port: Port,
    name: str,
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> Answer:
    """Delete a namespace with all its bundles, in the steps of `next_of_deletion`. Continue a
    deletion begun earlier.
    """
    namespace_named(port.view, name)
    while True:
        what = f"the release of all bundles of {name}"
        intents = await port.until(lambda view: next_of_deletion(view, name), what)
        match intents[0]:
            case DeleteNamespace() as deletion:
                return await _accepted(port, deletion, f"{name} is deleted", namespace=name)
            case StartDeletingNamespace() as start:
                with unless_overtaken():
                    accepted = await port.propose(start)
                    progress(
                        f"{name} is being deleted since offset {accepted.offset}; its bundles are"
                        " unloaded"
                    )
            case _:
                unloads = await propose_each(port, intents)
                await port.until(all_released(unloads), what)


def next_of_deletion(view: View, name: str) -> tuple[Intent, ...] | None:
    """Return the next requests to delete the namespace `name`; None while its bundles must be
    waited for.

    1. Stop all assignments.
    2. Unload what is owned, also after earlier moves, one batch of `unloads_of` at a time.
    3. Delete the namespace once all its bundles are free.

    The channel refuses to delete a namespace that does not exist.
    """
    namespace = view.namespaces.get(name)
    if namespace is not None and namespace.status != "deleting":
        return (StartDeletingNamespace(name=name),)
    bundles = view.bundles_of(name)
    for unloads in unloads_of(bundles):
        return unloads
    return (
        None
        if any(bundle.phase in _MOVING for bundle in bundles)
        else (DeleteNamespace(name=name),)
    )


# --- policies, settings and brokers ---


async def set_cluster_policy(port: Port, key: str, document: Document) -> Answer:
    """Set the cluster policy `key`. Raises `InvalidPolicy` and `Rejected` as
    `check_policy_change` does.
    """
    intent = SetClusterPolicy(policy=key, document=document)
    return await _accepted(port, intent, f"{key} is set", policy=key)


async def delete_cluster_policy(port: Port, key: str) -> Answer:
    """Remove the cluster policy `key`. Raises as `set_cluster_policy` does."""
    policy_named(port.view, key)
    intent = SetClusterPolicy(policy=key, document=None)
    return await _accepted(port, intent, f"{key} is deleted", policy=key)


async def create_tenant(
    port: Port,
    name: str,
    *,
    admin_roles: Sequence[str] = (),
    allowed_clusters: Sequence[str] = (),
) -> Answer:
    """Create a tenant. Without clusters, it is allowed in this one.

    Raises `CallerError` for another cluster, and `Rejected` if the tenant exists. One that only has
    namespaces exists, too.
    """
    check_tenant(name)
    view = port.view
    if name in tenants_in(view):
        advice = f"see its namespaces: equipoise namespaces list {name}"
        raise conflict(name, "it already exists", action="create tenant", advice=advice)
    document = _tenant_document(view, admin_roles, allowed_clusters)
    intent = SetClusterPolicy(policy=f"{TENANT}/{name}", document=document, expected=None)
    return await _accepted(port, intent, f"tenant {name} is created", tenant=name)


async def update_tenant(
    port: Port,
    name: str,
    *,
    admin_roles: Sequence[str],
    allowed_clusters: Sequence[str],
) -> Answer:
    """Replace the roles and clusters of a tenant. Raises `NotFound`, `Rejected` if another change
    was faster, and `CallerError`.
    """
    view = port.view
    tenant_named(view, check_tenant(name))
    document = _tenant_document(view, admin_roles, allowed_clusters)
    entry = view.policies.get(f"{TENANT}/{name}")
    # A tenant that is deleted meanwhile must not come back.
    expected = None if entry is None else entry.document
    intent = SetClusterPolicy(policy=f"{TENANT}/{name}", document=document, expected=expected)
    return await _accepted(port, intent, f"tenant {name} is updated", tenant=name)


async def delete_tenant(port: Port, name: str) -> Answer:
    """Delete a tenant. Raises `NotFound`, and `Rejected` if it has namespaces."""
    tenant_named(port.view, check_tenant(name))
    intent = SetClusterPolicy(policy=f"{TENANT}/{name}", document=None)
    return await _accepted(port, intent, f"tenant {name} is deleted", tenant=name)


def _tenant_document(
    view: View, admin_roles: Sequence[str], allowed_clusters: Sequence[str]
) -> Document:
    cluster = view.cluster or ""  # A log without a cluster refuses all records.
    clusters = allowed_clusters or (cluster,)
    unknown = sorted(set(clusters) - {cluster})
    if unknown:
        raise CallerError(
            f"there is no cluster {unknown[0][:_SHOWN]!r}: the only cluster here is {cluster!r};"
            " allow that one"
        )
    return tenant_document(admin_roles=admin_roles, allowed_clusters=clusters)


async def grant_right(port: Port, role: str, right: Right) -> Answer:
    """Give a role a right in the cluster, in place of the one that it has. Raises
    `CallerError`.
    """
    intent = SetClusterPolicy(policy=grant_key(check_role(role)), document=grant_document(right))
    sentence = f"role {role} has the right {right} in the cluster"
    return await _accepted(port, intent, sentence, role=role, right=right)


async def revoke_right(port: Port, role: str) -> Answer:
    """Take from a role its right in the cluster. Raises `NotFound` if it has none."""
    absent = f"role {role!r} has no right in the cluster; list those that have one"
    intent = _removal(port, grant_key(check_role(role)), f"{absent}: equipoise rights list")
    sentence = f"role {role} has no right in the cluster"
    return await _accepted(port, intent, sentence, role=role, right=None)


async def grant_permission(
    port: Port, namespace: str, role: str, actions: Collection[Action]
) -> Answer:
    """Set what a role may do in a namespace, in place of what it may do now. Without actions,
    revoke all. Raises `CallerError`.
    """
    namespace_named(port.view, namespace)
    value = permission_value(actions)
    intent = SetPolicy(name=namespace, policy=permission_policy(check_role(role)), value=value)
    may = " and ".join(sorted(actions)) or "neither produce nor consume"
    sentence = f"role {role} may {may} in {namespace}"
    return await _accepted(
        port, intent, sentence, namespace=namespace, role=role, actions=sorted(actions)
    )


async def change_settings(port: Port, changes: Changes) -> SettingsChange:
    """Change balancing settings, all or none. Return the change with the previous values.

    Raises what `check_changes` raises.
    """
    check_changes(port.view, changes)
    accepted = await port.propose(SetSettings(changes=changes, changed_by=port.requester))
    change = change_in(accepted)
    assert change is not None, "what was accepted is this record"
    return change


async def pause_balancing(port: Port, *, reason: str, until_ms: int) -> Answer:
    """Stop moves, splits and merges of the balancer until `until_ms` (Unix time), in place of a
    pause before. Raises `InvalidPolicy`.
    """
    document = control_document(reason, until_ms=until_ms)
    intent = SetClusterPolicy(policy=PAUSE_KEY, document=document)
    return await _accepted(
        port, intent, "balancing is paused", policy=PAUSE_KEY, reason=reason, until_ms=until_ms
    )


async def resume_balancing(port: Port) -> Answer:
    """End the pause of balancing. Raises `NotFound` if there is none."""
    absent = "balancing is not paused; see whether it is off: equipoise balancing show --all"
    intent = _removal(port, PAUSE_KEY, absent)
    return await _accepted(port, intent, "balancing is not paused any more", policy=PAUSE_KEY)


async def freeze_namespace(port: Port, namespace: str, *, reason: str, until_ms: int = 0) -> Answer:
    """Have the balancer leave the bundles of a namespace alone until `until_ms` (Unix time; 0: no
    end), in place of a freeze before.

    Raises `NotFound` and `InvalidPolicy`.
    """
    namespace_named(port.view, namespace)
    key = freeze_key(namespace)
    document = control_document(reason, until_ms=until_ms)
    return await _accepted(
        port,
        SetClusterPolicy(policy=key, document=document),
        f"{namespace} is frozen",
        policy=key,
        reason=reason,
        until_ms=until_ms or None,
    )


async def unfreeze_namespace(port: Port, namespace: str) -> Answer:
    """End the freeze of a namespace. Raises `NotFound` if it is not frozen."""
    key = freeze_key(namespace)
    absent = f"namespace {namespace[:_SHOWN]!r} is not frozen; see what is"
    intent = _removal(port, key, f"{absent}: equipoise balancing show")
    return await _accepted(port, intent, f"{namespace} is not frozen any more", policy=key)


async def release_bundle(port: Port, bundle: str) -> Answer:
    """End the quarantine of a bundle: the leader assigns it at once. Raises `NotFound` if it is in
    none.
    """
    key = quarantine_key(bundle)
    absent = f"bundle {bundle[:_SHOWN]!r} is not in quarantine; see which are"
    intent = _removal(port, key, f"{absent}: equipoise bundles quarantine list")
    return await _accepted(port, intent, f"{bundle} is released from quarantine", policy=key)


async def drain(port: Port, broker_id: str, *, wait: bool = True) -> Answer:
    """Have a broker take no new bundles and move all its bundles away, and wait until it has
    none.
    """
    broker = live_broker(port.view, broker_id)
    incarnation, bundles = broker.incarnation, port.view.held_count(broker.incarnation)
    await port.drain(broker)
    if wait:
        await port.until(partial(_is_drained, incarnation), f"the draining of {broker_id}")
    state = "is drained" if wait else "drains"
    return Answer(
        sentence=f"{broker_id} {state}: it had {counted(bundles, 'bundle')}",
        document={
            "broker": broker_id,
            "incarnation": incarnation,
            "bundles": bundles,
            "done": wait,
        },
    )


async def undrain(port: Port, broker_id: str, *, wait: bool = True) -> Answer:
    """End the drain of a broker, without a restart: it gives its last bundles away, joins again,
    and takes bundles.

    Raises `NotFound` for a broker that is not alive, and `Rejected` if it does not drain.
    """
    broker = live_broker(port.view, broker_id)
    if broker.status != "draining":
        advice = "to end a maintenance: equipoise brokers maintenance end"
        raise conflict(broker_id, "it does not drain", action="undrain", advice=advice)
    await port.undrain(broker)
    if wait:
        await port.until(partial(_is_up, broker_id), f"the return of {broker_id}")
    sentence = f"{broker_id} {'takes bundles again' if wait else 'ends its drain'}"
    return Answer(sentence=sentence, document={"broker": broker_id, "done": wait})


async def start_maintenance(
    port: Port,
    subject: str,
    *,
    reason: str,
    until_ms: int = 0,
    of_domain: bool = False,
    wait: bool = True,
) -> Answer:
    """Have a broker, or with `of_domain` those of a failure domain, take no bundles and give theirs
    away. Wait until they have none.

    The leader ends it at `until_ms` (Unix time; 0: no end). It applies to later processes with
    these ids, too. Raises `NotFound` for a broker that never joined, and for a domain without
    brokers; `InvalidPolicy`; and `Rejected` if no other broker may have the bundles.
    """
    view = port.view
    key = _maintenance_key(subject, of_domain=of_domain)
    document = control_document(reason, until_ms=until_ms)
    domains = domains_in(view)
    names = [
        name
        for name, broker in view.brokers.items()
        if subject == (domain_of(broker, domains).name if of_domain else name)
    ]
    if not names:
        what = (
            f"broker is in the failure domain {subject[:_SHOWN]!r}"
            if of_domain
            else f"broker {subject[:_SHOWN]!r} has ever joined"
        )
        raise NotFound(f"no {what}; see the brokers: equipoise brokers list --all --json")
    live = {view.brokers[name].incarnation for name in names if view.brokers[name].live}
    bundles = sum(map(view.held_count, live))
    accepted = await port.propose(SetClusterPolicy(policy=key, document=document))
    if wait:
        await port.until(partial(_hold_nothing, live), f"the maintenance of {subject}")
    gives = (
        f"{counted(bundles, 'bundle')} of {counted(len(live), 'broker')}"
        f" {'moved' if wait else 'will move'} away"
    )
    sentence = f"{subject} is in maintenance: {gives}"
    return accepted_at(
        accepted.offset,
        sentence,
        policy=key,
        brokers=sorted(names),
        bundles=bundles,
        until_ms=until_ms or None,
        done=wait,
    )


async def end_maintenance(port: Port, subject: str, *, of_domain: bool = False) -> Answer:
    """End the maintenance of a broker or of a failure domain. Raises `NotFound` if it is in
    none.
    """
    key = _maintenance_key(subject, of_domain=of_domain)
    absent = f"{subject[:_SHOWN]!r} is not in maintenance; see what is"
    intent = _removal(port, key, f"{absent}: equipoise brokers maintenance list")
    return await _accepted(port, intent, f"the maintenance of {subject} has ended", policy=key)


def _maintenance_key(subject: str, *, of_domain: bool) -> str:
    return f"{DOMAIN_MAINTENANCE if of_domain else MAINTENANCE}/{subject}"


def _hold_nothing(incarnations: Collection[int], view: View) -> bool | None:
    return None if any(map(view.held_count, incarnations)) else True


def _is_up(broker_id: str, view: View) -> bool | None:
    """Return True if a broker is alive and does not drain; otherwise None."""
    broker = view.brokers.get(broker_id)
    return True if broker is not None and broker.status == "up" else None


def _is_drained(incarnation: int, view: View) -> bool | None:
    """Return True if an incarnation is draining and owns nothing, or is gone; otherwise None."""
    broker = view.live.get(incarnation)
    return (
        True
        if broker is None or (broker.status == "draining" and not view.held_count(incarnation))
        else None
    )


def _removal(port: Port, key: str, absent: str) -> SetClusterPolicy:
    """Return the intent to remove a cluster policy. Raises `NotFound` with the message `absent`."""
    if key not in port.view.policies:
        raise NotFound(absent)
    return SetClusterPolicy(policy=key, document=None)


async def _accepted(port: Port, intent: Intent, sentence: str, **document: object) -> Answer:
    """Propose the record for `intent`, and return the answer."""
    return accepted_at((await port.propose(intent)).offset, sentence, **document)
