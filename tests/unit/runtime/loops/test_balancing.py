"""The balancer of one worker: its moves, its settings, its memory, and its failures."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from equipoise.brokers.agent.requests import Cancel, SetClusterPolicy, Transfer
from equipoise.brokers.balancing.decisions import Decision
from equipoise.brokers.balancing.placement import LeastCost, RoundRobin
from equipoise.brokers.balancing.policies import PAUSE_KEY, control_document
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings, RoundSettings
from equipoise.brokers.load.bus import LOADS, LoadBus
from equipoise.brokers.runtime.loops.balancing import Balancing
from equipoise.channel.core.side_log import SideLogUnavailable
from equipoise.shedder.loads import Load
from equipoise.shedder.plan import Budget, Move, Plan, Predicted
from equipoise.shedder.policy import Policy
from equipoise.shedder.snapshot import Snapshot
from tests.unit.http.cluster import Cluster, cluster, until

pytestmark = pytest.mark.integration

ROUNDS = RoundSettings(shedder="Insisting", shed_interval_ms=20, move_timeout_ms=20_000)


@dataclass
class Insisting(Policy):
    """A policy that always plans the same moves, and remembers how often it was asked."""

    moves: Sequence[Move] = ()
    seen: list[Snapshot] = field(default_factory=list)
    memories: list[object] = field(default_factory=list)
    planning: threading.Event = field(default_factory=threading.Event)
    may_end: threading.Event | None = None

    def plan(self, snapshot: Snapshot, memory: object = None) -> tuple[Plan, object]:
        """Return the plan, once `may_end` is set if there is one."""
        self.seen.append(snapshot)
        self.memories.append(memory)
        self.planning.set()
        if self.may_end is not None:
            assert self.may_end.wait(20)
        budget = Budget(most=1, used=1, blocks=bool(self.moves))
        return Plan(moves=tuple(self.moves), budget=budget), len(self.seen)


class OtherPolicy(Insisting):
    """Another one, by its name."""


@dataclass
class Balanced:
    """A cluster whose brokers balance by one policy, settings that a test may change, and the
    decisions so far.
    """

    cluster: Cluster
    policy: Insisting
    settings: BalancingSettings
    bus: LoadBus
    tasks: list[asyncio.Future[None]] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    def set(self, rounds: RoundSettings) -> None:
        """Change the group `balancing` of the settings."""
        self.settings = replace(self.settings, balancing=rounds)

    def begin(self) -> None:
        """Start balancing at every broker."""
        for broker in self.cluster.brokers:
            balancing = Balancing(
                broker.worker,
                self.bus,
                settings=lambda: self.settings,
                decided=self.decisions.append,
            )
            self.tasks.append(asyncio.ensure_future(balancing.run()))

    async def hold_up(self, *bundles: str) -> None:
        """Plan the moves of `bundles` from the first broker to the second, which takes none yet.
        Wait until the first has begun.
        """
        source, destination = self.cluster.brokers
        destination.service.taking.clear()
        self.policy.moves = [
            Move(bundle=name, source=source.id, destination=destination.id, reason="test")
            for name in bundles
        ]
        self.begin()
        await until(lambda: self.cluster.view.bundles[bundles[0]].phase == "transferring")

    def held_by(self, number: int) -> list[str]:
        """Return the bundles of one broker, by name."""
        broker = self.cluster.brokers[number]
        return [name for name in self.cluster.bundles() if self.cluster.owner_of(name) is broker]


@asynccontextmanager
async def balanced(
    tmp_path: Path,
    *,
    brokers: int,
    bus: LoadBus | None = None,
    rounds: RoundSettings = ROUNDS,
) -> AsyncIterator[Balanced]:
    """Yield a cluster in which no broker balances yet. At the end, cancel those that do."""
    async with cluster(tmp_path, brokers=brokers) as members:
        policy = Insisting()
        settings = BalancingSettings(balancing=rounds, policies={"insisting": policy})
        stage = Balanced(
            cluster=members,
            policy=policy,
            settings=settings,
            bus=bus or LoadBus(f"memory:{tmp_path}"),
        )
        try:
            yield stage
        finally:
            for task in stage.tasks:
                task.cancel()
            await asyncio.gather(*stage.tasks, return_exceptions=True)


def moves_under_way() -> list[str]:
    """Return the names of the tasks that carry out moves."""
    return [
        task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("move of ")
    ]


async def test_the_end_cancels_the_tasks_that_wait_for_moves(tmp_path: Path) -> None:
    async with balanced(tmp_path, brokers=2) as stage:
        _, other = stage.cluster.brokers
        bundle = stage.held_by(0)[0]
        await stage.hold_up(bundle)
        assert [f"move of {bundle}"] == moves_under_way()
        assert (1, 1) == (
            stage.cluster.brokers[0].sample("balancing_moves_under_way"),
            stage.cluster.brokers[0].sample("balancing_budget_blocks"),
        )
        left: list[list[str]] = []
        stage.tasks[0].add_done_callback(lambda _: left.append(moves_under_way()))
        stage.tasks[0].cancel()
        await until(lambda: bool(left))
        assert ([[]], "transferring") == (left, stage.cluster.view.bundles[bundle].phase)
        other.service.taking.set()


async def test_a_move_without_a_destination_goes_to_any_other_broker(tmp_path: Path) -> None:
    """The policy learns of both ends of the move, once, and gets back what it remembers."""
    async with balanced(tmp_path, brokers=2) as stage:
        leader, other = stage.cluster.brokers
        bundle = stage.held_by(0)[0]
        stage.policy.moves = [
            Move(bundle=bundle, source=leader.id, destination=None, reason="test")
        ]
        stage.begin()
        await until(lambda: any(snapshot.since.ended for snapshot in stage.policy.seen))
        assert stage.cluster.owner_of(bundle) is other
        (ended,) = (move for snapshot in stage.policy.seen for move in snapshot.since.ended)
        assert (leader.id, other.id) == (ended.source, ended.destination)
        assert [None, *range(1, len(stage.policy.seen))] == stage.policy.memories
        assert {"shed"} == {decision.kind for decision in stage.decisions}


async def test_moves_at_once_are_bounded_and_a_cancelled_move_makes_room(tmp_path: Path) -> None:
    """With one move per broker, the second begins once the first is cancelled."""
    async with balanced(tmp_path, brokers=2, rounds=replace(ROUNDS, broker_moves_max=1)) as stage:
        leader, other = stage.cluster.brokers
        first, second = stage.held_by(0)
        await stage.hold_up(first, second)
        assert ("owned", [f"move of {first}"]) == (
            stage.cluster.view.bundles[second].phase,
            moves_under_way(),
        )
        await leader.worker.request(Cancel(bundle=first, reason="enough"), timeout_ms=20_000)
        await until(lambda: stage.cluster.view.bundles[second].phase == "transferring")
        assert leader is stage.cluster.owner_of(first)
        other.service.taking.set()
        await until(lambda: stage.cluster.owner_of(second) is other)


@pytest.mark.parametrize("by", ["switched off", "a new pin"])
async def test_a_waiting_move_that_is_not_wanted_any_more_is_dropped(
    by: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The move in progress ends. What is dropped because balancing is off is logged."""
    caplog.set_level("INFO", logger="equipoise.brokers.runtime.loops.balancing")
    async with balanced(tmp_path, brokers=2, rounds=replace(ROUNDS, moves_max=1)) as stage:
        leader, other = stage.cluster.brokers
        first, second = stage.held_by(0)
        await stage.hold_up(first, second)
        stage.policy.moves = []
        rounds = len(stage.decisions)
        if by == "switched off":
            stage.set(replace(ROUNDS, enabled=False))
            line = "move not started, because it is no longer needed"
            await until(lambda: line in caplog.messages)
            assert 0 == leader.sample("balancing_budget_blocks")
        else:
            namespace, _, range_ = second.rpartition("/")
            document = {"namespace": namespace, "range": range_, "brokers.0": leader.id}
            pin = SetClusterPolicy(policy="pin/kept", document=document)
            await leader.worker.request(pin, timeout_ms=20_000)
        other.service.taking.set()
        await until(lambda: stage.cluster.owner_of(first) is other)
        await until(lambda: not moves_under_way())
        if by == "a new pin":
            await until(lambda: len(stage.decisions) > rounds + 3)
        assert leader is stage.cluster.owner_of(second)


async def test_balancing_that_is_paused_begins_nothing_until_it_is_resumed(tmp_path: Path) -> None:
    """Each pause is one decision, with the operator's reason, however many rounds it lasts."""
    async with balanced(tmp_path, brokers=2) as stage:
        leader, other = stage.cluster.brokers
        until_ms = leader.worker.clock.now().wall_ms + 3_600_000
        pause = SetClusterPolicy(
            policy=PAUSE_KEY, document=control_document("upgrade", until_ms=until_ms)
        )
        await leader.worker.request(pause, timeout_ms=20_000)
        bundle = stage.held_by(0)[0]
        stage.policy.moves = [
            Move(bundle=bundle, source=leader.id, destination=other.id, reason="test")
        ]
        stage.begin()
        await until(lambda: bool(stage.decisions))
        longer = SetClusterPolicy(
            policy=PAUSE_KEY, document=control_document("its rest", until_ms=until_ms)
        )
        await leader.worker.request(longer, timeout_ms=20_000)
        await until(lambda: len(stage.decisions) > 1)
        reasons = [decision.reason for decision in stage.decisions]
        assert (["balancing is paused: upgrade", "balancing is paused: its rest"], leader) == (
            reasons,
            stage.cluster.owner_of(bundle),
        )
        await leader.worker.request(
            SetClusterPolicy(policy=PAUSE_KEY, document=None), timeout_ms=20_000
        )
        await until(lambda: stage.cluster.owner_of(bundle) is other)


def resting_in(snapshot: Snapshot) -> set[str]:
    """Return the bundles that a policy sees as moved lately."""
    return {bundle.name for broker in snapshot.brokers for bundle in broker.bundles if bundle.rests}


@pytest.mark.parametrize("forgets", [False, True])
async def test_a_new_leader_knows_what_others_have_moved(tmp_path: Path, forgets: bool) -> None:
    """A bundle that an operator moved rests with the leader and with the next one, as long as the
    settings say. A bundle that was only placed does not.
    """
    bus = Away(f"memory:{tmp_path}")
    bus.problem = None
    async with balanced(tmp_path, brokers=3, bus=bus) as stage:
        leader, other, third = stage.cluster.brokers
        bundle, kept = stage.held_by(2)[0], set(stage.held_by(1))
        stage.begin()
        await leader.worker.request(
            Transfer(bundle=bundle, destination=other.id, reason="test"), timeout_ms=20_000
        )
        await until(
            lambda: bool(stage.policy.seen) and resting_in(stage.policy.seen[-1]) == {bundle}
        )
        stage.tasks[0].cancel()
        if forgets:
            stage.set(replace(ROUNDS, rest_ms=0))
            looks = bus.asked
            await until(lambda: bus.asked > looks + 6)
            stage.set(ROUNDS)
        await leader.worker.stop()
        rounds = len(stage.policy.seen)
        await until(
            lambda: (
                any(broker.worker.agent.leads for broker in (other, third))
                and len(stage.policy.seen) > rounds
            )
        )
        resting = resting_in(stage.policy.seen[-1]) & {bundle, *kept}
        assert (set() if forgets else {bundle}) == resting


@pytest.mark.parametrize("meanwhile", ["moved", "switched off"])
async def test_what_changes_while_a_round_plans_is_respected(
    meanwhile: str, tmp_path: Path
) -> None:
    """A bundle that moved meanwhile stays where it is. Balancing that was switched off moves
    nothing.
    """
    async with balanced(tmp_path, brokers=3) as stage:
        leader, other, third = stage.cluster.brokers
        bundle = stage.held_by(0)[0]
        stage.policy.moves = [
            Move(bundle=bundle, source=leader.id, destination=other.id, reason="test")
        ]
        stage.policy.may_end = threading.Event()
        stage.begin()
        await until(stage.policy.planning.is_set)
        if meanwhile == "moved":
            await leader.worker.request(
                Transfer(bundle=bundle, destination=third.id, reason="test"), timeout_ms=20_000
            )
            await until(lambda: stage.cluster.view.bundles[bundle].phase == "owned")
        else:
            stage.set(replace(ROUNDS, enabled=False))
        before = stage.cluster.view.bundles[bundle]
        stage.policy.may_end.set()
        await until(lambda: bool(stage.decisions))
        assert ([], before) == (moves_under_way(), stage.cluster.view.bundles[bundle])


async def test_a_shedder_learns_what_happened_while_another_was_in_force(tmp_path: Path) -> None:
    """It gets back what it remembers, and its rounds in a row begin again."""
    async with balanced(tmp_path, brokers=2) as stage:
        leader, _ = stage.cluster.brokers
        (moved, *_), other = stage.held_by(0), OtherPolicy()
        stage.settings = replace(
            stage.settings, policies={**stage.settings.policies, "other": other}
        )
        stage.begin()
        await until(lambda: len(stage.policy.seen) > 1)
        other.moves = [Move(bundle=moved, source=leader.id, destination=None, reason="test")]
        stage.set(replace(ROUNDS, shedder="OtherPolicy"))
        await until(lambda: any(snapshot.since.ended for snapshot in other.seen))
        rounds = len(stage.policy.seen)
        stage.set(ROUNDS)
        await until(lambda: len(stage.policy.seen) > rounds)
        since, memory = stage.policy.seen[rounds].since, stage.policy.memories[rounds]
        assert ([leader.id], True, rounds) == (
            [move.source for move in since.ended],
            since.stopped,
            memory,
        )


async def test_placement_is_the_strategy_that_the_settings_name(tmp_path: Path) -> None:
    """Also while moves delay rounds. A placement with memory stays the same object while its
    setting stays.
    """
    async with balanced(tmp_path, brokers=2) as stage:
        workers = [broker.worker for broker in stage.cluster.brokers]
        await stage.hold_up(stage.held_by(0)[0])
        assert all(isinstance(worker.agent.placement, LeastCost) for worker in workers)
        rounds = len(stage.decisions)
        stage.set(replace(ROUNDS, placement="RoundRobin"))
        await until(
            lambda: all(isinstance(worker.agent.placement, RoundRobin) for worker in workers)
        )
        assert rounds == len(stage.decisions)
        chosen = [worker.agent.placement for worker in workers]
        stage.cluster.brokers[1].service.taking.set()
        await until(lambda: len(stage.decisions) > rounds + 3)
        assert chosen == [worker.agent.placement for worker in workers]


async def test_an_impossible_report_is_counted_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However many rounds see it. Reports of brokers that are no members do not count."""
    caplog.set_level("WARNING", logger="equipoise.brokers.runtime.loops.balancing")
    async with balanced(tmp_path, brokers=1) as stage:
        liar = stage.cluster.brokers[0].id
        for broker in (liar, "somebody else"):
            stage.bus.publish(Load(broker=broker, at_ms=0, average_use=math.nan))
        stage.begin()
        await until(lambda: len(stage.decisions) > 3)
        assert 1 == stage.cluster.brokers[0].sample("load_reports_refused_total", reporter=liar)
    assert ["load report left out, because it cannot be true: its average use is nan"] == [
        line.getMessage() for line in lines(caplog)
    ]


@pytest.mark.parametrize(
    "problem",
    [
        SideLogUnavailable(LOADS, place="there", problem="it is away"),
        KeyError("a bug"),
    ],
)
async def test_the_outcome_of_a_round_is_decided_once_both_brokers_have_reported_twice(
    problem: Exception, tmp_path: Path
) -> None:
    """The move that was done is measured, although reports cannot be read for a while. The other
    bundle is not where the plan has it.
    """
    bus = Away(f"memory:{tmp_path}")
    bus.problem = None
    async with balanced(tmp_path, brokers=2, bus=bus) as stage:
        leader, other = stage.cluster.brokers
        stage.settings = replace(
            stage.settings, reports=replace(stage.settings.reports, interval_min_ms=20)
        )

        def outcomes() -> list[Decision]:
            """Let both brokers report, and return the outcomes so far."""
            for broker, cost in ((leader.id, 120.0), (other.id, 80.0)):
                stage.bus.publish(
                    Load(broker=broker, at_ms=leader.worker.clock.now().wall_ms, cost=cost)
                )
            return [decision for decision in stage.decisions if decision.kind == "outcome"]

        bundles = [stage.held_by(0)[0], stage.held_by(1)[0]]
        predicted = Predicted(source=(1.5, 1.25), destination=(0.5, 0.75))
        stage.policy.moves = [
            Move(
                bundle=name,
                source=leader.id,
                destination=other.id,
                reason="test",
                predicted=predicted,
            )
            for name in bundles
        ]
        assert [] == outcomes()
        stage.begin()
        await until(lambda: bool(stage.policy.seen))
        stage.policy.moves, bus.problem, asked = [], problem, bus.asked
        await until(lambda: bus.asked > asked + 5)
        bus.problem = None
        await until(lambda: bool(outcomes()))
        outcome = outcomes()[0]
        assert bundles == [
            *(move.bundle for move in outcome.plan.moves),
            *(stay.subject for stay in outcome.plan.stays),
        ]
        assert {leader.id: (1.25, 1.2), other.id: (0.75, 0.8)} == {
            each.broker: (each.predicted, each.measured) for each in outcome.brokers
        }
        took_ms = [
            move.duration_ms for snapshot in stage.policy.seen for move in snapshot.since.ended
        ]
        assert took_ms == list(outcome.durations_ms.values())


class Away(LoadBus):
    """A bus that is unavailable while `problem` is set."""

    problem: Exception | None = SideLogUnavailable(LOADS, place="there", problem="it is away")
    asked = 0

    def latest(self) -> Sequence[Load]:
        self.asked += 1
        if self.problem is not None:
            raise self.problem
        return super().latest()


@pytest.mark.parametrize(
    ("problem", "level"),
    [(Away.problem, "WARNING"), (KeyError("no such bundle"), "ERROR")],
    ids=["bus", "bug"],
)
async def test_failed_rounds_are_logged_once_and_so_is_the_first_success(
    problem: Exception, level: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of the bus is a warning. Any other error is logged with its traceback."""
    caplog.set_level("INFO", logger="equipoise.brokers.runtime.loops.balancing")
    bus = Away("memory:away")
    bus.problem = problem
    async with balanced(tmp_path, brokers=1, bus=bus) as stage:
        stage.begin()
        await until(lambda: bus.asked > 10)
        (line,) = lines(caplog)
        assert (level, 1, level == "ERROR") == (
            line.levelname,
            line.__dict__["failures"],
            bool(line.exc_info),
        )
        assert {("Failure", "Unknown")} == {decision.outcome for decision in stage.decisions}
        assert "the round failed" in (stage.decisions[0].reason or "")
        bus.problem = None
        await until(lambda: len(lines(caplog)) > 1)
        over = lines(caplog)[-1]
        assert ("balancing succeeds again", True) == (over.message, over.__dict__["failures"] >= 9)


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the log lines of the balancer."""
    return [
        record
        for record in caplog.records
        if record.name == "equipoise.brokers.runtime.loops.balancing"
    ]
