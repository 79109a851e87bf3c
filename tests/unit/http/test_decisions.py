"""Decisions of balancing over HTTP.

May live here: this path, asked by a real client.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.brokers.decision_log import open_decision_log
from tests.decisions import AT_MS, idle, shed
from tests.unit.http.cluster import cluster, run

pytestmark = pytest.mark.integration

PATH = "/admin/v2/balancing/decisions"


def test_decisions_are_told_by_any_broker(tmp_path: Path) -> None:
    """The newest are told as documents, the oldest of them first, as many as are asked for; and none where nothing was decided."""

    async def story() -> None:
        async with cluster(tmp_path, brokers=2) as brokers:
            _, other = brokers.brokers
            assert [] == (await other.get(PATH)).json()
            log = open_decision_log(other.worker.config.log_url)
            for decision in (idle(AT_MS), shed(AT_MS + 1), idle(AT_MS + 2)):
                log.write(decision)
            told = (await other.get(f"{PATH}?limit=2")).json()
            assert isinstance(told, list)
            assert [(AT_MS + 1, "Success", 2), (AT_MS + 2, "Skip", 0)] == [
                (each["at_ms"], each["result"], len(each["moves"])) for each in told
            ]
            assert 3 == len((await other.get(PATH)).json())  # type: ignore[arg-type] # a list, as above

    run(story)


@pytest.mark.parametrize("limit", ["-1", "1001", "many", "1&limit=2"])
def test_a_limit_that_cannot_be_is_refused(tmp_path: Path, limit: str) -> None:
    """What is no number of decisions that may be asked for is answered 400."""

    async def story() -> None:
        async with cluster(tmp_path) as brokers:
            (broker,) = brokers.brokers
            assert 400 == (await broker.get(f"{PATH}?limit={limit}")).status

    run(story)
