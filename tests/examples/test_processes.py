"""A test of the service in equipoise/examples/counter.py with real broker processes."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from equipoise.pytest import MakeProcesses

pytestmark = pytest.mark.integration


def increment(client: httpx.Client, address: str) -> int:
    """Count one apple. Ask again while the key's owner is dead and its bundle has not moved yet:
    nothing was written there.
    """
    while True:
        try:
            return int(client.post(f"{address}/counter/shop/orders/apples").json()["value"])
        except httpx.ConnectError:
            time.sleep(0.05)


def test_counts_survive_the_death_of_a_broker(
    equipoise_processes: MakeProcesses, tmp_path: Path
) -> None:
    cluster = equipoise_processes(
        "counter", environment={"EQUIPOISE_COUNTER_STORE": str(tmp_path / "counter.db")}
    )
    first, second, _ = cluster.addresses
    with httpx.Client(follow_redirects=True, timeout=30) as client:
        client.put(f"{first}/admin/v2/namespaces/shop/orders").raise_for_status()
        values = [increment(client, first) for _ in range(2)]
        cluster.kill(0)
        values.append(increment(client, second))
    assert [1, 2, 3] == values
