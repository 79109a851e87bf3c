"""Decisions of balancing over HTTP."""

from __future__ import annotations

import pytest

from equipoise.brokers.decision_log import open_decision_log
from tests.decisions import AT_MS, idle, shed
from tests.unit.http.cluster import Cluster, with_cluster

pytestmark = pytest.mark.integration

PATH = "/admin/v2/balancing/decisions"


@with_cluster(brokers=2)
async def test_any_broker_returns_the_newest_decisions(brokers: Cluster) -> None:
    _, other = brokers.brokers
    assert [] == (await other.get(PATH)).json()
    log = open_decision_log(other.worker.config.log_url)
    for decision in (idle(AT_MS), shed(AT_MS + 1), idle(AT_MS + 2)):
        log.write(decision)
    told = (await other.get(f"{PATH}?limit=2")).json()
    assert isinstance(told, list)
    assert [(AT_MS + 1, "Success", 2), (AT_MS + 2, "Skip", 0)] == [(each["at_ms"], each["result"], len(each["moves"])) for each in told]
    assert 3 == len((await other.get(PATH)).json())  # type: ignore[arg-type] # a list, as above


@pytest.mark.parametrize("limit", ["-1", "1001", "many", "1&limit=2"])
@with_cluster()
async def test_a_limit_that_cannot_be_is_refused(brokers: Cluster, limit: str) -> None:
    (broker,) = brokers.brokers
    assert 400 == (await broker.get(f"{PATH}?limit={limit}")).status
