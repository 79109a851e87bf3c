"""The load reports of one worker: what they tell, when they come, what is told of trouble, and that they end with the broker."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.brokers.agent.intents import Transfer
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings, ReportRules
from equipoise.brokers.errors import load_bus_unavailable
from equipoise.brokers.load.bus.memory import MemoryLoadBus
from equipoise.brokers.server import load_reporter
from equipoise.brokers.server.load_reporter import LoadReporter
from equipoise.shedder.bundle_load import BundleLoad
from equipoise.shedder.load_reports import LoadBus, Sample, Summary
from equipoise.shedder.snapshot import BYTES_PER_CALL
from tests.unit.http.cluster import PATIENCE_MS, Broker, cluster, run, until

pytestmark = pytest.mark.integration

OFTEN = ReportRules(sample_interval_ms=10, interval_min_ms=10, interval_max_ms=20)
SELDOM = replace(OFTEN, interval_max_ms=3_600_000, change_percent=10**9)


class Bus(MemoryLoadBus):
    """A bus that counts samples, is away for as long as `problem` is set, and holds back who publishes while `gate` is closed."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.problem: Exception | None = None
        self.samples: list[Sample] = []
        self.gate = threading.Event()
        self.gate.set()

    def publish(self, sample: Sample) -> None:
        self.samples.append(sample)
        assert self.gate.wait(PATIENCE_MS / 1_000)
        if self.problem is not None:
            raise self.problem
        super().publish(sample)

    def withdraw(self, broker: str) -> None:
        if self.problem is not None:
            raise self.problem
        super().withdraw(broker)


@asynccontextmanager
async def reporting(broker: Broker, bus: LoadBus, settings: Callable[[], BalancingSettings]) -> AsyncIterator[LoadReporter]:
    """A reporter that runs, and ends gracefully."""
    reporter = LoadReporter(broker.worker, bus, settings)
    task = asyncio.ensure_future(reporter.run())
    try:
        yield reporter
    finally:
        task.cancel()
        await asyncio.wait([task])


def rules(reports: ReportRules) -> Callable[[], BalancingSettings]:
    """Settings that never change."""
    settings = replace(BalancingSettings(), reports=reports)
    return lambda: settings


async def test_a_report_tells_what_services_say(tmp_path: Path) -> None:
    """Named are the bundles that carry something, counted are all that are open; whoever has left is no longer on the bus."""
    async with cluster(tmp_path, balance_interval_ms=20) as brokers:
        broker, bus = brokers.brokers[0], MemoryLoadBus("reports")
        bundle = brokers.bundles()[0]
        broker.service.loads[bundle] = BundleLoad(calls_per_second=40, sessions=7)
        async with reporting(broker, bus, rules(OFTEN)) as reporter:
            await until(lambda: bool(bus.latest()))
            (summary,) = bus.latest()
            assert (broker.id, 4) == (summary.broker, summary.load.bundle_count)
            (busy,) = summary.load.bundles or ()
            assert (bundle, 40, 40 * BYTES_PER_CALL, 7) == (
                busy.bundle,
                busy.traffic.messages_in_per_second,
                busy.traffic.bytes_in_per_second,
                busy.consumers,
            )
            assert summary.load.resources.cpu.limit > 0
            assert sorted(brokers.bundles()) == [each.bundle for each in reporter.bundles()]
        assert [] == bus.latest()


def test_a_report_is_put_together_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Totals, the busiest bundles and the rounding of thousands do not hold up the loop."""
    threads: dict[str, int] = {}

    def noted(name: str) -> Callable[..., object]:
        made: Callable[..., object] = getattr(load_reporter, name)

        def call(*args: object, **named: object) -> object:
            threads[name] = threading.get_ident()
            return made(*args, **named)

        return call

    async def story() -> None:
        async with cluster(tmp_path, brokers=1, balance_interval_ms=20) as brokers:
            bus = MemoryLoadBus("thread")
            async with reporting(brokers.brokers[0], bus, rules(OFTEN)):
                await until(lambda: bool(bus.latest()))

    monkeypatch.setattr(load_reporter, "sampled", noted("sampled"))
    monkeypatch.setattr(load_reporter, "light", noted("light"))
    run(story)
    assert ["sampled", "light"] == [name for name, thread in threads.items() if thread != threading.get_ident()]


async def test_a_load_that_stays_is_reported_seldom(tmp_path: Path) -> None:
    """While nothing has changed there is one report; a bundle that has moved away makes one at once, and so do other rules."""
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
            await one.worker.request(Transfer(bundle=bundle, destination=other.id, reason="test"), timeout_ms=PATIENCE_MS)
            await until(lambda: len(bus.samples) > 1 and bus.samples[-1].bundle_count == count - 1)
            before = len(bus.samples)
            rules_now[0] = OFTEN
            await until(lambda: len(bus.samples) > before + 2)


async def test_an_interval_of_hours_can_be_taken_back(tmp_path: Path) -> None:
    """A broker that was told to look at itself once in an hour looks soon when it is told otherwise."""
    async with cluster(tmp_path, balance_interval_ms=20) as brokers:
        bus, rules_now = Bus("hours"), [replace(OFTEN, sample_interval_ms=3_600_000)]
        async with reporting(brokers.brokers[0], bus, lambda: replace(BalancingSettings(), reports=rules_now[0])) as reporter:
            await until(lambda: bool(reporter.bundles))
            assert [] == bus.samples
            rules_now[0] = OFTEN
            await until(lambda: bool(bus.samples))


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What the reporter has told."""
    return [record for record in caplog.records if record.name == "equipoise.brokers.server.load_reporter"]


def test_an_outage_of_the_bus_is_told_once_a_minute(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """However often a report fails, the log has one line, and one when it is over, with how many failures nobody was told of."""

    async def story() -> None:
        async with cluster(tmp_path, brokers=1, balance_interval_ms=20) as brokers:
            bus = Bus("away")
            bus.problem = load_bus_unavailable(bus="the topic loads", problem="it is away")
            async with reporting(brokers.brokers[0], bus, rules(OFTEN)):
                await until(lambda: len(bus.samples) > 10)
                told = [(record.levelname, record.__dict__["failures"]) for record in lines(caplog)]
                bus.problem = None
                await until(lambda: len(lines(caplog)) > 1)
                assert [("WARNING", 1)] == told
                over = lines(caplog)[-1]
                assert ("load is reported again", True) == (over.message, over.__dict__["failures"] >= 9)

    with caplog.at_level("INFO", logger="equipoise.brokers.server.load_reporter"):
        run(story)


def test_a_bug_is_told_with_its_traceback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It comes again with every turn, so that the first line is the one that says where; the reports go on."""

    async def story() -> None:
        async with cluster(tmp_path, brokers=1, balance_interval_ms=20) as brokers:
            bus = Bus("bug")
            bus.problem = KeyError("no such bundle")
            async with reporting(brokers.brokers[0], bus, rules(OFTEN)):
                await until(lambda: len(bus.samples) > 10)
                (line,) = lines(caplog)
                assert ("ERROR", True) == (line.levelname, line.exc_info is not None and isinstance(line.exc_info[1], KeyError))
                bus.problem = load_bus_unavailable(bus="the topic loads", problem="it is away")
            assert "load report not removed" in lines(caplog)[-1].message

    with caplog.at_level("INFO", logger="equipoise.brokers.server.load_reporter"):
        run(story)


async def test_nothing_is_published_after_the_withdrawal(tmp_path: Path) -> None:
    """A thread that publishes while its broker ends is waited for, so that what it says does not outlive the broker."""
    async with cluster(tmp_path, brokers=1, balance_interval_ms=20) as brokers:
        bus = Bus("late")
        bus.gate.clear()
        task = asyncio.ensure_future(LoadReporter(brokers.brokers[0].worker, bus, rules(OFTEN)).run())
        await until(lambda: bool(bus.samples))
        task.cancel()
        _, unfinished = await asyncio.wait([task], timeout=0.05)
        found: list[Sequence[Summary]] = []
        task.add_done_callback(lambda _: found.append(bus.latest()))
        bus.gate.set()
        await until(lambda: bool(found))
        assert ({task}, [[]], 1) == (unfinished, found, len(bus.samples))
