"""Namespaces and tenants over HTTP beyond their transcripts: callers at once, waits and bounds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from equipoise.brokers.operations import in_worker
from tests.unit.http.cluster import NAMESPACE, Broker, cluster, path_of, until

pytestmark = pytest.mark.integration

NAMESPACES = "/admin/v2/namespaces"


async def test_a_body_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        path = f"{NAMESPACES}/{NAMESPACE}/antiAffinity"
        for body, status, told in (
            (b"Or\xffders", 400, "the body cannot be used: it is not UTF-8: byte 2 is 0xff"),
            (
                b"x" * (1 << 20) + b"x",
                413,
                f"the body of POST {path} is larger than 1048576 bytes, the maximum",
            ),
        ):
            answer = await broker.ask("POST", path, data=body)
            assert (status, told) == (answer.status, answer.reason)
        assert 204 == (await broker.get(path)).status


async def test_a_deletion_waits_until_every_bundle_is_closed(tmp_path: Path) -> None:
    """One of the bundles is on the move when the deletion begins."""
    async with cluster(tmp_path, brokers=2) as brokers:
        one, other = brokers.brokers
        moving, _, target = brokers.first()
        target.service.taking.clear()
        transfer = asyncio.ensure_future(
            one.put(f"{path_of(moving)}/unload?destinationBroker={target.id}")
        )
        await until(lambda: brokers.view.bundles[moving].phase == "transferring")
        deletion = asyncio.ensure_future(other.ask("DELETE", f"{NAMESPACES}/{NAMESPACE}"))
        await until(lambda: brokers.view.namespaces[NAMESPACE].status == "deleting")
        assert (await other.get(f"{NAMESPACES}/{NAMESPACE}")).body.endswith(
            b'"deleted":true,"on_channel_loss":"fence"}'
        )
        target.service.taking.set()
        assert [204, 204] == [(await transfer).status, (await deletion).status]
        assert {} == other.worker.view.bundles
        assert 404 == (await other.get(f"{NAMESPACES}/{NAMESPACE}")).status
        assert 404 == (await other.ask("DELETE", f"{NAMESPACES}/{NAMESPACE}")).status
        assert 204 == (await other.put(f"{NAMESPACES}/{NAMESPACE}")).status


async def test_an_unload_of_a_free_bundle_succeeds_unless_it_names_a_destination(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,), bundle = brokers.brokers, brokers.bundles()[0]
        broker.service.refuses.add(bundle)
        assert 204 == (await broker.put(f"{path_of(bundle)}/unload")).status
        # Once it has been refused.
        await until(lambda: brokers.view.bundles[bundle].phase == "free")
        assert 204 == (await broker.put(f"{path_of(bundle)}/unload")).status
        refused = await broker.put(f"{path_of(bundle)}/unload?destinationBroker={broker.id}")
        assert (409, True) == (refused.status, "is free, not owned" in refused.reason)


async def test_a_move_that_takes_too_long_is_answered_504_and_goes_on(tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=2, admin_ms=150) as brokers:
        bundle, source, target = brokers.first()
        target.service.taking.clear()
        answer = await source.put(f"{path_of(bundle)}/unload?destinationBroker={target.id}")
        assert (504, True) == (
            answer.status,
            f"the transfer of {bundle} to {target.id} did not happen within 150 ms"
            in answer.reason,
        )
        target.service.taking.set()
        await until(lambda: brokers.view.bundles[bundle].phase == "owned")
        assert target is brokers.owner_of(bundle)


async def test_operations_beyond_the_bound_are_answered_503(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_worker, "OPERATIONS_MAX", 1)

    async with cluster(tmp_path, brokers=2) as brokers:
        one, _ = brokers.brokers
        first, second, *_ = brokers.bundles()
        owner = brokers.owner_of(first)
        owner.service.closing.clear()
        asked = asyncio.ensure_future(one.put(f"{path_of(first)}/unload"))
        await until(lambda: brokers.view.bundles[first].phase == "handing_over")
        answer = await one.put(f"{path_of(second)}/unload")
        assert (503, "1", True) == (
            answer.status,
            answer.headers["Retry-After"],
            "queue of operations" in answer.reason,
        )
        assert "owned" == brokers.view.bundles[second].phase
        owner.service.closing.set()
        assert 204 == (await asked).status


TENANTS = "/admin/v2/tenants"


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
