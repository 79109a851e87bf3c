"""Look up namespaces, bundles and cluster policies of a view by name, and the broker that serves a
bundle.
"""

from __future__ import annotations

from equipoise.brokers.balancing.policies import TENANT, Tenant, is_about_placement, items_of
from equipoise.brokers.errors import UnknownNamespace
from equipoise.channel.core.entries import BrokerEntry, BundleEntry, NamespaceEntry, PolicyEntry
from equipoise.channel.core.errors import NotFound
from equipoise.channel.core.ranges import check_namespace, namespace_in, parse_bundle, tenant_in
from equipoise.channel.core.view import View


def namespace_named(view: View, name: str) -> NamespaceEntry:
    """Return the namespace of this name. Raises `InvalidName`, `UnknownNamespace`."""
    namespace = view.namespaces.get(name)
    if namespace is None:
        check_namespace(name)
        raise UnknownNamespace(namespace=name)
    return namespace


def bundle_named(view: View, name: str) -> BundleEntry:
    """Return the bundle of this name. Raises `InvalidName`, `NotFound`."""
    namespace_named(view, parse_bundle(name).namespace)
    bundle = view.bundles.get(name)
    if bundle is None:
        raise no_bundle(name)
    return bundle


def no_bundle(name: str) -> NotFound:
    """Return the error for a bundle that does not exist."""
    return NotFound(
        f"there is no bundle {name!r}; list those that exist: equipoise namespaces bundles"
        f" {namespace_in(name)}"
    )


def policy_named(view: View, key: str) -> PolicyEntry:
    """Return the isolation policy, pin or failure domain of this key, KIND/NAME. Raises
    `NotFound`.
    """
    policy = view.policies.get(key) if is_about_placement(key) else None
    if policy is None:
        raise NotFound(
            f"there is no policy {key!r}; list those that exist: equipoise policies list"
        )
    return policy


def tenants_in(view: View) -> list[str]:
    """Return the tenants that were created or have a namespace, sorted."""
    prefix = f"{TENANT}/"
    created = {key.removeprefix(prefix) for key in view.policies if key.startswith(prefix)}
    return sorted(created | {tenant_in(name) for name in view.namespaces})


def tenant_named(view: View, name: str) -> Tenant:
    """Return the tenant of this name. One that only has namespaces has no roles, and this cluster.
    Raises `NotFound`.
    """
    entry = view.policies.get(f"{TENANT}/{name}")
    if entry is not None:
        roles, clusters = (
            tuple(items_of(entry.document, field)) for field in ("admin_roles", "allowed_clusters")
        )
        return Tenant(name=name, admin_roles=roles, allowed_clusters=clusters)
    if not namespaces_of(view, name):
        advice = (
            f"create it (pulsar-admin tenants create {name}), or a namespace in it (equipoise"
            f" namespaces create {name}/NAMESPACE)"
        )
        raise NotFound(f"there is no tenant {name!r}; {advice}")
    assert view.cluster is not None, "a log with a namespace has a genesis"
    return Tenant(name=name, admin_roles=(), allowed_clusters=(view.cluster,))


def namespaces_of(view: View, tenant: str) -> list[str]:
    """Return the full names of the namespaces of a tenant, sorted."""
    return sorted(name for name in view.namespaces if name.startswith(f"{tenant}/"))


def patterns_of(broker: BrokerEntry) -> list[str]:
    """Return the patterns of the namespaces that the program of a broker serves; `*` is all."""
    named = broker.joined.namespaces
    return ["*"] if named is None else list(named)


def server_of(view: View, bundle: BundleEntry) -> BrokerEntry | None:
    """Return the live broker that serves `bundle` in this view, or None if a client should wait.

    A source that is closing still owns the bundle, but would send the client away. So the client
    waits for the next owner.
    """
    if bundle.phase in ("handing_over", "unloading") or bundle.server is None:
        return None
    return view.live.get(bundle.server)
