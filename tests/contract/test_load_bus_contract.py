"""One suite for the load bus on every log, and tests of what only files can suffer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from unittest.mock import Mock

import pytest

from equipoise.brokers.load import bus as module
from equipoise.brokers.load.bus import LOADS, LoadBus
from equipoise.brokers.load.documents import light
from equipoise.channel.core.side_log import Document, Kept, SideLogUnavailable
from equipoise.channel.log.open_log import open_side_log
from equipoise.channel.sqlite.side_log import SqliteSideLog
from equipoise.shedder.loads import STEP_MS, BundleTraffic, Load, Resources, Traffic, Use, averaged
from tests.contract.load_bus_adapters import ADAPTERS, embedded_url

DEADLINE_SECONDS = 60.0
POLL_SECONDS = 0.02


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(each, id=each.id, marks=[pytest.mark.integration] * each.is_slow)
        for each in ADAPTERS
    ],
)
def bus_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """One bus of each adapter for all tests. One handle stays open, so that the bus lives on."""
    url = request.param.url_in(tmp_path_factory.mktemp("bus"), request)
    held = LoadBus(url)
    yield url
    held.latest()


@pytest.fixture
def open_bus(bus_url: str) -> Iterator[Callable[[], LoadBus]]:
    """The opener of handles on the bus, on which nobody has reported. What the test reports is
    withdrawn.
    """
    started_ms.cache_clear()
    yield lambda: LoadBus(bus_url)
    bus = LoadBus(bus_url)
    for each in bus.latest():
        bus.withdraw(each.broker)
    assert [] == list(until(bus, lambda found: not found))


@cache
def started_ms() -> int:
    """Unix time at the first sample of a test: a bus may ignore samples that are minutes old."""
    return time.time_ns() // 1_000_000


def sample(broker: str, /, at_ms: int = 0, used: float = 0.5, **rates: float) -> Load:
    """A light sample, `at_ms` after the start of the test. The names of the arguments are those of
    bundles, in a namespace of this test: the average of a bundle outlives the broker that had it.
    """
    traffic = {
        name: Traffic(bytes_in_per_second=rate, messages_out_per_second=rate / 2)
        for name, rate in rates.items()
    }
    bundles = [
        BundleTraffic(bundle=f"t/n{started_ms()}/{name}", traffic=each, topics=3, cost=10.5)
        for name, each in traffic.items()
    ]
    return light(
        Load(
            broker=broker,
            at_ms=started_ms() + at_ms,
            resources=Resources(cpu=Use(used=100 * used, limit=100)),
            average_use=used,
            traffic=Traffic(bytes_in_per_second=sum(rates.values())),
            bundle_count=len(rates) + 1,
            topics=7,
            cost=99.0,
            bundles=tuple(bundles),
        )
    )


def load(*samples: Load) -> Load:
    """The load of samples of one broker, one after the other."""
    found = None
    for each in samples:
        found = averaged(found, each)
    assert found is not None
    return found


def until(bus: LoadBus, condition: Callable[[Sequence[Load]], bool]) -> Sequence[Load]:
    """The loads, once the condition holds or the deadline has passed."""
    give_up = time.monotonic() + DEADLINE_SECONDS
    while not condition(found := bus.latest()) and time.monotonic() < give_up:
        time.sleep(POLL_SECONDS)
    return found


def publish(bus: LoadBus, *samples: Load) -> None:
    """Publish, and wait until each is read back."""
    for each in samples:

        def is_there(found: Sequence[Load], at: Load = each) -> bool:
            return any(s.broker == at.broker and s.at_ms == at.at_ms for s in found)

        bus.publish(each)
        assert is_there(until(bus, is_there))


def test_what_is_published_is_read_by_every_handle(open_bus: Callable[[], LoadBus]) -> None:
    """Summaries are in the order of their brokers."""
    one, other = open_bus(), open_bus()
    published = [sample("127.0.0.1:8081", x=0.1), sample("127.0.0.1:8080", y=1e17, z=0)]
    publish(one, published[0])
    publish(other, published[1])
    expected = [load(published[1]), load(published[0])]
    for handle in (one, other):
        assert expected == list(until(handle, lambda found: len(found) == len(expected)))


def test_the_latest_of_each_broker_is_kept(open_bus: Callable[[], LoadBus]) -> None:
    """Whatever time it has."""
    bus = open_bus()
    samples = [sample("a", at_ms=at_ms, x=at_ms) for at_ms in (5, 7, 6)]
    publish(bus, *samples)
    assert [load(*samples)] == list(bus.latest())


def test_averages_are_those_of_all_samples(open_bus: Callable[[], LoadBus]) -> None:
    """From any handle. After one step a tenth is new."""
    samples = [
        sample("a", x=100),
        sample("a", at_ms=STEP_MS, used=0.9, x=200),
        sample("a", at_ms=2 * STEP_MS, x=0),
    ]
    for each in samples:
        publish(open_bus(), each)
    (found,) = open_bus().latest()
    assert math.isclose(0.9 * (0.9 * 0.5 + 0.1 * 0.9) + 0.1 * 0.5, found.average_use)
    assert math.isclose(0.9 * 110, found.bundles[0].traffic.bytes_in_per_second)
    assert load(*samples) == found


def test_an_average_follows_a_bundle_that_moves(open_bus: Callable[[], LoadBus]) -> None:
    """A broker that has it now goes on where the one before stopped, also if that has reported
    without it since.
    """
    publish(open_bus(), sample("a", x=100))
    bus = open_bus()
    bus.latest()
    publish(open_bus(), sample("a", at_ms=STEP_MS))
    publish(bus, sample("b", at_ms=STEP_MS, x=0))
    found = {each.broker: each.bundles for each in open_bus().latest()}
    assert math.isclose(90, found["b"][0].traffic.bytes_in_per_second)


def test_who_leaves_is_forgotten(open_bus: Callable[[], LoadBus]) -> None:
    """Withdrawing twice is no error, and averages start again."""
    one, other = open_bus(), open_bus()
    one.withdraw("a")
    publish(one, sample("a", x=100), sample("b"))
    one.withdraw("a")
    one.withdraw("a")
    assert ["b"] == [each.broker for each in until(other, lambda found: len(found) == 1)]
    publish(one, sample("a", at_ms=10, x=200))
    assert [load(sample("a", at_ms=10, x=200)), load(sample("b"))] == list(
        until(other, lambda found: len(found) == 2)
    )


def test_any_broker_id_will_do(open_bus: Callable[[], LoadBus]) -> None:
    """Ids that differ only in case are two brokers."""
    bus, ids = open_bus(), ["a" * 255, "..", "~!#$%^&*()", "A", "a"]
    publish(bus, *(sample(broker, x=1) for broker in ids))
    found = {each.broker: each for each in bus.latest()}
    assert {broker: load(sample(broker, x=1)) for broker in ids} == found


# --- what only files can suffer ---


def test_a_report_of_a_broker_long_gone_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an old handle and by a new one, after an hour."""
    url = embedded_url(tmp_path)
    bus = LoadBus(url)
    bus.publish(sample("a"))
    now_ns = time.time_ns()
    for later_s, expected in ((3_500, [load(sample("a"))]), (3_700, [])):
        monkeypatch.setattr(module, "time", Mock(time_ns=lambda at=later_s: now_ns + at * 10**9))
        assert expected == list(bus.latest()) == list(LoadBus(url).latest())


def test_an_unreadable_summary_is_passed_over(tmp_path: Path) -> None:
    """The next sample replaces it."""
    url = embedded_url(tmp_path)
    bus = LoadBus(url)
    bus.publish(sample("a", x=1))
    open_side_log(url, LOADS).append([Document("a", b'{"broker": "a"}')])
    assert [] == list(bus.latest())
    bus.publish(sample("a", x=2))
    assert [load(sample("a", x=2))] == list(bus.latest())


def test_reports_that_an_error_interrupts_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = embedded_url(tmp_path)
    bus, read = LoadBus(url), SqliteSideLog.read
    LoadBus(url).publish(sample("a"))

    def read_once(side_log: SqliteSideLog, position: int, *, limit: int) -> Sequence[Kept]:
        if found := read(side_log, position, limit=limit):
            return found
        raise SideLogUnavailable(LOADS, place="here", problem="it is away")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteSideLog, "read", read_once)
        with pytest.raises(SideLogUnavailable):
            bus.latest()
    assert [load(sample("a"))] == list(bus.latest())
