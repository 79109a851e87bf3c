"""The load reports of one worker: content, intervals, failures and withdrawal."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.brokers.agent.requests import Transfer
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings, ReportRules
from equipoise.brokers.load.bus import LOADS, LoadBus
from equipoise.brokers.load.cpu_window import CpuWindow
from equipoise.brokers.runtime.loops.load_reporter import LoadReporter
from equipoise.channel.core.side_log import SideLogUnavailable
from equipoise.shedder.costs import BYTES_PER_CALL
from equipoise.shedder.fit import Amounts, with_observation
from equipoise.shedder.loads import BundleLoad, Load, fault_of
from tests.unit.http.cluster import PATIENCE_MS, Broker, cluster, started, until

pytestmark = pytest.mark.integration

OFTEN = ReportRules(sample_interval_ms=10, interval_min_ms=10, interval_max_ms=20)
SELDOM = replace(OFTEN, interval_max_ms=3_600_000, change_percent=10**9)


class Bus(LoadBus):
    """A bus that notes samples, is unavailable while `problem` is set, and holds back publishers
    while `gate` is closed.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"memory:{name}")
        self.problem: Exception | None = None
        self.samples: list[Load] = []
        self.reads = 0
        self.gate = threading.Event()
        self.gate.set()

    def publish(self, sample: Load) -> None:
        self.samples.append(sample)
        assert self.gate.wait(PATIENCE_MS / 1_000)
        if self.problem is not None:
            raise self.problem
        super().publish(sample)

    def latest(self) -> Sequence[Load]:
        self.reads += 1
        return super().latest()

    def withdraw(self, broker: str) -> None:
        if self.problem is not None:
            raise self.problem
        super().withdraw(broker)


@asynccontextmanager
async def reporting(
    broker: Broker, bus: LoadBus, settings: Callable[[], BalancingSettings]
) -> AsyncIterator[LoadReporter]:
    """Run a reporter, and end it gracefully."""
    reporter = LoadReporter(broker.worker, bus, settings)
    task = asyncio.ensure_future(reporter.run())
    try:
        yield reporter
    finally:
        task.cancel()
        await asyncio.wait([task])


def rules(reports: ReportRules) -> Callable[[], BalancingSettings]:
    """Return settings that never change."""
    settings = replace(BalancingSettings(), reports=reports)
    return lambda: settings


async def test_a_broker_reports_only_after_it_has_joined(tmp_path: Path) -> None:
    """An earlier report would not count as its first."""
    async with started(tmp_path, f"memory:{tmp_path}", {}) as broker:
        bus = Bus(str(tmp_path))
        async with reporting(broker, bus, lambda: BalancingSettings(reports=OFTEN)):
            await until(lambda: bool(bus.samples))
        assert bus.samples[0].at_ms >= broker.worker.view.brokers[broker.id].joined.timestamp_ms


async def test_a_report_has_the_load_of_the_services(tmp_path: Path) -> None:
    """It names the bundles that carry load, and counts all open ones. A broker that has left has no
    report.
    """
    async with cluster(tmp_path, balance_interval_ms=20) as brokers:
        broker, bus = brokers.brokers[0], LoadBus("memory:reports")
        bundle = brokers.bundles()[0]
        broker.service.loads[bundle] = BundleLoad(calls_per_second=40, sessions=7)
        async with reporting(broker, bus, rules(OFTEN)) as reporter:
            await until(lambda: bool(bus.latest()))
            (load,) = bus.latest()
            assert (broker.id, 4) == (load.broker, load.bundle_count)
            (busy,) = load.bundles
            assert (bundle, 40, 40 * BYTES_PER_CALL, 7) == (
                busy.bundle,
                busy.traffic.messages_in_per_second,
                busy.traffic.bytes_in_per_second,
                busy.consumers,
            )
            assert load.resources.cpu.limit > 0
            assert sorted(brokers.bundles()) == [each.bundle for each in reporter.bundles()]
        assert [] == bus.latest()


async def test_a_declared_cost_counts_by_the_capacity_of_its_unit(tmp_path: Path) -> None:
    """A load that the service fails to give is reported as unknown."""
    limits = {"tokens/s": 2_000.0}
    async with cluster(tmp_path, balance_interval_ms=20, capacities=limits) as brokers:
        broker, bus = brokers.brokers[0], LoadBus("memory:declared")
        bundle = brokers.bundles()[0]
        broker.service.loads[bundle] = BundleLoad(cost=500, unit="tokens/s")
        async with reporting(broker, bus, rules(OFTEN)):
            await until(lambda: bool(bus.latest()))
            (load,) = bus.latest()
            (declared,) = load.declared.values()
            rate = broker.worker.view.brokers[broker.id].joined.capacity / 100 / 2_000
            assert ("tokens/s", 500, limits, None) == (
                declared.unit,
                declared.amount,
                load.capacities,
                load.problem,
            )
            assert pytest.approx(rate) == declared.rate
            assert pytest.approx(500 * rate, rel=1e-3) == load.costs[bundle]
            broker.service.loads[bundle] = None  # type: ignore[assignment]
            await until(lambda: "not a BundleLoad" in (bus.latest()[0].problem or ""))


async def test_the_bus_is_read_seldom_for_the_exchange_of_units(tmp_path: Path) -> None:
    """With a thousand brokers it takes longer than a sample."""
    async with cluster(tmp_path, balance_interval_ms=20) as brokers:
        broker, bus = brokers.brokers[0], Bus("exchange")
        broker.service.loads[brokers.bundles()[0]] = BundleLoad(cost=500, unit="tokens/s")
        async with reporting(broker, bus, rules(OFTEN)):
            await until(
                lambda: any(each.rate for load in bus.samples for each in load.declared.values())
            )
            reads, count = bus.reads, len(bus.samples)
            await until(lambda: len(bus.samples) > count + 20)
        assert bus.reads - reads <= 2


async def test_other_work_is_a_share_of_the_capacity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one that is set: the leader takes this share of it away."""
    monkeypatch.setattr(CpuWindow, "other_work", lambda *_, **__: 0.5)
    async with started(tmp_path, f"memory:{tmp_path}", {"capacity": 250}) as broker:
        bus = LoadBus("memory:other")
        async with reporting(broker, bus, rules(OFTEN)):
            await until(lambda: bool(bus.latest()))
            assert bus.latest()[0].other_work == pytest.approx(0.2)


async def test_a_capacity_that_makes_a_unit_infinite_does_not_count(tmp_path: Path) -> None:
    """Otherwise the report would not be plausible, and the broker would take no part."""
    limits = {"tokens/s": 5e-324}
    async with cluster(tmp_path, balance_interval_ms=20, capacities=limits) as brokers:
        broker, bus = brokers.brokers[0], LoadBus("memory:infinite")
        broker.service.loads[brokers.bundles()[0]] = BundleLoad(cost=0, unit="tokens/s")
        async with reporting(broker, bus, rules(OFTEN)):
            await until(lambda: bool(bus.latest() and bus.latest()[0].declared))
            assert fault_of(bus.latest()[0]) is None


async def test_a_broker_begins_with_what_others_know_of_costs(tmp_path: Path) -> None:
    """Its first report has costs by the CPU use of a broker that has run for hours."""
    async with started(tmp_path, f"memory:{tmp_path}", {}) as broker:
        bus, sums = LoadBus("memory:known"), tuple[float, ...]()
        for turn in range(1_000):
            done = Amounts(calls=10.0 * (turn % 7), bundles=4)
            sums = with_observation(sums, done, 0.004 * done.calls, elapsed_s=10.0)
        bus.publish(Load(broker="old", at_ms=time.time_ns() // 1_000_000, cpu_sums=sums))
        async with reporting(broker, bus, rules(OFTEN)):
            await until(lambda: len(bus.latest()) > 1)
        per_call = broker.worker.loads.fit.for_costs.per_call
        assert per_call == pytest.approx(0.004, rel=0.01)
        scraped = (await broker.get("/metrics")).body.decode()
        assert f'of="per_call"}} {per_call}' in scraped


async def test_an_unchanged_load_is_reported_rarely(tmp_path: Path) -> None:
    """A bundle that moves away causes a report at once, and so does a shorter interval."""
    async with cluster(tmp_path, brokers=2, balance_interval_ms=20) as brokers:
        one, other = brokers.brokers
        bus, rules_now, looks = Bus("seldom"), [SELDOM], [0]

        def settings() -> BalancingSettings:
            looks[0] += 1
            return replace(BalancingSettings(), reports=rules_now[0])

        bundle = next(name for name in brokers.bundles() if brokers.owner_of(name) is one)
        async with reporting(one, bus, settings):
            await until(lambda: len(bus.samples) == 1)
            before = looks[0]
            await until(lambda: looks[0] > before + 30)
            count = bus.samples[0].bundle_count
            assert 1 == len(bus.samples)
            await one.worker.request(
                Transfer(bundle=bundle, destination=other.id, reason="test"), timeout_ms=PATIENCE_MS
            )
            await until(lambda: len(bus.samples) > 1 and bus.samples[-1].bundle_count == count - 1)
            before = len(bus.samples)
            rules_now[0] = OFTEN
            await until(lambda: len(bus.samples) > before + 2)


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the log lines of the reporter."""
    return [
        record
        for record in caplog.records
        if record.name == "equipoise.brokers.runtime.loops.load_reporter"
    ]


AWAY = SideLogUnavailable(LOADS, place="the topic loads", problem="it is away")


@pytest.mark.parametrize(
    ("problem", "level"),
    [(AWAY, "WARNING"), (KeyError("no such bundle"), "ERROR")],
    ids=["bus", "bug"],
)
async def test_failed_reports_are_logged_once_and_so_is_the_first_success(
    problem: Exception, level: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of the bus is a warning. Any other error is logged with its traceback. A failed
    withdrawal is logged, too.
    """
    caplog.set_level("INFO", logger="equipoise.brokers.runtime.loops.load_reporter")
    async with cluster(tmp_path, brokers=1, balance_interval_ms=20) as brokers:
        bus = Bus("away")
        bus.problem = problem
        async with reporting(brokers.brokers[0], bus, rules(OFTEN)):
            await until(lambda: len(bus.samples) > 10)
            (line,) = lines(caplog)
            assert (level, 1, level == "ERROR") == (
                line.levelname,
                line.__dict__["failures"],
                bool(line.exc_info),
            )
            bus.problem = None
            await until(lambda: len(lines(caplog)) > 1)
            over = lines(caplog)[-1]
            assert ("load is reported again", True) == (
                over.message,
                over.__dict__["failures"] >= 9,
            )
            bus.problem = AWAY
        assert "load report not removed" in lines(caplog)[-1].message


async def test_nothing_is_published_after_the_withdrawal(tmp_path: Path) -> None:
    """The end of the reporter waits for the thread that publishes."""
    async with cluster(tmp_path, brokers=1, balance_interval_ms=20) as brokers:
        bus = Bus("late")
        bus.gate.clear()
        task = asyncio.ensure_future(
            LoadReporter(brokers.brokers[0].worker, bus, rules(OFTEN)).run()
        )
        await until(lambda: bool(bus.samples))
        task.cancel()
        _, unfinished = await asyncio.wait([task], timeout=0.05)
        found: list[Sequence[Load]] = []
        task.add_done_callback(lambda _: found.append(bus.latest()))
        bus.gate.set()
        await until(lambda: bool(found))
        assert ({task}, [[]], 1) == (unfinished, found, len(bus.samples))
