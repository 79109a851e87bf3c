"""The steps in which the cluster balances itself, on workers of one loop with made-up load reports."""

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
from equipoise.brokers.local.demo import demo as demo_module
from equipoise.brokers.local.demo import operator, steps
from equipoise.brokers.local.demo.demo import COUNTERS, Demo
from equipoise.brokers.local.demo.figures import Utilization, utilization
from equipoise.brokers.local.demo.operator import tune
from equipoise.brokers.local.demo.steps import even_out, split_hot_bundles
from equipoise.brokers.local.local_load_workers import LocalLoadWorkers
from equipoise.channel.core.ranges import even_boundaries
from equipoise.shedder.load_reports import Summary
from equipoise.shedder.plan import Move
from tests.unit.demo.test_figures import bundle, summary
from tests.unit.http.cluster import PATIENCE_MS, Cluster, cluster, until

pytestmark = pytest.mark.integration


class _FakeDemo(SimpleNamespace):
    """As much of a demo as these steps use."""

    setup: Setup

    @property
    def summaries(self) -> Sequence[Summary]:
        """See `Demo.summaries`."""
        return self.setup.reports

    @property
    def utilization(self) -> Utilization:
        """See `Demo.utilization`."""
        return utilization(self.table.view, self.summaries)


@dataclass(kw_only=True)
class Setup:
    """A cluster of workers with made-up load reports, and what the demo shows."""

    cluster: Cluster
    reports: Sequence[Summary] = ()
    said: list[str] = field(default_factory=list)
    quoted: list[str] = field(default_factory=list)
    done: Counter[MoveKind] = field(default_factory=Counter)

    @property
    def ids(self) -> tuple[str, ...]:
        """The broker ids, by number."""
        return tuple(broker.id for broker in self.cluster.brokers)

    @property
    def log_url(self) -> str:
        """The URL of the channel."""
        return self.cluster.brokers[0].worker.config.log_url

    @property
    def settings(self) -> dict[str, object]:
        """The settings on the channel."""
        return {name: value for name, value in document_of(self.cluster.view).items() if name != CHANGED_BY}

    @property
    def demo(self) -> Demo:
        """The demo, as far as these steps use it."""
        made = _FakeDemo(
            setup=self,
            cluster=SimpleNamespace(broker_ids=self.ids, addresses=[broker.url for broker in self.cluster.brokers], log_url=self.log_url),
            table=SimpleNamespace(view=self.cluster.view),
            http=self.cluster.brokers[0].session,
            pulsar=None,
            counts=SimpleNamespace(done=self.done),
            now_s=0.0,
            say=self.said.append,
            screen=SimpleNamespace(quote=self.quoted.extend),
            number_of_leader=lambda: 0,
            incarnation=lambda number: self.cluster.brokers[number].worker.agent.incarnation,
        )
        return cast("Demo", made)

    def uses(self, *used: float) -> None:
        """Set the use that each broker reports."""
        self.reports = [summary(broker, each) for broker, each in zip(self.ids, used, strict=True)]


@asynccontextmanager
async def set_up(folder: Path) -> AsyncIterator[Setup]:
    """Set up two brokers, and four bundles of counters, all of them owned."""
    async with cluster(folder, brokers=2) as made:
        wish = CreateNamespace(name=COUNTERS, boundaries=even_boundaries(4))
        await made.brokers[0].worker.request(wish, timeout_ms=PATIENCE_MS)
        await made.settled()
        yield Setup(cluster=made)


async def when(condition: Callable[[], bool], then: Callable[[], None]) -> None:
    """Do something once a condition is true."""
    await until(condition)
    then()


def _soon_ms() -> int:
    """Return a time in the future."""
    return time.time_ns() // 1_000_000 + 60_000


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits, and replace the plan of another program."""
    for bound in ("_SEEN_MS", "_EVEN_MS", "_SPLIT_MS"):
        monkeypatch.setattr(steps, bound, 2_000)
    monkeypatch.setattr(demo_module, "_LOOK_S", 0.01)

    def plan(log_url: str) -> Sequence[str]:
        return [f"a plan for {log_url}", "two moves"]

    monkeypatch.setattr(operator, "plan", plan)


async def test_uneven_brokers_become_even(tmp_path: Path) -> None:
    """The step shows the plan, the deviation before and after, and a reason, and restores the settings."""
    async with set_up(tmp_path) as setup:
        setup.uses(0.1, 0.9)
        move = Move(bundle="x", source="a", destination="b", reason="it is full")
        log = open_decision_log(setup.log_url)  # What is in memory lives as long as somebody holds it.
        log.write(Decision(at_ms=_soon_ms(), broker="a", kind="shed", strategy="TransferShedder", moves=(move,) * 5))
        playing = asyncio.ensure_future(even_out(setup.demo))
        await until(lambda: bool(setup.quoted))
        assert (f"a plan for {setup.log_url}", "two moves") == tuple(setup.quoted)
        await when(lambda: setup.settings.get("balancing.shedding") is True, lambda: setup.uses(0.5, 0.5))
        await playing
        said = "\n".join(setup.said)
        assert f"moves 2 bundles to {setup.ids[1]}" in said
        assert all(f"{broker} {used}%" in said for broker, used in zip(setup.ids, (10, 90), strict=True))
        assert "deviation 40.0%" in said
        assert "even 0.0 s after balancing was turned on" in said
        assert "deviation 0.0%" in said
        assert 1 == said.count("TransferShedder: x from a to b, because it is full; and 4 more")
        assert "transfer.target_deviation: 0.25 (default) -> 0.06" in said
        await until(lambda: not setup.settings)


async def test_a_busy_machine_ends_no_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the brokers do not become even in time, the step says so and ends."""
    monkeypatch.setattr(steps, "_EVEN_MS", 50)
    async with set_up(tmp_path) as setup:
        setup.uses(0.1, 0.9)
        await even_out(setup.demo)
        assert any(line.startswith("not even yet") and "deviation 40.0%" in line for line in setup.said)
        await until(lambda: not setup.settings)


async def test_a_hot_bundle_is_split_and_cold_neighbours_are_merged(tmp_path: Path) -> None:
    """The step sets the limit below the load of the busiest bundle, and restores it after a split and a merge."""
    async with set_up(tmp_path) as setup:
        hot = setup.cluster.bundles(COUNTERS)[0]
        setup.reports = [summary(setup.cluster.owner_of(hot).id, 0.1, bundle(hot, 100.0))]
        playing = asyncio.ensure_future(split_hot_bundles(setup.demo))
        await until(lambda: setup.settings.get("limits.messages_per_second_max") == "60")
        assert (True, True) == (setup.settings["balancing.merging"], not playing.done())
        setup.done[MoveKind.SPLIT] += 1
        setup.done[MoveKind.MERGE] += 1
        await playing
        assert f"{hot} carries 100 calls or messages/s; the limit of a bundle is now lower" == setup.said[0]
        assert not [line for line in setup.said if "yet" in line]
        await until(lambda: not setup.settings)


async def test_without_reports_nothing_is_set(tmp_path: Path) -> None:
    """The step says why no bundle can be split."""
    async with set_up(tmp_path) as setup:
        await split_hot_bundles(setup.demo)
        assert ["no broker reports the load of its bundles, so the balancer cannot split any"] == setup.said
        await until(lambda: not setup.settings)


@dataclass(kw_only=True)
class Workers:
    """Fake load workers. `back` is called at their start."""

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
async def test_killed_load_workers_come_back(report_at_ms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step counts the moves meanwhile, and waits for a newer report."""
    monkeypatch.setattr("compose.demo._UNKNOWN_S", 0.01)
    monkeypatch.setattr("compose.demo._WORKERS_BACK_MS", 50)
    async with set_up(tmp_path) as setup:
        setup.uses(0.4, 0.4)

        def report() -> None:
            setup.reports = [summary(broker, 0.4, taken_ms=report_at_ms) for broker in setup.ids]

        workers, demo = Workers(back=report), setup.demo
        demo.cluster.load_workers = cast("LocalLoadWorkers", workers)
        await kill_load_workers(demo)
        assert ["kill", "start"] == workers.deeds
        assert "kill -9 of all 2 load workers" in setup.said[0]
        assert "balancing waited for fresh reports and moved 0 bundles meanwhile; the load workers are restarted" == setup.said[2]
        state = "are back after 0.0 s" if report_at_ms else "are NOT BACK"
        assert setup.said[3].startswith(f"they {state}, and continue their averages: brokers use")


async def test_without_load_workers_none_is_killed(tmp_path: Path) -> None:
    """They need an extra that may not be installed."""
    async with set_up(tmp_path) as setup:
        workers, demo = Workers(back=lambda: None, pids=()), setup.demo
        demo.cluster.load_workers = cast("LocalLoadWorkers", workers)
        await kill_load_workers(demo)
        assert ["no load workers run: the extra `load` is not installed"] == setup.said
        assert [] == workers.deeds


async def test_changed_settings_are_shown_before_and_after(tmp_path: Path) -> None:
    """A removed setting shows its default."""
    async with set_up(tmp_path) as setup:
        shown = [await asyncio.to_thread(tune, setup.log_url, {"split.hits_threshold": value}) for value in (1, 2, None)]
        lines = ["3 (default) -> 1", "1 -> 2", "2 -> 3 (default)"]
        assert [[f"split.hits_threshold: {line}"] for line in lines] == [list(each) for each in shown]
