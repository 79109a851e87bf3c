"""Clusters, brokers, handovers and readiness over HTTP, beyond their transcripts."""

from __future__ import annotations

import asyncio
import time
import uuid
from hashlib import sha256
from pathlib import Path

import pytest

from equipoise.brokers.runtime import service_runner
from equipoise.shedder.loads import BundleLoad
from tests.unit.http.cluster import (
    NAMESPACE,
    PATIENCE_MS,
    cluster,
    path_of,
    started,
    until,
)

pytestmark = pytest.mark.integration

OURS = "/admin/v2/clusters/equipoise"


async def test_the_load_report_names_every_open_bundle_with_its_load(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,), (busy, *idle) = brokers.brokers, brokers.bundles()
        broker.service.loads[busy] = BundleLoad(
            calls_per_second=2.5, bytes_per_second=100.0, sessions=3
        )
        report = (await broker.get("/admin/v2/broker-stats/load-report")).json()
        assert isinstance(report, dict)
        assert {busy: 2.5, **dict.fromkeys(idle, 0.0)} == {
            name: load["calls_per_second"] for name, load in report["lastStats"].items()
        }
        assert (broker.id, broker.url, 4, 100) == tuple(
            report[name] for name in ("brokerId", "webServiceUrl", "numBundles", "capacity")
        )
        assert sorted([busy, *idle]) == report["bundles"]


async def test_the_load_report_has_what_was_measured(tmp_path: Path) -> None:
    """The service reports nothing: work that is begun under an ownership is measured."""
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        ownership = broker.worker.ownership(NAMESPACE, "key")
        assert ownership is not None

        def work() -> None:
            with ownership.begin("key"):
                end_s = time.thread_time() + 0.01
                while time.thread_time() < end_s:
                    pass

        async def busy() -> set[str]:
            await asyncio.to_thread(work)
            report = (await broker.get("/admin/v2/broker-stats/load-report")).json()
            assert isinstance(report, dict)
            return {
                name
                for name, load in report["lastStats"].items()
                if load["cpu_seconds_per_second"] > 0 and load["calls_per_second"] > 0
            }

        while not (found := await busy()):  # A report may be some milliseconds old.
            pass
        assert {ownership.bundle.name} == found


async def test_a_drained_broker_gives_its_bundles_away_and_may_come_back(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, brokers=2) as brokers:
        drained, other = brokers.brokers
        assert 204 == (await drained.ask("POST", "/admin/v2/brokers/drain")).status
        assert "draining" == brokers.view.brokers[drained.id].status
        answer = await drained.get("/ready")
        assert (503, True) == (answer.status, b"it drains" in answer.body)
        await until(
            lambda: (
                {other.worker.agent.incarnation}
                == {bundle.owner for bundle in brokers.view.bundles.values()}
            )
        )
        assert 204 == (await drained.ask("POST", "/admin/v2/brokers/undrain")).status
        await until(lambda: brokers.view.brokers[drained.id].status == "up")


async def test_a_former_owner_returns_the_state_of_a_closed_bundle(tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=2) as brokers:
        bundle, source, target = brokers.first()
        assert 204 == (await source.get(f"/v1/handover/{bundle}")).status
        source.service.parted[bundle] = b"\x00state\xff"
        await source.put(f"{path_of(bundle)}/unload?destinationBroker={target.id}")
        answer = await source.get(f"/v1/handover/{bundle}")
        assert (200, b"\x00state\xff") == (answer.status, answer.body)
        checksum = sha256(b"\x00state\xff").digest()
        answer = await source.get(f"/v1/handover/{bundle}?offset=4")
        assert (b"te\xff" + checksum, "application/vnd.equipoise.state") == (
            answer.body,
            answer.headers["Content-Type"],
        )
        assert 503 == (await source.get(f"/v1/handover/{bundle}?offset=8")).status
        assert 400 == (await source.get(f"/v1/handover/{bundle}?offset=-1")).status
        assert 204 == (await target.get(f"/v1/handover/{bundle}")).status
        assert 412 == (await source.get(f"/v1/handover/{NAMESPACE}/x")).status


async def test_a_handover_that_takes_too_long_is_answered_504(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_runner, "_QUESTION_MS", 10)
    async with cluster(tmp_path, brokers=2) as brokers:
        bundle, source, target = brokers.first()
        await source.put(f"{path_of(bundle)}/unload?destinationBroker={target.id}")
        source.service.giving.clear()
        answer = await source.get(f"/v1/handover/{bundle}")
        assert (504, True) == (answer.status, f"giving the state of {bundle}" in answer.reason)


READING = (
    "/admin/v2/tenants",
    f"/admin/v2/namespaces/{NAMESPACE}",
    "/admin/v2/brokers",
    "/v1/brokers",
    f"/v1/assignment/{NAMESPACE}",
    f"/lookup/v2/topic/persistent/{NAMESPACE}/orders/bundle",
    "/admin/v2/brokers/health",
)


async def test_a_broker_that_is_not_ready_answers_503_instead_of_404(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path, f"memory:{uuid.uuid4()}", {"lookup_ms": 100}) as broker:
        monkeypatch.setattr(type(broker.worker.agent), "is_ready", False)
        for path in READING:
            answer = await broker.get(path)
            assert (503, "1") == (answer.status, answer.headers.get("Retry-After")), path
        answer = await broker.get("/ready")
        assert (503, b"still reading" in answer.body) == (answer.status, True)
        broker.worker.replay_progress.read(0, 3_000)
        for path in ("/ready", READING[0]):
            answer = await broker.get(path)
            assert (503, b"still reading the channel: 3,000 left" in answer.body) == (
                answer.status,
                True,
            )
        assert 200 == (await broker.get("/health")).status
        held = await broker.get(f"/lookup/v2/topic/persistent/{NAMESPACE}/orders")
        assert (503, True) == (held.status, "becoming ready" in held.reason)
        monkeypatch.undo()
        await broker.worker.ready(timeout_ms=PATIENCE_MS)
        assert 404 == (await broker.get(f"/lookup/v2/topic/persistent/{NAMESPACE}/orders")).status


async def test_a_broker_without_a_lease_or_without_the_log_is_alive_but_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        with monkeypatch.context() as patched:
            patched.setattr(type(broker.worker), "log_is_available", False)
            assert b"the log cannot be read" in (await broker.get("/ready")).body
        broker.worker.agent.lease.lose()
        answer = await broker.get("/ready")
        assert (503, True) == (answer.status, b"its lease has run out" in answer.body)
        answer = await broker.get("/admin/v2/brokers/health")
        assert (
            503,
            (
                f"broker {broker.id} is not ready: its lease has run out; ask again soon, or ask"
                " another"
            ),
        ) == (
            answer.status,
            answer.reason,
        )
        assert 200 == (await broker.get("/health")).status


async def test_a_cluster_has_the_addresses_of_its_brokers(tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=2) as brokers:
        one, other = brokers.brokers
        hosts = sorted(broker.url.removeprefix("http://") for broker in brokers.brokers)
        assert {"serviceUrl": f"http://{','.join(hosts)}", "brokerServiceUrl": ""} == (
            await one.get(OURS)
        ).json()
        assert 204 == (await other.ask("POST", "/admin/v2/brokers/drain")).status
        await one.worker.reached(brokers.view.offset, timeout_ms=10_000)
        assert {"serviceUrl": one.url, "brokerServiceUrl": ""} == (await one.get(OURS)).json()
