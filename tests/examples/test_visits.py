"""Tests of the service in equipoise/examples/fastapi_app.py, as users would write them for their
own.
"""

from __future__ import annotations

import pytest

from equipoise import Cluster, Ownership
from equipoise.errors import OwnershipLost
from equipoise.examples.fastapi_app import NAMESPACE, Visits
from equipoise.pytest import MakeCluster


@pytest.fixture
def cluster(equipoise_cluster: MakeCluster) -> Cluster[Visits]:
    """Return three brokers with a service each, and one namespace of four bundles."""
    cluster = equipoise_cluster(Visits, brokers=3)
    cluster.create(NAMESPACE, bundles=4)
    return cluster


def visit(cluster: Cluster[Visits], page: str) -> int:
    """Visit a page at the broker that owns it."""
    owner = cluster.owner(cluster.bundle(NAMESPACE, page))
    assert owner is not None
    with cluster.ownership(NAMESPACE, page).begin(page):
        return cluster.service(owner).visit(page)


def test_counts_move_with_their_bundle(cluster: Cluster[Visits]) -> None:
    bundle = cluster.bundle(NAMESPACE, "home")
    cluster.give(bundle, "broker-1")
    assert [1, 2] == [visit(cluster, "home"), visit(cluster, "home")]
    cluster.give(bundle, "broker-2")
    assert visit(cluster, "home") == 3
    assert "home" not in cluster.service("broker-1").counts


def test_a_former_owner_counts_nothing(cluster: Cluster[Visits]) -> None:
    """Its ownership is void once the bundle is taken."""
    bundle = cluster.bundle(NAMESPACE, "home")
    cluster.give(bundle, "broker-1")
    former = cluster.ownership(NAMESPACE, "home")
    cluster.take(bundle)
    with pytest.raises(OwnershipLost):
        former.begin("home")


def test_callers_wait_for_the_next_owner(cluster: Cluster[Visits]) -> None:
    """After a death this takes less than five seconds."""
    cluster.give(cluster.bundle(NAMESPACE, "home"), "broker-1")
    visit(cluster, "home")
    cluster.kill("broker-1")
    cluster.advance(2_000)
    served = cluster.call(
        cluster.host("broker-2").route(NAMESPACE, "home", timeout_ms=10_000), within_ms=3_000
    )
    assert isinstance(served, Ownership) or served.broker == "broker-3"
    assert visit(cluster, "home") == 1  # What was counted in memory died with its broker.
