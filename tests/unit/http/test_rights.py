"""Rights over HTTP: how they are granted, and brokers that cannot check them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.http.rights import need_of
from equipoise.brokers.security.rights import ANYONE, Right
from tests.unit.http.cluster import (
    NAMESPACE,
    Broker,
    Cluster,
    cluster,
    post,
    told,
    with_broker,
    with_cluster,
)
from tests.unit.security.signing import bearer, token
from tests.unit.security.who_may import RIGHTS, SUPER

PERMISSIONS = f"/admin/v2/namespaces/{NAMESPACE}/permissions"
GRANTS = "/admin/v2/grants"


@with_cluster(brokers=2)
async def test_permissions_are_kept_as_pulsar_keeps_them(brokers: Cluster) -> None:
    one, other = brokers.brokers
    assert 204 == (await post(one, f"{PERMISSIONS}/a%2Fb%20c", ["produce", "consume"])).status
    assert 204 == (await post(one, f"{PERMISSIONS}/x", ["produce"])).status
    await brokers.settled()
    expected = {"a/b c": ["consume", "produce"], "x": ["produce"]}
    assert expected == (await other.get(PERMISSIONS)).json()
    document: Any = (await other.get(f"/admin/v2/namespaces/{NAMESPACE}")).json()
    assert {"namespace_auth": expected} == document["auth_policies"]
    for role in ("x", "a%2Fb%20c", "never"):
        assert 204 == (await other.ask("DELETE", f"{PERMISSIONS}/{role}")).status
    assert {} == (await other.get(PERMISSIONS)).json()


@with_broker()
async def test_rights_in_the_cluster_are_granted_and_revoked(broker: Broker) -> None:
    for right in Right:
        assert 204 == (await post(broker, f"{GRANTS}/ops", right.value)).status
        assert {"ops": right} == (await broker.get(GRANTS)).json()
    assert 204 == (await broker.ask("DELETE", f"{GRANTS}/ops")).status
    assert (404, "NotFound") == told(await broker.ask("DELETE", f"{GRANTS}/ops"))


@pytest.mark.parametrize("body", [None, [], ["all"], ["produce", "functions"], "produce", [1]])
@with_broker()
async def test_other_actions_are_refused(broker: Broker, body: object) -> None:
    assert (400, "InvalidRequest") == told(await post(broker, f"{PERMISSIONS}/x", body))
    assert (400, "InvalidRequest") == told(await post(broker, f"{GRANTS}/x", body))
    assert (404, "UnknownNamespace") == told(
        await post(broker, "/admin/v2/namespaces/acme/none/permissions/x", ["produce"])
    )


async def test_a_broker_whose_own_role_is_no_super_role_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidConfig,
        match=r"super_roles: .* the role of the broker itself \('broker'\) must be one of them",
    ):
        async with cluster(tmp_path, **{**RIGHTS, "super_roles": ("root",)}):
            raise AssertionError("it started")


@with_broker(**RIGHTS)
async def test_a_broker_that_may_not_know_all_rights_makes_a_role_try_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Super roles need no rights."""

    async def tenants(broker: Broker, role: str) -> int:
        return (await broker.ask("GET", "/admin/v2/tenants", headers=bearer(token(role)))).status

    assert [403, 200] == [await tenants(broker, role) for role in ("nobody", SUPER)]
    monkeypatch.setattr(broker.worker, "up_to_date", AsyncMock(return_value=False))
    assert [503, 200] == [await tenants(broker, role) for role in ("nobody", SUPER)]


def test_only_paths_of_services_need_nothing() -> None:
    """A path of another method, or beside a known one, is not open."""
    for method in ("GET", "POST", "TRACE", "anything"):
        for path in (
            "/admin/x",
            "/admin/v2/namespaces/{tenant}/{namespace}/new",
            "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/new",
        ):
            assert need_of(method, path) is not ANYONE
    assert need_of("POST", "/health") is ANYONE is need_of("GET", "/orders/{key}")


async def test_a_broker_whose_own_role_is_that_of_a_proxy_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidConfig, match=r"proxy_roles: they name the role of the broker itself \('broker'\)"
    ):
        async with cluster(tmp_path, **{**RIGHTS, "proxy_roles": ("broker",)}):
            raise AssertionError("it started")
