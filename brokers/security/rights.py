"""Decide what a role may do: the rights that roles hold, what a request needs, and the refusal."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from equipoise.brokers.security.identity import Identity, Surface

_SHOWN_MAX: Final = 64


class Right(StrEnum):
    """A right in the whole cluster. Each one includes those before it; `admin` includes
    everything.
    """

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    def includes(self, other: Right) -> bool:
        """Return whether a role with this right has `other`, too."""
        return _ORDER.index(self) >= _ORDER.index(other)


_ORDER: Final = tuple(Right)


class Action(StrEnum):
    """What a role may do with the topics of one namespace, by Pulsar's names."""

    CONSUME = "consume"
    PRODUCE = "produce"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a request acts: a namespace (TENANT/NAMESPACE), a tenant, or the cluster (both
    None).
    """

    tenant: str | None = None
    namespace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a role needs for a request.

    One of these suffices:

    * `right` in the cluster. None: every role may.
    * If `by_tenant`: to administer the tenant of the place.
    * One of `actions` in the namespace of the place.
    """

    right: Right | None
    by_tenant: bool = False
    actions: frozenset[Action] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a role holds at a place."""

    right: Right | None = None
    is_tenant_admin: bool = False
    actions: frozenset[Action] = frozenset()


ANYONE: Final = Need(right=None)

_ANY_ACTION: Final = frozenset(Action)

READ: Final = Need(right=Right.READ)
OPERATE: Final = Need(right=Right.OPERATE)
ADMINISTER: Final = Need(right=Right.ADMIN)

READ_TENANT: Final = Need(right=Right.READ, by_tenant=True)
OPERATE_TENANT: Final = Need(right=Right.OPERATE, by_tenant=True)
ADMINISTER_TENANT: Final = Need(right=Right.ADMIN, by_tenant=True)

USE: Final = Need(right=Right.READ, by_tenant=True, actions=_ANY_ACTION)
"""To look up topics and to read about them: for producers and consumers, too."""

PRODUCE: Final = Need(right=Right.ADMIN, by_tenant=True, actions=frozenset({Action.PRODUCE}))
CONSUME: Final = Need(right=Right.ADMIN, by_tenant=True, actions=frozenset({Action.CONSUME}))


def is_allowed(held: Held, need: Need) -> bool:
    """Return whether a role that holds `held` may do what needs `need`."""
    return (
        need.right is None
        or (held.right is not None and held.right.includes(need.right))
        or (need.by_tenant and held.is_tenant_admin)
        or not need.actions.isdisjoint(held.actions)
    )


def refusal(role: str, held: Held, need: Need, what: str, place: Place) -> str | None:
    """Return why a role may not do `what` (words after "may not"), and what it needs; None if it
    may.
    """
    if is_allowed(held, need):
        return None
    needs = [
        f"the right {action} in namespace {place.namespace[:_SHOWN_MAX]!r}"
        for action in sorted(need.actions)
        if place.namespace is not None
    ]
    needs += (
        [f"to administer tenant {place.tenant[:_SHOWN_MAX]!r}"]
        if need.by_tenant and place.tenant is not None
        else []
    )
    needs += [f"the right {need.right} in the cluster"]
    return f"role {role[:_SHOWN_MAX]!r} may not {what}; it needs {', or '.join(needs)}"


class Refused(Protocol):
    """Takes a refusal, to count it and to log it."""

    def __call__(self, surface: Surface, *, what: str, why: str, client: str, role: str) -> None:
        """`what` was asked, `why` it was refused (a sentence), and the address of the `client`."""
        ...


class Authorization:
    """The check of rights at one broker, for all surfaces."""

    def __init__(
        self, *, super_roles: Collection[str], held: Callable[[str, Place], Held], refused: Refused
    ) -> None:
        """`super_roles` may do everything. `held` returns what a role holds at a place, as of now.
        `refused` takes each refusal.
        """
        self._super_roles = frozenset(super_roles)
        self._held = held
        self._refused = refused

    def is_allowed(self, identity: Identity, need: Need, place: Place) -> bool:
        """Return whether a client, and the proxy before it, may do what needs `need`."""
        return all(
            role in self._super_roles or is_allowed(self._held(role, place), need)
            for role in identity.roles
        )

    def check(
        self,
        surface: Surface,
        identity: Identity,
        need: Need,
        place: Place,
        *,
        what: str,
        client: str,
    ) -> str | None:
        """Return the refusal of `what` as a sentence; None if the client and its proxy may do it.
        See `Refused` for the rest.
        """
        if need.right is None:
            return None
        for role in identity.roles:
            why = (
                None
                if role in self._super_roles
                else refusal(role, self._held(role, place), need, what, place)
            )
            if why is not None:
                self._refused(surface, what=what, why=why, client=client, role=role)
                return why
        return None
