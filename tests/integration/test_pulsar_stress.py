"""Run a small stress test of Pulsar's clients. `python -m tests.stress --pulsar` is the full
one.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.load.log_places import LogPlace
from tests.load.pulsar_stress import pulsar_stress
from tests.load.stress import Size
from tests.pulsar.programs import EVERYDAY, require

# Building a program for the first time takes minutes.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

SMALL = Size(
    transfers=20, splits=2, merges=2, kills=1, stops=0, outages=0, brokers=3, seconds_max=400.0
)


@pytest.mark.soak
def test_all_clients_at_once_lose_nothing_in_moves(tmp_path: Path, log_place: LogPlace) -> None:
    """After transfers, splits, merges and a `kill -9`, the checker and the audit of the channel
    find nothing.
    """
    require(*EVERYDAY)
    result = asyncio.run(
        pulsar_stress(SMALL, tmp_path, log_place, seed=0, languages=EVERYDAY, say=print)
    )
    assert (None, {}) == (result.verdict.problem, result.verdict.violations)
    assert () == result.findings.findings
    assert (True, True, True) == tuple(
        result.made[move] >= getattr(SMALL, f"{move}s") for move in ("transfer", "split", "merge")
    )
    assert (0, SMALL.kills) == (result.verdict.totals["never_settled"], result.made["kill"])
    assert result.verdict.totals["pieces_of_work_in_evidence"] > 0
    assert {"python", "java", "go"} == result.pauses_ms.keys()
