"""Tenants over HTTP, as Pulsar's tools administer them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.unit.http.cluster import NAMESPACE, Answer, Broker, cluster

pytestmark = pytest.mark.integration

TENANTS = "/admin/v2/tenants"
IN_THIS_CLUSTER = {"adminRoles": [], "allowedClusters": ["equipoise"]}


async def update(broker: Broker, tenant: str, body: object) -> Answer:
    return await broker.ask("POST", f"{TENANTS}/{tenant}", data=json.dumps(body).encode())


async def test_a_tenant_that_was_created_is_kept(tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=2) as brokers:
        one, other = brokers.brokers
        body = {"adminRoles": ["ops", "dev"], "allowedClusters": ["equipoise"]}
        assert 204 == (await one.put(f"{TENANTS}/new", body)).status
        await brokers.settled()
        assert ["acme", "new"] == (await other.get(TENANTS)).json()
        assert {**body, "adminRoles": ["dev", "ops"]} == (await other.get(f"{TENANTS}/new")).json()
        assert [] == (await other.get("/admin/v2/namespaces/new")).json()
        refused = await other.put(f"{TENANTS}/new", body)
        assert (409, "illegal_transition") == (refused.status, json.loads(refused.body)["error"])
        assert (
            "cannot create tenant new: it already exists; see its namespaces: pulsar-admin"
            " namespaces list new" == refused.reason
        )
        assert 204 == (await update(other, "new", IN_THIS_CLUSTER)).status
        await brokers.settled()
        assert IN_THIS_CLUSTER == (await one.get(f"{TENANTS}/new")).json()
        assert 204 == (await one.ask("DELETE", f"{TENANTS}/new")).status
        assert ["acme"] == (await one.get(TENANTS)).json()
        assert {} == brokers.view.policies


async def test_an_unknown_tenant_has_no_list_of_namespaces(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        answer = await broker.get("/admin/v2/namespaces/nobody")
        assert (404, True) == (
            answer.status,
            answer.reason.startswith("there is no tenant 'nobody'; "),
        )
        assert [NAMESPACE] == (await broker.get("/admin/v2/namespaces/acme")).json()


async def test_a_refusal_repeats_no_long_text(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        long = "x" * 100_000
        for body in (
            {"adminRoles": [long], "allowedClusters": ["equipoise"]},
            {"allowedClusters": [long]},
        ):
            answer = await broker.put(f"{TENANTS}/new", body)
            assert (412, True) == (answer.status, len(answer.reason) < 300)
        assert {} == brokers.view.policies


async def test_a_tenant_is_created_once_if_both_brokers_are_asked_at_once(tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=2) as brokers:
        answers = await asyncio.gather(
            *(broker.put(f"{TENANTS}/new", IN_THIS_CLUSTER) for broker in brokers.brokers)
        )
        assert [204, 409] == sorted(answer.status for answer in answers)


async def test_a_tenant_with_namespaces_exists_and_is_not_deleted(tmp_path: Path) -> None:
    """Whether it was created or not."""
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        assert IN_THIS_CLUSTER == (await broker.get(f"{TENANTS}/acme")).json()
        assert 409 == (await broker.put(f"{TENANTS}/acme", IN_THIS_CLUSTER)).status
        roles = {**IN_THIS_CLUSTER, "adminRoles": ["ops"]}
        for told in (
            f"it still has namespace {NAMESPACE}",
            f"it still has namespace {NAMESPACE} and 1 more",
        ):
            refused = await broker.ask("DELETE", f"{TENANTS}/acme")
            assert (
                f"cannot delete tenant acme: {told}; delete its namespaces first" == refused.reason
            )
            assert (409, "bundles_in_use") == (refused.status, json.loads(refused.body)["error"])
            assert 204 == (await update(broker, "acme", roles)).status
            assert 204 == (
                await broker.put("/admin/v2/namespaces/acme/two")
            ).status or told.endswith("more")
        assert roles == (await broker.get(f"{TENANTS}/acme")).json()
        refused = await broker.ask("DELETE", f"{TENANTS}/acme?force=true")
        assert (405, True) == (refused.status, "delete them one by one first" in refused.reason)


async def test_an_unknown_tenant_is_answered_404(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        told = (
            "there is no tenant 'other'; create it (pulsar-admin tenants create other), "
            "or a namespace in it (pulsar-admin namespaces create other/NAMESPACE)"
        )
        answers = (
            await broker.get(f"{TENANTS}/other"),
            await update(broker, "other", IN_THIS_CLUSTER),
            await broker.ask("DELETE", f"{TENANTS}/other"),
        )
        for answer in answers:
            assert (404, {"reason": told, "error": "NotFound"}) == (answer.status, answer.json())


async def test_an_invalid_tenant_is_not_created(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        for name in ("a%20b", "%2E%2E"):
            for method in ("GET", "PUT", "POST", "DELETE"):
                refused = await broker.ask(method, f"{TENANTS}/{name}", data=b"{}")
                assert (412, True) == (refused.status, "is not a tenant" in refused.reason)
        elsewhere = await broker.put(
            f"{TENANTS}/new", {"adminRoles": [], "allowedClusters": ["equipoise", "west"]}
        )
        told = "there is no cluster 'west': the only cluster here is 'equipoise'; allow that one"
        assert (412, {"reason": told, "error": "CallerError"}) == (
            elsewhere.status,
            elsewhere.json(),
        )
        for body in (b"[]", b'{"adminRoles": "ops"}'):
            assert 400 == (await broker.ask("PUT", f"{TENANTS}/new", data=body)).status
        assert 412 == (await broker.put(f"{TENANTS}/new", {"adminRoles": [""]})).status
        assert 400 == (await broker.ask("POST", f"{TENANTS}/acme")).status
        assert {} == brokers.view.policies


async def set_quota(broker: Broker, name: str, value: int) -> None:
    assert (
        200
        == (
            await broker.ask(
                "PATCH",
                "/admin/v2/balancing",
                data=json.dumps({"changes": {f"tenants.{name}": value}}).encode(),
            )
        ).status
    )


async def test_namespaces_created_at_once_do_not_exceed_the_quota(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        await set_quota(broker, "bundles_max", 10)
        answers = await asyncio.gather(
            *(
                broker.put(f"/admin/v2/namespaces/new/{name}", {"bundles": {"numBundles": 4}})
                for name in range(6)
            )
        )
        assert [204, 204, 412, 412, 412, 412] == sorted(answer.status for answer in answers)
        assert 8 == sum(name.startswith("new/") for name in brokers.view.bundles)


async def test_a_tenant_that_changes_too_much_leaves_room_for_others(tmp_path: Path) -> None:
    """It may change twice the rate at once. What has begun ends, however many records it takes."""
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        await set_quota(broker, "records_per_second_max", 2)
        assert (
            204
            == (
                await broker.put("/admin/v2/namespaces/new/many", {"bundles": {"numBundles": 8}})
            ).status
        )
        assert 204 == (await broker.ask("DELETE", "/admin/v2/namespaces/new/many")).status
        refused = await broker.put("/admin/v2/namespaces/new/more")
        assert (503, "Overloaded") == (refused.status, json.loads(refused.body)["error"])
        assert "in tenant new at broker" in refused.reason
        assert "Retry-After" in refused.headers
        assert 204 == (await broker.put("/admin/v2/namespaces/other/one")).status
