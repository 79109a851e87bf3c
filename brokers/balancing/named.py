"""Look up namespaces, bundles and cluster policies of a view by name, and the broker that serves a bundle."""

from __future__ import annotations

from equipoise.brokers.balancing.policies import is_about_bundles
from equipoise.brokers.errors import UnknownNamespace
from equipoise.channel.core.entries import BrokerEntry, BundleEntry, NamespaceEntry, PolicyEntry
from equipoise.channel.core.errors import NotFound
from equipoise.channel.core.ranges import check_namespace, namespace_in, parse_bundle
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
    return NotFound(f"there is no bundle {name!r}; list those that exist: equipoise namespaces bundles {namespace_in(name)}")


def policy_named(view: View, key: str) -> PolicyEntry:
    """Return the isolation policy or pin of this key, KIND/NAME. Raises `NotFound`."""
    policy = view.policies.get(key) if is_about_bundles(key) else None
    if policy is None:
        raise NotFound(f"there is no policy {key!r}; list those that exist: equipoise policies list")
    return policy


def server_of(view: View, bundle: BundleEntry) -> BrokerEntry | None:
    """Return the live broker that serves `bundle` in this view, or None if a client should wait.

    A source that is closing still owns the bundle, but would send the client away. So the client waits for the next owner.
    """
    if bundle.phase in ("handing_over", "unloading") or bundle.server is None:
        return None
    return view.live.get(bundle.server)
