"""Clusters and failure domains over HTTP, as Pulsar's tools administer them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.http.cluster import cluster, post

pytestmark = pytest.mark.integration

CLUSTERS = "/admin/v2/clusters"
OURS = f"{CLUSTERS}/equipoise"
DOMAINS = f"{OURS}/failureDomains"


async def test_the_only_cluster_is_this_one(tmp_path: Path) -> None:
    async with cluster(tmp_path, brokers=2) as brokers:
        one, other = brokers.brokers
        assert ["equipoise"] == (await one.get(CLUSTERS)).json()
        hosts = sorted(broker.url.removeprefix("http://") for broker in brokers.brokers)
        assert {"serviceUrl": f"http://{','.join(hosts)}", "brokerServiceUrl": ""} == (
            await one.get(OURS)
        ).json()
        assert 204 == (await other.ask("POST", "/admin/v2/brokers/drain")).status
        await one.worker.reached(brokers.view.offset, timeout_ms=10_000)
        assert {"serviceUrl": one.url, "brokerServiceUrl": ""} == (await one.get(OURS)).json()
        assert [] == (await one.get(f"{OURS}/peers")).json()


async def test_a_broker_is_in_one_failure_domain(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        (broker,) = brokers.brokers
        assert 204 == (await post(broker, f"{DOMAINS}/rack-a", {"brokers": ["b:1", "c:1"]})).status
        refused = await post(broker, f"{DOMAINS}/rack-b", {"brokers": ["a:1", "c:1"]})
        sentence = (
            "cannot set failure domain rack-b: broker c:1 is in the failure domain rack-a; remove"
            " it there first"
        )
        assert (409, {"reason": sentence, "error": "illegal_transition"}) == (
            refused.status,
            refused.json(),
        )
        for body, status in (({"brokers": ["a b"]}, 412), ({"brokers": "a"}, 400), (None, 400)):
            assert status == (await post(broker, f"{DOMAINS}/rack-a", body)).status
        assert 412 == (await post(broker, f"{DOMAINS}/a%20b", {"brokers": []})).status
        assert {"rack-a": {"brokers": ["b:1", "c:1"]}} == (await broker.get(DOMAINS)).json()


async def test_an_unloaded_bundle_goes_to_another_failure_domain(tmp_path: Path) -> None:
    """Two namespaces keep apart. Their brokers and a third one become one domain, so one of them
    moves to the fourth broker.
    """
    async with cluster(tmp_path, brokers=4) as brokers:
        one = brokers.brokers[0]
        for name in ("acme/x", "acme/y"):
            assert (
                204
                == (
                    await one.put(f"/admin/v2/namespaces/{name}", {"bundles": {"numBundles": 1}})
                ).status
            )
            assert (
                204
                == (await post(one, f"/admin/v2/namespaces/{name}/antiAffinity", "apart")).status
            )
        await brokers.settled()
        (x,), (y,) = brokers.bundles("acme/x"), brokers.bundles("acme/y")
        await brokers.give(x, brokers.brokers[0])
        await brokers.give(y, brokers.brokers[1])
        fourth = brokers.brokers[3]
        # By the number of bundles alone, the third one would get it.
        for bundle in brokers.bundles():
            await brokers.give(bundle, fourth)
        await brokers.settled()
        rack = [broker.id for broker in brokers.brokers if broker is not fourth]
        assert 204 == (await post(one, f"{DOMAINS}/rack", {"brokers": rack})).status
        await brokers.settled()
        assert 204 == (await one.put(f"/admin/v2/namespaces/{y}/unload")).status
        assert brokers.owner_of(y) is fourth
