"""Rights over HTTP: how they are granted, and brokers that cannot check them."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.http.rights import need_of
from equipoise.brokers.security.rights import ANYONE
from tests.unit.http.cluster import (
    Broker,
    cluster,
    with_broker,
)
from tests.unit.security.signing import bearer, token
from tests.unit.security.who_may import RIGHTS, SUPER


@pytest.mark.parametrize(
    ("setting", "roles", "problem"),
    [
        (
            "super_roles",
            ("root",),
            r"super_roles: .* the role of the broker itself \('broker'\) must be one of them",
        ),
        (
            "proxy_roles",
            ("broker",),
            r"proxy_roles: they name the role of the broker itself \('broker'\)",
        ),
    ],
)
async def test_a_broker_that_others_would_refuse_does_not_start(
    setting: str, roles: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidConfig, match=problem):
        async with cluster(tmp_path, **{**RIGHTS, setting: roles}):
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
