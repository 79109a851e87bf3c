"""A test of the service in equipoise/examples/counter.py with real broker processes."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from equipoise.pytest import MakeProcesses

pytestmark = pytest.mark.integration


def test_counts_survive_the_death_of_a_broker(equipoise_processes: MakeProcesses, tmp_path: Path) -> None:
    cluster = equipoise_processes("counter", environment={"EQUIPOISE_COUNTER_STORE": str(tmp_path / "counter.db")})
    first, second, _ = cluster.addresses
    with httpx.Client(follow_redirects=True, timeout=30) as client:
        client.put(f"{first}/admin/v2/namespaces/shop/orders").raise_for_status()
        values = [client.post(f"{first}/counter/shop/orders/apples").json()["value"] for _ in range(2)]
        cluster.kill(0)
        values.append(client.post(f"{second}/counter/shop/orders/apples").json()["value"])
    assert [1, 2, 3] == values
