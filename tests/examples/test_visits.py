"""Tests of the service in equipoise/examples/fastapi_app.py, as one would write them for a service of one's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from equipoise import Cluster, Ownership
from equipoise.errors import OwnershipLost
from equipoise.examples.fastapi_app import NAMESPACE, Visits


@pytest.fixture
def cluster() -> Iterator[Cluster[Visits]]:
    """Three brokers with a service each, and one namespace, whose four bundles they serve."""
    with Cluster(Visits, brokers=3) as cluster:
        cluster.create(NAMESPACE, bundles=4)
        yield cluster


def visit(cluster: Cluster[Visits], page: str) -> int:
    """A visit at the broker that owns the page."""
    owner = cluster.owner(cluster.bundle(NAMESPACE, page))
    assert owner is not None
    return cluster.service(owner).visit(cluster.ownership(NAMESPACE, page), page)


def test_counts_go_with_their_bundle(cluster: Cluster[Visits]) -> None:
    """A page is counted on where its bundle goes."""
    bundle = cluster.bundle(NAMESPACE, "home")
    cluster.give(bundle, "broker-1")
    assert [1, 2] == [visit(cluster, "home"), visit(cluster, "home")]
    cluster.give(bundle, "broker-2")
    assert visit(cluster, "home") == 3
    assert "home" not in cluster.service("broker-1").counts


def test_a_former_owner_counts_nothing(cluster: Cluster[Visits]) -> None:
    """Who held on to an ownership may not work under it once the bundle has been taken."""
    bundle = cluster.bundle(NAMESPACE, "home")
    cluster.give(bundle, "broker-1")
    former = cluster.ownership(NAMESPACE, "home")
    cluster.take(bundle)
    with pytest.raises(OwnershipLost):
        cluster.service("broker-1").visit(former, "home")


def test_callers_wait_for_the_next_owner(cluster: Cluster[Visits]) -> None:
    """Whoever asks for a page of a broker that has fallen silent waits for the failover, which takes less than five seconds."""
    cluster.give(cluster.bundle(NAMESPACE, "home"), "broker-1")
    visit(cluster, "home")
    cluster.kill("broker-1")
    cluster.advance(2_000)
    served = cluster.call(cluster.host("broker-2").route(NAMESPACE, "home", timeout_ms=10_000), within_ms=3_000)
    assert isinstance(served, Ownership) or served.broker == "broker-3"
    assert visit(cluster, "home") == 1  # What was counted in memory died with its broker.
