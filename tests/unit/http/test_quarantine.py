"""Quarantine on real brokers: a bundle that no service opens, its lookups, and its release."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.brokers.agent.requests import CreateNamespace
from equipoise.brokers.balancing.quarantine import is_quarantined
from equipoise.channel.core.errors import PeerError
from equipoise.channel.core.ranges import even_boundaries
from tests.unit.http.cluster import PATIENCE_MS, cluster, until

pytestmark = pytest.mark.integration

BAD = "t/bad"


async def test_a_bundle_that_nobody_opens_is_refused_until_it_is_released(tmp_path: Path) -> None:
    """The other bundles are served on. Lookups get a sentence, also those that waited."""
    async with cluster(tmp_path, brokers=2, balance=False) as brokers:
        first, bundle = brokers.brokers[0], f"{BAD}/0x00000000_0xffffffff"
        for broker in brokers.brokers:
            broker.service.refuses.add(bundle)
        await first.worker.request(
            CreateNamespace(name=BAD, boundaries=even_boundaries(1)), timeout_ms=PATIENCE_MS
        )
        with pytest.raises(PeerError, match=r"in quarantine: .*3 opens in a row failed"):
            await first.worker.router.locate(BAD, 0, timeout_ms=PATIENCE_MS)
        await until(lambda: is_quarantined(brokers.view, bundle))
        answer = await first.get(f"/lookup/v2/topic/non-persistent/{BAD}/x")
        assert (503, True) == (answer.status, "in quarantine" in answer.reason)
        metrics = (await first.get("/metrics")).body.decode()
        assert f'equipoise_bundles_quarantined{{broker="{first.id}"}} 1.0' in metrics
        assert 4 == sum(each.phase == "owned" for each in brokers.view.bundles.values())
        for broker in brokers.brokers:
            broker.service.refuses.clear()
        document = (await first.get(f"/v1/bundle/{bundle}")).json()
        assert isinstance(document, dict)
        assert "3 opens in a row failed" in document["quarantine"]
        quarantine = f"/admin/v2/controls/quarantine/{bundle}"
        assert 204 == (await first.ask("DELETE", quarantine)).status
        located = await first.worker.router.locate(BAD, 0, timeout_ms=PATIENCE_MS)
        assert bundle == located.bundle.name
