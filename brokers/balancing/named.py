"""Namespaces, bundles and cluster policies of a view by the names that people give them.

May live here: the entry that is meant, or the error that says that it is not there and what to do.
"""

from __future__ import annotations

from equipoise.brokers.balancing.policies import is_about_bundles
from equipoise.brokers.errors import UnknownBundle, UnknownNamespace, UnknownPolicy
from equipoise.channel.core.entries import BundleEntry, NamespaceEntry, PolicyEntry
from equipoise.channel.core.ranges import check_namespace, parse_bundle
from equipoise.channel.core.view import View


def namespace_named(view: View, name: str) -> NamespaceEntry:
    """The namespace of this name. Raises `InvalidName`, `UnknownNamespace`."""
    namespace = view.namespaces.get(name)
    if namespace is None:
        check_namespace(name)
        raise UnknownNamespace(namespace=name)
    return namespace


def bundle_named(view: View, name: str) -> BundleEntry:
    """The bundle of this name. Raises `InvalidName`, `UnknownNamespace`, `UnknownBundle`."""
    namespace_named(view, parse_bundle(name).namespace)
    bundle = view.bundles.get(name)
    if bundle is None:
        raise UnknownBundle(bundle=name)
    return bundle


def policy_named(view: View, key: str) -> PolicyEntry:
    """The isolation policy or the pin of this key, KIND/NAME. Raises `UnknownPolicy`."""
    policy = view.policies.get(key) if is_about_bundles(key) else None
    if policy is None:
        raise UnknownPolicy(policy=key)
    return policy
