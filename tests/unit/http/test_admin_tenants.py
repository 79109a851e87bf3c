"""Tenants over HTTP, as Pulsar's tools administer them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.unit.http.cluster import Broker, cluster

pytestmark = pytest.mark.integration

TENANTS = "/admin/v2/tenants"
IN_THIS_CLUSTER = {"adminRoles": [], "allowedClusters": ["equipoise"]}


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
