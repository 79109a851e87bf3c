"""Splits and merges by themselves: brokers of one loop that divide what is hot, and join what is cold, and what they tell of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest

from equipoise.brokers.agent.intents import SetClusterPolicy
from equipoise.brokers.balancing.decisions import Decision
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings, RoundSettings
from equipoise.brokers.balancing.splitting.auto_merge import MergeSettings
from equipoise.brokers.balancing.splitting.auto_split import SplitSettings
from equipoise.brokers.balancing.splitting.bundle_limits import BundleLimits
from equipoise.brokers.runtime.worker import Worker
from equipoise.brokers.server.splitting import Splitting
from equipoise.channel.core.entries import BundleChanged
from equipoise.channel.core.ranges import HASH_MAX, bundle_contains, bundle_name, parse_bundle
from equipoise.channel.core.reader import Folded
from equipoise.shedder.loads import BundleTraffic, Traffic
from tests.unit.http.cluster import NAMESPACE, Broker, Cluster, cluster, run, until

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
    """A cluster whose brokers divide what they have; `messages` are those per second at each hash point. What is told is kept."""

    cluster: Cluster
    settings: BalancingSettings
    messages: dict[int, float] = field(default_factory=dict)
    told: list[Decision] = field(default_factory=list)
    problem: Exception | None = None
    asked_by: set[int] = field(default_factory=set)

    def carried_by(self, worker: Worker) -> Sequence[BundleTraffic]:
        """What each bundle carries that a worker has open."""
        self.asked_by.add(threading.get_ident())
        if self.problem is not None:
            raise self.problem
        return [
            BundleTraffic(bundle=name, traffic=Traffic(messages_in_per_second=self.carried(name))) for name in tuple(worker.open_bundles)
        ]

    def carried(self, bundle: str) -> float:
        """The messages per second in one bundle."""
        _, low, high = parse_bundle(bundle)
        return sum(messages for point, messages in self.messages.items() if bundle_contains(low, high, point))

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """All bundles, by their ranges."""
        return [(bundle.low, bundle.high) for bundle in self.cluster.view.bundles_of(NAMESPACE)]

    def counted(self) -> dict[tuple[str, str], int]:
        """All that was counted."""
        keys = sorted({key for decision in self.told for key in decision.counted})
        return {key: sum(decision.counted.get(key, 0) for decision in self.told) for key in keys}


@asynccontextmanager
async def splitting(folder: Path, settings: BalancingSettings, *, brokers: int = 1, bundles: int = 4) -> AsyncIterator[Divided]:
    """A cluster each broker of which divides what it has."""
    async with AsyncExitStack() as parts:
        divided = Divided(cluster=await parts.enter_async_context(cluster(folder, brokers=brokers, bundles=bundles)), settings=settings)
        for broker in divided.cluster.brokers:
            parts.push_async_callback(ended, asyncio.ensure_future(of(broker, divided).run()))
        yield divided


def of(broker: Broker, divided: Divided) -> Splitting:
    """The rounds of one broker."""
    return Splitting(broker.worker, lambda: divided.carried_by(broker.worker), lambda: divided.settings, divided.told.append)


async def ended(task: asyncio.Future[None]) -> None:
    """Cancel a task, and wait for its end."""
    task.cancel()
    await asyncio.wait([task])


async def test_a_hot_bundle_is_split_by_itself(tmp_path: Path) -> None:
    """A bundle that stays above its limit is cut in two by its owner, and again, until each part can carry what it has."""
    async with splitting(tmp_path, SPLITS_ONLY) as divided:
        divided.messages = dict.fromkeys((1, QUARTER // 4, QUARTER // 2, 3 * QUARTER // 4), 60.0)
        await until(lambda: divided.counted().get(("Success", "MsgRate"), 0) == 3)
        sixteenth = QUARTER // 4
        expected = [(number * sixteenth, (number + 1) * sixteenth) for number in range(4)]
        assert expected == divided.ranges[:4]
        assert {("Success", "MsgRate"): 3} == divided.counted()
        first = next(decision for decision in divided.told if decision.moves)
        (move,) = first.moves
        whole, broker = bundle_name(NAMESPACE, 0, QUARTER), divided.cluster.brokers[0].id
        reason = "it carries 240 messages/s, where 100 messages/s are the limit, for 2 rounds"
        assert ("split", whole, broker, reason) == (first.kind, move.bundle, first.broker, move.reason)


async def test_what_bundles_carry_is_put_together_in_a_thread(tmp_path: Path) -> None:
    """There may be thousands, so the loop does not wait for them."""
    async with splitting(tmp_path, SPLITS_ONLY) as divided:
        await until(lambda: bool(divided.asked_by))
        assert threading.get_ident() not in divided.asked_by


async def test_parts_of_a_split_move_away_if_that_is_wanted(tmp_path: Path) -> None:
    """With `unload_split_children` both halves go to another broker; that is off by default, for both are served without a pause."""
    settings = replace(SPLITS_ONLY, balancing=replace(SPLITS_ONLY.balancing, unload_split_children=True))
    async with splitting(tmp_path, settings, brokers=2) as divided:
        owner = divided.cluster.owner_of(bundle_name(NAMESPACE, 0, QUARTER))
        divided.messages = {1: 60.0, QUARTER // 2: 60.0}
        halves = [bundle_name(NAMESPACE, 0, QUARTER // 2), bundle_name(NAMESPACE, QUARTER // 2, QUARTER)]
        await until(lambda: all(name in divided.cluster.view.bundles for name in halves))
        other = divided.cluster.other_than(owner)
        await until(lambda: all(divided.cluster.view.bundles[name].owner == other.worker.agent.incarnation for name in halves))


def test_parts_of_a_split_stay_where_nobody_else_may_have_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With `unload_split_children` the parts of a pinned bundle are served on, and no failure is told of."""

    async def story() -> None:
        settings = replace(SPLITS_ONLY, balancing=replace(SPLITS_ONLY.balancing, unload_split_children=True))
        async with splitting(tmp_path, settings, brokers=2) as divided:
            owner = divided.cluster.owner_of(bundle_name(NAMESPACE, 0, QUARTER))
            pin = SetClusterPolicy(policy="pin/all", document={"namespace": NAMESPACE, "brokers.0": owner.id})
            await owner.worker.request(pin, timeout_ms=20_000)
            halves = [bundle_name(NAMESPACE, 0, QUARTER // 2), bundle_name(NAMESPACE, QUARTER // 2, QUARTER)]
            divided.messages = {1: 60.0, QUARTER // 2: 60.0}
            await until(lambda: sum("child of a split stays" in line for line in lines(caplog)) >= len(halves))
            assert [("owned", owner)] * 2 == [(divided.cluster.view.bundles[name].phase, divided.cluster.owner_of(name)) for name in halves]
            assert not [line for line in lines(caplog) if "failed" in line]

    with caplog.at_level("INFO", logger="equipoise.brokers.server.splitting"):
        run(story)


async def test_cold_neighbours_become_one_by_themselves(tmp_path: Path) -> None:
    """Neighbours of one owner that carry little are joined when they have rested, as long as their namespace keeps its least."""
    settings = replace(SETTINGS, merge=replace(SETTINGS.merge, bundles_min=2))
    async with splitting(tmp_path, settings, bundles=8) as divided:
        await until(lambda: len(divided.ranges) == 2 and divided.counted()[("Success", "Underloaded")] == 6)
        assert {("Success", "Underloaded"): 6} == divided.counted()
        assert {"merge"} == {decision.kind for decision in divided.told}


async def test_no_range_is_both_made_and_cut(tmp_path: Path) -> None:
    """With splits and merges at once a steady load comes to rest: nothing that was cut is made again, and nothing that was made is cut."""
    async with splitting(tmp_path, SETTINGS) as divided:
        cut: set[str] = set()
        made: set[str] = set()

        def note(folded: Folded) -> None:
            changes = [change for change in folded.verdict.changes if isinstance(change, BundleChanged)]
            gone = [change.name for change in changes if change.after is None]
            new = [change.name for change in changes if change.before is None]
            if len(gone) == 1:
                cut.update(gone)
            elif gone:
                made.update(new)

        divided.cluster.brokers[0].worker.listen(note)
        divided.messages = {1: 60.0, QUARTER // 4: 60.0, QUARTER // 2: 60.0, 3 * QUARTER: 10.0}
        await until(lambda: came_to_rest(divided))
        assert (True, True, set()) == (bool(cut), bool(made), cut & made)
        assert max(divided.carried(bundle) for bundle in divided.cluster.bundles()) <= LIMITS.messages_per_second_max


def came_to_rest(divided: Divided) -> bool:
    """Whether nothing hot is left, and no pair of neighbours of one owner that is cold."""
    bundles = divided.cluster.view.bundles_of(NAMESPACE)
    hot = any(divided.carried(bundle.name) > LIMITS.messages_per_second_max for bundle in bundles)
    half = LIMITS.messages_per_second_max / 2
    cold = any(
        left.owner == right.owner and divided.carried(left.name) + divided.carried(right.name) < half for left, right in pairwise(bundles)
    )
    return not hot and not cold


@dataclass(frozen=True, kw_only=True)
class Off:
    """Why nothing is done, though all is due."""

    name: str
    settings: BalancingSettings


OFF = [
    Off(name="balancing", settings=replace(SETTINGS, balancing=replace(SETTINGS.balancing, enabled=False))),
    Off(name="both", settings=replace(SETTINGS, balancing=replace(SETTINGS.balancing, splitting=False, merging=False))),
]


@pytest.mark.parametrize("off", OFF, ids=lambda off: off.name)
async def test_nothing_is_done_where_it_is_off_and_all_where_it_is_on_again(off: Off, tmp_path: Path) -> None:
    """Settings are those of the moment: what is off does nothing in any round, and begins without a restart."""
    async with splitting(tmp_path, off.settings) as divided:
        divided.messages = {1: 60.0, QUARTER // 2: 60.0}
        asked = Asked(divided)
        await until(lambda: asked.times > 5)
        assert ([], 4) == (divided.told, len(divided.ranges))
        divided.settings = SETTINGS
        await until(lambda: {"split", "merge"} == {decision.kind for decision in divided.told if decision.moves})


class Asked:
    """How often the rounds have asked what is carried."""

    def __init__(self, divided: Divided) -> None:
        self.times = 0
        carried_by = divided.carried_by

        def counting(worker: Worker) -> Sequence[BundleTraffic]:
            self.times += 1
            return carried_by(worker)

        divided.carried_by = counting  # type: ignore[method-assign] # Which the rounds look up each time.


def test_a_bundle_that_cannot_be_cut_is_told_and_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A service that finds no place to cut costs one attempt for each rest, one line of the log, and a reason in the decision."""

    async def story() -> None:
        settings = replace(
            SPLITS_ONLY, balancing=replace(SPLITS_ONLY.balancing, split_algorithm="topic_count_equally_divide", rest_ms=60_000)
        )
        async with splitting(tmp_path, settings) as divided:
            divided.messages = {1: 200.0, 3 * QUARTER: 200.0}
            await until(lambda: any(decision.counted for decision in divided.told))
            asked = Asked(divided)
            await until(lambda: asked.times > 10)
            assert {("Failure", "Unknown"): 2} == divided.counted()
            reasons = {stay.subject: stay.reason for decision in divided.told if decision.counted for stay in decision.stays}
            assert {bundle_name(NAMESPACE, 0, QUARTER), bundle_name(NAMESPACE, 3 * QUARTER, HASH_MAX)} == set(reasons)
            assert all("the service found no point at which to split it" in reason for reason in reasons.values())
            assert 1 == len([line for line in lines(caplog) if "a split failed" in line])

    with caplog.at_level("INFO", logger="equipoise.brokers.server.splitting"):
        run(story)


async def test_a_broker_that_drains_divides_nothing(tmp_path: Path) -> None:
    """What it has goes away as it is: a split would be one more thing to move."""
    async with splitting(tmp_path, SPLITS_ONLY) as divided:
        divided.cluster.brokers[0].worker.drain()
        await until(lambda: divided.cluster.view.live_brokers()[0].status == "draining")
        divided.messages = {1: 60.0, QUARTER // 2: 60.0}
        asked = Asked(divided)
        await until(lambda: asked.times > 5)
        assert ([], 4) == (divided.told, len(divided.ranges))


@pytest.mark.parametrize("problem", [KeyError("no such bundle"), ValueError("not yet")], ids=lambda problem: type(problem).__name__)
def test_a_round_that_fails_is_told_once_and_the_next_succeeds(
    problem: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is wrong with what a round looks at is told with its place, and ends nothing."""

    async def story() -> None:
        async with splitting(tmp_path, SPLITS_ONLY) as divided:
            divided.problem = problem
            asked = Asked(divided)
            await until(lambda: asked.times > 5)
            assert [f"a round of splits and merges failed: {type(problem).__name__}: {problem}"] == lines(caplog)
            assert caplog.records[-1].exc_info is not None
            divided.problem, divided.messages = None, {1: 60.0, QUARTER // 2: 60.0}
            await until(lambda: len(divided.ranges) == 5)
            assert "a round of splits and merges succeeds again" == lines(caplog)[1]

    with caplog.at_level("INFO", logger="equipoise.brokers.server.splitting"):
        run(story)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the rounds have told the log."""
    return [record.getMessage() for record in caplog.records if record.name == "equipoise.brokers.server.splitting"]
