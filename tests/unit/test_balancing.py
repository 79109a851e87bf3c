"""The balancer of one worker: that its end is the end of all that it began."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from brokers.balancing import Balancing
from brokers.load import BundleLoad
from brokers.load_bus.memory import MemoryLoadBus
from shedder.plan import Move, Plan
from shedder.snapshot import Snapshot
from tests.unit.http.cluster import cluster, run, until

pytestmark = pytest.mark.integration


class Insisting:
    """A policy that wants one move, whatever it is shown."""

    def __init__(self, move: Move) -> None:
        self.move = move

    def plan(self, snapshot: Snapshot) -> Plan:
        return Plan(moves=(self.move,), stays=())


def moves_under_way() -> list[str]:
    """The tasks of moves that are running."""
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("move of ")]


def test_nobody_waits_for_a_move_after_the_end(tmp_path: Path) -> None:
    """A balancer that is cancelled takes along whoever waits for a move that may never end."""

    async def story() -> None:
        async with cluster(tmp_path, brokers=2, balance_interval_ms=20) as brokers:
            leader, other = brokers.brokers
            bundle = next(name for name in brokers.bundles() if brokers.owner_of(name) is leader)
            other.service.taking.clear()
            move = Move(bundle=bundle, source=leader.id, destination=other.id, reason="test")
            bus = MemoryLoadBus("end of moves")
            leader.service.loads[bundle] = BundleLoad(sessions=7)
            balancing = asyncio.ensure_future(Balancing(leader.worker, bus, shedder=Insisting(move)).run())
            await until(lambda: brokers.view.bundles[bundle].phase == "transferring")
            assert [f"move of {bundle}"] == moves_under_way()
            assert [7] == [report.bundles[bundle].sessions for report in bus.latest()]
            left: list[list[str]] = []
            balancing.add_done_callback(lambda _: left.append(moves_under_way()))
            balancing.cancel()
            await until(lambda: bool(left))
            assert ([[]], "transferring") == (left, brokers.view.bundles[bundle].phase)
            other.service.taking.set()

    run(story)
