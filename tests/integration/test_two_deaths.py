"""Processes of one cluster die one after the other, as they do in an ordinary hour: no bundle stays
without an owner.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from equipoise.brokers.local.local_cluster import LocalCluster
from tests.load import admin_requests
from tests.load.cluster import counters, running
from tests.repeats import times

NAMESPACE: Final = "shop/orders"
BETWEEN_S: Final = 22
OWNED_WITHIN_MS: Final = 60_000


@pytest.mark.integration
@pytest.mark.soak
@pytest.mark.repeats
@pytest.mark.parametrize("_repetition", range(times(1, many=10)))
async def test_all_bundles_have_owners_after_two_deaths(_repetition: int, tmp_path: Path) -> None:
    """5 brokers with 40 bundles: kill -9 of one, and of another one 22 s later."""
    cluster = LocalCluster(counters(tmp_path, brokers=5, declare_dead=False))
    async with running(cluster, NAMESPACE, bundles=40) as (table, _http):
        cluster.kill(1)
        await asyncio.sleep(BETWEEN_S)
        last = table.view.brokers[cluster.broker_ids[3]].incarnation
        cluster.kill(3)
        await admin_requests.settled(table, NAMESPACE, without=last, timeout_ms=OWNED_WITHIN_MS)
        # What goes into quarantine does so when the second death is known.
        assert not any(key.startswith("quarantine/") for key in table.view.policies)
