"""The steps in which the cluster balances itself, where that fails or cannot begin.
`tests/integration/test_demo.py` plays all steps.
"""

from __future__ import annotations

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
from equipoise.brokers.balancing.moves import MoveKind
from equipoise.brokers.balancing.settings.settings_records import CHANGED_BY, document_of
from equipoise.brokers.local.demo import demo as demo_module
from equipoise.brokers.local.demo import operator, steps
from equipoise.brokers.local.demo.demo import COUNTERS, Demo
from equipoise.brokers.local.demo.figures import Utilization, utilization
from equipoise.brokers.local.demo.steps import even_out, split_hot_bundles
from equipoise.brokers.local.local_load_workers import LocalLoadWorkers
from equipoise.channel.core.ranges import even_boundaries
from equipoise.shedder.load_reports import Summary
from tests.unit.demo.test_figures import summary
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
        return {
            name: value
            for name, value in document_of(self.cluster.view).items()
            if name != CHANGED_BY
        }

    @property
    def demo(self) -> Demo:
        """The demo, as far as these steps use it."""
        made = _FakeDemo(
            setup=self,
            cluster=SimpleNamespace(
                broker_ids=self.ids,
                addresses=[broker.url for broker in self.cluster.brokers],
                log_url=self.log_url,
            ),
            table=SimpleNamespace(view=self.cluster.view),
            http=self.cluster.brokers[0].session,
            pulsar=None,
            bundles={COUNTERS: 4},
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


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits, and replace the plan of another program."""
    monkeypatch.setattr(steps, "_SEEN_MS", 2_000)
    monkeypatch.setattr(steps, "_MEASURED_MS", 50)
    monkeypatch.setattr(steps, "_WRITTEN_MS", 50)
    monkeypatch.setattr(demo_module, "_LOOK_S", 0.01)

    def plan(log_url: str) -> Sequence[str]:
        return [f"a plan for {log_url}", "two moves"]

    monkeypatch.setattr(operator, "plan", plan)


async def test_a_busy_machine_ends_no_demo(tmp_path: Path) -> None:
    """If no load is measured in time, the step says so, ends, and restores the settings."""
    async with set_up(tmp_path) as setup:
        setup.uses(0.1, 0.9)
        await even_out(setup.demo)
        assert [f"a plan for {setup.log_url}", "two moves"] == setup.quoted
        (line,) = [
            line
            for line in setup.said
            if line.startswith("the load after moves has not been measured yet")
        ]
        assert "deviation 40.0%" in line
        await until(lambda: not setup.settings)


async def test_without_reports_nothing_is_set(tmp_path: Path) -> None:
    """The step says why no bundle can be split."""
    async with set_up(tmp_path) as setup:
        await split_hot_bundles(setup.demo)
        assert [
            "no broker reports the load of its bundles, so the balancer cannot split any"
        ] == setup.said
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
async def test_killed_load_workers_come_back(
    report_at_ms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        assert (
            "balancing waited for fresh reports and moved 0 bundles meanwhile; the load workers are"
            " restarted" == setup.said[2]
        )
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
