"""One suite for every `LoadBus`: what brokers/load.py promises, asked of each adapter; and what only files can suffer.

May live here: tests that know nothing of an adapter but how to open it, and below them those of damaged files.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokers.errors import LoadBusUnavailable
from brokers.load import BundleLoad, LoadBus, Report
from brokers.load_bus import open_load_bus
from brokers.load_bus.files import KEPT_SECONDS, REPORT_BYTES_MAX, FileLoadBus
from channel.errors import InvalidLogUrl

DEADLINE_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One kind of load bus: `url_in` is the URL of a new log beside which it is, given a folder and what fixtures there are."""

    id: str
    url_in: Callable[[Path, pytest.FixtureRequest], str]


ADAPTERS = (
    Adapter(id="memory", url_in=lambda folder, _: f"memory:{folder}"),
    Adapter(id="files", url_in=lambda folder, _: f"sqlite:{folder}/log.db?synchronous=normal"),
    Adapter(id="kafka", url_in=lambda _, request: _topic_url(request)),
)


def _topic_url(request: pytest.FixtureRequest) -> str:
    kafka = request.getfixturevalue("kafka")
    return f"kafka://{kafka.address}/{kafka.topic('loads')}"


@pytest.fixture(params=[pytest.param(each, id=each.id, marks=[pytest.mark.integration] * (each.id == "kafka")) for each in ADAPTERS])
def open_bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], LoadBus]]:
    """The opener of handles on one new bus, once for each adapter; one handle is held, so that the bus lives on."""
    url = request.param.url_in(tmp_path, request)
    held = open_load_bus(url)
    yield lambda: open_load_bus(url)
    held.latest()


def report(broker: str, /, at_ms: int = 1, **calls: float) -> Report:
    """A report; the names of bundles are those of the arguments."""
    bundles = {name: BundleLoad(calls_per_second=rate, bytes_per_second=0.5, sessions=3) for name, rate in calls.items()}
    return Report(broker=broker, at_ms=at_ms, capacity=100, bundles=bundles)


def test_a_new_bus_is_empty(open_bus: Callable[[], LoadBus]) -> None:
    """Where nobody has published there is nothing to read."""
    assert [] == list(open_bus().latest())


def test_what_is_published_is_read_by_every_handle(open_bus: Callable[[], LoadBus]) -> None:
    """A report arrives as it was, and the reports stand in the order of their brokers."""
    one, other = open_bus(), open_bus()
    published = [report("127.0.0.1:8081", x=0.1), report("127.0.0.1:8080", x=1e300, y=0)]
    one.publish(published[0])
    other.publish(published[1])
    assert published[::-1] == list(one.latest()) == list(other.latest())


def test_the_latest_of_each_broker_is_kept(open_bus: Callable[[], LoadBus]) -> None:
    """A broker's next report takes the place of the one before, whatever time it says."""
    bus = open_bus()
    for at_ms in (5, 7, 6):
        bus.publish(report("a", at_ms=at_ms, x=at_ms))
    assert [report("a", at_ms=6, x=6)] == list(bus.latest())


@pytest.mark.parametrize("broker", ["a" * 255, "..", "~!#$%^&*()", "A", "a"])
def test_any_broker_id_will_do(open_bus: Callable[[], LoadBus], broker: str) -> None:
    """Whatever may be a broker's id may publish, and two that differ only in case are two."""
    bus = open_bus()
    bus.publish(report("b"))
    bus.publish(report("B"))
    bus.publish(report(broker, x=1))
    assert report(broker, x=1) in bus.latest()
    assert 3 == len(bus.latest())


def test_a_reader_never_sees_half_a_report(open_bus: Callable[[], LoadBus]) -> None:
    """While reports of very different length take each other's place, every one that is read is one that was published."""
    short, long = report("a"), report("a", 1, **{f"bundle{number}": 1.0 for number in range(2_000)})
    bus, reader, done = open_bus(), open_bus(), threading.Event()
    bus.publish(short)

    def publish() -> None:
        for _ in range(50):
            bus.publish(long)
            bus.publish(short)
        done.set()

    with ThreadPoolExecutor() as pool:
        publishing = pool.submit(publish)
        give_up = time.monotonic() + DEADLINE_SECONDS
        while True:
            (found,) = reader.latest()
            assert found in (short, long)
            if done.is_set() or time.monotonic() > give_up:
                break
        publishing.result()


def test_a_log_of_another_kind_has_no_bus() -> None:
    """A URL that names no log of ours names no bus."""
    with pytest.raises(InvalidLogUrl, match="kafka"):
        open_load_bus("kafka:localhost:9092/channel")


# --- what only files can suffer ---


def only_file(folder: Path) -> Path:
    """The one file of a bus."""
    (path,) = folder.iterdir()
    return path


def test_buses_stand_beside_their_logs(tmp_path: Path) -> None:
    """The folder is the log's path and a suffix, whatever options the URL has."""
    open_load_bus(f"sqlite:{tmp_path}/log.db?synchronous=normal").publish(report("a"))
    assert [tmp_path / "log.db.loads"] == list(tmp_path.iterdir())


def test_files_of_brokers_long_gone_are_taken_away(tmp_path: Path) -> None:
    """What has not been replaced for an hour is neither read nor kept."""
    bus = FileLoadBus(tmp_path / "loads")
    bus.publish(report("a"))
    path = only_file(tmp_path / "loads")
    os.utime(path, (0, time.time() - KEPT_SECONDS + 60))
    assert [report("a")] == list(bus.latest())
    os.utime(path, (0, time.time() - KEPT_SECONDS - 60))
    assert [] == list(bus.latest())
    assert [] == list((tmp_path / "loads").iterdir())


DAMAGED = {
    "nothing": b"",
    "no JSON": b"{",
    "another type": b"[]",
    "a field is missing": b'{"broker": "a", "at_ms": 1, "bundles": {}}',
    "no number": b'{"broker": "a", "at_ms": 1, "capacity": 1, "bundles": {"x": {"calls_per_second": NaN}}}',
    "an endless number": b'{"broker": "a", "at_ms": 1, "capacity": 1, "bundles": {"x": {"calls_per_second": 1e999}}}',
    "a negative number": b'{"broker": "a", "at_ms": 1, "capacity": 1, "bundles": {"x": {"sessions": -1}}}',
    "no capacity": b'{"broker": "a", "at_ms": 1, "capacity": 0, "bundles": {}}',
    "no UTF-8": b'{"broker": "\xff", "at_ms": 1, "capacity": 1, "bundles": {}}',
    "too long": b'{"broker": "a", "at_ms": 1, "capacity": 1, "bundles": {}}' + b" " * REPORT_BYTES_MAX,
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_passed_over(tmp_path: Path, damage: bytes) -> None:
    """A file that holds no report is as one that is not there, and the next report heals it."""
    bus = FileLoadBus(tmp_path / "loads")
    bus.publish(report("a", x=1))
    only_file(tmp_path / "loads").write_bytes(damage)
    assert [] == list(bus.latest())
    bus.publish(report("a", x=2))
    assert [report("a", x=2)] == list(bus.latest())


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_report_or_none(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Whatever stands in a file of the bus, reading it raises nothing."""
    folder = tmp_path_factory.getbasetemp() / "any-bytes"
    folder.mkdir(exist_ok=True)
    (folder / "file.json").write_bytes(data)
    assert len(FileLoadBus(folder).latest()) <= 1


def test_a_folder_that_cannot_be_is_a_typed_error(tmp_path: Path) -> None:
    """Where a file stands in the folder's place, both calls say what is wrong."""
    (tmp_path / "loads").touch()
    bus = FileLoadBus(tmp_path / "loads")
    with pytest.raises(LoadBusUnavailable, match="loads"):
        bus.publish(report("a"))
    with pytest.raises(LoadBusUnavailable, match="Not a directory"):
        bus.latest()
