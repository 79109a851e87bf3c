"""Read and write the rights of roles on the channel.

* A right in the cluster is a cluster policy with the key `grant/ROLE` and one entry, `right`.
* The actions of a role in a namespace are the policy `permission:ROLE` of that namespace, a sorted
  list with commas: `consume,produce`.
* The roles that administer a tenant are `admin_roles` of the tenant.

Rights that cannot be read grant nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from equipoise.brokers.balancing.policies import GRANT, TENANT, is_role, items_of
from equipoise.brokers.errors import invalid_request
from equipoise.brokers.security.rights import Action, Held, Place, Right
from equipoise.channel.core.records import Document, Scalar
from equipoise.channel.core.view import View

_PERMISSION: Final = "permission:"
_EXPECTED: Final = "1 to 255 printable characters without white space around them"


def check_role(role: str) -> str:
    """Return the name of a role. Raises `CallerError`."""
    if not is_role(role):
        raise invalid_request(what="the role", problem=f"{role[:64]!r} must be {_EXPECTED}")
    return role


def parse_actions(names: Collection[str]) -> frozenset[Action]:
    """Return actions by name. Raises `CallerError` for an unknown one, and if there is none."""
    unknown = sorted(set(names) - set(Action))
    if unknown or not names:
        problem = (
            f"{unknown[0][:64]!r} is none of {', '.join(Action)}"
            if unknown
            else f"name at least one of {', '.join(Action)}"
        )
        raise invalid_request(what="the actions", problem=problem)
    return frozenset(map(Action, names))


def grant_key(role: str) -> str:
    """Return the key of the cluster policy that holds the right of a role."""
    return f"{GRANT}/{role}"


def permission_policy(role: str) -> str:
    """Return the name of the namespace policy that holds the actions of a role."""
    return _PERMISSION + role


def permission_value(actions: Collection[Action]) -> str | None:
    """Return the value of that policy; None, which removes it, without actions."""
    return ",".join(sorted(actions)) or None


def misfit_of_permission(name: str, value: Scalar) -> str | None:
    """Return why a namespace must not have this policy; None if it may, or if it is no
    permission.
    """
    if not name.startswith(_PERMISSION):
        return None
    if not is_role(name.removeprefix(_PERMISSION)):
        return f"the role of {name[:64]!r} must be {_EXPECTED}"
    actions = _actions(value)
    if not actions or value != permission_value(actions):
        return (
            f"{name[:64]} is {value!r:.80}, and must be a sorted list with commas of"
            f" {', '.join(Action)}"
        )
    return None


def rights_in(view: View) -> Mapping[str, Right]:
    """Return the rights in the cluster by role, sorted."""
    prefix = f"{GRANT}/"
    found = {
        key.removeprefix(prefix): _right(view.policies[key].document)
        for key in sorted(view.policies)
        if key.startswith(prefix)
    }
    return {role: right for role, right in found.items() if right is not None}


def permissions_in(policies: Document) -> Mapping[str, Sequence[Action]]:
    """Return the actions of each role in the namespace with these policies, sorted."""
    found = {
        name.removeprefix(_PERMISSION): sorted(_actions(policies[name]))
        for name in sorted(policies)
        if name.startswith(_PERMISSION)
    }
    return {role: actions for role, actions in found.items() if actions}


def held_in(view: View, role: str, place: Place) -> Held:
    """Return what a role holds at a place."""
    grant = view.policies.get(grant_key(role))
    tenant = None if place.tenant is None else view.policies.get(f"{TENANT}/{place.tenant}")
    namespace = None if place.namespace is None else view.namespaces.get(place.namespace)
    return Held(
        right=None if grant is None else _right(grant.document),
        is_tenant_admin=tenant is not None and role in items_of(tenant.document, "admin_roles"),
        actions=(
            frozenset()
            if namespace is None
            else _actions(namespace.policies.get(permission_policy(role)))
        ),
    )


def _right(document: Document) -> Right | None:
    value = document.get("right")
    return Right(value) if isinstance(value, str) and value in tuple(Right) else None


def _actions(value: Scalar | None) -> frozenset[Action]:
    names = value.split(",") if isinstance(value, str) else []
    return frozenset(Action(name) for name in names if name in tuple(Action))
