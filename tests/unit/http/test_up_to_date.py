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

NAMESPACES, TENANT = "/admin/v2/namespaces", "/admin/v2/tenants/fresh"
TOPIC = "/lookup/v2/topic/non-persistent"


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Cluster]:
    async with lagging(folder) as brokers:
        yield brokers


@story(opened)
async def test_what_one_broker_created_the_next_one_does_not_deny(brokers: Cluster) -> None:
    """Whichever question comes first."""
    first, second, _ = brokers.brokers
    for number, (asked, expected) in enumerate(
        (
            (f"GET {NAMESPACES}/{{}}", 200),
            (f"GET {NAMESPACES}/{{}}/bundles", 200),
            (f"GET {NAMESPACES}/{{}}/retention", 204),
            (f"DELETE {NAMESPACES}/{{}}/antiAffinity", 204),
            (f"DELETE {NAMESPACES}/{{}}", 204),
            ("GET /v1/assignment/{}", 200),
            (f"GET {TOPIC}/{{}}/orders", 200),
            (f"GET {TOPIC}/{{}}/orders/bundle", 200),
        )
    ):
        name = f"fresh-{number}/shop"
        assert 204 == (await first.put(f"{NAMESPACES}/{name}")).status
        assert expected == (await second.ask(*asked.format(name).split())).status, asked
    for method, expected in (("GET", 200), ("DELETE", 204)):
        tenant = f"/admin/v2/tenants/{method}"
        assert 204 == (await first.put(tenant)).status
        assert expected == (await second.ask(method, tenant)).status


@pytest.mark.repeats
async def test_some_order_explains_all_answers() -> None:
    """Of several callers at several brokers, about one tenant and one namespace at a time."""
    assert await hunt(range(times(10, many=300))) is None
