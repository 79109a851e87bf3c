"""The acts in which the cluster balances by itself: what they set, what they wait for, and what they say of it.

May live here: acts on workers of one loop, whose load is made up. That a cluster balances so is shown by the demo itself.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from compose.demo import kill_load_workers
from equipoise.brokers.agent.intents import CreateNamespace
from equipoise.brokers.balancing.decisions import Decision
from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.balancing.settings.settings_records import CHANGED_BY, document_of
from equipoise.brokers.decision_log import open_decision_log
from equipoise.brokers.local.demo import load_acts, operator
from equipoise.brokers.local.demo.load_acts import divide, even_out
from equipoise.brokers.local.demo.stage import COUNTERS, Stage
from equipoise.brokers.local.demo.tuning import tune
from equipoise.brokers.local.local_load_workers import LocalLoadWorkers
from equipoise.channel.core.ranges import even_boundaries
from equipoise.shedder.load_reports import Summary
from equipoise.shedder.plan import Move
from tests.unit.demo.test_evenness import bundle, summary
from tests.unit.http.cluster import PATIENCE_MS, Cluster, cluster, run, until

pytestmark = pytest.mark.integration


class _Pretended(SimpleNamespace):
    """As much of a stage as these acts use."""

    acting: Acting

    @property
    def summaries(self) -> Sequence[Summary]:
        """See `Stage.summaries`."""
        return self.acting.told


@dataclass(kw_only=True)
class Acting:
    """A cluster on whose stage acts are played; what is said is kept. `told` is what brokers have said of their load."""

    cluster: Cluster
    told: Sequence[Summary] = ()
    said: list[str] = field(default_factory=list)
    quoted: list[str] = field(default_factory=list)
    done: Counter[MoveKind] = field(default_factory=Counter)

    @property
    def ids(self) -> tuple[str, ...]:
        """The brokers, by number."""
        return tuple(broker.id for broker in self.cluster.brokers)

    @property
    def log_url(self) -> str:
        """The channel."""
        return self.cluster.brokers[0].worker.config.log_url

    @property
    def settings(self) -> dict[str, object]:
        """What is set on the channel."""
        return {name: value for name, value in document_of(self.cluster.view).items() if name != CHANGED_BY}

    @property
    def stage(self) -> Stage:
        """The stage, as far as these acts use it."""
        made = _Pretended(
            acting=self,
            cluster=SimpleNamespace(broker_ids=self.ids, addresses=[broker.url for broker in self.cluster.brokers], log_url=self.log_url),
            table=SimpleNamespace(view=self.cluster.view),
            http=self.cluster.brokers[0].session,
            pulsar=None,
            chronicle=SimpleNamespace(done=self.done),
            now_s=0.0,
            say=self.said.append,
            quote=self.quoted.extend,
            number_of_leader=lambda: 0,
            incarnation=lambda number: self.cluster.brokers[number].worker.agent.incarnation,
        )
        return cast("Stage", made)

    def uses(self, *used: float) -> None:
        """Let the brokers say that they use so much."""
        self.told = [summary(broker, each) for broker, each in zip(self.ids, used, strict=True)]


@asynccontextmanager
async def acting(folder: Path) -> AsyncIterator[Acting]:
    """A stage with two brokers, and four bundles of counters, all of them owned."""
    async with cluster(folder, brokers=2) as made:
        wish = CreateNamespace(name=COUNTERS, boundaries=even_boundaries(4))
        await made.brokers[0].worker.request(wish, timeout_ms=PATIENCE_MS)
        await made.settled()
        yield Acting(cluster=made)


async def when(condition: Callable[[], bool], then: Callable[[], None]) -> None:
    """Do something once a condition has come true."""
    await until(condition)
    then()


def _soon_ms() -> int:
    """A moment that has not come yet."""
    return time.time_ns() // 1_000_000 + 60_000


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for what does not come true, and nobody asks another program for a plan."""
    for bound in ("_SEEN_MS", "_EVEN_MS", "_DIVIDED_MS"):
        monkeypatch.setattr(load_acts, bound, 2_000)
    monkeypatch.setattr(load_acts, "_LOOK_S", 0.01)

    async def plan(log_url: str) -> Sequence[str]:
        return [f"a plan for {log_url}", "two moves"]

    monkeypatch.setattr(operator, "plan", plan)


def test_what_is_uneven_becomes_even(tmp_path: Path) -> None:
    """Bundles are piled while nobody sheds, the plan is shown, the deviation before and after is told, and the settings go away again."""

    async def story() -> None:
        async with acting(tmp_path) as act:
            act.uses(0.1, 0.9)
            move = Move(bundle="x", source="a", destination="b", reason="it is full")
            log = open_decision_log(act.log_url)  # What is in memory lives as long as somebody holds it.
            log.write(Decision(at_ms=_soon_ms(), broker="a", kind="shed", strategy="TransferShedder", moves=(move,) * 5))
            playing = asyncio.ensure_future(even_out(act.stage))
            await until(lambda: bool(act.quoted))
            assert (f"a plan for {act.log_url}", "two moves") == tuple(act.quoted)
            await when(lambda: act.settings.get("balancing.shedding") is True, lambda: act.uses(0.5, 0.5))
            await playing
            said = "\n".join(act.said)
            assert f"2 bundles are piled on {act.ids[1]}" in said
            assert all(f"{broker} {used}%" in said for broker, used in zip(act.ids, (10, 90), strict=True))
            assert "deviation 40.0%" in said
            assert "even 0.0 s after" in said
            assert "deviation 0.0%" in said
            assert 1 == said.count("TransferShedder: x from a to b, because it is full; and 4 more")
            assert "transfer.target_deviation: 0.25 (default) -> 0.06" in said
            await until(lambda: not act.settings)

    run(story)


def test_what_does_not_become_even_in_time_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine ends no demo: the deviation is told as it is, and the act is over."""
    monkeypatch.setattr(load_acts, "_EVEN_MS", 50)

    async def story() -> None:
        async with acting(tmp_path) as act:
            act.uses(0.1, 0.9)
            await even_out(act.stage)
            assert any(line.startswith("not even yet") and "deviation 40.0%" in line for line in act.said)
            await until(lambda: not act.settings)

    run(story)


def test_a_hot_bundle_is_split_and_cold_neighbours_are_joined(tmp_path: Path) -> None:
    """The limit is set below what the busiest bundle carries, and taken away again when both have been seen."""

    async def story() -> None:
        async with acting(tmp_path) as act:
            hot = act.cluster.bundles(COUNTERS)[0]
            act.told = [summary(act.cluster.owner_of(hot).id, 0.1, bundle(hot, 100.0))]
            playing = asyncio.ensure_future(divide(act.stage))
            await until(lambda: act.settings.get("limits.messages_per_second_max") == "60")
            assert (True, True) == (act.settings["balancing.merging"], not playing.done())
            act.done[MoveKind.SPLIT] += 1
            act.done[MoveKind.MERGE] += 1
            await playing
            assert f"{hot} carries 100 calls or messages/s, and bundles may carry less from now on" == act.said[0]
            assert not [line for line in act.said if "yet" in line]
            await until(lambda: not act.settings)

    run(story)


def test_without_reports_nothing_is_divided(tmp_path: Path) -> None:
    """Where no broker names a bundle nobody can say what is hot, and nothing is set."""

    async def story() -> None:
        async with acting(tmp_path) as act:
            await divide(act.stage)
            assert ["nobody says what bundles carry, so that none can be too hot"] == act.said
            await until(lambda: not act.settings)

    run(story)


@dataclass(kw_only=True)
class Workers:
    """Load workers: what is done to them is kept, and `back` is called when they are started."""

    back: Callable[[], None]
    pids: tuple[int, ...] = (7, 8)
    deeds: list[str] = field(default_factory=list)

    def kill(self) -> None:
        """See `LocalLoadWorkers.kill`."""
        self.deeds.append("kill")

    def start(self) -> None:
        """See `LocalLoadWorkers.start`."""
        self.deeds.append("start")
        self.back()


@pytest.mark.parametrize("report_at_ms", [0, 1_000], ids=["silent", "back"])
def test_killed_load_workers_come_back(report_at_ms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The act tells what was moved while nothing was known, and waits for a report that is newer than all before."""
    monkeypatch.setattr("compose.demo._UNKNOWN_S", 0.01)
    monkeypatch.setattr("compose.demo._WORKERS_BACK_MS", 50)

    async def story() -> None:
        async with acting(tmp_path) as act:
            act.uses(0.4, 0.4)

            def report() -> None:
                act.told = [summary(broker, 0.4, taken_ms=report_at_ms) for broker in act.ids]

            workers, stage = Workers(back=report), act.stage
            stage.cluster.load_workers = cast("LocalLoadWorkers", workers)
            await kill_load_workers(stage)
            assert ["kill", "start"] == workers.deeds
            assert "kill -9 of all 2 load workers" in act.said[0]
            assert "balancing waited for fresh figures: 0 bundles were moved meanwhile; the load workers are started again" == act.said[2]
            told = "are back after 0.0 s" if report_at_ms else "are NOT BACK"
            assert act.said[3].startswith(f"they {told}, and go on with their averages: brokers use")

    run(story)


def test_where_no_load_workers_run_none_is_killed(tmp_path: Path) -> None:
    """Without the extra that they need there are none, which is said."""

    async def story() -> None:
        async with acting(tmp_path) as act:
            workers, stage = Workers(back=lambda: None, pids=()), act.stage
            stage.cluster.load_workers = cast("LocalLoadWorkers", workers)
            await kill_load_workers(stage)
            assert ["no load workers run: the extra `load` is not installed"] == act.said
            assert [] == workers.deeds

    run(story)


def test_settings_are_told_as_they_were_and_are(tmp_path: Path) -> None:
    """An operator's change is told by what it replaces, and what is taken away by what holds again."""

    async def story() -> None:
        async with acting(tmp_path) as act:
            told = [await tune(act.log_url, {"split.hits_threshold": value}) for value in (1, 2, None)]
            lines = ["3 (default) -> 1", "1 -> 2", "2 -> 3 (default)"]
            assert [[f"split.hits_threshold: {line}"] for line in lines] == [list(each) for each in told]

    run(story)
