"""Test the paths of namespaces that depend on their topics."""

from __future__ import annotations

import uuid
from pathlib import Path

from equipoise.brokers.agent.requests import CreateNamespace, SetClusterPolicy, Transfer
from equipoise.brokers.balancing.policies import pin_document
from equipoise.brokers.runtime.broker import Broker
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.channel.core.ranges import even_boundaries
from tests.unit.http.cluster import Gate
from tests.unit.pulsar.wire_client import (
    NAMESPACE,
    PATIENCE_MS,
    Brokers,
    brokers,
    with_brokers,
)

BASE = f"/admin/v2/namespaces/{NAMESPACE}"


@with_brokers(count=2)
async def test_a_namespace_that_nobody_may_own_is_deleted_without_force(running: Brokers) -> None:
    """A bundle without an owner has no topics."""
    member, gone = running.members
    pin = pin_document(namespace="acme/lone", brokers=[gone.worker.broker_id])
    await member.worker.request(
        SetClusterPolicy(policy="pin/lone", document=pin), timeout_ms=PATIENCE_MS
    )
    await gone.stop()
    await member.worker.request(
        CreateNamespace(name="acme/lone", boundaries=even_boundaries(1)), timeout_ms=PATIENCE_MS
    )
    assert [None] == [bundle.server for bundle in member.worker.view.bundles_of("acme/lone")]
    assert (204, "") == await member.ask("DELETE", "/admin/v2/namespaces/acme/lone")


async def test_a_namespace_of_a_broker_without_pulsars_service_is_deleted_without_force(
    tmp_path: Path,
) -> None:
    """This owner does not have the path that lists topics, and has none."""
    log_url = f"memory:{uuid.uuid4()}"
    values = {
        "log_url": log_url,
        "data_dir": tmp_path / "without",
        "http_port": 0,
        "drain_ms": 1_000,
        "balance": False,
    }
    async with (
        brokers(tmp_path, log_url=log_url) as running,
        Broker(WorkerConfig.model_validate(values), {"*": Gate()}) as without,
    ):
        (member,) = running.members
        await without.ready(timeout_ms=PATIENCE_MS)
        await member.worker.reached(without.view.offset, timeout_ms=PATIENCE_MS)
        await member.worker.request(
            Transfer(bundle=running.bundle_of(), destination=without.broker_id, reason="a test"),
            timeout_ms=PATIENCE_MS,
        )
        await running.settled()
        assert without.agent.incarnation == running.view.bundles[running.bundle_of()].server
        assert (204, "") == await member.ask("DELETE", BASE)


@with_brokers(count=2)
async def test_the_bundle_with_the_highest_throughput_is_split(running: Brokers) -> None:
    bundle = running.bundle_of()
    owner = running.owner_of()
    client = await owner.client()
    await client.producer(1)
    sequence_id = 0
    while not any(load.bytes_per_second for load in owner.worker.loads.latest().loads.values()):
        client.publish(1, sequence_id, "x")
        await client.receipt(1, sequence_id)
        sequence_id += 1
    assert 204 == (await running.other_than(owner).ask("PUT", f"{BASE}/HOT/split"))[0]
    await running.settled()
    assert bundle not in running.view.bundles
