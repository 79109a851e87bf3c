"""A small stress run in real processes; `python -m tests.stress` is the full one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.load.log_places import LogPlace
from tests.load.stress import Size, stress

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SMALL = Size(
    transfers=40,
    splits=4,
    merges=4,
    kills=2,
    stops=1,
    stop_past_lease_s=2.5,
    outages=1,
    brokers=3,
    calls_per_second=100.0,
    seconds_max=400.0,
)


@pytest.mark.slow
def test_moves_and_faults_under_load_keep_every_promise(
    tmp_path: Path, log_place: LogPlace
) -> None:
    """After transfers, splits, merges, kill -9, SIGSTOP and an outage of the log checker and
    channel are clean.
    """
    result = asyncio.run(stress(SMALL, tmp_path, log_place, seed=0, say=print))
    assert ({}, None) == (result.verdict.violations, result.verdict.problem)
    assert () == result.findings.findings
    assert SMALL.transfers <= result.made["transfer"]
    assert (SMALL.splits, SMALL.merges) == (result.made["split"], result.made["merge"])
    assert (SMALL.kills, SMALL.stops, SMALL.outages) == (
        result.made["kill"],
        result.made["stop"],
        result.made["outage"],
    )
    assert result.verdict.totals["stale_writes_refused_by_the_store"] > 0
    assert result.verdict.totals["pieces_of_work_in_evidence"] > 0
