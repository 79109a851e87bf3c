"""Brokers whose readers lag behind: what one broker has answered, the next one knows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.channels.admin_hunt import hunt, lagging
from tests.repeats import times
from tests.unit.http.cluster import Cluster, story

pytestmark = pytest.mark.integration

TENANT, NEW = "/admin/v2/tenants/fresh", "/admin/v2/namespaces/fresh/shop"


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Cluster]:
    async with lagging(folder) as brokers:
        yield brokers


@pytest.mark.parametrize(
    ("create", "request_line", "expected"),
    [
        (TENANT, f"GET {TENANT}", 200),
        (TENANT, f"DELETE {TENANT}", 204),
        (NEW, f"GET {NEW}", 200),
        (NEW, f"GET {NEW}/bundles", 200),
        (NEW, f"GET {NEW}/retention", 204),
        (NEW, f"DELETE {NEW}/antiAffinity", 204),
        (NEW, f"DELETE {NEW}", 204),
        (NEW, "GET /v1/assignment/fresh/shop", 200),
        (NEW, "GET /lookup/v2/topic/non-persistent/fresh/shop/orders", 200),
        (NEW, "GET /lookup/v2/topic/non-persistent/fresh/shop/orders/bundle", 200),
    ],
)
@story(opened)
async def test_what_one_broker_created_the_next_one_does_not_deny(
    brokers: Cluster, create: str, request_line: str, expected: int
) -> None:
    first, second, _ = brokers.brokers
    assert 204 == (await first.put(create)).status
    assert expected == (await second.ask(*request_line.split())).status


@story(opened)
async def test_what_one_broker_deleted_the_next_one_denies(brokers: Cluster) -> None:
    first, second, third = brokers.brokers
    assert 204 == (await first.put(TENANT)).status
    assert [200, 204, 404] == [
        (await broker.ask(method, TENANT)).status
        for broker, method in ((second, "GET"), (first, "DELETE"), (third, "GET"))
    ]
    assert b"fresh" not in (await second.get("/admin/v2/tenants")).body


@pytest.mark.repeats
async def test_some_order_explains_all_answers() -> None:
    """Of several callers at several brokers, about one tenant and one namespace at a time."""
    assert await hunt(range(times(10, many=300))) is None
