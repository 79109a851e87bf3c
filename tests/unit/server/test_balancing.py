"""The balancer of one worker: what it begins and ends, by which settings, what it remembers, and what it tells of rounds that fail."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from equipoise.brokers.agent.intents import Cancel, SetClusterPolicy, Transfer
from equipoise.brokers.balancing.decisions import Decision
from equipoise.brokers.balancing.placement import LeastCost, RoundRobin
from equipoise.brokers.balancing.planning import OF_POLICIES
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings, RoundSettings
from equipoise.brokers.errors import load_bus_unavailable
from equipoise.brokers.load.bus.memory import MemoryLoadBus
from equipoise.brokers.server.balancing import Balancing
from equipoise.shedder.load_reports import Sample, Summary
from equipoise.shedder.plan import Move, Plan, Shedder
from equipoise.shedder.snapshot import Snapshot
from tests.unit.http.cluster import Cluster, cluster, run, until

pytestmark = pytest.mark.integration

ROUNDS = RoundSettings(shed_interval_ms=20, move_timeout_ms=20_000)


@dataclass
class Insisting:
    """A policy that wants the same moves, whatever it is shown."""

    moves: Sequence[Move] = ()
    seen: list[Snapshot] = field(default_factory=list)

    def plan(self, snapshot: Snapshot) -> Plan:
        self.seen.append(snapshot)
        return Plan(moves=tuple(self.moves), stays=(), memory=replace(snapshot.memory, hits=7))


@dataclass
class Balanced:
    """A cluster whose brokers balance by one policy, with settings that a test may change, and what it was told."""

    cluster: Cluster
    policy: Insisting
    settings: BalancingSettings
    bus: MemoryLoadBus
    tasks: list[asyncio.Future[None]] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    def choose(self, _: BalancingSettings) -> Shedder:
        return self.policy

    def set(self, rounds: RoundSettings) -> None:
        """Change the group `balancing` of the settings."""
        self.settings = replace(self.settings, balancing=rounds)

    def begin(self) -> None:
        """Balance, at every broker."""
        for broker in self.cluster.brokers:
            balancing = Balancing(
                broker.worker, self.bus, settings=lambda: self.settings, decided=self.decisions.append, choose=self.choose
            )
            self.tasks.append(asyncio.ensure_future(balancing.run()))

    async def hold_up(self, *bundles: str) -> None:
        """Plan the moves of `bundles` from the first broker to the second, which takes nothing yet, and wait until the first has begun."""
        source, destination = self.cluster.brokers
        destination.service.taking.clear()
        self.policy.moves = [Move(bundle=name, source=source.id, destination=destination.id, reason="test") for name in bundles]
        self.begin()
        await until(lambda: self.cluster.view.bundles[bundles[0]].phase == "transferring")

    def held_by(self, number: int) -> list[str]:
        """The bundles of one broker, by name."""
        broker = self.cluster.brokers[number]
        return [name for name in self.cluster.bundles() if self.cluster.owner_of(name) is broker]


@asynccontextmanager
async def balanced(
    tmp_path: Path, *, brokers: int, bus: MemoryLoadBus | None = None, rounds: RoundSettings = ROUNDS
) -> AsyncIterator[Balanced]:
    """A cluster of which nobody balances yet; what begins to is cancelled in the end."""
    async with cluster(tmp_path, brokers=brokers) as members:
        settings = BalancingSettings(balancing=rounds)
        stage = Balanced(cluster=members, policy=Insisting(), settings=settings, bus=bus or MemoryLoadBus(str(tmp_path)))
        try:
            yield stage
        finally:
            for task in stage.tasks:
                task.cancel()
            await asyncio.gather(*stage.tasks, return_exceptions=True)


def moves_under_way() -> list[str]:
    """The tasks of moves that are running."""
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("move of ")]


async def test_nobody_waits_for_a_move_after_the_end(tmp_path: Path) -> None:
    """A balancer that is cancelled takes along whoever waits for a move that may never end."""
    async with balanced(tmp_path, brokers=2) as stage:
        _, other = stage.cluster.brokers
        bundle = stage.held_by(0)[0]
        await stage.hold_up(bundle)
        assert [f"move of {bundle}"] == moves_under_way()
        left: list[list[str]] = []
        stage.tasks[0].add_done_callback(lambda _: left.append(moves_under_way()))
        stage.tasks[0].cancel()
        await until(lambda: bool(left))
        assert ([[]], "transferring") == (left, stage.cluster.view.bundles[bundle].phase)
        other.service.taking.set()


async def test_a_move_without_a_destination_goes_wherever_another_broker_takes_it(tmp_path: Path) -> None:
    """Where a policy names no destination, another broker than the owner gets the bundle, and the policy remembers both ends."""
    async with balanced(tmp_path, brokers=2) as stage:
        leader, other = stage.cluster.brokers
        bundle = stage.held_by(0)[0]
        stage.policy.moves = [Move(bundle=bundle, source=leader.id, destination=None, reason="test")]
        stage.begin()
        await until(lambda: stage.cluster.owner_of(bundle) is other and bool(stage.policy.seen[-1].memory.gave_ms))
        memory = stage.policy.seen[-1].memory
        assert [[leader.id], [other.id], 7] == [list(memory.gave_ms), list(memory.got_ms), memory.hits]
        assert {"shed"} == {decision.kind for decision in stage.decisions}


async def test_moves_at_once_are_bounded_and_a_move_that_was_cancelled_makes_room(tmp_path: Path) -> None:
    """With one move per broker the second waits for the first, begins as soon as that is cancelled, and the balancer knows it failed."""
    async with balanced(tmp_path, brokers=2, rounds=replace(ROUNDS, broker_moves_max=1)) as stage:
        leader, other = stage.cluster.brokers
        first, second = stage.held_by(0)
        await stage.hold_up(first, second)
        assert ("owned", [f"move of {first}"]) == (stage.cluster.view.bundles[second].phase, moves_under_way())
        await leader.worker.request(Cancel(bundle=first, reason="enough"), timeout_ms=20_000)
        await until(lambda: stage.cluster.view.bundles[second].phase == "transferring")
        assert leader is stage.cluster.owner_of(first)
        other.service.taking.set()
        await until(lambda: stage.cluster.owner_of(second) is other)


def test_balancing_that_is_switched_off_begins_nothing_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What waits for room is dropped, and told; the move under way comes to its end, and no round follows."""

    async def story() -> None:
        async with balanced(tmp_path, brokers=2, rounds=replace(ROUNDS, broker_moves_max=1)) as stage:
            leader, other = stage.cluster.brokers
            first, second = stage.held_by(0)
            await stage.hold_up(first, second)
            stage.set(replace(ROUNDS, enabled=False))
            await until(lambda: "move not started, because it is no longer needed" in caplog.messages)
            rounds = len(stage.decisions)
            other.service.taking.set()
            await until(lambda: stage.cluster.owner_of(first) is other)
            await until(lambda: not moves_under_way())
            assert (leader, rounds) == (stage.cluster.owner_of(second), len(stage.decisions))

    with caplog.at_level("INFO", logger="equipoise.brokers.server.balancing"):
        run(story)


async def test_what_a_new_policy_keeps_from_its_owner_moves_before_anything_else(tmp_path: Path) -> None:
    """A pin that is set moves its bundle away from a broker that it does not name, with the policy as the reason on record."""
    async with balanced(tmp_path, brokers=2) as stage:
        leader, other = stage.cluster.brokers
        bundle = stage.held_by(0)[0]
        namespace, _, range_ = bundle.rpartition("/")
        stage.begin()
        pin = SetClusterPolicy(policy="pin/one", document={"namespace": namespace, "range": range_, "brokers.0": other.id})
        await leader.worker.request(pin, timeout_ms=20_000)
        await until(lambda: stage.cluster.owner_of(bundle) is other)
        (decision,) = [decision for decision in stage.decisions if decision.strategy == OF_POLICIES]
        assert [bundle] == [move.bundle for move in decision.moves]
        assert "pin/one" in decision.moves[0].reason


def resting_in(snapshot: Snapshot) -> set[str]:
    """The bundles that have moved lately, as a policy is shown them."""
    return {bundle.name for broker in snapshot.brokers for bundle in broker.bundles if bundle.barred == "it has moved lately"}


async def test_who_takes_the_lead_knows_what_others_have_moved(tmp_path: Path) -> None:
    """A bundle that an operator moved rests with the leader, and with the next one, too; what a namespace began with does not."""
    async with balanced(tmp_path, brokers=3) as stage:
        leader, other, third = stage.cluster.brokers
        bundle, kept = stage.held_by(2)[0], set(stage.held_by(1))
        stage.begin()
        await leader.worker.request(Transfer(bundle=bundle, destination=other.id, reason="test"), timeout_ms=20_000)
        await until(lambda: bool(stage.policy.seen) and resting_in(stage.policy.seen[-1]) == {bundle})
        stage.tasks[0].cancel()
        await leader.worker.stop()
        rounds = len(stage.policy.seen)
        await until(lambda: any(broker.worker.agent.leads for broker in (other, third)) and len(stage.policy.seen) > rounds)
        assert {bundle} == resting_in(stage.policy.seen[-1]) & {bundle, *kept}


async def test_who_does_not_lead_forgets_what_has_rested(tmp_path: Path) -> None:
    """What moved long before a broker takes the lead does not rest, though it has planned no round meanwhile."""
    bus = Away("rests")
    bus.problem = None
    async with balanced(tmp_path, brokers=2, bus=bus) as stage:
        leader, other = stage.cluster.brokers
        bundle = stage.held_by(0)[0]
        stage.begin()
        stage.tasks[0].cancel()  # So that only the other one looks.
        await leader.worker.request(Transfer(bundle=bundle, destination=other.id, reason="test"), timeout_ms=20_000)
        await until(lambda: stage.cluster.owner_of(bundle) is other and stage.cluster.view.bundles[bundle].phase == "owned")
        stage.set(replace(ROUNDS, rest_ms=0))
        looks = bus.asked
        await until(lambda: bus.asked > looks + 2)
        stage.set(ROUNDS)
        await leader.worker.stop()
        await until(lambda: bool(stage.policy.seen))
        assert bundle not in resting_in(stage.policy.seen[0])


async def test_a_move_that_waited_breaks_no_policy_that_was_set_meanwhile(tmp_path: Path) -> None:
    """A pin that is set while a move waits for room keeps its bundle where it is, though it was planned to go elsewhere."""
    async with balanced(tmp_path, brokers=2, rounds=replace(ROUNDS, moves_max=1)) as stage:
        leader, other = stage.cluster.brokers
        first, second = stage.held_by(0)
        await stage.hold_up(first, second)
        stage.policy.moves, before = [], stage.cluster.view.bundles[second]
        namespace, _, range_ = second.rpartition("/")
        pin = SetClusterPolicy(policy="pin/kept", document={"namespace": namespace, "range": range_, "brokers.0": leader.id})
        await leader.worker.request(pin, timeout_ms=20_000)
        rounds = len(stage.decisions)
        other.service.taking.set()
        await until(lambda: len(stage.decisions) > rounds + 3)
        assert (other, before) == (stage.cluster.owner_of(first), stage.cluster.view.bundles[second])


async def test_placement_follows_settings_and_load_while_moves_hold_up_rounds(tmp_path: Path) -> None:
    """A leader that waits for the end of a move places by what the settings say now, not by what they said when it began."""
    async with balanced(tmp_path, brokers=2) as stage:
        leader, _ = stage.cluster.brokers
        bundle = stage.held_by(0)[0]
        await stage.hold_up(bundle)
        rounds = len(stage.decisions)
        stage.set(replace(ROUNDS, placement="RoundRobin"))
        await until(lambda: isinstance(leader.worker.agent.placement, RoundRobin))
        assert ([f"move of {bundle}"], rounds) == (moves_under_way(), len(stage.decisions))


async def test_placement_goes_by_no_report_that_is_too_old(tmp_path: Path) -> None:
    """A broker that was idle when it reported last, long ago, is not known to be idle."""
    async with balanced(tmp_path, brokers=1) as stage:
        (broker,) = stage.cluster.brokers
        stage.bus.publish(Sample(broker="ceased", at_ms=1))
        stage.bus.publish(Sample(broker="reporting", at_ms=broker.worker.clock.now().wall_ms))
        stage.begin()
        await until(lambda: len(stage.decisions) > 1)
        placement = broker.worker.agent.placement
        assert isinstance(placement, LeastCost)
        assert ["reporting"] == list(placement.summaries)


async def test_hits_begin_anew_once_balancing_is_on_again(tmp_path: Path) -> None:
    """Rounds in a row are what a strategy counts: those before balancing was switched off are none of them."""
    bus = Away("hits")
    bus.problem = None
    async with balanced(tmp_path, brokers=1, bus=bus) as stage:
        stage.begin()
        await until(lambda: len(stage.policy.seen) > 1)
        stage.set(replace(ROUNDS, enabled=False))
        looks = bus.asked
        await until(lambda: bus.asked > looks + 2)
        rounds = len(stage.policy.seen)
        stage.set(ROUNDS)
        await until(lambda: len(stage.policy.seen) > rounds)
        assert [0, 7, 0] == [stage.policy.seen[number].memory.hits for number in (0, 1, rounds)]


async def test_bundles_are_placed_by_the_strategy_that_the_settings_name(tmp_path: Path) -> None:
    """Each broker's agent gets another placement when the settings name one, and one that remembers whose turn it is stays the same."""
    async with balanced(tmp_path, brokers=2) as stage:
        stage.begin()
        workers = [broker.worker for broker in stage.cluster.brokers]
        await until(lambda: all(isinstance(worker.agent.placement, LeastCost) for worker in workers))
        stage.set(replace(ROUNDS, placement="RoundRobin"))
        await until(lambda: all(isinstance(worker.agent.placement, RoundRobin) for worker in workers))
        chosen, rounds = [worker.agent.placement for worker in workers], len(stage.decisions)
        await until(lambda: len(stage.decisions) > rounds + 3)
        assert all(worker.agent.placement is placement for worker, placement in zip(workers, chosen, strict=True))


def test_a_report_that_cannot_be_true_is_counted_once_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """However many rounds see it, the witness hears of it once, with the broker and the figure; and of nobody who is no member."""

    async def story() -> None:
        async with balanced(tmp_path, brokers=1) as stage:
            liar = stage.cluster.brokers[0].id
            for broker in (liar, "somebody else"):
                stage.bus.publish(Sample(broker=broker, at_ms=0, used=math.nan))
            stage.begin()
            await until(lambda: len(stage.decisions) > 3)
            refused = [
                metric for metric in stage.cluster.brokers[0].worker.metrics.balancing.collect() if metric.name.endswith("reports_refused")
            ]
            assert [(liar, 1)] == [(sample.labels["reporter"], sample.value) for metric in refused for sample in metric.samples]

    with caplog.at_level("WARNING", logger="equipoise.brokers.server.balancing"):
        run(story)
    assert ["load report left out, because it cannot be true: its average use is nan"] == [line.getMessage() for line in lines(caplog)]


class Away(MemoryLoadBus):
    """A bus that is away for as long as `problem` is set."""

    problem: Exception | None = load_bus_unavailable(bus="the topic loads", problem="it is away")
    asked = 0

    def latest(self) -> Sequence[Summary]:
        self.asked += 1
        if self.problem is not None:
            raise self.problem
        return super().latest()


def test_an_outage_of_the_bus_is_told_once_a_minute(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """However often a round fails, the log has one line, and one when it is over, with how many failures nobody was told of."""

    async def story() -> None:
        bus = Away("away")
        async with balanced(tmp_path, brokers=1, bus=bus) as stage:
            stage.begin()
            await until(lambda: bus.asked > 10)
            told = [(record.levelname, record.__dict__["failures"]) for record in lines(caplog)]
            assert {("Failure", "Unknown")} == {decision.outcome for decision in stage.decisions}
            assert "the round failed" in (stage.decisions[0].reason or "")
            bus.problem = None
            await until(lambda: len(lines(caplog)) > 1)
            assert [("WARNING", 1)] == told
            over = lines(caplog)[-1]
            assert ("balancing succeeds again", True) == (over.message, over.__dict__["failures"] >= 9)

    with caplog.at_level("INFO", logger="equipoise.brokers.server.balancing"):
        run(story)


def test_a_bug_of_a_shedder_is_told_with_its_traceback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It comes again with every round, so that the first line is the one that says where."""

    async def story() -> None:
        bus = Away("bug")
        bus.problem = KeyError("no such bundle")
        async with balanced(tmp_path, brokers=1, bus=bus) as stage:
            stage.begin()
            await until(lambda: bus.asked > 10)
            (line,) = lines(caplog)
            assert ("ERROR", True) == (line.levelname, line.exc_info is not None and isinstance(line.exc_info[1], KeyError))

    with caplog.at_level("INFO", logger="equipoise.brokers.server.balancing"):
        run(story)


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What the balancer has told."""
    return [record for record in caplog.records if record.name == "equipoise.brokers.server.balancing"]
