"""The balancer of one worker: that its end is that of all that it began, what it remembers, and what it tells of rounds that fail.

May live here: the balancer with policies and buses that are made for one question; what a policy decides is tested without it.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from brokers.balancing import Balancing
from brokers.errors import LoadBusUnavailable
from brokers.load import BundleLoad, Report
from brokers.load_bus.memory import MemoryLoadBus
from shedder.plan import Move, Plan
from shedder.snapshot import Snapshot
from tests.unit.http.cluster import cluster, run, until

pytestmark = pytest.mark.integration


class Insisting:
    """A policy that wants one move, whatever it is shown."""

    def __init__(self, move: Move) -> None:
        self.move = move
        self.seen: list[Snapshot] = []

    def plan(self, snapshot: Snapshot) -> Plan:
        self.seen.append(snapshot)
        return Plan(moves=(self.move,), stays=(), memory=replace(snapshot.memory, hits=7))


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


def test_a_move_without_a_destination_goes_wherever_another_broker_takes_it(tmp_path: Path) -> None:
    """Where a policy names no destination, another broker than the owner gets the bundle, and the policy remembers both ends."""

    async def story() -> None:
        async with cluster(tmp_path, brokers=2, balance_interval_ms=20) as brokers:
            leader, other = brokers.brokers
            bundle = next(name for name in brokers.bundles() if brokers.owner_of(name) is leader)
            policy = Insisting(Move(bundle=bundle, source=leader.id, destination=None, reason="test"))
            balancing = asyncio.ensure_future(Balancing(leader.worker, MemoryLoadBus("no destination"), shedder=policy).run())
            await until(lambda: brokers.owner_of(bundle) is other and bool(policy.seen[-1].memory.gave_ms))
            balancing.cancel()
            memory = policy.seen[-1].memory
            assert [[leader.id], [other.id], 7] == [list(memory.gave_ms), list(memory.got_ms), memory.hits]

    run(story)


class Away(MemoryLoadBus):
    """A bus that is away for as long as `problem` is set."""

    problem: Exception | None = LoadBusUnavailable(bus="the topic loads", problem="it is away")
    asked = 0

    def publish(self, report: Report) -> None:
        self.asked += 1
        if self.problem is not None:
            raise self.problem
        super().publish(report)


def test_an_outage_of_the_bus_is_told_once_a_minute(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """However often a round fails, the log has one line, and one when it is over, with how many failures nobody was told of."""

    async def story() -> None:
        async with cluster(tmp_path, brokers=1, balance_interval_ms=20) as brokers:
            bus = Away("away")
            balancing = asyncio.ensure_future(Balancing(brokers.brokers[0].worker, bus).run())
            await until(lambda: bus.asked > 10)
            told = [(record.levelname, record.__dict__["failures"]) for record in lines(caplog)]
            bus.problem = None
            await until(lambda: len(lines(caplog)) > 1)
            balancing.cancel()
            assert [("WARNING", 1)] == told
            over = lines(caplog)[-1]
            assert ("balancing succeeds again", True) == (over.message, over.__dict__["failures"] >= 9)

    with caplog.at_level("INFO", logger="brokers.balancing"):
        run(story)


def test_a_bug_of_a_shedder_is_told_with_its_traceback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It comes again with every round, so that the first line is the one that says where."""

    async def story() -> None:
        async with cluster(tmp_path, brokers=1, balance_interval_ms=20) as brokers:
            bus = Away("bug")
            bus.problem = KeyError("no such bundle")
            balancing = asyncio.ensure_future(Balancing(brokers.brokers[0].worker, bus).run())
            await until(lambda: bus.asked > 10)
            balancing.cancel()
            (line,) = lines(caplog)
            assert ("ERROR", True) == (line.levelname, line.exc_info is not None and isinstance(line.exc_info[1], KeyError))

    with caplog.at_level("INFO", logger="brokers.balancing"):
        run(story)


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What the balancer has told."""
    return [record for record in caplog.records if record.name == "brokers.balancing"]
