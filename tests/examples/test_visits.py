"""A test of the program in equipoise/examples/visits.py, as users would write one for their own."""

from __future__ import annotations

import asyncio

from equipoise import Cluster, Keyed
from equipoise.errors import PeerError
from equipoise.examples.visits import Page
from equipoise.pytest import MovesAtEveryAwait


async def visit(cluster: Cluster[Keyed[Page]], name: str) -> int:
    """Visit a page as a client does: ask the next program if this one does not have it."""
    while True:
        for broker in cluster.brokers:
            try:
                async with cluster.service(broker).at(name) as page:
                    visits = page.visits + 1
                    await asyncio.sleep(0)  # As an endpoint waits for something else.
                    page.visits = visits
                    return visits
            except PeerError:
                continue


def test_no_visit_is_lost_wherever_the_page_moves(equipoise_moves: MovesAtEveryAwait) -> None:
    for cluster in equipoise_moves(lambda: Keyed("web/pages", Page), "web/pages", "home"):
        cluster.create("web/pages", bundles=1)
        assert [1, 2, 3] == [cluster.call(visit(cluster, "home")) for _ in range(3)]


def test_what_only_memory_has_dies_with_its_program() -> None:
    with Cluster(lambda: Keyed("web/pages", Page)) as cluster:
        bundle = cluster.create("web/pages", bundles=1)[0]
        cluster.give(bundle, "broker-1")
        assert cluster.call(visit(cluster, "home")) == 1
        cluster.kill("broker-1")
        cluster.advance(20_000)
        assert cluster.call(visit(cluster, "home"), within_ms=10_000) == 1
