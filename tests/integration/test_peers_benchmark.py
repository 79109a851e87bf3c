"""The benchmark of peers still measures: one system, one event, and short times."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks.peers import callers, runs
from tests.benchmarks.peers.systems import SYSTEMS
from tests.contract.store_adapters import _program

pytestmark = pytest.mark.integration

LEASE_S = 1.0
"""Enough for 64 renewals, one after another, on a machine that has much else to do."""


def test_a_killed_program_costs_its_shards_a_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others take exactly what it had."""
    _program("redis-server")
    for name in ("QUIET_S", "STEADY_S", "AFTER_S"):
        monkeypatch.setattr(runs, name, 2 * LEASE_S)
    monkeypatch.setattr(callers, "RATE", 50.0)
    system = replace(SYSTEMS["redis"], settings={"lease_s": LEASE_S})
    results: runs.Results = {}
    asyncio.run(runs.measure(system, ["kill"], tmp_path, results))
    killed = results["kill"]
    assert killed["needed"] > 0, killed
    assert killed["settled"], killed
    assert (64, killed["needed"]) == (sum(killed["shares_of_shards"]), killed["moved"])
    assert (0, 0, 0) == tuple(killed[name] for name in ("stale_accepted", "lost", "doubled"))
