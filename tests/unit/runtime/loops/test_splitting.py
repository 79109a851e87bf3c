"""Automatic splits and merges of brokers on one loop: what they split and merge, and what they
report.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from equipoise.brokers.agent.requests import SetClusterPolicy
from equipoise.brokers.balancing.decisions import Decision
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings, RoundSettings
from equipoise.brokers.balancing.splitting.auto_merge import MergeSettings
from equipoise.brokers.balancing.splitting.auto_split import SplitSettings
from equipoise.brokers.balancing.splitting.split_points import BundleLimits
from equipoise.brokers.runtime.loops.splitting import Splitting
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.ranges import HASH_MAX, bundle_contains, bundle_name, parse_bundle
from equipoise.shedder.loads import BundleTraffic, Traffic
from tests.unit.http.cluster import NAMESPACE, Broker, Cluster, cluster, until

pytestmark = pytest.mark.integration

QUARTER = 1 << 30
LIMITS = BundleLimits(messages_per_second_max=100)
SETTINGS = BalancingSettings(
    balancing=RoundSettings(split_interval_ms=10, rest_ms=100, merging=True, move_timeout_ms=5_000),
    limits=LIMITS,
    split=SplitSettings(hits_threshold=1),
    merge=MergeSettings(hits_threshold=1, bundles_min=1),
)
SPLITS_ONLY = replace(SETTINGS, balancing=replace(SETTINGS.balancing, merging=False))


@dataclass(kw_only=True)
class Divided:
    """A cluster whose brokers split and merge their bundles. `messages` are the rates by hash
    point; `decisions` are the decisions.
    """

    cluster: Cluster
    settings: BalancingSettings
    messages: dict[int, float] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    problem: Exception | None = None
    # The threads in which the rounds have asked for the load.
    asked_by: list[int] = field(default_factory=list)

    def carried_by(self, worker: Worker) -> Sequence[BundleTraffic]:
        """Return the load of each open bundle of a worker."""
        self.asked_by.append(threading.get_ident())
        if self.problem is not None:
            raise self.problem
        return [
            BundleTraffic(bundle=name, traffic=Traffic(messages_in_per_second=self.carried(name)))
            for name in tuple(worker.open_bundles)
        ]

    async def rounds(self, number: int) -> None:
        """Wait for so many rounds."""
        before = len(self.asked_by)
        await until(lambda: len(self.asked_by) > before + number)

    def carried(self, bundle: str) -> float:
        """Return the messages per second of one bundle."""
        _, low, high = parse_bundle(bundle)
        return sum(
            messages
            for point, messages in self.messages.items()
            if bundle_contains(low, high, point)
        )

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Return all bundles as ranges."""
        return [(bundle.low, bundle.high) for bundle in self.cluster.view.bundles_of(NAMESPACE)]

    def counted(self) -> dict[tuple[str, str], int]:
        """Return the sum of all counts."""
        keys = sorted({key for decision in self.decisions for key in decision.counted})
        return {
            key: sum(decision.counted.get(key, 0) for decision in self.decisions) for key in keys
        }


@asynccontextmanager
async def splitting(
    folder: Path, settings: BalancingSettings, *, brokers: int = 1, bundles: int = 4
) -> AsyncIterator[Divided]:
    """Yield a cluster whose brokers split and merge."""
    async with AsyncExitStack() as parts:
        divided = Divided(
            cluster=await parts.enter_async_context(
                cluster(folder, brokers=brokers, bundles=bundles)
            ),
            settings=settings,
        )
        for broker in divided.cluster.brokers:
            parts.push_async_callback(ended, asyncio.ensure_future(of(broker, divided).run()))
        yield divided


def of(broker: Broker, divided: Divided) -> Splitting:
    """Return the rounds of one broker."""
    return Splitting(
        broker.worker,
        lambda: divided.carried_by(broker.worker),
        lambda: divided.settings,
        divided.decisions.append,
    )


async def ended(task: asyncio.Future[None]) -> None:
    """Cancel a task, and wait for its end."""
    task.cancel()
    await asyncio.wait([task])


async def test_a_hot_bundle_is_split_until_each_part_is_within_the_limits(tmp_path: Path) -> None:
    async with splitting(tmp_path, SPLITS_ONLY) as divided:
        divided.messages = dict.fromkeys((1, QUARTER // 4, QUARTER // 2, 3 * QUARTER // 4), 60.0)
        await until(lambda: divided.counted().get(("Success", "MsgRate"), 0) == 3)
        sixteenth = QUARTER // 4
        expected = [(number * sixteenth, (number + 1) * sixteenth) for number in range(4)]
        assert expected == divided.ranges[:4]
        assert {("Success", "MsgRate"): 3} == divided.counted()
        first = next(decision for decision in divided.decisions if decision.plan.moves)
        (move,) = first.plan.moves
        whole, broker = bundle_name(NAMESPACE, 0, QUARTER), divided.cluster.brokers[0].id
        reason = "it has been over a limit for 2 rounds: 240 messages/s (limit: 100)"
        assert ("split", whole, broker, reason) == (
            first.kind,
            move.bundle,
            first.broker,
            move.reason,
        )


async def test_rounds_ask_for_the_load_in_a_thread(tmp_path: Path) -> None:
    async with splitting(tmp_path, SPLITS_ONLY) as divided:
        await until(lambda: bool(divided.asked_by))
        assert threading.get_ident() not in divided.asked_by


async def test_unload_split_children_moves_both_halves_away(tmp_path: Path) -> None:
    settings = replace(
        SPLITS_ONLY, balancing=replace(SPLITS_ONLY.balancing, unload_split_children=True)
    )
    async with splitting(tmp_path, settings, brokers=2) as divided:
        owner = divided.cluster.owner_of(bundle_name(NAMESPACE, 0, QUARTER))
        divided.messages = {1: 60.0, QUARTER // 2: 60.0}
        halves = [
            bundle_name(NAMESPACE, 0, QUARTER // 2),
            bundle_name(NAMESPACE, QUARTER // 2, QUARTER),
        ]
        await until(lambda: all(name in divided.cluster.view.bundles for name in halves))
        other = divided.cluster.other_than(owner)
        await until(
            lambda: all(
                divided.cluster.view.bundles[name].owner == other.worker.agent.incarnation
                for name in halves
            )
        )


async def test_halves_of_a_pinned_bundle_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With `unload_split_children`, too. This is no failure."""
    caplog.set_level("INFO", logger="equipoise.brokers.runtime.loops.splitting")
    settings = replace(
        SPLITS_ONLY, balancing=replace(SPLITS_ONLY.balancing, unload_split_children=True)
    )
    async with splitting(tmp_path, settings, brokers=2) as divided:
        owner = divided.cluster.owner_of(bundle_name(NAMESPACE, 0, QUARTER))
        pin = SetClusterPolicy(
            policy="pin/all", document={"namespace": NAMESPACE, "brokers.0": owner.id}
        )
        await owner.worker.request(pin, timeout_ms=20_000)
        halves = [
            bundle_name(NAMESPACE, 0, QUARTER // 2),
            bundle_name(NAMESPACE, QUARTER // 2, QUARTER),
        ]
        divided.messages = {1: 60.0, QUARTER // 2: 60.0}
        await until(
            lambda: sum("child of a split stays" in line for line in lines(caplog)) >= len(halves)
        )
        assert [("owned", owner)] * 2 == [
            (divided.cluster.view.bundles[name].phase, divided.cluster.owner_of(name))
            for name in halves
        ]
        assert not [line for line in lines(caplog) if "failed" in line]


async def test_cold_neighbours_are_merged_down_to_bundles_min(tmp_path: Path) -> None:
    settings = replace(SETTINGS, merge=replace(SETTINGS.merge, bundles_min=2))
    async with splitting(tmp_path, settings, bundles=8) as divided:
        await until(
            lambda: len(divided.ranges) == 2 and divided.counted()[("Success", "Underloaded")] == 6
        )
        assert {("Success", "Underloaded"): 6} == divided.counted()
        assert {"merge"} == {decision.kind for decision in divided.decisions}


@pytest.mark.parametrize(
    "off",
    [
        replace(SETTINGS.balancing, enabled=False),
        replace(SETTINGS.balancing, splitting=False, merging=False),
    ],
    ids=["balancing", "both"],
)
async def test_settings_switch_rounds_off_and_on(off: RoundSettings, tmp_path: Path) -> None:
    """Without a restart."""
    async with splitting(tmp_path, replace(SETTINGS, balancing=off)) as divided:
        divided.messages = {1: 60.0, QUARTER // 2: 60.0}
        await divided.rounds(5)
        assert ([], 4) == (divided.decisions, len(divided.ranges))
        divided.settings = SETTINGS
        await until(
            lambda: (
                {"split", "merge"}
                == {decision.kind for decision in divided.decisions if decision.plan.moves}
            )
        )


async def test_a_bundle_that_cannot_be_split_is_tried_once_per_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The decision has the reason, and the log has one line."""
    caplog.set_level("INFO", logger="equipoise.brokers.runtime.loops.splitting")
    settings = replace(
        SPLITS_ONLY,
        balancing=replace(
            SPLITS_ONLY.balancing, split_algorithm="topic_count_equally_divide", rest_ms=60_000
        ),
    )
    async with splitting(tmp_path, settings) as divided:
        divided.messages = {1: 200.0, 3 * QUARTER: 200.0}
        await until(lambda: any(decision.counted for decision in divided.decisions))
        await divided.rounds(10)
        assert {("Failure", "Unknown"): 2} == divided.counted()
        reasons = {
            stay.subject: stay.reason
            for decision in divided.decisions
            if decision.counted
            for stay in decision.plan.stays
        }
        assert {
            bundle_name(NAMESPACE, 0, QUARTER),
            bundle_name(NAMESPACE, 3 * QUARTER, HASH_MAX),
        } == set(reasons)
        assert all(
            "the service found no point at which to split it" in reason
            for reason in reasons.values()
        )
        assert 1 == len([line for line in lines(caplog) if "a split failed" in line])


async def test_a_draining_broker_splits_nothing(tmp_path: Path) -> None:
    async with splitting(tmp_path, SPLITS_ONLY) as divided:
        divided.cluster.brokers[0].worker.drain()
        await until(lambda: divided.cluster.view.live_brokers()[0].status == "draining")
        divided.messages = {1: 60.0, QUARTER // 2: 60.0}
        await divided.rounds(5)
        assert ([], 4) == (divided.decisions, len(divided.ranges))


@pytest.mark.parametrize(
    "problem",
    [KeyError("no such bundle"), ValueError("not yet")],
    ids=lambda problem: type(problem).__name__,
)
async def test_failed_rounds_are_logged_once_and_so_is_the_first_success(
    problem: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="equipoise.brokers.runtime.loops.splitting")
    async with splitting(tmp_path, SPLITS_ONLY) as divided:
        divided.problem = problem
        await divided.rounds(5)
        assert [
            f"a round of splits and merges failed: {type(problem).__name__}: {problem}"
        ] == lines(caplog)
        assert caplog.records[-1].exc_info is not None
        divided.problem, divided.messages = None, {1: 60.0, QUARTER // 2: 60.0}
        await until(lambda: len(divided.ranges) == 5)
        assert "a round of splits and merges succeeds again" == lines(caplog)[1]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines of the rounds."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "equipoise.brokers.runtime.loops.splitting"
    ]
