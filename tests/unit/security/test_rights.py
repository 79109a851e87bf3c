"""The decision whether a role may do something, alone and over any history of grants and
revocations on the channel.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.balancing.grants import held_in
from equipoise.brokers.balancing.policies import GRANT, TENANT
from equipoise.brokers.operations import verbs
from equipoise.brokers.operations.on_channel import run
from equipoise.brokers.operations.port import Port
from equipoise.brokers.security.identity import Identity, Surface
from equipoise.brokers.security.rights import (
    ADMINISTER,
    ADMINISTER_TENANT,
    ANYONE,
    CONSUME,
    OPERATE,
    OPERATE_TENANT,
    PRODUCE,
    READ,
    READ_TENANT,
    USE,
    Action,
    Authorization,
    Held,
    Need,
    Place,
    Right,
    refusal,
)
from equipoise.channel.core import propose
from equipoise.channel.core.errors import CallerError, NotFound
from tests.channels.folding import Channel, channel_with
from tests.channels.operating import FoldingPort

ROLES = ("ann", "bob@shop.example", "CN=a, O=b/c")
NAMESPACES = ("shop/orders", "shop/live", "other/orders")
NEEDS = (
    ANYONE,
    READ,
    OPERATE,
    ADMINISTER,
    READ_TENANT,
    OPERATE_TENANT,
    ADMINISTER_TENANT,
    USE,
    PRODUCE,
    CONSUME,
)


def tenant_of(namespace: str) -> str:
    return namespace.partition("/")[0]


class Granted:
    """A channel with tenants and namespaces, and the rights by the last grants, kept in another
    way: one set of facts.
    """

    def __init__(self) -> None:
        self.channel: Channel = channel_with("a")
        for namespace in NAMESPACES:
            self.channel.create(namespace=namespace)
        self.facts: set[tuple[str, str, str]] = set()

    def do(self, operation: Callable[[Port], Coroutine[Any, Any, object]]) -> None:
        """Run an operation."""
        run(operation(FoldingPort(self.channel)))

    def forget(self, kind: str, role: str | None, where: str) -> None:
        self.facts = {
            fact
            for fact in self.facts
            if not (fact[0].startswith(kind) and role in (None, fact[1]) and fact[2] == where)
        }

    # --- what an operator may do ---

    def grant(self, role: str, right: Right) -> None:
        self.do(lambda port: verbs.grant_right(port, role, right))
        self.forget("cluster", role, "")
        self.facts.add((f"cluster {right}", role, ""))

    def revoke(self, role: str) -> None:
        if not any(fact[0].startswith("cluster") and fact[1] == role for fact in self.facts):
            with pytest.raises(NotFound):
                self.do(lambda port: verbs.revoke_right(port, role))
            return
        self.do(lambda port: verbs.revoke_right(port, role))
        self.forget("cluster", role, "")

    def permit(self, role: str, namespace: str, actions: frozenset[Action]) -> None:
        self.do(lambda port: verbs.grant_permission(port, namespace, role, actions))
        self.forget("topics", role, namespace)
        self.facts |= {(f"topics {action}", role, namespace) for action in actions}

    def administer(self, roles: frozenset[str], tenant: str) -> None:
        self.do(
            lambda port: verbs.update_tenant(
                port, tenant, admin_roles=sorted(roles), allowed_clusters=()
            )
        )
        self.forget("tenant", None, tenant)
        self.facts |= {("tenant", role, tenant) for role in roles}

    # --- what a role may do, said another way ---

    def may(self, role: str, need: Need, namespace: str) -> bool:
        has = {
            kind
            for kind, whose, where in self.facts
            if whose == role and where in ("", namespace, tenant_of(namespace))
        }
        enough = {
            Right.READ: {"cluster read", "cluster operate", "cluster admin"},
            Right.OPERATE: {"cluster operate", "cluster admin"},
            Right.ADMIN: {"cluster admin"},
        }
        if need.right is None:
            return True
        wanted = (
            enough[need.right]
            | ({"tenant"} if need.by_tenant else set())
            | {f"topics {action}" for action in need.actions}
        )
        return bool(has & wanted)


STEPS = st.one_of(
    st.tuples(st.just("grant"), st.sampled_from(ROLES), st.sampled_from(Right)),
    st.tuples(st.just("revoke"), st.sampled_from(ROLES)),
    st.tuples(
        st.just("permit"),
        st.sampled_from(ROLES),
        st.sampled_from(NAMESPACES),
        st.frozensets(st.sampled_from(Action)),
    ),
    st.tuples(
        st.just("administer"),
        st.frozensets(st.sampled_from(ROLES)),
        st.sampled_from(["shop", "other"]),
    ),
)


@given(st.lists(STEPS, max_size=12))
def test_a_role_may_do_exactly_what_the_last_grants_say(steps: list[tuple[Any, ...]]) -> None:
    """No sequence of grants and revocations leaves a role with more, or with less."""
    granted = Granted()
    for name, *arguments in steps:
        getattr(granted, name)(*arguments)
    for role, need, namespace in product(ROLES, NEEDS, NAMESPACES):
        place = Place(tenant=tenant_of(namespace), namespace=namespace)
        held = held_in(granted.channel.view, role, place)
        assert granted.may(role, need, namespace) == (
            refusal(role, held, need, "x", place) is None
        ), (role, need, namespace)
    granted.channel.check()


def test_rights_end_with_their_namespace() -> None:
    granted = Granted()
    granted.permit("ann", "shop/orders", frozenset(Action))
    view = granted.channel.view
    place = Place(tenant="shop", namespace="shop/orders")
    granted.channel.accept(
        propose.start_deleting_namespace(granted.channel.admin(), view, name="shop/orders")
    )
    granted.channel.accept(
        propose.delete_namespace(granted.channel.admin(), view, name="shop/orders")
    )
    assert Held() == held_in(view, "ann", place)
    granted.channel.create(namespace="shop/orders")
    assert Held() == held_in(view, "ann", place)


@pytest.mark.parametrize("document", [{}, {"right": "all"}, {"right": True}, {"right": "READ"}])
def test_an_unreadable_grant_grants_nothing(document: Mapping[str, Any]) -> None:
    """Only an unchecked writer can write one."""
    channel = channel_with("a")
    channel.accept(
        propose.set_policy(channel.admin(), channel.view, name=f"{GRANT}/ann", document=document)
    )
    channel.accept(
        propose.set_policy(
            channel.admin(),
            channel.view,
            name=f"{TENANT}/shop",
            document={"admin_roles": "ann", "admin_roles.x": "ann"},
        )
    )
    channel.accept(
        propose.set_namespace_policies(
            channel.admin(),
            channel.view,
            name="tenant/ns",
            policies={"permission:ann": "produce consume,all"},
        )
    )
    assert Held() == held_in(channel.view, "ann", Place(tenant="shop", namespace="tenant/ns"))


@pytest.mark.parametrize("role", ["", " ann", "ann\n", "a" * 256, "a\x00b", "a\ud800"])
def test_a_role_that_no_record_can_carry_gets_no_right(role: str) -> None:
    granted = Granted()
    operations: tuple[Callable[[Port], Coroutine[Any, Any, object]], ...] = (
        lambda port: verbs.grant_right(port, role, Right.READ),
        lambda port: verbs.revoke_right(port, role),
        lambda port: verbs.grant_permission(port, "shop/orders", role, (Action.PRODUCE,)),
    )
    for operation in operations:
        with pytest.raises(CallerError, match="the role cannot be used"):
            granted.do(operation)


@pytest.mark.parametrize(
    ("need", "needs"),
    [
        (OPERATE, "the right operate in the cluster"),
        (ADMINISTER_TENANT, "to administer tenant 'shop', or the right admin in the cluster"),
        (
            PRODUCE,
            (
                "the right produce in namespace 'shop/orders', or to administer tenant 'shop', or"
                " the right admin in the cluster"
            ),
        ),
    ],
)
def test_a_refusal_names_the_role_and_what_it_needs(need: Need, needs: str) -> None:
    place = Place(tenant="shop", namespace="shop/orders")
    assert f"role 'ann' may not do it; it needs {needs}" == refusal(
        "ann", Held(), need, "do it", place
    )
    assert f"role {'x' * 64!r} may not do it; it needs {needs}" == refusal(
        "x" * 999, Held(), need, "do it", place
    )


def test_a_super_role_may_do_everything_and_refusals_are_passed_on() -> None:
    refused: list[tuple[Surface, str, str]] = []

    def note(surface: Surface, *, what: str, why: str, client: str, role: str) -> None:
        assert ("do it", "127.0.0.1", True) == (what, client, "may not do it" in why)
        refused.append((surface, role, what))

    authorization = Authorization(
        super_roles=("root",), held=lambda _role, _place: Held(), refused=note
    )
    found = {
        role: authorization.check(
            Surface.HTTP, sender(role), ADMINISTER, Place(), what="do it", client="127.0.0.1"
        )
        for role in ("root", "ann")
    }
    assert (None, [(Surface.HTTP, "ann", "do it")]) == (found["root"], refused)
    assert [True, False] == [
        authorization.is_allowed(sender(role), READ, Place()) for role in ("root", "ann")
    ]


def sender(role: str, proxy: str | None = None) -> Identity:
    return Identity(role=role, method="token", valid_ms=None, proxy=proxy)


@pytest.mark.parametrize("role", ["root", "reader", "none"])
@pytest.mark.parametrize("proxy", ["root", "reader", "none"])
def test_behind_a_proxy_both_roles_need_the_right(role: str, proxy: str) -> None:
    refused: list[str] = []
    authorization = Authorization(
        super_roles=("root",),
        held=lambda role, _place: Held(right=Right.READ if role == "reader" else None),
        refused=lambda _surface, *, what, why, client, role: refused.append(role),
    )
    lacking = [each for each in (role, proxy) if each == "none"]
    why = authorization.check(
        Surface.PULSAR, sender(role, proxy), READ, Place(), what="do it", client="c"
    )
    assert (bool(lacking), lacking[:1]) == (why is not None, refused)
    assert bool(lacking) != authorization.is_allowed(sender(role, proxy), READ, Place())
