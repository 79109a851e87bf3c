"""Test which entries of a log in a file make a batch, and how a truncated, damaged, replaced or
missing file is handled.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from equipoise.channel.core.errors import CallerError, LogWentBack, OperatorError
from equipoise.channel.core.side_log import SideLogUnavailable
from equipoise.channel.log.open_log import open_log
from equipoise.channel.sqlite.side_log import SqliteSideLog
from equipoise.spark_jobs.sequence.rows import Arrival, Positions, Source
from equipoise.spark_jobs.sources import reading, sqlite_source
from equipoise.spark_jobs.sources.frames import channel_frame, is_on_kafka
from equipoise.spark_jobs.sources.reading import Reading
from equipoise.spark_jobs.sources.sqlite_source import (
    BATCH_BYTES_MAX,
    BEGINNING,
    Span,
    SqliteStreamReader,
)

RECORDS = tuple(b"%d" % number for number in range(1, 11))


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A log of ten records, at offsets 1 to 10."""
    url = f"sqlite:{tmp_path / 'channel.db'}"
    with closing(open_log(url)) as log:
        log.append(RECORDS, timeout_ms=5_000)
    return url


@pytest.fixture
def files(url: str) -> Iterator[Reading]:
    """The same, open."""
    with closing(opened(url)) as files:
        yield files


def opened(
    url: str,
    *,
    identity: str | None = None,
    entries_max: int = 100,
    bytes_max: int = BATCH_BYTES_MAX,
) -> Reading:
    """A log that is read in batches."""
    return Reading(url, identity=identity, entries_max=entries_max, bytes_max=bytes_max)


def observe(url: str, source: Source, times_ms: list[int]) -> None:
    """Write rows with these times beside a log."""
    with (
        closing(sqlite3.connect(f"{url.removeprefix('sqlite:')}.observations")) as connection,
        connection,
    ):
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {source} (id INTEGER PRIMARY KEY AUTOINCREMENT, at_ms"
            " INTEGER NOT NULL, key TEXT NOT NULL, document TEXT)"
        )
        # A name of ours.
        connection.executemany(
            f"INSERT INTO {source} (at_ms, key, document) VALUES (?, 'a', '{{}}')",  # noqa: S608
            [(at_ms,) for at_ms in times_ms],
        )


def set_times(url: str, times_ms: dict[int, int]) -> None:
    """Have records been appended at other times."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:"))) as connection, connection:
        connection.executemany(
            "UPDATE entries SET appended_ms = ? WHERE offset = ?",
            [(at, offset) for offset, at in times_ms.items()],
        )


def offsets(arrivals: list[Arrival], source: Source = Source.CHANNEL) -> list[int]:
    """The offsets of what is read of a source."""
    return [arrival.offset for arrival in arrivals if arrival.source == source]


def ends_of(files: Reading, position: Positions) -> dict[str, int]:
    """Where the next batch ends."""
    return files.batch(position).ends


def test_a_batch_is_bounded_in_entries(url: str) -> None:
    with closing(opened(url, entries_max=4)) as files:
        first = ends_of(files, BEGINNING)
        second = ends_of(files, first)
        third = ends_of(files, second)
        assert [5, 9, 11] == [ends[Source.CHANNEL] for ends in (first, second, third)]
        assert third == ends_of(files, third)


@pytest.mark.parametrize(
    ("bytes_max", "expected"),
    [
        (3, [(4, 2), (7, 3), (10, 4)]),
        (5, [(6, 3), (10, 5), (11, 6)]),
        (0, [(2, 2), (3, 3), (4, 4)]),
    ],
)
def test_a_batch_is_bounded_in_bytes(
    url: str, monkeypatch: pytest.MonkeyPatch, bytes_max: int, expected: list[tuple[int, int]]
) -> None:
    """An entry that is too large comes alone."""
    monkeypatch.setattr(reading, "LOADS_BYTES_MAX", bytes_max)
    observe(url, Source.LOADS, [0] * 5)
    ends = [BEGINNING]
    with closing(opened(url, bytes_max=bytes_max)) as files:
        for _ in expected:
            ends.append(ends_of(files, ends[-1]))
    assert expected == [(end[Source.CHANNEL], end[Source.LOADS]) for end in ends[1:]]


def test_companion_entries_wait_for_records_of_their_time(url: str) -> None:
    set_times(url, {offset: offset * 1_000 for offset in range(1, 11)})
    observe(url, Source.SERVING, [1_000, 3_500, 9_000, 99_000])
    with closing(opened(url, entries_max=4)) as files:
        first = ends_of(files, BEGINNING)
    assert (5, 3) == (first[Source.CHANNEL], first[Source.SERVING])
    with closing(opened(url)) as files:
        last = ends_of(files, first)
    assert (11, 5) == (last[Source.CHANNEL], last[Source.SERVING])


def test_the_observations_file_may_come_late_and_be_replaced(url: str, files: Reading) -> None:
    assert 1 == ends_of(files, BEGINNING)[Source.SERVING]
    observe(url, Source.SERVING, [1, 2, 3])
    end = ends_of(files, BEGINNING)
    assert 4 == end[Source.SERVING]
    assert end == ends_of(files, end)
    Path(f"{url.removeprefix('sqlite:')}.observations").unlink()
    assert end == ends_of(files, end)
    observe(url, Source.SERVING, [1, 2])
    again = ends_of(files, end)
    assert {**end, Source.SERVING: 1} == again
    assert {**end, Source.SERVING: 3} == ends_of(files, again)


def test_a_damaged_observations_file_does_not_stop_the_channel(url: str, files: Reading) -> None:
    Path(f"{url.removeprefix('sqlite:')}.observations").write_bytes(b"no database at all" * 99)
    batch = files.batch(BEGINNING)
    assert (11, 1) == (batch.ends[Source.CHANNEL], batch.ends[Source.SERVING])
    assert isinstance(batch.away, SideLogUnavailable)
    assert 11 == files.ends()[Source.CHANNEL]


def test_an_observations_file_that_goes_while_it_is_read_ends_the_batch(
    url: str, files: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    observe(url, Source.SERVING, [1, 2])

    def gone(*_: object, **__: object) -> tuple[()]:
        Path(f"{url.removeprefix('sqlite:')}.observations").unlink()
        return ()

    monkeypatch.setattr(SqliteSideLog, "read", gone)
    assert 1 == ends_of(files, BEGINNING)[Source.SERVING]


def test_a_truncated_log_is_read_from_its_start(url: str) -> None:
    with closing(open_log(url)) as log:
        log.truncate(6, timeout_ms=5_000)
    with closing(opened(url, entries_max=2)) as files:
        batch = files.batch(BEGINNING)
    assert (8, [6, 7]) == (batch.ends[Source.CHANNEL], offsets(batch.arrivals))


def test_a_log_that_went_back_is_refused(files: Reading) -> None:
    with pytest.raises(LogWentBack):
        files.batch({**BEGINNING, Source.CHANNEL: 40})


def test_a_damaged_record_has_no_value(url: str, files: Reading) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:"))) as connection, connection:
        connection.execute("UPDATE entries SET data = X'00' WHERE offset = 3")
    arrivals = files.batch({**BEGINNING, Source.CHANNEL: 2}).arrivals
    assert [b"2", None, b"4"] == [arrival.value for arrival in arrivals[:3]]


def test_times_outside_sparks_range_are_capped(url: str, files: Reading) -> None:
    observe(url, Source.SERVING, [-5, 1 << 60])
    assert [0, reading.TIME_MS_MAX] == [
        arrival.at_ms for arrival in files.batch(BEGINNING).arrivals[-2:]
    ]


def test_another_log_is_refused(url: str) -> None:
    with pytest.raises(OperatorError, match="is not the one"):
        opened(url, identity="0" * 32)


# --- as a source of Spark ---


def span(identity: str, begin: int, end: int) -> Span:
    """A part of the channel, as Spark plans it."""
    return Span(
        {**BEGINNING, "channel": begin, "log": identity},
        {**BEGINNING, "channel": end, "log": identity},
    )


def test_planned_entries_are_read_in_bounded_batches(
    url: str, files: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_source, "ROWS_AT_ONCE", 4)
    reader = SqliteStreamReader(url, start={}, per_trigger=100)
    batches = list(reader.read(span(files.log.identity, 1, 11)))
    assert [4, 4, 2] == [batch.num_rows for batch in batches]
    assert list(RECORDS) == [
        value for batch in batches for value in batch.column("value").to_pylist()
    ]


def test_offsets_of_a_stream(url: str) -> None:
    reader = SqliteStreamReader(url, start={"channel": 3}, per_trigger=4)
    begun = reader.initialOffset()
    first = reader.latestOffset(begun, ReadAllAvailable())
    rest = reader.latestOffset(first, ReadAllAvailable())
    assert [3, 7, 11] == [position["channel"] for position in (begun, first, rest)]
    assert rest == reader.reportLatestOffset()
    assert [(begun, first)] == [piece.value for piece in reader.partitions(begun, first)]
    assert "" != first["log"]
    reader.stop()


def test_an_unwanted_source_is_not_read(url: str) -> None:
    for source in (Source.SERVING, Source.LOADS):
        observe(url, source, [0, 0])
    reader = SqliteStreamReader(
        url, sources=(Source.CHANNEL, Source.LOADS), start={}, per_trigger=100
    )
    begun = reader.initialOffset()
    end = reader.latestOffset(begun, ReadAllAvailable())
    read = [
        source
        for batch in reader.read(Span(begun, end))
        for source in batch.column("source").to_pylist()
    ]
    assert ["channel"] * 10 + ["loads"] * 2 == read
    assert {"channel": 11, "loads": 3, "log": end["log"]} == end == reader.reportLatestOffset()
    reader.stop()


def test_a_stream_to_the_end_stops_at_what_existed(url: str) -> None:
    reader = SqliteStreamReader(url, start={}, per_trigger=100)
    reader.prepareForTriggerAvailableNow()
    with closing(open_log(url)) as log:
        log.append([b"later"], timeout_ms=5_000)
    ends = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert 11 == ends["channel"]
    assert ends == reader.latestOffset(ends, ReadAllAvailable())
    reader.stop()


def test_a_stream_without_its_file_has_nothing_new(tmp_path: Path) -> None:
    """It reads the file when that comes."""
    url = f"sqlite:{tmp_path / 'channel.db'}"
    reader = SqliteStreamReader(url, start={}, per_trigger=100)
    begun = reader.initialOffset()
    assert [begun, begun] == [reader.latestOffset(begun, ReadAllAvailable()) for _ in range(2)]
    assert reader.reportLatestOffset() is None
    with closing(open_log(url)) as log:
        log.append([b"first"], timeout_ms=5_000)
    assert 2 == reader.latestOffset(begun, ReadAllAvailable())["channel"]
    reader.stop()


def test_planned_documents_that_are_away_fail_the_task(url: str, files: Reading) -> None:
    """So they are planned again, and not lost."""
    Path(f"{url.removeprefix('sqlite:')}.observations").write_bytes(b"no database at all" * 99)
    planned = span(files.log.identity, 1, 11)
    with pytest.raises(SideLogUnavailable):
        list(SqliteStreamReader(url, start={}, per_trigger=100).read(planned))


@pytest.mark.parametrize("url", ["memory:x", "sqlite:", "nonsense"])
def test_a_log_that_spark_cannot_read_is_refused(url: str) -> None:
    assert not is_on_kafka(url)
    with pytest.raises(CallerError, match="cannot open a log at"):
        # It is not reached.
        channel_frame(None, url, start={}, per_trigger=1)  # type: ignore[arg-type]
