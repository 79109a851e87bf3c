"""One suite for every `Observations`: what its port promises, asked of each adapter; and what only
files can suffer.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from equipoise.brokers.load.bus import open_load_bus
from equipoise.brokers.load.bus.documents import decode_summary
from equipoise.brokers.runtime.observations.records import (
    Kind,
    Observation,
    Observations,
    ObservationsUnavailable,
)
from equipoise.brokers.runtime.observations.stores import (
    DELETE_EVERY,
    SqliteObservations,
    are_kept,
    open_observations,
)
from equipoise.channel.core.errors import CallerError
from equipoise.channel.kafka.settings import address_of
from equipoise.channel.log.open_log import log_path
from equipoise.shedder.load_reports import Sample
from tests.kafka.topics import read_all

Read = tuple[str, bytes]
"""The broker and the document."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one channel's observations are kept: a handle, and what stands there."""

    open: Callable[[], Observations]
    read: Callable[[], Sequence[Read]]


def in_file(path: Path, kind: Kind = Kind.SERVING) -> Sequence[Read]:
    """What a file of observations holds of a kind, in order, as any program reads it."""
    with closing(sqlite3.connect(path)) as connection:
        # A name of ours.
        rows = connection.execute(f"SELECT broker, document FROM {kind} ORDER BY id").fetchall()  # noqa: S608
    return [(broker, document.encode()) for broker, document in rows]


def in_topic(url: str) -> Sequence[Read]:
    """What the topic beside a channel holds, in order."""
    address = address_of(url)
    return [
        (key.decode(), value or b"")
        for _, key, value in read_all(address.servers, f"{address.topic}-serving")
    ]


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.integration)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A new place, once for each adapter."""
    if request.param == "sqlite":
        url = f"sqlite:{tmp_path}/log.db?synchronous=normal"
        return Place(
            open=lambda: open_observations(url),
            read=lambda: in_file(Path(f"{log_path(url)}.observations")),
        )
    kafka = request.getfixturevalue("kafka")
    topic = kafka.topic("observations")
    kafka.topics.append(f"{topic}-serving")
    url = f"kafka://{kafka.address}/{topic}"
    return Place(open=lambda: open_observations(url), read=lambda: in_topic(url))


def observation(number: int, broker: str = "b") -> Observation:
    """Some observation."""
    return Observation(
        at_ms=1_700_000_000_000 + number, broker=broker, document=f'{{"number":{number}}}'.encode()
    )


def test_what_is_written_by_any_handle_is_kept_in_order(place: Place) -> None:
    """Batches come one after the other, each as it was; an empty one is nothing."""
    one, other = place.open(), place.open()
    one.write(Kind.SERVING, [observation(0), observation(1)])
    other.write(Kind.SERVING, [observation(2, "c")])
    one.write(Kind.SERVING, [])
    one.write(Kind.SERVING, [observation(3)])
    assert [
        ("b", b'{"number":0}'),
        ("b", b'{"number":1}'),
        ("c", b'{"number":2}'),
        ("b", b'{"number":3}'),
    ] == list(place.read())


def test_no_place_beside_a_log_of_another_kind() -> None:
    """In memory nobody else could read them, and a URL that names no log of ours names no place."""
    assert (False, True) == (are_kept("memory:x"), are_kept("sqlite:x"))
    with pytest.raises(CallerError, match="kafka"):
        open_observations("kafka:localhost:9092/channel")
    with pytest.raises(CallerError, match="no observations"):
        open_observations("memory:x")


# --- what only files can suffer ---


def test_the_file_stands_beside_the_log(tmp_path: Path) -> None:
    """It is the log's path and a suffix, and nothing is made before the first observation."""
    observations = open_observations(f"sqlite:{tmp_path}/log.db?synchronous=normal")
    assert [] == list(tmp_path.iterdir())
    observations.write(Kind.SERVING, [observation(0)])
    assert [tmp_path / "log.db.observations"] == list(tmp_path.iterdir())


def test_the_oldest_rows_go(tmp_path: Path) -> None:
    """A table holds what it may and a little more; what goes is the oldest, and no row gets the
    number of one that is gone.
    """
    path = tmp_path / "observations"
    observations = SqliteObservations(path, rows_max={Kind.SERVING: 10, Kind.LOADS: 10})
    for start in range(0, 3 * DELETE_EVERY, 300):
        observations.write(
            Kind.SERVING, [observation(number) for number in range(start, start + 300)]
        )
        assert len(in_file(path)) <= 10 + DELETE_EVERY + 300
    observations.write(
        Kind.SERVING, [observation(number) for number in range(3 * DELETE_EVERY, 4 * DELETE_EVERY)]
    )
    assert [
        f'{{"number":{number}}}'.encode()
        for number in range(4 * DELETE_EVERY - 10, 4 * DELETE_EVERY)
    ] == [document for _, document in in_file(path)]
    with closing(sqlite3.connect(path)) as connection:
        assert [(4 * DELETE_EVERY,)] == connection.execute("SELECT max(id) FROM serving").fetchall()


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    """Handles of several threads that make the file at once make one, and all that they wrote is in
    it, whatever its kind.
    """
    path = tmp_path / "observations"

    def write(number: int) -> None:
        SqliteObservations(path).write(
            Kind.SERVING if number % 2 else Kind.LOADS, [observation(number)]
        )

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(40)))
    assert set(range(40)) == {
        int(document.partition(b":")[2].rstrip(b"}"))
        for kind in Kind
        for _, document in in_file(path, kind)
    }


def test_other_tables_of_the_file_stay(tmp_path: Path) -> None:
    """What others keep in the same file is theirs."""
    path = tmp_path / "observations"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE findings (id INTEGER PRIMARY KEY)")
    SqliteObservations(path).write(Kind.SERVING, [observation(0)])
    with closing(sqlite3.connect(path)) as connection:
        assert [] == connection.execute("SELECT * FROM findings").fetchall()
    assert [("b", b'{"number":0}')] == list(in_file(path))


def test_a_file_that_cannot_be_used_is_a_typed_error(tmp_path: Path) -> None:
    """A file of something else, one that is held by another, and a folder in its place say what is
    wrong, and nothing is kept.
    """
    path = tmp_path / "observations"
    path.write_bytes(b"no database at all, but long enough to be taken for one" * 100)
    with pytest.raises(ObservationsUnavailable, match="not a database"):
        SqliteObservations(path).write(Kind.SERVING, [observation(0)])
    path.unlink()
    SqliteObservations(path).write(Kind.SERVING, [observation(0)])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(ObservationsUnavailable, match="locked"):
            SqliteObservations(path).write(Kind.SERVING, [observation(1), observation(2)])
    assert [("b", b'{"number":0}')] == list(in_file(path))
    with pytest.raises(ObservationsUnavailable, match="unable to open"):
        SqliteObservations(tmp_path).write(Kind.SERVING, [observation(0)])


def test_load_reports_are_kept_beside_an_embedded_log(tmp_path: Path) -> None:
    """Each summary is put down as it stands on the load bus, with whose it is, where that is asked
    for.
    """
    url = f"sqlite:{tmp_path}/log.db"
    open_load_bus(url).publish(Sample(broker="quiet", at_ms=1))
    bus = open_load_bus(url, keep=True)
    for at_ms in (1_700_000_000_000, 1_700_000_005_000):
        bus.publish(Sample(broker="a", at_ms=at_ms, cost=2.5))
    kept = in_file(tmp_path / "log.db.observations", Kind.LOADS)
    assert ["a", "a"] == [broker for broker, _ in kept]
    assert [1_700_000_000_000, 1_700_000_005_000] == [
        decode_summary(document).load.taken_ms for _, document in kept
    ]
    assert next(each for each in bus.latest() if each.broker == "a") == decode_summary(kept[-1][1])


def test_load_reports_that_cannot_be_kept_are_exchanged_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The load bus does not depend on who looks back; that nothing is kept is told once, and that
    it is again.
    """
    url, path = f"sqlite:{tmp_path}/log.db", tmp_path / "log.db.observations"
    path.mkdir()
    bus = open_load_bus(url, keep=True)
    with caplog.at_level("INFO"):
        bus.publish(Sample(broker="a", at_ms=1))
        bus.publish(Sample(broker="a", at_ms=2))
        assert [2] == [summary.load.taken_ms for summary in bus.latest()]
        path.rmdir()
        bus.publish(Sample(broker="a", at_ms=3))
    assert ["load reports not stored", "load reports are stored again"] == [
        line.message.partition(":")[0] for line in caplog.records
    ]
    assert 1 == len(in_file(path, Kind.LOADS))
