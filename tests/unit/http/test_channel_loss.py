"""All brokers lose the channel: what stops, what goes on, how it is reported, and the state after
the outage.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from equipoise.brokers.http.readiness import CHANNEL_LOST_MS
from equipoise.brokers.runtime import snapshots
from equipoise.brokers.runtime.assuring import ASSURANCE_PATH
from equipoise.channel.core.errors import LogUnavailable
from tests.channels.troubled_log import TroubledLog
from tests.unit.http.cluster import (
    NAMESPACE,
    PATIENCE_MS,
    Broker,
    Cluster,
    Test,
    cluster,
    post,
    story,
    told,
    until,
)

pytestmark = pytest.mark.integration

SERVING = "acme/serving"
NEW = "acme/new"
KEY = "orders"
POLICY = f"/admin/v2/namespaces/{SERVING}/onChannelLoss"

# A lease of a second, with the grace period that clocks and a stall of 200 ms take.
QUICK = {
    "lease_ms": 1_000,
    "renew_ms": 200,
    "grace_ms": 400,
    "round_trip_ms": 100,
    "reconnect_ms": 500,
    "stall_ms": 200,
}


# The same with time to assure each other, and an extension.
EXTENDED = {"lease_ms": 3_000, "renew_ms": 300, "extend_ms": 60_000}


class Logs:
    """All handles of the log, one for each broker in their order, and the one switch of its
    outage.
    """

    def __init__(self) -> None:
        self._handles: list[TroubledLog] = []

    def open(self, url: str, *, create: bool = True) -> TroubledLog:
        handle = TroubledLog(name=url)
        # Otherwise the brokers of one loop would share one handle.
        handle.name = f"{url}/{len(self._handles)}"
        self._handles.append(handle)
        return handle

    def go(self, *, first: int = 0) -> None:
        """Cut off the brokers from index `first` on: they read and append nothing."""
        for handle in self._handles[first:]:
            handle.read_error = handle.append_error = LogUnavailable(
                log="memory:away", problem="it is away", in_doubt=False
            )
            handle.wake()

    def come_back(self) -> None:
        for handle in self._handles:
            handle.read_error = handle.append_error = None


@dataclass(kw_only=True)
class LosingCluster(Cluster):
    """Two brokers, a namespace that fences, one that serves on, and the log that goes away."""

    log: Logs


def with_losing_cluster(**settings: object) -> Callable[[Test], Test]:
    """Return a decorator for a test whose first parameter is a `LosingCluster`."""

    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[LosingCluster]:
        log = Logs()
        options = {**QUICK, "lookup_ms": 200, **settings}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(snapshots, "open_log", log.open)
            async with cluster(folder, brokers=2, bundles=2, **options) as made:
                body = {"bundles": {"numBundles": 2}, "on_channel_loss": "serve"}
                created = await made.brokers[0].put(f"/admin/v2/namespaces/{SERVING}", body)
                assert 204 == created.status
                await made.settled()
                try:
                    yield LosingCluster(brokers=made.brokers, log=log)
                finally:
                    log.come_back()  # Otherwise they would have to be killed.

    return story(opened)


def is_fenced(broker: Broker) -> bool:
    return not broker.worker.agent.lease.good(broker.worker.clock.now())


def lookup(namespace: str) -> str:
    return f"/lookup/v2/topic/persistent/{namespace}/{KEY}"


def has_outlasted(broker: Broker) -> bool:
    """Return whether its lease is over, and it serves by assurances."""
    lease, now = broker.worker.agent.lease, broker.worker.clock.now()
    return lease.good(now) and not lease.holds(now)


@with_losing_cluster(**EXTENDED)
async def test_brokers_that_assure_each_other_serve_on_past_their_leases(
    brokers: LosingCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """In every namespace. One that is cut off alone stops, and logs who has not assured it."""
    caplog.set_level(logging.INFO)
    one, other = brokers.brokers
    incarnations = [broker.worker.agent.incarnation for broker in brokers.brokers]
    before = (await one.get(lookup(NAMESPACE))).body
    brokers.log.go()
    await until(lambda: is_fenced(one) or all(map(has_outlasted, brokers.brokers)))
    assert [True, True] == list(map(has_outlasted, brokers.brokers))
    for broker in brokers.brokers:
        answer = await broker.get(lookup(NAMESPACE))
        assert (200, before) == (answer.status, answer.body)
        assert int(answer.headers[CHANNEL_LOST_MS]) >= 600
        assert b'"serving on"' in (await broker.get("/ready")).body
        assert [1.0] == series("equipoise_lease_extended", (await broker.get("/metrics")).body)
    brokers.log.come_back()
    await until(lambda: not any(map(has_outlasted, brokers.brokers)))
    assert incarnations == [broker.worker.agent.incarnation for broker in brokers.brokers]
    assert [0.0] == series("equipoise_lease_extended", (await one.get("/metrics")).body)
    brokers.log.go(first=1)
    await until(lambda: is_fenced(other))
    assert not is_fenced(one)
    await until(lambda: "has stopped serving" in caplog.text)
    lines = [each.__dict__ for each in caplog.records if "serves_by" in each.__dict__]
    assert ["assurances", "assurances", "its lease", "its lease", "nothing"] == sorted(
        line["serves_by"] for line in lines
    )
    assert [one.id] == lines[-1]["unassured_by"]


@with_losing_cluster(**EXTENDED)
async def test_what_a_broker_answers_that_is_asked_for_an_assurance(
    brokers: LosingCluster,
) -> None:
    one, other = brokers.brokers
    asker, asked = one.worker.agent.incarnation, other.worker.agent.incarnation
    question = {"cluster": other.worker.config.cluster, "asker": asker, "asked": asked, "number": 7}

    async def answer(**changes: object) -> object:
        return (await post(other, ASSURANCE_PATH, question | changes)).json()

    about = {"cluster": question["cluster"], "asker": asker, "number": 7}
    assert {"assured": False, "by": asked} | about == await answer()
    brokers.log.go()
    await until(lambda: other.worker.channel_loss is not None)
    await until(lambda: other.worker.agent.out_of_touch_ms(other.worker.clock.now()) is not None)
    assert {"assured": True, "by": asked} | about == await answer()
    assert {"assured": False, "by": asker} | about == await answer(asked=asker)
    assert {"assured": False, "by": asked} | about == await answer(cluster="another")
    for body in (None, {}, question | {"number": "7"}, question | {"asker": -1}):
        assert (400, "InvalidRequest") == told(await post(other, ASSURANCE_PATH, body))


@with_losing_cluster()
async def test_without_a_lease_lookups_are_held_or_answered_by_policy(
    brokers: LosingCluster,
) -> None:
    before = [(await broker.get(lookup(SERVING))).body for broker in brokers.brokers]
    brokers.log.go()
    await until(lambda: all(map(is_fenced, brokers.brokers)))
    for broker, body in zip(brokers.brokers, before, strict=True):
        answer = await broker.get(lookup(SERVING))
        assert (200, body) == (answer.status, answer.body)
        assert int(answer.headers[CHANNEL_LOST_MS]) >= 500
        answer = await broker.get(lookup(NAMESPACE))
        assert (503, "1", "ChannelLost") == (
            answer.status,
            answer.headers["Retry-After"],
            answer.json()["error"],  # type: ignore[index]
        )
        assert f"broker {broker.id} lost the channel" in answer.reason
    brokers.log.come_back()
    await until(lambda: not any(map(is_fenced, brokers.brokers)))
    for broker in brokers.brokers:
        for namespace in (SERVING, NAMESPACE):
            answer = await broker.get(lookup(namespace))
            assert (200, False) == (answer.status, CHANNEL_LOST_MS in answer.headers)


def is_out_of_touch(broker: Broker) -> bool:
    """Whether it has lost the channel."""
    return broker.worker.agent.out_of_touch_ms(broker.worker.clock.now()) is not None


async def created_unseen(brokers: LosingCluster) -> Broker:
    """Cut the second broker off, and create a namespace at the first. Return the second, which
    knows nothing of that.
    """
    seeing, cut_off = brokers.brokers
    brokers.log.go(first=1)
    await until(lambda: is_out_of_touch(cut_off))
    assert (
        204
        == (await seeing.put(f"/admin/v2/namespaces/{NEW}", {"bundles": {"numBundles": 1}})).status
    )
    return cut_off


@with_losing_cluster(lookup_ms=PATIENCE_MS, lease_ms=6_000)
async def test_a_lookup_in_a_namespace_that_may_be_new_is_held(brokers: LosingCluster) -> None:
    cut_off = await created_unseen(brokers)
    asked = [asyncio.ensure_future(cut_off.get(lookup(NEW))) for _ in range(3)]
    await until(lambda: cut_off.lookups.held == 3 or asked[0].done())
    assert not asked[0].done(), asked[0].result()
    brokers.log.come_back()
    assert {200} == {answer.status for answer in await asyncio.gather(*asked)}


@with_losing_cluster()
async def test_a_broker_without_the_channel_answers_503_instead_of_404(
    brokers: LosingCluster,
) -> None:
    paths = (
        f"/admin/v2/namespaces/{NEW}",
        f"/admin/v2/namespaces/{NEW}/bundles",
        f"/v1/assignment/{NEW}",
        "/admin/v2/policies/pin/unknown",
    )
    assert {404} == {
        (await brokers.brokers[1].get(path)).status
        for path in (*paths, lookup(NEW), f"{lookup(NEW)}/bundle")
    }
    cut_off = await created_unseen(brokers)
    for path in (lookup(NEW), f"{lookup(NEW)}/bundle"):
        answer = await cut_off.get(path)
        assert (503, "ChannelLost") == (answer.status, answer.json()["error"])  # type: ignore[index]
    for path in paths:
        answer = await cut_off.get(path)
        assert (503, "NotReady") == (answer.status, answer.json()["error"]), path  # type: ignore[index]
        assert "it has lost the channel" in answer.reason
    answer = await cut_off.get(f"/admin/v2/namespaces/{NAMESPACE}")
    assert 200 == answer.status
    assert int(answer.headers[CHANNEL_LOST_MS]) > 0
    brokers.log.come_back()
    answer = await brokers.brokers[0].get(f"/admin/v2/namespaces/{NAMESPACE}")
    assert (200, None) == (answer.status, answer.headers.get(CHANNEL_LOST_MS))


def series(name: str, answer: bytes) -> list[float]:
    return [
        float(line.rpartition(" ")[2])
        for line in answer.decode().splitlines()
        if line.startswith(f"{name}{{")
    ]


@with_losing_cluster()
async def test_health_readiness_and_metrics_report_the_loss(brokers: LosingCluster) -> None:
    broker = brokers.brokers[0]
    assert [0.0] == series("equipoise_channel_lost_seconds", (await broker.get("/metrics")).body)
    brokers.log.go()
    await until(lambda: is_fenced(broker))
    for path, status in (("/health", "ok"), ("/ready", "serving on")):
        answer = await broker.get(path)
        said = answer.json()
        assert isinstance(said, dict)
        loss = said["channel_loss"]
        assert (200, status, [SERVING], True) == (
            answer.status,
            said["status"],
            loss["serving_on"],
            "it is away" in loss["problem"],
        )
        assert loss["lost_ms"] >= 500
        assert loss["since"].endswith("Z")
    assert b"its lease has run out" in (await broker.get("/ready")).body
    assert b"ok" == (await broker.get("/admin/v2/brokers/health")).body
    scraped = (await broker.get("/metrics")).body
    (lost_s,) = series("equipoise_channel_lost_seconds", scraped)
    assert lost_s >= 0.5
    mine = [
        bundle
        for bundle in brokers.view.bundles_of(SERVING)
        if bundle.owner == broker.worker.agent.incarnation
    ]
    assert [float(len(mine))] == series("equipoise_bundles_serving_on", scraped)
    brokers.log.come_back()
    await until(lambda: broker.worker.channel_loss is None)
    assert {
        "status": "ready",
        "problems": [],
        "channel_loss": None,
        "maintenance": None,
        "broker": broker.id,
    } == (await broker.get("/ready")).json()
    assert [] == series("equipoise_bundles_serving_on", (await broker.get("/metrics")).body)


@with_losing_cluster()
async def test_the_policy_applies_to_open_bundles(brokers: LosingCluster) -> None:
    (one, other) = brokers.brokers
    assert ["serve"] == [(await one.get(POLICY)).json()]
    assert 204 == (await other.ask("POST", POLICY, data=b'"fence"')).status
    assert (
        204
        == (
            await one.ask(
                "POST", f"/admin/v2/namespaces/{NAMESPACE}/onChannelLoss", data=b'"serve"'
            )
        ).status
    )
    await brokers.settled()
    assert ["fence", "serve"] == [
        (await broker.get(f"/admin/v2/namespaces/{namespace}")).json()["on_channel_loss"]  # type: ignore[index]
        for broker, namespace in ((one, SERVING), (other, NAMESPACE))
    ]
    brokers.log.go()
    await until(lambda: all(map(is_fenced, brokers.brokers)))
    assert [503, 200] == [
        (await one.get(lookup(namespace))).status for namespace in (SERVING, NAMESPACE)
    ]


@with_losing_cluster()
async def test_a_broker_that_only_fences_is_not_ready(brokers: LosingCluster) -> None:
    assert 204 == (await brokers.brokers[0].ask("POST", POLICY, data=b'"fence"')).status
    await brokers.settled()
    brokers.log.go()
    await until(lambda: all(map(is_fenced, brokers.brokers)))
    for path in ("/ready", "/admin/v2/brokers/health"):
        assert {503} == {(await broker.get(path)).status for broker in brokers.brokers}
